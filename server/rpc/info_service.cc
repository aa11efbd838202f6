#include "quantgate/v1/info_service.grpc.pb.h"
#include "server/rpc/services.h"
#include "server/rpc/unary_call.h"
#include "server/runs/info_calls.h"
#include "server/wire/convert_recipe.h"

namespace quantgate {
namespace {

/// Serves answers that are assembled once, since they do not change. Only the devices' clocks do.
class InfoService : public v1::Info::CallbackService {
 public:
  explicit InfoService(ServiceContext& context)
      : context_(context),
        capabilities_(CapabilitiesOf(context, context.options.blob_bytes_max,
                                     context.options.queue_capacity, context.options.sessions)),
        recipes_(DescribeRecipes()),
        arithmetics_(DescribeArithmetics()) {}

  grpc::ServerUnaryReactor* GetCapabilities(grpc::CallbackServerContext* server_context,
                                            const v1::GetCapabilitiesRequest*,
                                            v1::Capabilities* response) noexcept override {
    return AnswerInline(context_, Rpc("Info.GetCapabilities"), server_context, [&] {
      *response = capabilities_;
      // The environment is read anew, because it states the devices' present clocks.
      *response->mutable_environment() = EnvironmentToProto(DescribeDevices(context_.devices));
      return absl::OkStatus();
    });
  }
  grpc::ServerUnaryReactor* ListRecipes(grpc::CallbackServerContext* server_context,
                                        const v1::ListRecipesRequest*,
                                        v1::ListRecipesResponse* response) noexcept override {
    return Answer(Rpc("Info.ListRecipes"), server_context, recipes_, response);
  }
  grpc::ServerUnaryReactor* CheckHardware(grpc::CallbackServerContext* server_context,
                                          const v1::CheckHardwareRequest* request,
                                          v1::CheckHardwareResponse* response) noexcept override {
    return AnswerOnDevice(context_, Rpc("Info.CheckHardware"), server_context, [=, this] {
      return PrepareCheckHardware(context_, *request, *response);
    });
  }
  grpc::ServerUnaryReactor* ListArithmetics(
      grpc::CallbackServerContext* server_context, const v1::ListArithmeticsRequest*,
      v1::ListArithmeticsResponse* response) noexcept override {
    return Answer(Rpc("Info.ListArithmetics"), server_context, arithmetics_, response);
  }

 private:
  template <typename Message>
  grpc::ServerUnaryReactor* Answer(Rpc rpc, grpc::CallbackServerContext* server_context,
                                   const Message& answer, Message* response) {
    return AnswerInline(context_, rpc, server_context, [&] {
      *response = answer;
      return absl::OkStatus();
    });
  }

  ServiceContext& context_;
  const v1::Capabilities capabilities_;
  const v1::ListRecipesResponse recipes_;
  const v1::ListArithmeticsResponse arithmetics_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInfoService(ServiceContext& context) {
  return std::make_unique<InfoService>(context);
}

}  // namespace quantgate
