// What a linear unit refuses before anything is computed: dims that the recipe's GEMMs and
// quantizers do not take, and GEMMs that the arithmetic does not take. Errors are INVALID_ARGUMENT
// (or UNIMPLEMENTED) naming field, value and rule.
#pragma once

#include <string>

#include "kernels/layer/linear/linear_unit.h"

namespace quantgate {

/// A dim of a unit as errors name it: the tensor, or an outline of it, that has the dim, and what
/// the user calls that tensor.
struct LinearField {
  std::string name;
  Tensor tensor;
};
struct LinearFields {
  LinearField m{"x", {}}, n{"weight", {}}, k{"x", {}};
};

/// Per-tensor FP8 and fp8_block: K % 16 == 0, M % 8 == 0, N % 8 == 0, and what the FP8 backward
/// GEMMs need; mxfp8 and nvfp4: whole blocks. And what the quantizers themselves do not take.
absl::Status CheckLinearUnit(const LinearUnit& unit, const LinearFields& fields,
                             const Recipe& recipe);

/// Whether dims and profile of a unit that CheckLinearUnit accepts permit its overlap, which
/// CheckOverlapPlan accepts.
absl::Status CheckLinearUnitOverlap(const LinearUnit& unit, const Recipe& recipe,
                                    const ReductionProfile& profile);

/// Every GEMM of a unit that CheckLinearUnit accepts, by outlines of its operands.
absl::Status CheckLinearUnitGemms(const LinearUnit& unit, const Recipe& recipe,
                                  const Arithmetic& arithmetic);

}  // namespace quantgate
