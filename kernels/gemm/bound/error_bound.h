// Derived bounds on the distance between a modelled or hardware GEMM and the exact result. No
// fitted tolerances.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// |acc - exact sum| <= factor * AbsoluteGemm + absolute * |alpha * scales|. CheckBound adds what
/// the epilogue rounds (fp32 roundings of scales, beta * c and bias) and half an ulp of the output.
struct ErrorBound {
  double factor = 0;       ///< Relative to AbsoluteGemm.
  double absolute = 0;     ///< Gradual underflow of the fp32 accumulator, before scales.
  std::string derivation;  ///< One line: "16 steps x (32 x 2^-13 + 2^-13)".
};

/// The bound of desc.arithmetic for desc's formats and k. INVALID_ARGUMENT for an arithmetic
/// without one.
absl::StatusOr<ErrorBound> BoundFor(const GemmDesc& desc);

struct BoundCheck {
  bool pass = false;
  int64_t violation_count = 0;
  double worst_ratio = 0;  ///< max |subject - exact| / bound; <= 1 passes.
  ErrorBound bound;
};

/// Checks subject [m][n] (f32, bf16, f16 or FP8) element by element against `exact` (f32 [m][n],
/// the exact value before d_scale rounded once, whose own half ulp is added to the bound). A NaN
/// passes where exact is NaN. An infinity passes where exact is the same one, or where finite
/// operands come within the bound of overflow. Both, and what an FP8 output saturates to, pass
/// where the magnitudes of finite operands let an intermediate overflow: no bound holds there.
absl::StatusOr<BoundCheck> CheckBound(const GemmDesc& desc, const Tensor& subject,
                                      const Tensor& exact, const ExecutionContext& context);

}  // namespace quantgate
