// Outputs of a tensor-core GEMM straight from the scalar rule, operand by operand: slow, and
// plainly the definition.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/gemm/operand_view.h"
#include "kernels/numerics/fused_rule.h"

namespace quantgate {

/// One row of an operand as DotUnder takes it; f32 rounded to tf32, power-of-two block scales in
/// the exponents.
class DecodedRow {
 public:
  /// `scales_sums`: fp32 scales are factors of promoted sums (Hopper) rather than exponents.
  DecodedRow(const OperandView& view, int64_t row, bool scales_sums);
  /// Points into this.
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
