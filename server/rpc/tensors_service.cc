#include <memory>

#include "quantgate/v1/tensors_service.grpc.pb.h"
#include "server/rpc/services.h"
#include "server/rpc/unary_call.h"
#include "server/runs/tensor_calls.h"

namespace quantgate {
namespace {

class TensorsService : public v1::Tensors::CallbackService {
 public:
  explicit TensorsService(ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* Put(grpc::CallbackServerContext* server_context,
                                const v1::PutTensorRequest* request,
                                v1::TensorRecord* response) noexcept override {
    return AnswerOnDevice(context_, Rpc("Tensors.Put"), server_context,
                          [=, this] { return PreparePutTensor(context_, *request, *response); });
  }
  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* server_context,
                                     const v1::GenerateTensorRequest* request,
                                     v1::TensorRecord* response) noexcept override {
    return AnswerOnDevice(context_, Rpc("Tensors.Generate"), server_context, [=, this] {
      return PrepareGenerateTensor(context_, *request, *response);
    });
  }
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* server_context,
                                     const v1::DescribeTensorRequest* request,
                                     v1::TensorRecord* response) noexcept override {
    return AnswerOnDevice(context_, Rpc("Tensors.Describe"), server_context, [=, this] {
      return PrepareDescribeTensor(context_, *request, *response);
    });
  }
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* server_context,
                                 const v1::ListTensorsRequest* request,
                                 v1::ListTensorsResponse* response) noexcept override {
    return AnswerOnExecutor(context_, Rpc("Tensors.List"), Admission::kAlways, server_context,
                            [=, this] { return ListTensors(context_, *request, *response); });
  }

 private:
  ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeTensorsService(ServiceContext& context) {
  return std::make_unique<TensorsService>(context);
}

}  // namespace quantgate
