// Derived bounds on the distance between the result of a model or of hardware and the exact result
// of a GEMM. No tolerance is fitted.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// A bound on the accumulator: |acc - exact sum| <= factor * AbsoluteGemm + absolute * |alpha *
/// scales|. CheckBound adds the roundings of the epilogue (in fp32 by scales, beta * c and bias)
/// and half an ulp of the output.
struct ErrorBound {
  double factor = 0;       ///< Relative to AbsoluteGemm.
  double absolute = 0;     ///< For gradual underflow of the fp32 accumulator, before scales.
  std::string derivation;  ///< One line: "16 steps x (32 x 2^-13 + 2^-13)".
};

/// ErrorBound::derivation of results that are rounded once, as `exact` does.
inline constexpr char kCorrectlyRounded[] = "correctly rounded";

/// The bound of desc.arithmetic for desc's formats and k. INVALID_ARGUMENT for an arithmetic
/// without a bound.
absl::StatusOr<ErrorBound> BoundFor(const GemmDesc& desc);

struct BoundCheck {
  bool pass = false;            ///< No output violates the bound.
  int64_t violation_count = 0;  ///< Outputs outside the bound.
  double worst_ratio = 0;       ///< max |subject - exact| / bound; <= 1 passes.
  ErrorBound bound;
};

/// The share of its bound that each output has.
struct BoundRatios {
  Tensor ratios;  ///< |subject - exact| / bound, f64 [m][n]; <= 1 passes.
  ErrorBound bound;
};

/// What CheckBound looks at, element by element.
absl::StatusOr<BoundRatios> RatiosToBound(const GemmDesc& desc, const Tensor& subject,
                                          const Tensor& exact, const ExecutionContext& context);

/// Checks subject [m][n] (f32, bf16, f16 or FP8) element by element against `exact`, f32 [m][n]:
/// the exact value before d_scale, rounded once, whose own half ulp is added to the bound. A NaN
/// passes where exact is NaN. An infinity passes where exact is the same infinity, or where the
/// exact value of finite operands is within the bound of overflow. NaN, infinities and the largest
/// value of an FP8 output also pass where the magnitudes of finite operands let an intermediate
/// value overflow, since no bound holds there.
absl::StatusOr<BoundCheck> CheckBound(const GemmDesc& desc, const Tensor& subject,
                                      const Tensor& exact, const ExecutionContext& context);

}  // namespace quantgate
