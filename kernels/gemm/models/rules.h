// The table of arithmetics: which rule one follows for which operands, and on what evidence
// (docs/tensor-cores.md section 2).
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"
#include "kernels/numerics/fused_rule.h"

namespace quantgate {

/// What an instruction tells apart about its operands.
enum class OperandClass {
  kTf32,      ///< f32 x f32, rounded to tf32.
  kBF16,      ///< bf16 x bf16.
  kF16,       ///< f16 x f16.
  kFp8,       ///< FP8 x FP8 in any mix, unscaled, per-tensor or outer-vector scales.
  kF8F6F4,    ///< The same with an FP6 or FP4 operand; no scales.
  kFp8Block,  ///< FP8 with f32 scales of 128 or 128x128.
  kMx32,      ///< FP8, FP6 or FP4 in any mix, E8M0 scales of 32.
  kNv16,      ///< FP4 x FP4, E4M3 scales of 16.
};
/// "tf32", "bf16", "fp16", "fp8", "fp8/fp6/fp4", "fp8 block-scaled", "mx32", "nv16".
std::string_view OperandClassName(OperandClass operands);
/// The class of operands that go together.
OperandClass OperandClassOf(const GemmOperand& a, const GemmOperand& b);

/// How a rule is known.
enum class RuleEvidence {
  kMeasured,  ///< Compared with an H200, output by output.
  kRecorded,  ///< Of a public model that its authors checked against recordings of the hardware.
  kRead,      ///< Of a public model, from reading it.
};

/// What an arithmetic makes of one class of operands.
struct OperandRule {
  OperandClass operands;
  FusedRule rule;        ///< With an fp32 accumulator and fast accumulation, not split.
  bool f16_accumulator;  ///< Whether the instruction comes with an fp16 result too.
  RuleEvidence evidence;
};

/// Everything that is known of one arithmetic.
struct ArithmeticRow {
  ArithmeticFamily family;
  /// What listings say: of the name alone, then of the name with parameters that are worth a line.
  std::vector<ArithmeticDescription> descriptions;
  std::vector<OperandRule> rules;  ///< Of tensor cores alone.
  /// Whether fp32 scales of 128 go in by their exponents (docs/tensor-cores.md section 3.5).
  bool takes_scales_as_exponents = false;

  std::string_view name() const { return descriptions.front().name; }
};

/// Every arithmetic of this build but auto, in the order of listings.
const std::vector<ArithmeticRow>& ArithmeticTable();
/// Null: auto.
const ArithmeticRow* FindArithmetic(ArithmeticFamily family);

struct ArchitectureRule : OperandRule {
  ArithmeticFamily family;
};

/// Every rule of ArithmeticTable, by architecture.
const std::vector<ArchitectureRule>& AllArchitectureRules();

/// The rule of a GEMM's arithmetic (auto: of what it resolves to). UNIMPLEMENTED names the
/// arithmetic, the operands that it lacks and who has them; INVALID_ARGUMENT for parameters that do
/// not go with the operands, and for exact and fp32.
absl::StatusOr<FusedRule> RuleFor(const GemmDesc& desc);

}  // namespace quantgate
