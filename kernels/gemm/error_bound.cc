// How the bound is derived. Let w_i = (|a_i| + floor_a)(|b_i| + floor_b) for nonzero operands, A =
// sum w_i, and u = 2^-24.
//
// 1. Exponents. A product counts in a fused step with exponent ea + eb, where 2^ea <= |a| + floor_a
// also for subnormals,
//    which keep the smallest normal's exponent. So 2^e_i <= w_i and |a_i b_i| <= w_i.
// 2. No growth. Alignment and normalisation only shrink magnitudes, so |acc| after a step is at
// most |acc| before it
//    plus sum |a_i b_i| of the step: by induction at most the sum of w so far, hence at most A.
// 3. One step T(F, outman) of L products. With E the largest exponent, 2^E <= max(w_i, |acc|) <= A.
// Each term but the
//    largest, L of L + 1, loses less than 2^(E-F); the largest loses nothing, since F is at least
//    the fraction bits of a product and of the accumulator. Rounding toward zero loses less than
//    2^-outman |acc|. Together (L 2^-F + 2^-outman) A. Where the accumulator is subnormal its
//    exponent is -126 and its last bit 2^(-126-outman): at most L 2^(-126-F) + 2^(-126-outman)
//    more.
// 4. FP8 promotion and split-K add p and s such sums in fp32 RN: gamma_(p-1) A and gamma_(s-1) (1 +
// gamma_(p-1)) A, as
//    the first addition is to zero (Higham, "Accuracy and Stability of Numerical Algorithms",
//    section 4.2).
// 5. tf32 rounds each operand by at most 2^-11 (|a| + floor_a): the products move by at most
//    (2^-11 (1 + 2^-11) + 2^-11) w, and steps 1 to 3 hold with w (1 + 2^-11)^2.
// 6. fp32 FMA over k: gamma_k A, and 2^-150 for each step that underflows.
//
// The epilogue then rounds r times by u (ElementBound below).
#include "kernels/gemm/error_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/accumulate.h"
#include "kernels/gemm/exact.h"
#include "kernels/gemm/exact_operand.h"
#include "kernels/numerics/float_format.h"
#include "kernels/numerics/fused_step.h"

namespace quantgate {
namespace {

constexpr double kU = 0x1p-24;
/// Half of the smallest fp32 subnormal: what one underflowing operation may lose.
constexpr double kUnderflow = 0x1p-150;
/// Covers the roundings of the bound itself, each below 2^-52.
constexpr double kInflation = 1 + 0x1p-40;

double Gamma(int64_t n) {
  const double nu = static_cast<double>(n) * kU;
  return nu < 1 ? nu / (1 - nu) : std::numeric_limits<double>::infinity();
}

int64_t DivideUp(int64_t x, int64_t by) { return (x + by - 1) / by; }

/// Whether sums of products of this type can be subnormal in fp32 at all: the lowest bits of FP8
/// and fp16 products are far above 2^-149.
bool CanUnderflow(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

struct StepFacts {
  int align_bits, out_mantissa;
};
StepFacts StepOf(DType dtype) {
  if (IsFp8(dtype)) return {WgmmaFp8::kAlignBits, WgmmaFp8::kOutMantissa};
  return {Wgmma16Bit::kAlignBits, Wgmma16Bit::kOutMantissa};
}

ErrorBound Fp32Bound(DType dtype, int64_t k) {
  ErrorBound bound;
  bound.factor = Gamma(k);
  bound.absolute = CanUnderflow(dtype) ? static_cast<double>(k) * kUnderflow : 0;
  bound.derivation = absl::StrFormat("%d fp32 roundings of 2^-24", k);
  return bound;
}

ErrorBound Sm90Bound(DType dtype, bool split, int slices, int64_t k) {
  const AccumulationRule rule = Sm90Rule(dtype, split, slices);
  int64_t longest = 0;
  const std::vector<KRange> ranges = SlicesOf(rule, k);
  for (const KRange& range : ranges) longest = std::max(longest, range.end - range.begin);
  const int64_t run = rule.promote_k > 0 ? std::min(longest, rule.promote_k) : longest;
  const int64_t steps = DivideUp(run, rule.step);
  const int64_t promotions = rule.promote_k > 0 ? DivideUp(longest, rule.promote_k) : 1;
  const auto slice_count = static_cast<int64_t>(ranges.size());
  const StepFacts facts = StepOf(dtype);
  const double per_step =
      std::ldexp(rule.step, -facts.align_bits) + std::ldexp(1.0, -facts.out_mantissa);
  const double promoting = Gamma(promotions - 1);

  ErrorBound bound;
  bound.factor =
      static_cast<double>(steps) * per_step + promoting + Gamma(slice_count - 1) * (1 + promoting);
  bound.derivation = absl::StrFormat("%d steps x (%d x 2^-%d + 2^-%d)", steps, rule.step,
                                     facts.align_bits, facts.out_mantissa);
  if (promotions > 1) absl::StrAppendFormat(&bound.derivation, " + %d x 2^-24", promotions - 1);
  if (slice_count > 1) {
    absl::StrAppendFormat(&bound.derivation, " + %d slices x 2^-24", slice_count - 1);
  }
  if (dtype == DType::kF32) {
    bound.factor = bound.factor * (1 + 0x1p-11) * (1 + 0x1p-11) + 0x1p-10 + 0x1p-22;
    absl::StrAppend(&bound.derivation, " + 2 x 2^-11 of tf32");
  }
  if (CanUnderflow(dtype)) {
    bound.absolute =
        static_cast<double>(steps * promotions * slice_count) * std::ldexp(per_step, -126);
  }
  return bound;
}

/// Facts of an output format: half an ulp at a magnitude, and where overflow begins.
struct OutputFacts {
  int mantissa_bits = 0;
  int exponent_min = 0;
  double largest_finite = 0;
  bool saturates = false;

  double HalfUlp(double magnitude) const {
    const int exponent = magnitude > 0 ? std::ilogb(magnitude) : exponent_min;
    return std::ldexp(1.0, std::max(exponent, exponent_min) - mantissa_bits - 1);
  }
  /// The smallest magnitude that rounds to infinity.
  double Overflow() const { return largest_finite + HalfUlp(largest_finite); }
};

template <class F>
OutputFacts FactsOf() {
  using C = FormatConstants<F>;
  const int top = (C::kMaxFinite >> F::kMantissaBits) - F::kBias;
  const double significand = (C::kMaxFinite & C::kMantissaMask) | (1u << F::kMantissaBits);
  return {F::kMantissaBits, C::kExponentMin, std::ldexp(significand, top - F::kMantissaBits),
          C::kBits <= 8};
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

/// Everything that the bound of one element depends on, besides the tensors.
class BoundOfElements {
 public:
  BoundOfElements(const GemmDesc& desc, const GemmShape& shape, const ErrorBound& bound,
                  const Tensor& absolute, DType subject_dtype)
      : desc_(desc),
        bound_(bound),
        shape_(shape),
        is_exact_(desc.arithmetic.Resolved().family == ArithmeticFamily::kExact),
        output_(FactsOf(subject_dtype)),
        a_scales_(ScalesOf(desc.a, shape.m)),
        b_scales_(ScalesOf(desc.b, shape.n)),
        bias_(desc.bias.has_value() ? DecodeToFloats(desc.bias) : std::vector<float>(shape.n)),
        c_(desc.beta != 0 ? DecodeToFloats(desc.c) : std::vector<float>()),
        d_scale_(desc.d_scale.has_value() ? *desc.d_scale.as<float>() : 1.0),
        absolute_(absolute.as<double>()) {}

  /// |subject - exact| over the largest that it may be; infinite for a difference of class.
  double Ratio(int64_t row, int64_t column, double subject, double exact) const;

 private:
  double BeforeOutput(int64_t row, int64_t column) const;
  double CoefficientError(int64_t row, int64_t column) const;

  const GemmDesc& desc_;
  const ErrorBound& bound_;
  const GemmShape shape_;
  const bool is_exact_;
  const OutputFacts output_;
  const std::vector<float> a_scales_, b_scales_, bias_, c_;
  const double d_scale_;
  const double* absolute_;
};

// Relative error of f32(f32(alpha * scale_N) * scale_M): two roundings, or what it really is where
// it underflows.
double BoundOfElements::CoefficientError(int64_t row, int64_t column) const {
  const float scaled_alpha = desc_.alpha * b_scales_[column];
  const float coefficient = scaled_alpha * a_scales_[row];
  const double exact = static_cast<double>(desc_.alpha) * b_scales_[column] * a_scales_[row];
  if (exact == 0) return 0;
  return std::max(Gamma(2), std::fabs(coefficient / exact - 1) * kInflation);
}

// Before the rounding to the output type: accumulation, scales, then beta * c or the bias.
double BoundOfElements::BeforeOutput(int64_t row, int64_t column) const {
  const double absolute = absolute_[row * shape_.n + column];
  if (is_exact_) return std::isfinite(absolute) ? 0 : absolute;
  const double scale =
      std::fabs(static_cast<double>(desc_.alpha) * a_scales_[row] * b_scales_[column]);
  double error = bound_.factor * absolute + bound_.absolute * scale;
  const bool is_outer = desc_.a.scaling == ScaleMode::kOuter;
  // Outer scales multiply the value one after the other (and alpha last); otherwise one coefficient
  // does.
  const double scaling = is_outer ? Gamma(3) : Gamma(1) + 2 * CoefficientError(row, column);
  error += scaling * (absolute + error);
  error += kUnderflow * (2 + std::fabs(desc_.alpha) * (1 + std::fabs(a_scales_[row])));
  // Every intermediate sum is below `magnitude`, which has room for a few roundings.
  const bool has_c = desc_.beta != 0;
  const double c =
      has_c ? std::fabs(static_cast<double>(desc_.beta) * c_[row * shape_.n + column]) : 0;
  const double magnitude = (absolute + error + c + std::fabs(bias_[column])) * (1 + 0x1p-20);
  if (has_c) error += kU * (c + magnitude) + 2 * kUnderflow;
  if (desc_.bias.has_value()) error += kU * magnitude;
  // In place the sum is rounded to the output type before c is added.
  if (desc_.in_place && desc_.beta == 1) error += output_.HalfUlp(magnitude) * (1 + kU);
  if (d_scale_ != 1) {
    const double d_scale = std::fabs(d_scale_);
    error = error * d_scale + kU * (magnitude + error) * d_scale + kUnderflow;
  }
  return error * kInflation;
}

double BoundOfElements::Ratio(int64_t row, int64_t column, double subject, double exact) const {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // 1. NaN and infinities of the same kind. FP8 outputs have no infinities of their own.
  double expected = exact * d_scale_;
  if (std::isnan(subject) || std::isnan(expected)) {
    return std::isnan(subject) && std::isnan(expected) ? 0 : kNever;
  }
  if (output_.saturates) {
    expected = std::clamp(expected, -output_.largest_finite, output_.largest_finite);
  }
  if (subject == expected) return 0;
  // 2. Infinite operands, scales or addends make infinite results, whatever the arithmetic.
  const double before_output = BeforeOutput(row, column);
  if (!std::isfinite(before_output)) return kNever;
  // 3. All finite: an infinity stands for everything from where overflow begins, and the exact
  // value, itself rounded to
  //    f32, is off by up to half its ulp.
  const OutputFacts f32 = FactsOf<Float32>();
  if (std::isinf(expected)) expected = std::copysign(f32.Overflow(), expected);
  const double truth = std::isinf(exact) ? f32.Overflow() : std::fabs(exact);
  double error = before_output + f32.HalfUlp(truth) * std::fabs(d_scale_);
  if (std::isinf(subject)) {
    const double overflow = std::copysign(output_.Overflow(), subject);
    const bool is_beyond = subject > 0 ? expected >= overflow : expected <= overflow;
    return is_beyond ? 0 : std::fabs(overflow - expected) / error;
  }
  error += output_.HalfUlp(std::fabs(expected) + error);
  return std::fabs(subject - expected) / error;
}

}  // namespace

absl::StatusOr<ErrorBound> BoundFor(const GemmDesc& desc) {
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(desc));
  const Arithmetic arithmetic = desc.arithmetic.Resolved();
  const DType dtype = desc.a.data.dtype();
  ErrorBound bound;
  switch (arithmetic.family) {
    case ArithmeticFamily::kExact:
      bound.derivation = "correctly rounded";
      return bound;
    case ArithmeticFamily::kFp32:
      bound = Fp32Bound(dtype, shape.k);
      break;
    default: {
      const bool split =
          arithmetic.accumulation == Accumulation::kSplit ||
          (arithmetic.accumulation == Accumulation::kRecipe && desc.use_split_accumulator);
      bound = Sm90Bound(dtype, split, arithmetic.split_k, shape.k);
    }
  }
  bound.factor *= kInflation;
  bound.absolute *= kInflation;
  return bound;
}

absl::StatusOr<BoundCheck> CheckBound(const GemmDesc& desc, const Tensor& subject,
                                      const Tensor& exact, const ExecutionContext& context) {
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(desc));
  const Shape expected_shape = {shape.m, shape.n};
  for (const auto& [field, tensor] : {std::pair("subject", &subject), std::pair("exact", &exact)}) {
    const bool is_exact = tensor == &exact;
    if (tensor->has_value() && tensor->shape() == expected_shape &&
        (is_exact ? tensor->dtype() == DType::kF32
                  : IsFp8(tensor->dtype()) || IsHighPrecision(tensor->dtype()))) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        field, " is ", tensor->has_value() ? TensorText(*tensor) : "absent", ": expected ",
        is_exact ? "f32[" : "a floating type [", shape.m, "x", shape.n, "]"));
  }
  BoundCheck check;
  QG_ASSIGN_OR_RETURN(check.bound, BoundFor(desc));
  QG_ASSIGN_OR_RETURN(const Tensor absolute, AbsoluteGemm(desc, context));
  const BoundOfElements bounds(desc, shape, check.bound, absolute, subject.dtype());
  const std::vector<float> found = DecodeToFloats(subject);
  const float* truth = exact.as<float>();

  struct RowFindings {
    int64_t violation_count = 0;
    double worst_ratio = 0;
  };
  std::vector<RowFindings> rows(shape.m);
  ParallelFor(context, shape.m, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t column = 0; column < shape.n; ++column) {
        const int64_t index = row * shape.n + column;
        const double ratio = bounds.Ratio(row, column, found[index], truth[index]);
        rows[row].violation_count += !(ratio <= 1);
        rows[row].worst_ratio = std::max(rows[row].worst_ratio, ratio);
      }
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  for (const RowFindings& row : rows) {
    check.violation_count += row.violation_count;
    check.worst_ratio = std::max(check.worst_ratio, row.worst_ratio);
  }
  check.pass = check.violation_count == 0;
  return check;
}

}  // namespace quantgate
