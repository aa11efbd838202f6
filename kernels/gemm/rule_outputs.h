// Single outputs of a GEMM under any rule of fused steps, whether or not a GPU follows it: what
// `explain` compares with a given result. The cost is that of the scalar rule, about 5 ns a
// product, so sample outputs; operands are decoded once for all rules.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/scalar_dot.h"
#include "kernels/numerics/fused_rule.h"

namespace quantgate {

struct OutputCoordinate {
  int64_t m = 0, n = 0;
};

class RuleOutputs {
 public:
  /// `outputs` lie within the GEMM's shape. What desc.arithmetic says is not looked at.
  /// INVALID_ARGUMENT for a bad desc or coordinate.
  static absl::StatusOr<RuleOutputs> Make(const GemmDesc& desc,
                                          std::vector<OutputCoordinate> outputs);

  /// Whether Accumulators takes the rule for these operands: INVALID_ARGUMENT names the field that
  /// is out of range or does not go with the operands.
  absl::Status CheckRule(const FusedRule& rule) const;

  /// The accumulator of each output, as GemmCpu has it under an arithmetic of that rule. CANCELLED
  /// or DEADLINE_EXCEEDED by the context.
  absl::StatusOr<std::vector<float>> Accumulators(const FusedRule& rule,
                                                  const ExecutionContext& context) const;

  /// The codes of desc.out_dtype that the epilogue makes of them; after more than one slice, by the
  /// epilogue of split-K (docs/tensor-cores.md section 3.3).
  absl::StatusOr<std::vector<uint32_t>> Codes(const FusedRule& rule,
                                              const ExecutionContext& context) const;

 private:
  /// The decoded rows of one operand, those that an output asks for.
  struct DecodedRows {
    std::vector<DecodedRow> rows;
    std::vector<int64_t> index;  ///< Into rows, by output.
  };
  static DecodedRows Decode(const OperandView& view, const std::vector<int64_t>& rows_of_outputs,
                            bool scales_sums);

  GemmDesc desc_;
  GemmShape shape_;
  std::vector<OutputCoordinate> outputs_;
  DecodedRows a_, b_;                    ///< Scales in the exponents.
  DecodedRows a_unscaled_, b_unscaled_;  ///< fp32 scales apart; filled for those alone.
  bool has_power_of_two_scales_ = true;
};

}  // namespace quantgate
