// Derived bounds on the distance between a modelled or hardware GEMM and the exact result. No
// fitted tolerances.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// |d - exact| <= factor * AbsoluteGemm + half an ulp of the output at |exact| (plus the output's
/// smallest subnormal).
struct ErrorBound {
  double factor = 0;       ///< Relative to AbsoluteGemm.
  std::string derivation;  ///< One line: "ceil(512/32) steps x (33 x 2^-13 + 2^-13)".
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

/// Checks subject [m][n] (any floating dtype) element by element against `exact` (f32, rounded
/// once, whose own half ulp is added to the bound). A NaN or infinity passes only where exact has
/// the same class and sign.
absl::StatusOr<BoundCheck> CheckBound(const GemmDesc& desc, const Tensor& subject,
                                      const Tensor& exact, const ExecutionContext& context);

}  // namespace quantgate
