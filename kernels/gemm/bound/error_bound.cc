// How the bound is derived. Let u = 2^-24, and for nonzero operands
//   w_i = (|a_i| + floor_a)(|b_i| + floor_b),   A = sum of w_i.
//
// 1. Exponents. A product counts in a fused step with exponent ea + eb, where 2^ea <= |a| + floor_a
//    also for subnormals, which keep the smallest normal's exponent. So 2^e_i <= w_i, and
//    |a_i b_i| <= w_i.
// 2. No growth. Alignment and normalisation only shrink magnitudes, so |acc| after a step is at
//    most |acc| before it plus the step's sum of |a_i b_i|: by induction at most the sum of w so
//    far, hence at most A.
// 3. One step T(F, outman) of L products. With E the largest exponent, 2^E <= max(w_i, |acc|) <= A.
//    Each term but the largest, L of L + 1, loses less than 2^(E-F); the largest loses nothing,
//    since F is at least the fraction bits of a product and of the accumulator. Rounding toward
//    zero loses less than 2^-outman |acc|. Together
//      (L 2^-F + 2^-outman) A.
//    Where the accumulator is subnormal its exponent is -126 and its last bit 2^(-126-outman):
//    at most L 2^(-126-F) + 2^(-126-outman) more.
//    Products that are summed in exact groups first: L counts groups, and a group's e is that of
//    its scales. A nonzero group has a product of at least 1/4 in which |a| + floor_a is at least
//    3/2 of either element, so 2^e <= w.
// 4. FP8 promotion and split-K add p and s such sums in fp32 RN, the first to zero (Higham,
//    "Accuracy and Stability of Numerical Algorithms", section 4.2): at most
//      gamma_(p-1) A   and   gamma_(s-1) (1 + gamma_(p-1)) A.
//    Under scales of 128 (s: a block's scale; p blocks) a promoted part is scaled by one rounded
//    product of scales, or rounded once after the first scale: u s |part|, and 2^-150 |part| or
//    2^-150 s_N where that underflows. The p fused additions round the sum that they add to:
//      gamma_p (1 + u) A.
// 5. tf32 rounds each operand by at most 2^-11 (|a| + floor_a): the products move by at most
//    (2^-11 (1 + 2^-11) + 2^-11) w, and steps 1 to 3 hold with w (1 + 2^-11)^2.
// 6. fp32 FMA over k: gamma_k A, and 2^-150 for each step that underflows. Elements under block
//    scales are rounded to fp32 first: u (|a s| + 2^-126) each, for which w has 2^-126 added to its
//    factors (AbsoluteGemm).
//
// The epilogue then rounds r times by u (error_bound_element.h). All this holds while no number
// leaves the range of fp32: A, its products with the scales on the way, and the sums of the
// epilogue tell where one may (MayOverflow there).
#include "kernels/gemm/bound/error_bound.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/refusal.h"
#include "kernels/base/round_up.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/bound/bound_check.h"
#include "kernels/gemm/epilogue.h"
#include "kernels/gemm/exact/exact.h"
#include "kernels/gemm/exact/exact_operand.h"
#include "kernels/gemm/models/accumulate.h"
#include "kernels/gemm/models/rules.h"
#include "kernels/gemm/models/scalar_dot.h"
#include "kernels/gemm/scaling_check.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {
namespace {

using error_bound::FactsOf;
using error_bound::Gamma;
using error_bound::kInflation;
using error_bound::kU;
using error_bound::kUnderflow;
using error_bound::OutputFacts;

/// No sum of 128 FP8 products is larger: 2^7 * (2^16)^2.
constexpr double kLargestBlockSum = 0x1p39;

/// Whether sums of products can be subnormal in fp32. The lowest bits of FP8, fp16 and NVFP4
/// products are far above 2^-149, unless power-of-two scales move them.
bool CanUnderflow(const GemmDesc& desc) {
  const OperandClass operands = OperandClassOf(desc.a, desc.b);
  return operands == OperandClass::kTf32 || operands == OperandClass::kBF16 ||
         operands == OperandClass::kMx32 || operands == OperandClass::kFp8Block ||
         operands == OperandClass::kFp8Group;
}

double LargestScale(const GemmOperand& operand) {
  float largest = 0;
  for (int64_t i = 0; i < operand.scale_inv.element_count(); ++i) {
    largest = std::fmax(largest, std::fabs(operand.scale_inv.as<float>()[i]));
  }
  return largest;
}

ErrorBound Fp32Bound(const GemmDesc& desc, int64_t k) {
  ErrorBound bound;
  bound.factor = Gamma(k);
  bound.absolute = CanUnderflow(desc) ? static_cast<double>(k) * kUnderflow : 0;
  bound.derivation = absl::StrFormat("%d fp32 roundings of 2^-24", k);
  const OperandClass operands = OperandClassOf(desc.a, desc.b);
  if (operands == OperandClass::kMx32 || operands == OperandClass::kFp8Block ||
      operands == OperandClass::kFp8Group) {
    const double scaling = 2 * kU + kU * kU;
    bound.factor = bound.factor * (1 + scaling) + scaling;
    absl::StrAppend(&bound.derivation, " + 2 of the scaled operands");
  }
  return bound;
}

/// Adds to the bound of a slice what its promotions add (step 4).
void AddPromotions(const GemmDesc& desc, const FusedRule& rule, int64_t promotions,
                   ErrorBound& bound) {
  const auto count = static_cast<double>(promotions);
  switch (rule.promotion) {
    case Promotion::kNone:
      return;
    case Promotion::kAdd:
      bound.factor += Gamma(promotions - 1);
      if (promotions > 1) absl::StrAppendFormat(&bound.derivation, " + %d x 2^-24", promotions - 1);
      return;
    case Promotion::kScaled:
      bound.absolute += count * kUnderflow * (1 + kLargestBlockSum);
      break;
    case Promotion::kScaledTwice:
      bound.absolute += count * kUnderflow * (1 + LargestScale(desc.b));
      break;
  }
  bound.factor += kU + Gamma(promotions) * (1 + kU);
  absl::StrAppendFormat(&bound.derivation, " + (1 + %d) x 2^-24", promotions);
}

ErrorBound FusedBound(const GemmDesc& desc, const FusedRule& rule, int64_t k) {
  int64_t longest = 0;
  const std::vector<KRange> ranges = SlicesOf(rule, k);
  for (const KRange& range : ranges) longest = std::max(longest, range.end - range.begin);
  const bool promotes = rule.promotion != Promotion::kNone;
  const int64_t run = promotes ? std::min(longest, rule.promote_k) : longest;
  // Products taken in another order than k may reach the last step of their instruction.
  const bool reorders = rule.order != ProductOrder::kAscending;
  const int64_t steps = DivideUp(reorders ? rule.promote_k : run, rule.step);
  const int64_t promotions = promotes ? DivideUp(longest, rule.promote_k) : 1;
  const auto slice_count = static_cast<int64_t>(ranges.size());
  const int terms = rule.step / rule.group;
  const double per_step = std::ldexp(terms, -rule.align_bits) + std::ldexp(1.0, -rule.out_mantissa);

  ErrorBound bound;
  bound.factor = static_cast<double>(steps) * per_step;
  bound.derivation = absl::StrFormat("%d steps x (%d x 2^-%d + 2^-%d)", steps, terms,
                                     rule.align_bits, rule.out_mantissa);
  AddPromotions(desc, rule, promotions, bound);
  const double promoted = bound.factor - static_cast<double>(steps) * per_step;
  bound.factor += Gamma(slice_count - 1) * (1 + promoted);
  bound.absolute *= static_cast<double>(slice_count);
  if (slice_count > 1) {
    absl::StrAppendFormat(&bound.derivation, " + %d slices x 2^-24", slice_count - 1);
  }
  if (OperandClassOf(desc.a, desc.b) == OperandClass::kTf32) {
    bound.factor = bound.factor * (1 + 0x1p-11) * (1 + 0x1p-11) + 0x1p-10 + 0x1p-22;
    absl::StrAppend(&bound.derivation, " + 2 x 2^-11 of tf32");
  }
  // Scales of promoted sums do not move the exponents within a chain.
  if (CanUnderflow(desc) && !ScalesSums(rule)) {
    bound.absolute +=
        static_cast<double>(steps * promotions * slice_count) * std::ldexp(per_step, -126);
  }
  return bound;
}

OutputFacts FactsOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return FactsOf<BFloat16>();
    case DType::kF16:
      return FactsOf<Float16>();
    case DType::kF8E4M3:
      return FactsOf<E4M3>();
    case DType::kF8E5M2:
      return FactsOf<E5M2>();
    default:
      return FactsOf<Float32>();
  }
}

}  // namespace

error_bound::ElementBound ElementBoundOf(const GemmDesc& desc, const ErrorBound& bound,
                                         DType subject_dtype) {
  error_bound::ElementBound element;
  element.factor = bound.factor;
  element.absolute = bound.absolute;
  element.divisor = static_cast<double>(GlobalDivisor(desc));
  element.is_nv16 = desc.a.scaling == ScaleMode::kNv16;
  if (element.is_nv16) element.nv16_coefficient = Nvfp4Coefficient(desc);
  element.alpha = desc.alpha;
  element.beta = desc.beta;
  if (desc.d_scale.has_value()) element.d_scale = *desc.d_scale.as<float>();
  element.output = FactsOf(subject_dtype);
  element.is_exact = ResolvedFor(desc).family == ArithmeticFamily::kExact;
  element.is_outer = desc.a.scaling == ScaleMode::kOuter;
  element.is_row_scaled = IsRowScaled(desc.a);
  element.has_bias = desc.bias.has_value();
  element.rounds_before_c = desc.in_place && desc.beta == 1;
  return element;
}

absl::Status CheckComparands(const GemmShape& shape, const Tensor& subject, const Tensor& exact) {
  const Shape expected_shape = {shape.m, shape.n};
  for (const auto& [field, tensor] : {std::pair("subject", &subject), std::pair("exact", &exact)}) {
    const bool is_exact = tensor == &exact;
    if (tensor->has_value() && tensor->shape() == expected_shape &&
        (is_exact ? tensor->dtype() == DType::kF32
                  : IsFp8(tensor->dtype()) || IsHighPrecision(tensor->dtype()))) {
      continue;
    }
    return Refuse(field, TensorText(*tensor),
                  absl::StrCat("must be ", is_exact ? "f32[" : "a floating type [", shape.m, "x",
                               shape.n, "]"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ErrorBound> BoundFor(const GemmDesc& desc) {
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(desc));
  ErrorBound bound;
  switch (ResolvedFor(desc).family) {
    case ArithmeticFamily::kExact:
      bound.derivation = kCorrectlyRounded;
      return bound;
    case ArithmeticFamily::kFp32:
      bound = Fp32Bound(desc, shape.k);
      break;
    default: {
      GemmDesc modelled = desc;
      modelled.arithmetic = ResolvedFor(desc).Model();
      if (desc.arithmetic.any_split_k) {
        return Refuse("arithmetic", desc.arithmetic.ToString(),
                      "a bound needs the number of slices that ran");
      }
      QG_ASSIGN_OR_RETURN(const FusedRule rule, RuleFor(modelled));
      if (rule.f16_accumulator) {
        return Refuse("arithmetic", desc.arithmetic.ToString(),
                      "no bound is derived for fp16 accumulators, which may overflow");
      }
      bound = FusedBound(desc, rule, shape.k);
    }
  }
  bound.factor *= kInflation;
  bound.absolute *= kInflation;
  return bound;
}

absl::StatusOr<BoundRatios> RatiosToBound(const GemmDesc& desc, const Tensor& subject,
                                          const Tensor& exact, const ExecutionContext& context) {
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(desc));
  QG_RETURN_IF_ERROR(CheckComparands(shape, subject, exact));
  BoundRatios found;
  QG_ASSIGN_OR_RETURN(found.bound, BoundFor(desc));
  // Each ratio takes the place of the magnitude that it was made of.
  QG_ASSIGN_OR_RETURN(found.ratios, AbsoluteGemm(desc, context));
  const error_bound::ElementBound element = ElementBoundOf(desc, found.bound, subject.dtype());
  const std::vector<float> a_scales = ScalesOf(desc.a, shape.m),
                           b_scales = ScalesOf(desc.b, shape.n);
  const std::vector<float> bias =
      desc.bias.has_value() ? DecodeToFloats(desc.bias) : std::vector<float>(shape.n);
  const std::vector<float> c = desc.beta != 0 ? DecodeToFloats(desc.c) : std::vector<float>();
  const std::vector<float> given = DecodeToFloats(subject);
  const float* truth = exact.as<float>();
  auto* const ratios = found.ratios.as<double>();
  ParallelFor(context, shape.m, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t column = 0; column < shape.n; ++column) {
        const int64_t index = row * shape.n + column;
        const error_bound::ElementTerms terms = {ratios[index], a_scales[row], b_scales[column],
                                                 c.empty() ? 0 : c[index], bias[column]};
        ratios[index] = element.Ratio(terms, given[index], truth[index]);
      }
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return found;
}

absl::StatusOr<BoundCheck> CheckBound(const GemmDesc& desc, const Tensor& subject,
                                      const Tensor& exact, const ExecutionContext& context) {
  QG_ASSIGN_OR_RETURN(BoundRatios found, RatiosToBound(desc, subject, exact, context));
  BoundCheck check;
  check.bound = std::move(found.bound);
  const double* const ratios = std::as_const(found.ratios).as<double>();
  for (int64_t i = 0; i < found.ratios.element_count(); ++i) {
    check.violation_count += !(ratios[i] <= 1);
    check.worst_ratio = std::max(check.worst_ratio, ratios[i]);
  }
  check.pass = check.violation_count == 0;
  return check;
}

}  // namespace quantgate
