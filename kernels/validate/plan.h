// Plan: a validated request. Plan::Create is the last place that can say INVALID_ARGUMENT; running
// a plan cannot fail for a reason that was knowable before.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/layer/layer.h"
#include "kernels/validate/ranks/parallel_spec.h"

namespace quantgate {

/// One column of the comparison: a recipe (with its override) under an arithmetic, on one rank or
/// on several.
struct Variant {
  Recipe recipe;
  Arithmetic arithmetic;
  std::optional<ParallelSpec> parallel = {};  ///< Absent: one rank.
  /// "fp8_current / dequantized / sm90", "mxfp8 / none / sm90 / tp2 sp".
  std::string Label() const;
};

/// What a run must satisfy to pass.
enum class Requirement {
  kNone,     ///< Inform only.
  kBitwise,  ///< Every output of every variant equals the reference's bits.
  kBound,    ///< Every output with a derived bound lies within it of `exact` on its own operands.
};
std::string_view RequirementName(Requirement requirement);

/// Variants in one request, a bound on untrusted input.
inline constexpr int kVariantsMax = 64;

/// Tensors of LayerRunRequest::subjects, more than any layer has outputs.
inline constexpr int kSubjectsMax = 4 * kExpertsMax;

struct LayerRunRequest {
  LayerRequest step;
  std::vector<Variant> variants;  ///< At least one; labels must differ.
  /// The variant all others are compared with; absent: each variant is compared with `exact` on its
  /// own operands.
  std::optional<int> reference;
  Requirement requirement = Requirement::kNone;
  /// Outputs computed elsewhere, by name: each is held to the bound of the first variant's output.
  std::map<std::string, Tensor> subjects;
  bool error_budget = false;  ///< Measure VariantReport::error_budgets.
};

/// Every tensor of a request, absent ones too, by its name: "x", "grad_output",
/// "parameters[weight]", "main_grads[weight]", "subjects[y]", "delayed_state[input.scale]". The
/// first error of `visit` ends it.
absl::Status VisitTensors(
    LayerRunRequest& request,
    absl::FunctionRef<absl::Status(const std::string& name, Tensor& tensor)> visit);

/// What an output is, without whose: "dw" of "fc1.dw" and of "dw.0".
std::string_view OutputWord(std::string_view output);
/// Whether an output is a bias's gradient, which no bound is derived for.
inline bool IsBiasGradient(std::string_view output) { return OutputWord(output) == "db"; }

/// Whether what lies between a layer's operations is reported: of one operation nothing does, and
/// of several experts each is a part of an output.
bool ReportsIntermediates(const LayerRequest& request);

class Plan {
 public:
  static absl::StatusOr<Plan> Create(LayerRunRequest request);
  const LayerRunRequest& request() const { return request_; }
  /// What a variant does on one rank.
  const LayerPlanPointer& layer(int variant) const { return layers_[static_cast<size_t>(variant)]; }
  /// The name of a tensor of the request, as VisitTensors has it, and what the plan was made of,
  /// which may lack its bytes.
  using TensorLoader =
      absl::FunctionRef<absl::StatusOr<Tensor>(const std::string& name, const Tensor& outline)>;
  /// This plan with a tensor in place of each that its request has. What `load` refuses, INTERNAL
  /// for a tensor of another dtype or shape, or what Create says of a state of delayed scaling,
  /// whose values are checked.
  absl::StatusOr<Plan> WithTensors(TensorLoader load) const;
  /// Operations the run will do, the unit of its progress.
  int StepCount() const;

 private:
  Plan(LayerRunRequest request, std::vector<LayerPlanPointer> layers)
      : request_(std::move(request)), layers_(std::move(layers)) {}
  LayerRunRequest request_;
  std::vector<LayerPlanPointer> layers_;  ///< By variant.
};

}  // namespace quantgate
