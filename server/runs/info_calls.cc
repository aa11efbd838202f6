#include "server/runs/info_calls.h"

#include <string>
#include <vector>

#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/cuda_module.h"
#include "kernels/gemm/cublaslt/algorithm_inventory.h"
#include "kernels/validate/ranks/parallel_variant.h"
#include "server/device/hardware_checks.h"
#include "server/limits.h"
#include "server/wire/convert_recipe.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

/// OrderedProfiles and the sum that NCCL makes itself.
std::vector<ReductionProfile> AllProfiles() {
  std::vector<ReductionProfile> profiles = OrderedProfiles();
  profiles.push_back({.kind = ReductionKind::kNccl});
  return profiles;
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

absl::StatusOr<Device*> DeviceToCheck(const Devices& devices, const std::string& id) {
  for (const auto& device : devices) {
    const bool is_cuda = device->engine->Memory().bytes_total != 0;
    if (id.empty() ? is_cuda : device->id == id) return device.get();
  }
  if (!id.empty()) return Refuse("device", Printable(id), "the server has no such device");
  const absl::Status counted = CountCudaDevices().status();
  if (!counted.ok()) return WithinField("device", counted);
  return RefusePrecondition("device", "", "this server does not compute on a CUDA device");
}

void CheckToProto(const std::string& id, const HardwareCheckResult& result,
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

}  // namespace

v1::Capabilities CapabilitiesOf(const CallContext& context, int64_t blob_bytes_max,
                                int queue_capacity, const SessionLimits& sessions) {
  v1::Capabilities proto;
  *proto.mutable_environment() = EnvironmentToProto(DescribeDevices(context.devices));
  v1::Limits& limits = *proto.mutable_limits();
  limits.set_message_bytes_max(kMessageBytesMax);
  limits.set_chunk_bytes(kChunkBytes);
  limits.set_inline_bytes_max(kInlineBytesMax);
  limits.set_blob_bytes_max(blob_bytes_max);
  limits.set_tensor_bytes_max(context.tensor_bytes_max);
  limits.set_rank_max(kRankMax);
  limits.set_variants_max(kVariantsMax);
  limits.set_queue_capacity(queue_capacity);
  limits.set_find_missing_max(kFindMissingMax);
  limits.set_sessions_max(sessions.sessions_max);
  limits.set_session_bytes_max(sessions.bytes_max);
  limits.set_session_lease_seconds_max(absl::ToInt64Seconds(sessions.lease_max));
  limits.set_trace_steps_max(kTraceStepsMax);
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
       {"resumable_upload", "generate", "wait_run", "request_id", "sessions", "traces"}) {
    proto.add_features(feature);
  }
  return proto;
}

v1::ListRecipesResponse DescribeRecipes() {
  v1::ListRecipesResponse proto;
  for (const auto& recipe : AllRecipes()) *proto.add_recipes() = RecipeDescriptionToProto(recipe);
  return proto;
}

v1::ListArithmeticsResponse DescribeArithmetics() {
  v1::ListArithmeticsResponse proto;
  for (const auto& arithmetic : AllArithmetics()) {
    *proto.add_arithmetics() = ArithmeticDescriptionToProto(arithmetic);
  }
  *proto.mutable_cublaslt() = InventoryToProto(CublasLtInventory());
  return proto;
}

absl::StatusOr<DeviceWork> PrepareCheckHardware(CallContext& context,
                                                const v1::CheckHardwareRequest& request,
                                                v1::CheckHardwareResponse& response) {
  QG_ASSIGN_OR_RETURN(Device * chosen, DeviceToCheck(context.devices, request.device()));
  const auto size = request.full() ? HardwareCheckSize::kFull : HardwareCheckSize::kQuick;
  return DeviceWork{
      "",
      [&context, size, again = request.again(), &response](
          Device& device, const Cancellation& cancellation) -> absl::Status {
        QG_ASSIGN_OR_RETURN(const HardwareCheckResult result,
                            context.hardware_checks.Check(device, size, again, &cancellation));
        context.statistics.HardwareChecked(device.id, result.runs, result.drifted_runs);
        CheckToProto(device.id, result, response);
        return absl::OkStatus();
      },
      chosen};
}

}  // namespace quantgate
