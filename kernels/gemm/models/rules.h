// The rule that each arithmetic follows for each class of operands, and the evidence for it
// (docs/tensor-cores.md section 2). The table itself is in kernels/gemm/arithmetic_table.cc.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"
#include "kernels/numerics/fused_rule.h"

namespace quantgate {

/// The classes of operands for which tensor cores have instructions of their own.
enum class OperandClass {
  kTf32,      ///< f32 x f32, rounded to tf32.
  kBF16,      ///< bf16 x bf16.
  kF16,       ///< f16 x f16.
  kFp8,       ///< FP8 x FP8 in any mix: unscaled, or with per-tensor or outer-vector scales.
  kF8F6F4,    ///< FP8, FP6 or FP4 in any mix but two FP8 operands; no scales.
  kFp8Block,  ///< FP8 x FP8 with f32 scales of 128 elements or 128x128 tiles.
  kMx32,      ///< FP8, FP6 or FP4 in any mix, with E8M0 scales of 32 elements.
  kNv16,      ///< FP4 x FP4, with E4M3 scales of 16 elements.
  kFp8Group,  ///< As kFp8Block of 32, 64 or 256 elements.
};
/// "tf32", "bf16", "fp16", "fp8", "fp8/fp6/fp4", "fp8 block-scaled", "mx32", "nv16",
/// "fp8 group-scaled".
std::string_view OperandClassName(OperandClass operands);
/// The class of two operands, which must be ones that go together.
OperandClass OperandClassOf(const GemmOperand& a, const GemmOperand& b);

/// The evidence for a rule.
enum class RuleEvidence {
  kMeasured,  ///< The model was compared with an H200, output by output.
  kRecorded,  ///< From a public model that its authors checked against recordings of the hardware.
  kRead,      ///< From reading a public model.
};

/// The rule of an arithmetic for one class of operands.
struct OperandRule {
  OperandClass operands;
  FusedRule rule;        ///< For an fp32 accumulator and fast accumulation, without split-K.
  bool f16_accumulator;  ///< Whether there is an instruction with an fp16 result too.
  RuleEvidence evidence;
};

/// One arithmetic: its descriptions and its rules.
struct ArithmeticRow {
  ArithmeticFamily family;
  /// What listings say: first of the name alone, then of notable names with parameters.
  std::vector<ArithmeticDescription> descriptions;
  std::vector<OperandRule> rules;  ///< Empty unless the arithmetic models tensor cores.
  /// Whether fp32 scales of 128 are taken by their exponents alone (docs/tensor-cores.md section
  /// 3.5).
  bool takes_scales_as_exponents = false;

  std::string_view name() const { return descriptions.front().name; }
};

/// Every arithmetic of this build except auto, in the order of listings.
const std::vector<ArithmeticRow>& ArithmeticTable();
/// The row of a family; null for auto.
const ArithmeticRow* FindArithmetic(ArithmeticFamily family);

/// A rule together with its arithmetic.
struct ArchitectureRule : OperandRule {
  ArithmeticFamily family;
};

/// Every rule of ArithmeticTable, by architecture.
const std::vector<ArchitectureRule>& AllArchitectureRules();

/// The rule of a GEMM's arithmetic; for auto, of the arithmetic that it resolves to. UNIMPLEMENTED
/// names the arithmetic, the operands that it does not take and the arithmetics that take them;
/// INVALID_ARGUMENT for parameters that do not go with the operands, and for exact and fp32.
absl::StatusOr<FusedRule> RuleFor(const GemmDesc& desc);

}  // namespace quantgate
