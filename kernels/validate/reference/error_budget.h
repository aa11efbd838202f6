// Error budget of one GEMM of a layer: how much of the distance between its output and the exact
// product of the original operands comes from each stage. Stages are swapped one at a time against
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
  double mean = 0;    ///< Adds up to the total's mean.
  double rms = 0;
  double max_abs = 0;
  /// Adds up to 1; negative: it cancels part of the others. sum t T / sum T^2, which "elements" and
  /// "scale rule" of an operand divide by the power of the error under ideal scales.
  double share = 0;
};

struct ErrorBudget {
  std::string tensor;  ///< "y", "dx", "dw", "main_grad", "fc1.y", ...
  int64_t element_count = 0;
  int64_t non_finite_count = 0;  ///< Left out of every sum.
  BudgetTerm total;
  std::vector<BudgetTerm> terms;
  /// max |sum of terms - total|: only the fp64 rounding of the sums.
  double closure = 0;
};

/// The budget of every GEMM of `result`, which RunLayer made of `request` under `recipe`. Of layers
/// of several operations the originals are what each GEMM was given, unquantized. Nothing for
/// outputs that no GEMM made.
absl::StatusOr<std::vector<ErrorBudget>> MeasureErrorBudgets(Engine& engine,
                                                             const LayerRequest& request,
                                                             const Recipe& recipe,
                                                             const LayerResult& result,
                                                             const Cancellation* cancellation);

}  // namespace quantgate
