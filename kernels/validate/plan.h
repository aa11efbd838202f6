// Plan: a validated request of a layer run. Plan::Create is the last place that can say
// INVALID_ARGUMENT; running a plan does not fail for a reason that could be known before.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/layer/layer.h"
#include "kernels/validate/ranks/parallel_variant.h"

namespace quantgate {

/// One column of the comparison: a recipe (with its override) under an arithmetic, on one rank or
/// several.
struct Variant {
  Recipe recipe;
  Arithmetic arithmetic;
  std::optional<ParallelSpec> parallel = {};  ///< Absent: one rank.
  /// "fp8_current / dequantized / sm90", "mxfp8 / none / sm90 / tp2 sp".
  std::string Label() const;
};

/// What a run must satisfy to pass.
enum class Requirement {
  kNone,     ///< Nothing: the run only informs.
  kBitwise,  ///< Every output of every variant equals the reference's bits.
  kBound,    ///< Every output is within its derived bound, if any, of `exact` on its own operands.
};
std::string_view RequirementName(Requirement requirement);

/// The most variants in one request, a bound on untrusted input.
inline constexpr int kVariantsMax = 64;

/// The most tensors of LayerRunRequest::subjects; no layer has as many outputs.
inline constexpr int kSubjectsMax = 4 * kExpertsMax;

struct LayerRunRequest {
  LayerRequest step;
  std::vector<Variant> variants;  ///< At least one; labels must differ.
  /// The index of the variant that all others are compared with. Absent: each variant is compared
  /// with `exact` on its own operands.
  std::optional<int> reference;
  Requirement requirement = Requirement::kNone;
  /// Outputs computed elsewhere, by name; each is checked against the bound of the first variant's
  /// output.
  std::map<std::string, Tensor> subjects;
  bool error_budget = false;  ///< Whether to measure VariantReport::error_budgets.
  /// The parts of operands that are given as codes (LayerRequest::codes), as they were given, by
  /// the names of VisitTensors. Empty until they are loaded.
  std::map<std::string, std::vector<NamedTensor>> given_parts = {};
  /// Weights and main gradients of all experts that are given as one tensor, by the names of
  /// VisitTensors: "parameters[weight]". Plan::Create takes them out of `step`, which then has the
  /// experts' own, in the same memory.
  std::map<std::string, Tensor> stacks = {};
};

/// An operand that is given as codes, loaded.
struct LoadedCodes {
  QuantizedTensor codes;           ///< Scales in the logical layout.
  Tensor values;                   ///< Dequantized to the dtype and shape of the codes' source.
  std::vector<NamedTensor> parts;  ///< As they were given: "rowwise_data", ...
};
/// The name that VisitTensors has for an operand of LayerRequest::codes.
std::string NameOfCodes(const std::string& operand);

/// Calls `visit` with every tensor of a request, also absent ones, and its name: "x",
/// "grad_output", "parameters[weight]", "main_grads[weight]", "subjects[y]",
/// "delayed_state[input.scale]". Returns the first error of `visit`.
absl::Status VisitTensors(
    LayerRunRequest& request,
    absl::FunctionRef<absl::Status(const std::string& name, Tensor& tensor)> visit);

/// The word of an output's name (ParameterName::word): "dw" of "fc1.dw" and of "dw.0".
std::string_view OutputWord(std::string_view output);
/// Whether an output is a bias gradient, a sum over rows. Its bound is that of a pairwise sum in
/// fp32, which is not the order of other libraries: a subject is not held to it.
inline bool IsBiasGradient(std::string_view output) { return OutputWord(output) == "db"; }

/// Whether tensors between a layer's operations are reported. A layer of one operation has none,
/// and what its experts give are parts of outputs.
bool ReportsIntermediates(const LayerRequest& request);

class Plan {
 public:
  static absl::StatusOr<Plan> Create(LayerRunRequest request);
  const LayerRunRequest& request() const { return request_; }
  /// The layer plan of a variant, as it runs on one rank.
  const LayerPlanPointer& layer(int variant) const { return layers_[static_cast<size_t>(variant)]; }
  /// Gives a tensor of the request by its name (VisitTensors) and its outline.
  using TensorLoader =
      absl::FunctionRef<absl::StatusOr<Tensor>(const std::string& name, const Tensor& outline)>;
  /// Gives an operand that is given as codes, by its name (VisitTensors).
  using CodesLoader = absl::FunctionRef<absl::StatusOr<LoadedCodes>(const std::string& name)>;
  /// This plan with every tensor loaded. Errors: those of `load` and `load_codes`; INTERNAL for a
  /// tensor of another dtype or shape; Create's for the values of a state of delayed scaling.
  absl::StatusOr<Plan> WithTensors(TensorLoader load, CodesLoader load_codes) const;
  /// The same of a plan whose tensors are all in high precision.
  absl::StatusOr<Plan> WithTensors(TensorLoader load) const;
  /// The number of steps of the run, the unit of its progress.
  int StepCount() const;

 private:
  Plan(LayerRunRequest request, std::vector<LayerPlanPointer> layers)
      : request_(std::move(request)), layers_(std::move(layers)) {}
  LayerRunRequest request_;
  std::vector<LayerPlanPointer> layers_;  ///< By variant.
};

}  // namespace quantgate
