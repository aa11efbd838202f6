#include "server/wire/layer_run.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/quantized_outline.h"
#include "server/wire/convert_tensor.h"

namespace quantgate {
namespace {

/// Puts "spec" before a field that the plan names where it is a field of RunSpec itself, and
/// "spec.step" before any other.
absl::Status AtSpecField(const absl::Status& status) {
  static constexpr const char* kSpecFields[] = {"variants", "reference", "requirement",
                                                "subjects", "seed",      "error_budget"};
  const std::optional<Refusal> refusal = RefusalOf(status);
  const bool is_of_spec = !refusal || std::any_of(std::begin(kSpecFields), std::end(kSpecFields),
                                                  [&](const char* field) {
                                                    return absl::StartsWith(refusal->field, field);
                                                  });
  return WithinField(is_of_spec ? "spec" : "spec.step", status);
}

void SetDigest(const TensorReference& reference, v1::TensorSource& source) {
  if (!reference.has_value() || source.has_generate()) return;
  v1::StoredTensor& stored = *source.mutable_stored();
  *stored.mutable_digest() = DigestToProto(reference.digest);
  *stored.mutable_type() = TensorTypeToProto(*reference.type);
}

/// Puts digests in place of bytes in the parts of a quantized tensor.
void SetDigests(const QuantizedReference& reference, v1::QuantizedSource& source) {
  for (auto& [name, part] : *source.mutable_tensors()) {
    const auto found = reference.parts.find(SlotOfPart(name));
    if (found != reference.parts.end()) SetDigest(found->second, part);
  }
}

/// Puts the outlines of an operand that is given as codes into the step.
absl::Status OutlineCodes(const std::string& name, const QuantizedReference& reference,
                          LayerRequest& step) {
  QG_ASSIGN_OR_RETURN(const QuantizedPlan plan, OutlineOf(reference));
  QG_RETURN_IF_ERROR(WithinField(reference.field, plan.CheckValues()));
  const QuantizedTensor& codes = plan.outline();
  QG_ASSIGN_OR_RETURN(const Tensor values, OutlineTensor(codes.source_dtype, codes.shape));
  if (name == "x") {
    step.x = values;
  } else if (name == "grad_output") {
    step.grad_output = values;
  } else {
    for (auto& [parameter, tensor] : step.parameters) {
      if (NameOfCodes(parameter) != name) continue;
      tensor = values;
      step.codes[parameter] = codes;
    }
    return absl::OkStatus();
  }
  step.codes[name] = codes;
  return absl::OkStatus();
}

}  // namespace

std::vector<TensorReference*> LayerRun::references() {
  std::vector<TensorReference*> all;
  for (auto& [name, reference] : tensors) all.push_back(&reference);
  for (auto& [name, operand] : quantized) {
    for (auto& [slot, reference] : operand.parts) all.push_back(&reference);
  }
  return all;
}

std::string LayerRun::Summary() const {
  const size_t variants = request.variants.size();
  return absl::StrCat(std::string(LayerKindName(request.step.layer.kind)), " x ", variants,
                      variants == 1 ? " variant" : " variants");
}

absl::StatusOr<Plan> OutlineLayerRun(const LayerRun& run) {
  LayerRunRequest request = run.request;
  QG_RETURN_IF_ERROR(VisitTensors(request, [&](const std::string& name, Tensor& tensor) {
    const auto found = run.tensors.find(name);
    if (found != run.tensors.end()) tensor = OutlineOf(found->second);
    return absl::OkStatus();
  }));
  for (const auto& [name, reference] : run.quantized) {
    QG_RETURN_IF_ERROR(OutlineCodes(name, reference, request.step));
  }
  absl::StatusOr<Plan> plan = Plan::Create(std::move(request));
  if (!plan.ok()) return AtSpecField(plan.status());
  return plan;
}

v1::RunSpec KeptRequest(const v1::RunSpec& spec, const LayerRun& run) {
  v1::RunSpec kept = spec;
  v1::LayerStep& step = *kept.mutable_step();
  const auto set = [&](const std::string& name, v1::TensorSource& source) {
    const auto found = run.tensors.find(name);
    if (found != run.tensors.end()) SetDigest(found->second, source);
    const auto quantized = run.quantized.find(name);
    if (quantized != run.quantized.end()) {
      SetDigests(quantized->second, *source.mutable_quantized());
    }
  };
  const auto set_all = [&](const char* field,
                           google::protobuf::Map<std::string, v1::TensorSource>& sources) {
    for (auto& [name, source] : sources) set(absl::StrCat(field, "[", name, "]"), source);
  };
  if (step.has_x()) set("x", *step.mutable_x());
  if (step.has_grad_output()) set("grad_output", *step.mutable_grad_output());
  set_all("parameters", *step.mutable_parameters());
  set_all("main_grads", *step.mutable_main_grads());
  set_all("delayed_state", *step.mutable_delayed_state());
  set_all("subjects", *kept.mutable_subjects());
  return kept;
}

std::string RepeatCommand(const std::string& run_id) {
  return absl::StrCat("quantgate run --spec run:", run_id);
}

}  // namespace quantgate
