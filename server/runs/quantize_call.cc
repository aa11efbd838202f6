// Engine.Quantize.
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/quantize_plan.h"
#include "server/runs/engine_calls.h"
#include "server/runs/output_writer.h"
#include "server/wire/convert_recipe.h"
#include "server/wire/convert_report.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/quantized_parts.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

struct QuantizeWork {
  SlotReferences references;
  QuantizePlan plan;
};

absl::StatusOr<QuantizeWork> CheckQuantize(CallContext& context, const v1::QuantizeRequest& proto) {
  const int64_t bytes_max = context.tensor_bytes_max;
  SlotReferences references;
  QG_RETURN_IF_ERROR(AddReference("tensor", proto.tensor(), bytes_max, references));
  QG_RETURN_IF_ERROR(AddReference("scale", proto.scale(), bytes_max, references));
  QG_RETURN_IF_ERROR(AddReference("amax_history", proto.amax_history(), bytes_max, references));
  QG_RETURN_IF_ERROR(RequireTensors(references, {"tensor"}));
  QG_ASSIGN_OR_RETURN(Recipe recipe, RecipeFromProto(proto.recipe(), "recipe"));
  const auto role = ParseTensorRole(proto.role());
  if (!role.ok()) {
    return Refuse("role", Printable(proto.role()), "must be input, weight or grad_output");
  }
  QG_ASSIGN_OR_RETURN(const ScaleLayout layout,
                      ScaleLayoutFromName(proto.scale_layout(), "scale_layout"));
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  QG_ASSIGN_OR_RETURN(QuantizePlan plan,
                      QuantizePlan::Create({.source = OutlineOf(references, "tensor"),
                                            .state = {OutlineOf(references, "scale"),
                                                      OutlineOf(references, "amax_history")},
                                            .recipe = std::move(recipe),
                                            .role = *role,
                                            .usages = {proto.rowwise(), proto.columnwise()},
                                            .seed = proto.seed(),
                                            .scale_layout = layout}));
  return QuantizeWork{std::move(references), std::move(plan)};
}

absl::Status Quantize(CallContext& context, Device& device, const QuantizeWork& work,
                      const Cancellation& cancellation, v1::QuantizeResponse& response) {
  const auto load = [&](const std::string& slot) {
    const TensorReference& reference = work.references.at(slot);
    // The other slots are the state of delayed scaling, whose values are checked in host memory.
    return slot == "tensor" ? context.loader.Load(reference, device, &cancellation)
                            : context.loader.LoadToHost(reference, device, &cancellation);
  };
  QG_ASSIGN_OR_RETURN(const QuantizePlan plan, work.plan.WithTensors(load));
  QG_ASSIGN_OR_RETURN(const QuantizeResult result, plan.Run(*device.engine, &cancellation));
  std::vector<NamedTensor> parts = PartsOf(result.quantized);
  if (result.amax_history.has_value()) parts.push_back({kAmaxHistoryPart, result.amax_history});
  OutputWriter writer(context.blobs, *device.engine, KeepOutputs::kLarge);
  QG_RETURN_IF_ERROR(writer.WriteAll(parts, &cancellation, *response.mutable_tensors()));
  const QuantizeRequest& request = plan.request();
  *response.mutable_record() = QuantizationRecordToProto(result.record);
  *response.mutable_description() =
      QuantizedDescriptionToProto(result.quantized, request.scale_layout);
  response.set_source_dtype(std::string(DTypeName(request.source.dtype())));
  context.statistics.Quantized(request.recipe.name(), result.record.counts);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeviceWork> PrepareQuantize(CallContext& context, const v1::QuantizeRequest& request,
                                           v1::QuantizeResponse& response) {
  QG_ASSIGN_OR_RETURN(QuantizeWork work, CheckQuantize(context, request));
  std::string recipe = work.plan.request().recipe.name();
  return DeviceWork{std::move(recipe), [&context, &response, work = std::move(work)](
                                           Device& device, const Cancellation& cancellation) {
                      return Quantize(context, device, work, cancellation, response);
                    }};
}

}  // namespace quantgate
