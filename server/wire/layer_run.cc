#include "server/wire/layer_run.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

/// What the plan names that is a field of RunSpec itself; all else is one of its step.
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

}  // namespace

std::vector<TensorReference*> LayerRun::references() {
  std::vector<TensorReference*> all;
  for (auto& [name, reference] : tensors) all.push_back(&reference);
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
  absl::StatusOr<Plan> plan = Plan::Create(std::move(request));
  if (!plan.ok()) return AtSpecField(plan.status());
  return plan;
}

}  // namespace quantgate
