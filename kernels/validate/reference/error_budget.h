// The error budget of one GEMM of a layer: how much each stage contributes to the distance between
// its output and the exact product of the original operands. Stages are replaced one at a time by
// the exact oracle (docs/reports.md section 3).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layer/layer.h"

namespace quantgate {

/// One term t[i] of the total T[i] = output[i] - exact(originals)[i], over elements where every
/// value is finite.
struct BudgetTerm {
  std::string stage;  ///< "x: elements", "x: scale rule", "accumulation", "output cast", ...
  double mean = 0;    ///< The means of all terms add up to the total's.
  double rms = 0;
  double max_abs = 0;
  /// sum t T / sum T^2. The shares of all terms add up to 1; a negative share cancels part of the
  /// others. "elements" and "scale rule" of one operand divide the operand's share by the power of
  /// the error under ideal scales.
  double share = 0;
};

struct ErrorBudget {
  std::string tensor;  ///< "y", "dx", "dw", "main_grad", "fc1.y", ...
  int64_t element_count = 0;
  int64_t non_finite_count = 0;  ///< Left out of every sum.
  BudgetTerm total;
  std::vector<BudgetTerm> terms;
  /// max |sum of terms - total|, which is due only to the fp64 rounding of the sums.
  double closure = 0;
};

/// The budget of every GEMM of `result`, which RunLayer made of `request` under `recipe`. In layers
/// of several operations, the original operands of a GEMM are its inputs before quantization.
/// Outputs that no GEMM made have no budget.
absl::StatusOr<std::vector<ErrorBudget>> MeasureErrorBudgets(Engine& engine,
                                                             const LayerRequest& request,
                                                             const Recipe& recipe,
                                                             const LayerResult& result,
                                                             const Cancellation* cancellation);

}  // namespace quantgate
