// The accumulators of a tensor-core GEMM by the scalar rule DotUnder: slow, and the definition that
// all faster paths must match.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/gemm/operand_view.h"
#include "kernels/numerics/fused_rule.h"

namespace quantgate {

/// One row of an operand as DotUnder takes it: f32 is rounded to tf32, and power-of-two block
/// scales are in the exponents.
class DecodedRow {
 public:
  /// With `scales_sums`, fp32 scales are factors of promoted sums (Hopper) and not exponents.
  DecodedRow(const OperandView& view, int64_t row, bool scales_sums);
  /// The row; it points into this object.
  FusedRow row() const;

 private:
  std::vector<FusedElement> elements_;
  int fraction_bits_ = 0;
  std::vector<FusedElement> group_scales_;
  std::vector<float> block_scales_;
};

/// Whether the rule multiplies promoted sums by block scales.
bool ScalesSums(const FusedRule& rule);

/// The accumulator of output (m, n).
float ScalarDot(const OperandView& a, const OperandView& b, const FusedRule& rule, int64_t m,
                int64_t n);

}  // namespace quantgate
