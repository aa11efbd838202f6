#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/cuda_module.h"
#include "kernels/gemm/algorithm_inventory.h"
#include "kernels/validate/parallel_spec.h"
#include "quantgate/v1/info_service.grpc.pb.h"
#include "server/limits.h"
#include "server/rpc/services.h"
#include "server/rpc/unary_call.h"
#include "server/wire/convert_recipe.h"
#include "server/wire/convert_tensor.h"

namespace quantgate {
namespace {

/// OrderedProfiles and the library's own sum.
std::vector<ReductionProfile> AllProfiles() {
  std::vector<ReductionProfile> profiles = OrderedProfiles();
  profiles.push_back({.kind = ReductionKind::kNccl});
  return profiles;
}

v1::Capabilities MakeCapabilities(const ServiceContext& context) {
  v1::Capabilities proto;
  *proto.mutable_environment() = EnvironmentToProto(DescribeDevices(context.devices));
  v1::Limits& limits = *proto.mutable_limits();
  limits.set_message_bytes_max(kMessageBytesMax);
  limits.set_chunk_bytes(kChunkBytes);
  limits.set_inline_bytes_max(kInlineBytesMax);
  limits.set_blob_bytes_max(context.options.blob_bytes_max);
  limits.set_tensor_bytes_max(context.options.tensor_bytes_max);
  limits.set_rank_max(kRankMax);
  limits.set_variants_max(kVariantsMax);
  limits.set_queue_capacity(context.options.queue_capacity);
  limits.set_find_missing_max(kFindMissingMax);
  const SessionLimits& sessions = context.sessions.limits();
  limits.set_sessions_max(sessions.sessions_max);
  limits.set_session_bytes_max(sessions.bytes_max);
  limits.set_session_lease_seconds_max(absl::ToInt64Seconds(sessions.lease_max));
  for (const DTypeTraits& traits : AllDTypes()) proto.add_dtypes(std::string(traits.name));
  for (const Distribution distribution : AllDistributions()) {
    proto.add_distributions(std::string(DistributionName(distribution)));
  }
  for (const LayerTraits& traits : AllLayerKinds()) proto.add_layers(std::string(traits.name));
  for (const std::string_view name : kActivationKindNames) {
    proto.add_activations(std::string(name));
  }
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    proto.add_norms(std::string(NormKindName(kind)));
  }
  for (const ReductionProfile& profile : AllProfiles()) {
    proto.add_reduction_profiles(ReductionProfileName(profile));
  }
  for (const CollectiveBackend backend : {CollectiveBackend::kLocal, CollectiveBackend::kNccl}) {
    proto.add_collective_backends(std::string(CollectiveBackendName(backend)));
  }
  proto.set_digest_function("sha256");
  for (const char* feature :
       {"resumable_upload", "generate", "wait_run", "request_id", "sessions"}) {
    proto.add_features(feature);
  }
  return proto;
}

v1::AlgorithmInventory InventoryToProto(const AlgorithmInventory& inventory) {
  v1::AlgorithmInventory proto;
  proto.set_device(inventory.device);
  proto.set_driver(inventory.driver);
  proto.set_cublaslt(inventory.cublaslt);
  proto.set_date(inventory.date);
  proto.set_program(inventory.program);
  for (const AlgorithmClass& c : inventory.classes) {
    v1::AlgorithmClass& item = *proto.add_classes();
    item.set_operands(c.operands);
    item.set_algorithm_id(c.algorithm_id);
    item.set_slices(c.slices);
    item.set_request(c.request);
    item.set_arithmetic(c.arithmetic);
    item.set_first_choices(c.first_choices);
    item.set_returned(c.returned);
    item.set_equal(c.equal);
    item.set_differing(c.differing);
    item.set_not_run(c.not_run);
  }
  return proto;
}

/// What this server is does not change but for its clocks, so it is put together once.
class InfoService : public v1::Info::CallbackService {
 public:
  explicit InfoService(ServiceContext& context)
      : context_(context), capabilities_(MakeCapabilities(context)) {
    for (const auto& recipe : AllRecipes()) {
      *recipes_.add_recipes() = RecipeDescriptionToProto(recipe);
    }
    for (const auto& arithmetic : AllArithmetics()) {
      *arithmetics_.add_arithmetics() = ArithmeticDescriptionToProto(arithmetic);
    }
    *arithmetics_.mutable_cublaslt() = InventoryToProto(CublasLtInventory());
  }

  grpc::ServerUnaryReactor* GetCapabilities(grpc::CallbackServerContext* server_context,
                                            const v1::GetCapabilitiesRequest*,
                                            v1::Capabilities* response) override {
    return AnswerInline(context_, Rpc::kGetCapabilities, server_context, [&] {
      *response = capabilities_;
      // Devices say their clocks as they are now.
      *response->mutable_environment() = EnvironmentToProto(DescribeDevices(context_.devices));
      return absl::OkStatus();
    });
  }
  grpc::ServerUnaryReactor* ListRecipes(grpc::CallbackServerContext* server_context,
                                        const v1::ListRecipesRequest*,
                                        v1::ListRecipesResponse* response) override {
    return Answer(Rpc::kListRecipes, server_context, recipes_, response);
  }
  grpc::ServerUnaryReactor* CheckHardware(grpc::CallbackServerContext* server_context,
                                          const v1::CheckHardwareRequest* request,
                                          v1::CheckHardwareResponse* response) override {
    return AnswerOnDevice(context_, Rpc::kCheckHardware, Operation::kCheckHardware, server_context,
                          [=, this] { return PrepareCheck(*request, *response); });
  }
  grpc::ServerUnaryReactor* ListArithmetics(grpc::CallbackServerContext* server_context,
                                            const v1::ListArithmeticsRequest*,
                                            v1::ListArithmeticsResponse* response) override {
    return Answer(Rpc::kListArithmetics, server_context, arithmetics_, response);
  }

 private:
  absl::StatusOr<Device*> DeviceToCheck(const std::string& id) {
    for (const auto& device : context_.devices) {
      const bool is_cuda = device->engine->Memory().bytes_total != 0;
      if (id.empty() ? is_cuda : device->id == id) return device.get();
    }
    if (!id.empty()) return Refuse("device", Printable(id), "the server has no such device");
    const absl::Status counted = CountCudaDevices().status();
    if (!counted.ok()) return WithinField("device", counted);
    return RefusePrecondition("device", "", "this server does not compute on a CUDA device");
  }

  absl::StatusOr<DeviceWork> PrepareCheck(const v1::CheckHardwareRequest& request,
                                          v1::CheckHardwareResponse& response) {
    QG_ASSIGN_OR_RETURN(Device * chosen, DeviceToCheck(request.device()));
    const auto size = request.full() ? HardwareCheckSize::kFull : HardwareCheckSize::kQuick;
    return DeviceWork{
        "",
        [this, size, again = request.again(), &response](
            Device& device, const Cancellation& cancellation) -> absl::Status {
          QG_ASSIGN_OR_RETURN(const HardwareCheckResult result,
                              context_.hardware_checks.Check(device, size, again, &cancellation));
          context_.metrics.HardwareChecked(device.id, result.runs, result.drifted_runs);
          ToProto(device.id, result, response);
          return absl::OkStatus();
        },
        chosen};
  }

  static void ToProto(const std::string& id, const HardwareCheckResult& result,
                      v1::CheckHardwareResponse& proto) {
    proto.set_device(id);
    proto.set_key(result.key);
    proto.set_drifted(result.has_drift);
    proto.set_runs(result.runs);
    proto.set_outputs(result.outputs);
    proto.set_drifted_runs(result.drifted_runs);
    proto.set_seconds(result.seconds);
    proto.set_remembered(result.is_remembered);
    for (const std::string& line : result.lines) proto.add_lines(line);
  }

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
  v1::ListRecipesResponse recipes_;
  v1::ListArithmeticsResponse arithmetics_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInfoService(ServiceContext& context) {
  return std::make_unique<InfoService>(context);
}

}  // namespace quantgate
