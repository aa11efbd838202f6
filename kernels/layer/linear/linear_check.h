// Checks of a linear unit before anything is computed: the dims that the recipe's GEMMs and
// quantizers take, and the GEMMs, outlined, that the arithmetic takes. Errors are INVALID_ARGUMENT
// (or UNIMPLEMENTED) naming field, value and rule.
#pragma once

#include <string>

#include "kernels/layer/linear/linear_unit.h"

namespace quantgate {

/// How errors name a dim of a unit: the tensor that has the dim (or an outline of it), and the name
/// by which the user knows that tensor.
struct LinearField {
  std::string name;
  Tensor tensor;
};
struct LinearFields {
  LinearField m{"x", {}}, n{"weight", {}}, k{"x", {}};
};

/// Checks the unit's dims. Per-tensor FP8 and fp8_block need K % 16 == 0, M % 8 == 0, N % 8 == 0,
/// and what their backward GEMMs need; mxfp8 and nvfp4 need whole blocks. Also refuses what the
/// quantizers refuse.
absl::Status CheckLinearUnit(const LinearUnit& unit, const LinearFields& fields);

/// Checks that the dims of a unit, and the profile of its sums, permit its overlap plan.
/// CheckLinearUnit must accept the unit and CheckOverlapPlan the plan.
absl::Status CheckLinearUnitOverlap(const LinearUnit& unit, const ReductionProfile& profile);

/// Checks every GEMM of a unit that CheckLinearUnit accepts, by outlines of the operands.
absl::Status CheckLinearUnitGemms(const LinearUnit& unit, const Arithmetic& arithmetic);

/// Refuses a rule for results (output or grad_input) of what several ranks do.
absl::Status RefuseResultRule(const std::string& field, const Recipe& recipe, TensorRole role);

}  // namespace quantgate
