#include "kernels/gemm/exact_output.h"

#include <cmath>

#include "kernels/numerics/cast.h"

namespace quantgate {
namespace {

/// Holds dot * 4 f32 factors: multiples of 2^(-384 - 4 * 149) below 2^(287 + 4 * 128).
using ExactValue = WideAccumulator<-1024, 29>;

/// A product of up to four f32 factors, and a 32-bit one, as an integer of up to 128 bits and a
/// power of two.
class Factor {
 public:
  Factor& TimesInteger(uint64_t x) {
    product_ *= x;
    return *this;
  }
  Factor& Times(float x) {
    const Unpacked u = Unpack<Float32>(std::bit_cast<uint32_t>(x));
    product_ *= u.significand;
    exponent_ += u.exponent - Float32::kMantissaBits;
    negative_ ^= u.negative;
    return *this;
  }
  /// sum += this * (words[0..count) * 2^exponent), with the sign of `negative`.
  template <int kCount>
  void AddMultiple(const uint64_t (&words)[kCount], int exponent, bool negative,
                   ExactValue& sum) const {
    const uint64_t halves[2] = {static_cast<uint64_t>(product_),
                                static_cast<uint64_t>(product_ >> 64)};
    for (int half = 0; half < 2; ++half) {
      if (halves[half] == 0) continue;
      uint64_t row[kCount + 1];
      uint64_t carry = 0;
      for (int i = 0; i < kCount; ++i) {
        const auto partial = static_cast<unsigned __int128>(words[i]) * halves[half] + carry;
        row[i] = static_cast<uint64_t>(partial);
        carry = static_cast<uint64_t>(partial >> 64);
      }
      row[kCount] = carry;
      sum.AddWords(negative != negative_, row, kCount + 1, exponent + exponent_ + 64 * half);
    }
  }

 private:
  unsigned __int128 product_ = 1;
  int exponent_ = 0;
  bool negative_ = false;
};

/// value / divisor, with a bit below all others for a remainder: that is far below half an ulp of
/// any output, so the value rounds as the quotient does.
void Divide(uint64_t divisor, ExactValue::Magnitude& value) {
  if (divisor == 1) return;
  uint64_t remainder = 0;
  for (int i = ExactValue::Magnitude::kWordCount - 1; i >= 0; --i) {
    const auto part = static_cast<unsigned __int128>(remainder) << 64 | value.words[i];
    value.words[i] = static_cast<uint64_t>(part / divisor);
    remainder = static_cast<uint64_t>(part % divisor);
  }
  if (remainder != 0) value.words[0] |= 1;
}

ExactValue::Magnitude ValueOf(const ExactDot::Magnitude& dot, const ExactTerms& terms,
                              float d_scale) {
  constexpr uint64_t kOne[1] = {1};
  ExactValue sum;
  Factor()
      .Times(terms.alpha)
      .Times(terms.scale_a)
      .Times(terms.scale_b)
      .Times(d_scale)
      .AddMultiple(dot.words, ExactDot::Magnitude::kLsb, dot.negative, sum);
  if (terms.beta != 0) {
    Factor()
        .Times(terms.beta)
        .Times(terms.c)
        .Times(d_scale)
        .TimesInteger(terms.divisor)
        .AddMultiple(kOne, 0, false, sum);
  }
  Factor()
      .Times(terms.bias)
      .Times(d_scale)
      .TimesInteger(terms.divisor)
      .AddMultiple(kOne, 0, false, sum);
  ExactValue::Magnitude value = sum.Total();
  Divide(terms.divisor, value);
  return value;
}

/// Calls f(F{}) for the format of an output type.
template <class Function>
uint32_t WithFormat(DType dtype, Function f) {
  switch (dtype) {
    case DType::kBF16:
      return f(BFloat16{});
    case DType::kF16:
      return f(Float16{});
    case DType::kF8E4M3:
      return f(E4M3{});
    case DType::kF8E5M2:
      return f(E5M2{});
    default:
      return f(Float32{});
  }
}

uint32_t EncodeSpecial(double value, DType dtype) {
  return WithFormat(dtype, [&]<class F>(F) -> uint32_t { return EncodeDouble<F>(value); });
}

/// Class and sign of a number, enough to carry NaN and infinities through products and sums.
double ClassOf(double x) { return std::isfinite(x) && x != 0 ? std::copysign(1.0, x) : x; }

/// The value before d_scale when any of its parts is NaN or infinite.
double SpecialValue(double dot_class, const ExactTerms& terms) {
  double value = ClassOf(terms.alpha) * ClassOf(terms.scale_a) * ClassOf(terms.scale_b) * dot_class;
  if (terms.beta != 0) value += ClassOf(terms.beta) * ClassOf(terms.c);
  return value + ClassOf(terms.bias);
}

bool AreFinite(const ExactTerms& terms) {
  const bool product = std::isfinite(terms.alpha) && std::isfinite(terms.scale_a) &&
                       std::isfinite(terms.scale_b) && std::isfinite(terms.bias);
  return product && (terms.beta == 0 || (std::isfinite(terms.beta) && std::isfinite(terms.c)));
}

ExactCode EncodeSpecialOutput(double value, const ExactTerms& terms, DType out_dtype) {
  const uint32_t amax = EncodeDouble<Float32>(std::fabs(value));
  return {EncodeSpecial(value * ClassOf(terms.d_scale), out_dtype), amax};
}

}  // namespace

ExactCode RoundExactOutput(const ExactDot& dot, const ExactTerms& terms, DType out_dtype) {
  const ExactDot::Magnitude total = dot.Total();
  if (!AreFinite(terms)) {
    const double dot_class = total.IsZero() ? 0.0 : total.negative ? -1.0 : 1.0;
    return EncodeSpecialOutput(SpecialValue(dot_class, terms), terms, out_dtype);
  }
  ExactValue::Magnitude value = ValueOf(total, terms, 1.0f);
  ExactCode result;
  result.amax = RoundWide<Float32>(value) & 0x7FFFFFFF;
  if (!std::isfinite(terms.d_scale)) {
    const double sign = value.IsZero() ? 0.0 : value.negative ? -1.0 : 1.0;
    result.code = EncodeSpecial(sign * terms.d_scale, out_dtype);
    return result;
  }
  if (terms.d_scale != 1.0f) value = ValueOf(total, terms, terms.d_scale);
  result.code = WithFormat(out_dtype, [&]<class F>(F) -> uint32_t { return RoundWide<F>(value); });
  return result;
}

ExactCode RoundSpecialOutput(double dot, const ExactTerms& terms, DType out_dtype) {
  return EncodeSpecialOutput(SpecialValue(dot, terms), terms, out_dtype);
}

}  // namespace quantgate
