#include "kernels/gemm/rule_outputs.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/epilogue.h"
#include "kernels/gemm/rules.h"
#include "kernels/gemm/scaling_check.h"

namespace quantgate {
namespace {

absl::Status InvalidRule(std::string_view field, int64_t value, const std::string& rule) {
  return absl::InvalidArgumentError(
      absl::StrCat("rule.", std::string(field), " is ", value, ": ", rule));
}

absl::Status CheckRanges(const FusedRule& rule) {
  if (rule.step < 1 || rule.step > 4096) return InvalidRule("step", rule.step, "1 to 4096");
  if (rule.align_bits < 1 || rule.align_bits > 40) {
    return InvalidRule("align_bits", rule.align_bits, "1 to 40");
  }
  if (rule.out_mantissa < 1 || rule.out_mantissa > 23) {
    return InvalidRule("out_mantissa", rule.out_mantissa, "1 to 23");
  }
  if (rule.slices < 1) return InvalidRule("slices", rule.slices, "at least 1");
  if (rule.slices > 1 && rule.tile_k < 1) return InvalidRule("tile_k", rule.tile_k, "at least 1");
  if (rule.group < 1 || rule.step % rule.group != 0) {
    return InvalidRule("group", rule.group, "must divide step");
  }
  const bool promotes = rule.promotion != Promotion::kNone;
  if (promotes && (rule.promote_k < 1 || rule.promote_k % rule.step != 0)) {
    return InvalidRule("promote_k", rule.promote_k, "a multiple of step");
  }
  if (rule.order == ProductOrder::kAscending) return absl::OkStatus();
  if (!promotes || rule.promote_k % 32 != 0 || 32 % rule.step != 0 || rule.group != 1) {
    return InvalidRule("order", 1, "pairs of four go with promotions of whole instructions of 32");
  }
  return absl::OkStatus();
}

}  // namespace

RuleOutputs::DecodedRows RuleOutputs::Decode(const OperandView& view,
                                             const std::vector<int64_t>& rows_of_outputs,
                                             bool scales_sums) {
  DecodedRows decoded;
  std::map<int64_t, int64_t> seen;
  for (const int64_t row : rows_of_outputs) {
    const auto [entry, is_new] = seen.emplace(row, static_cast<int64_t>(decoded.rows.size()));
    if (is_new) decoded.rows.emplace_back(view, row, scales_sums);
    decoded.index.push_back(entry->second);
  }
  return decoded;
}

absl::StatusOr<RuleOutputs> RuleOutputs::Make(const GemmDesc& desc,
                                              std::vector<OutputCoordinate> outputs) {
  RuleOutputs result;
  result.desc_ = desc;
  result.desc_.arithmetic = Arithmetic{ArithmeticFamily::kExact};  // Takes every operand.
  QG_ASSIGN_OR_RETURN(result.shape_, CheckGemm(result.desc_));
  std::vector<int64_t> a_rows, b_rows;
  for (const OutputCoordinate& output : outputs) {
    if (output.m < 0 || output.m >= result.shape_.m || output.n < 0 ||
        output.n >= result.shape_.n) {
      return absl::InvalidArgumentError(absl::StrCat("output [", output.m, "][", output.n,
                                                     "]: the shape is ", result.shape_.m, "x",
                                                     result.shape_.n));
    }
    a_rows.push_back(output.m);
    b_rows.push_back(output.n);
  }
  result.outputs_ = std::move(outputs);
  QG_ASSIGN_OR_RETURN(const OperandView a, ViewOfA(desc, result.shape_));
  QG_ASSIGN_OR_RETURN(const OperandView b, ViewOfB(desc, result.shape_));
  result.a_ = Decode(a, a_rows, false);
  result.b_ = Decode(b, b_rows, false);
  if (OperandClassOf(desc.a, desc.b) == OperandClass::kFp8Block) {
    result.a_unscaled_ = Decode(a, a_rows, true);
    result.b_unscaled_ = Decode(b, b_rows, true);
    result.has_power_of_two_scales_ = HasPowerOfTwoScales(desc.a) && HasPowerOfTwoScales(desc.b);
  }
  return result;
}

absl::Status RuleOutputs::CheckRule(const FusedRule& rule) const {
  QG_RETURN_IF_ERROR(CheckRanges(rule));
  const OperandClass operands = OperandClassOf(desc_.a, desc_.b);
  const bool is_fp4 =
      desc_.a.data.dtype() == DType::kF4E2M1x2 && desc_.b.data.dtype() == DType::kF4E2M1x2;
  const bool fits_group = operands == OperandClass::kNv16
                              ? rule.group == 16
                              : rule.group == 1 || (is_fp4 && operands != OperandClass::kMx32);
  if (!fits_group) {
    return InvalidRule("group", rule.group, "16 for nv16 operands; 1 for all but unscaled FP4");
  }
  const bool is_block = operands == OperandClass::kFp8Block;
  if (ScalesSums(rule)) {
    if (is_block && rule.promote_k == 128) return absl::OkStatus();
    return InvalidRule("promotion", static_cast<int>(rule.promotion),
                       "scaled promotion goes with operands of fp32 scales of 128, every 128 of k");
  }
  if (is_block && !has_power_of_two_scales_) {
    return InvalidRule("promotion", static_cast<int>(rule.promotion),
                       "scales of 128 that are no powers of two multiply promoted sums");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> RuleOutputs::Accumulators(
    const FusedRule& rule, const ExecutionContext& context) const {
  QG_RETURN_IF_ERROR(CheckRule(rule));
  const bool apart = ScalesSums(rule);
  const DecodedRows& a = apart ? a_unscaled_ : a_;
  const DecodedRows& b = apart ? b_unscaled_ : b_;
  const auto count = static_cast<int64_t>(outputs_.size());
  std::vector<float> accumulators(count);
  ParallelFor(context, count, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      accumulators[i] =
          DotUnder(rule, a.rows[a.index[i]].row(), b.rows[b.index[i]].row(), shape_.k);
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return accumulators;
}

absl::StatusOr<std::vector<uint32_t>> RuleOutputs::Codes(const FusedRule& rule,
                                                         const ExecutionContext& context) const {
  QG_ASSIGN_OR_RETURN(const std::vector<float> accumulators, Accumulators(rule, context));
  const ScopedIeeeEnvironment ieee;
  GemmDesc desc = desc_;
  desc.arithmetic = Arithmetic{ArithmeticFamily::kSm90, Accumulation::kRecipe, rule.slices};
  Tensor no_output;
  const Epilogue epilogue(desc, shape_, no_output);
  std::vector<uint32_t> codes(accumulators.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    std::byte code[4] = {};
    epilogue.ApplyTo(outputs_[i].m, outputs_[i].n, 1, &accumulators[i], code);
    std::memcpy(&codes[i], code, sizeof(code));
  }
  return codes;
}

}  // namespace quantgate
