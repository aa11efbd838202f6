#include <grpcpp/support/server_callback.h>

#include "quantgate/v1/scenarios_service.grpc.pb.h"
#include "server/rpc/scenario_stream.h"
#include "server/rpc/services.h"
#include "server/rpc/unary_call.h"
#include "server/wire/convert_scenario.h"

namespace quantgate {
namespace {

class ScenariosService : public v1::Scenarios::CallbackService {
 public:
  explicit ScenariosService(ServiceContext& context)
      : context_(context), scenarios_(ScenariosToProto(BuiltInScenarios())) {}

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* server_context,
                                 const v1::ListScenariosRequest*,
                                 v1::ListScenariosResponse* response) noexcept override {
    return AnswerInline(context_, Rpc("Scenarios.List"), server_context, [&] {
      *response = scenarios_;
      return absl::OkStatus();
    });
  }

  grpc::ServerWriteReactor<v1::ScenarioEvent>* Run(
      grpc::CallbackServerContext* server_context,
      const v1::RunScenariosRequest* request) noexcept override {
    return new ScenarioStream(context_, server_context, request);
  }

 private:
  ServiceContext& context_;
  const v1::ListScenariosResponse scenarios_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeScenariosService(ServiceContext& context) {
  return std::make_unique<ScenariosService>(context);
}

}  // namespace quantgate
