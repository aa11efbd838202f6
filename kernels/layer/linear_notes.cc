#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/layer/linear_dataflow.h"

namespace quantgate {
namespace {

/// The contraction dims of the GEMMs that run in high precision.
std::vector<int64_t> PlainContractions(const LinearDataflow& flow, const LinearRequest& request) {
  std::vector<int64_t> dims;
  if (!flow.quantizes_fprop) dims.push_back(request.x.columns());
  if (flow.needs_dx && !flow.quantizes_dgrad) dims.push_back(request.weight.shape()[0]);
  if (flow.needs_dw && !flow.quantizes_wgrad) dims.push_back(request.x.rows());
  return dims;
}

// Where cuBLASLt takes kernels that add in another order than the model (tests/hardware/README.md,
// rules 6 and 7): 16-bit operands with a contiguous dim, which is K or N in every layout of a
// linear layer, off the multiples of 8; f32 operands with such a contraction.
bool LeavesModelledKernels(const LinearDataflow& flow, const LinearRequest& request,
                           const std::vector<int64_t>& contractions) {
  const auto is_uneven = [](int64_t dim) { return dim % 8 != 0; };
  if (flow.activation_dtype != DType::kF32) {
    return is_uneven(request.weight.shape()[0]) || is_uneven(request.weight.shape()[1]);
  }
  return std::any_of(contractions.begin(), contractions.end(), is_uneven);
}

void AddDelayedNotes(const LinearRequest& request, const Recipe& recipe, const LinearDataflow& flow,
                     std::vector<std::string>& notes) {
  if (!recipe.is_delayed()) return;
  if (flow.is_calibration) {
    notes.push_back("calibration: computed in high precision, only the amaxes are noted");
  } else if (!flow.has_backward()) {
    notes.push_back("forward only: scales are not updated, row 0 of each history has the amax");
  }
  const int length = recipe.delayed_scaling().amax_history_len;
  for (const auto& [role, state] : request.delayed) {
    const int64_t given = state.amax_history.element_count();
    if (given == length) continue;
    notes.push_back(absl::StrCat(std::string(TensorRoleName(role)), ".amax_history of ", given,
                                 " rows ", given > length ? "cut" : "filled with zeros", " to ",
                                 length));
  }
}

}  // namespace

std::vector<std::string> LinearNotes(const LinearRequest& request, const Recipe& recipe,
                                     const Arithmetic& arithmetic, const LinearDataflow& flow) {
  std::vector<std::string> notes;
  if (!recipe.is_quantized() && recipe.backward_override() != BackwardOverride::kNone) {
    notes.push_back(absl::StrCat(
        "backward_override=", std::string(BackwardOverrideName(recipe.backward_override())),
        " has no effect without a quantized recipe"));
  }
  AddDelayedNotes(request, recipe, flow, notes);
  const std::vector<int64_t> contractions = PlainContractions(flow, request);
  if (contractions.empty() || arithmetic.Resolved().Model().family != ArithmeticFamily::kSm90) {
    return notes;
  }
  if (flow.activation_dtype == DType::kF32) {
    notes.push_back(
        "high-precision GEMMs of f32 activations run in tf32: operands rounded to 10 mantissa "
        "bits");
  }
  if (LeavesModelledKernels(flow, request, contractions)) {
    notes.push_back(
        "high-precision GEMMs with dims off the multiples of 8: Hopper's cuBLASLt takes kernels "
        "there that may add in another order than sm90");
  }
  return notes;
}

}  // namespace quantgate
