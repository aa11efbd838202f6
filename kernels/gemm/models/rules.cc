#include "kernels/gemm/models/rules.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/gemm/integer_gemm.h"
#include "kernels/gemm/scaling_check.h"

namespace quantgate {
namespace {

using enum ArithmeticFamily;

const OperandRule* Find(ArithmeticFamily family, OperandClass operands) {
  for (const OperandRule& rule : FindArithmetic(family)->rules) {
    if (rule.operands == operands) return &rule;
  }
  return nullptr;
}

absl::Status NotModelled(const Arithmetic& arithmetic, const std::string& rule) {
  return StatusOf({.code = absl::StatusCode::kUnimplemented,
                   .field = "arithmetic",
                   .value = arithmetic.ToString(),
                   .rule = rule});
}

absl::Status LackingInstruction(const Arithmetic& arithmetic, OperandClass operands) {
  std::string who;
  for (const ArchitectureRule& row : AllArchitectureRules()) {
    if (row.operands == operands) {
      absl::StrAppend(&who, std::string(ArithmeticFamilyName(row.family)), ", ");
    }
  }
  return NotModelled(arithmetic, absl::StrCat("it has no instruction for ",
                                              std::string(OperandClassName(operands)),
                                              " operands; ", who, "exact and fp32 take them"));
}

/// Completes the rule of Hopper through cuBLASLt: the accumulation mode, block scales and slices of
/// K.
absl::StatusOr<FusedRule> Sm90Rule(const Arithmetic& arithmetic, OperandClass operands,
                                   const GemmDesc& desc) {
  FusedRule rule = Find(kSm90, operands)->rule;
  rule.slices = arithmetic.split_k;
  // A tile of split-K is 128 bytes of k in every type.
  rule.tile_k = 128 / DTypeBytes(desc.a.data.dtype());
  if (operands == OperandClass::kTf32 && arithmetic.split_k > 1) {
    // Each of cuBLASLt's tf32 kernels cuts K its own way (docs/tensor-cores.md section 3.2).
    return NotModelled(arithmetic, "split-K of f32 (tf32) operands is not modelled");
  }
  if (operands == OperandClass::kFp8Block) {
    if (arithmetic.accumulation == Accumulation::kFast) {
      return Refuse("arithmetic", arithmetic.ToString(),
                    "block-scaled operands have no fast accumulation");
    }
    const bool has_tiles = desc.a.scaling != desc.b.scaling;
    rule.promotion = has_tiles ? Promotion::kScaled : Promotion::kScaledTwice;
    if (has_tiles) rule.tile_k = 512;
    rule.promote_k = 128;
  }
  if (operands == OperandClass::kFp8 && arithmetic.accumulation == Accumulation::kSplit) {
    rule.promotion = Promotion::kAdd;
    rule.promote_k = 128;
  }
  return rule;
}

}  // namespace

std::string_view OperandClassName(OperandClass operands) {
  switch (operands) {
    case OperandClass::kTf32:
      return "tf32";
    case OperandClass::kBF16:
      return "bf16";
    case OperandClass::kF16:
      return "fp16";
    case OperandClass::kFp8:
      return "fp8";
    case OperandClass::kF8F6F4:
      return "fp8/fp6/fp4";
    case OperandClass::kFp8Block:
      return "fp8 block-scaled";
    case OperandClass::kMx32:
      return "mx32";
    case OperandClass::kNv16:
      return "nv16";
    case OperandClass::kFp8Group:
      return "fp8 group-scaled";
  }
  return "unknown";
}

OperandClass OperandClassOf(const GemmOperand& a, const GemmOperand& b) {
  if (a.scaling == ScaleMode::kMx32) return OperandClass::kMx32;
  if (a.scaling == ScaleMode::kNv16) return OperandClass::kNv16;
  if (IsFp8Block(a.scaling)) {
    const bool is_128 = ScaleBlockOf(a.scaling).k == 128;
    return is_128 ? OperandClass::kFp8Block : OperandClass::kFp8Group;
  }
  switch (a.data.dtype()) {
    case DType::kF32:
      return OperandClass::kTf32;
    case DType::kBF16:
      return OperandClass::kBF16;
    case DType::kF16:
      return OperandClass::kF16;
    default:
      break;
  }
  const bool both_fp8 = IsFp8(a.data.dtype()) && IsFp8(b.data.dtype());
  return both_fp8 ? OperandClass::kFp8 : OperandClass::kF8F6F4;
}

Arithmetic ResolvedFor(const GemmDesc& desc) {
  Arithmetic arithmetic = desc.arithmetic;
  if (arithmetic.family == kAuto && HasIntegers(desc)) {
    arithmetic.family = kInt32;
    return arithmetic;
  }
  const OperandClass operands = OperandClassOf(desc.a, desc.b);
  if (arithmetic.family == kAuto) {
    const bool is_blackwell = operands == OperandClass::kMx32 || operands == OperandClass::kNv16 ||
                              operands == OperandClass::kF8F6F4 ||
                              operands == OperandClass::kFp8Group;
    arithmetic.family = is_blackwell ? kSm100 : kSm90;
  }
  if (arithmetic.family != kSm90 && arithmetic.family != kCublasLt) return arithmetic;
  if (operands == OperandClass::kFp8 || operands == OperandClass::kFp8Block) {
    // Transformer Engine always splits where an operand is block-scaled.
    const bool split = desc.use_split_accumulator || operands == OperandClass::kFp8Block;
    if (arithmetic.accumulation == Accumulation::kRecipe) {
      arithmetic.accumulation = split ? Accumulation::kSplit : Accumulation::kFast;
    }
  } else {
    arithmetic.accumulation = Accumulation::kRecipe;  // Only FP8 has a choice.
  }
  return arithmetic;
}

absl::StatusOr<FusedRule> RuleFor(const GemmDesc& desc) {
  const Arithmetic arithmetic = ResolvedFor(desc);
  const OperandClass operands = OperandClassOf(desc.a, desc.b);
  if (!IsTensorCore(arithmetic.family)) {
    return Refuse("arithmetic", arithmetic.ToString(), "it has no rule of fused steps");
  }
  const OperandRule* row = Find(arithmetic.family, operands);
  if (row == nullptr) return LackingInstruction(arithmetic, operands);
  if (arithmetic.family == kSm90) return Sm90Rule(arithmetic, operands, desc);
  if (arithmetic.f16_accumulate && !row->f16_accumulator) {
    return NotModelled(arithmetic,
                       absl::StrCat("no instruction for ", std::string(OperandClassName(operands)),
                                    " operands accumulates in fp16"));
  }
  FusedRule rule = row->rule;
  rule.f16_accumulator = arithmetic.f16_accumulate;
  return rule;
}

}  // namespace quantgate
