// One output of the exact GEMM in wide integers, for the few outputs that the fp64 interval cannot
// decide and for NaN and infinities. Shared by the CPU and the CUDA engine.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/gemm/exact/exact_kernels.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/wide_accumulator.h"

namespace quantgate {

/// Holds any sum of fewer than 2^30 products of two operands. Products of f32 numbers are multiples
/// of 2^-298 below 2^256, and their fp64 significands, which always have 53 bits, reach down to
/// 2^-350. Products of FP8 numbers under fp32 scales are multiples of 2^-330 (e5m2) below 2^288,
/// with significands down to 2^-382.
using ExactDot = WideAccumulator<-384, 11>;

/// The terms of one output beside the dot product. An absent term has its neutral value.
struct ExactTerms {
  float alpha = 1;
  float scale_a = 1;
  float scale_b = 1;
  float beta = 0;  ///< 0: c is not read.
  float c = 0;
  float bias = 0;
  float d_scale = 1;
  uint64_t divisor = 1;  ///< Divides the dot product; below 2^32.
};

struct ExactCode {
  uint32_t code = 0;
  /// The f32 bits of |value| before d_scale, rounded once. NaN is the canonical one, above all
  /// others.
  uint32_t amax = 0;
};

namespace exact_output {

/// Holds a dot product times 4 f32 factors: multiples of 2^(-384 - 4 * 149) below 2^(287 + 4 *
/// 128).
using Value = WideAccumulator<-1024, 29>;

/// A product of up to four f32 factors and a 32-bit integer, as an integer of up to 128 bits and a
/// power of two.
class Factor {
 public:
  QG_HOST_DEVICE Factor& TimesInteger(uint64_t x) {
    product_ *= x;
    return *this;
  }
  QG_HOST_DEVICE Factor& Times(float x) {
    const Unpacked u = Unpack<Float32>(std::bit_cast<uint32_t>(x));
    product_ *= u.significand;
    exponent_ += u.exponent - Float32::kMantissaBits;
    negative_ ^= u.negative;
    return *this;
  }
  /// sum += this * (words[0..count) * 2^exponent), with the sign of `negative`.
  template <int kCount>
  QG_HOST_DEVICE void AddMultiple(const uint64_t (&words)[kCount], int exponent, bool negative,
                                  Value& sum) const {
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

/// Divides value by the divisor, which is below 2^32, in 32-bit steps. A remainder sets the lowest
/// bit, which is far below half an ulp of any output, so that the value rounds as the quotient
/// does.
QG_HOST_DEVICE inline void Divide(uint64_t divisor, Value::Magnitude& value) {
  if (divisor == 1) return;
  uint64_t remainder = 0;
  for (int i = Value::Magnitude::kWordCount - 1; i >= 0; --i) {
    uint64_t quotient = 0;
    for (const int shift : {32, 0}) {
      const uint64_t part = remainder << 32 | ((value.words[i] >> shift) & 0xFFFFFFFF);
      quotient |= part / divisor << shift;
      remainder = part % divisor;
    }
    value.words[i] = quotient;
  }
  if (remainder != 0) value.words[0] |= 1;
}

QG_HOST_DEVICE inline Value::Magnitude ValueOf(const ExactDot::Magnitude& dot,
                                               const ExactTerms& terms, float d_scale) {
  constexpr uint64_t kOne[1] = {1};
  Value sum;
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
  Value::Magnitude value = sum.Total();
  Divide(terms.divisor, value);
  return value;
}

QG_HOST_DEVICE inline uint32_t Round(const Value::Magnitude& value, ExactOutput output) {
  switch (output) {
    case ExactOutput::kBF16:
      return RoundWide<BFloat16>(value);
    case ExactOutput::kF16:
      return RoundWide<Float16>(value);
    case ExactOutput::kE4M3:
      return RoundWide<E4M3>(value);
    case ExactOutput::kE5M2:
      return RoundWide<E5M2>(value);
    case ExactOutput::kF32:
      break;
  }
  return RoundWide<Float32>(value);
}

QG_HOST_DEVICE inline uint32_t Encode(double value, ExactOutput output) {
  switch (output) {
    case ExactOutput::kBF16:
      return EncodeDouble<BFloat16>(value);
    case ExactOutput::kF16:
      return EncodeDouble<Float16>(value);
    case ExactOutput::kE4M3:
      return EncodeDouble<E4M3>(value);
    case ExactOutput::kE5M2:
      return EncodeDouble<E5M2>(value);
    case ExactOutput::kF32:
      break;
  }
  return EncodeDouble<Float32>(value);
}

QG_HOST_DEVICE inline bool IsFinite(float x) {
  return (std::bit_cast<uint32_t>(x) & 0x7F800000) != 0x7F800000;
}

/// A stand-in of a number's class and sign, which carries NaN and infinities through products and
/// sums: 1 or -1 for a finite number other than 0, else the number itself.
QG_HOST_DEVICE inline double ClassOf(float x) {
  if (!IsFinite(x) || x == 0) return x;
  return x < 0 ? -1.0 : 1.0;
}

template <class Magnitude>
QG_HOST_DEVICE double ClassOfWide(const Magnitude& value) {
  return value.IsZero() ? 0.0 : value.negative ? -1.0 : 1.0;
}

/// The value before d_scale where any of its terms is NaN or infinite.
QG_HOST_DEVICE inline double SpecialValue(double dot_class, const ExactTerms& terms) {
  double value = ClassOf(terms.alpha) * ClassOf(terms.scale_a) * ClassOf(terms.scale_b) * dot_class;
  if (terms.beta != 0) value += ClassOf(terms.beta) * ClassOf(terms.c);
  return value + ClassOf(terms.bias);
}

QG_HOST_DEVICE inline bool AreFinite(const ExactTerms& terms) {
  const bool product = IsFinite(terms.alpha) && IsFinite(terms.scale_a) &&
                       IsFinite(terms.scale_b) && IsFinite(terms.bias);
  return product && (terms.beta == 0 || (IsFinite(terms.beta) && IsFinite(terms.c)));
}

}  // namespace exact_output

/// As RoundExactOutput where a term is NaN or infinite. `dot` is the dot product where that is NaN
/// or infinite, and else its class (-1, 0 or 1).
QG_HOST_DEVICE inline ExactCode RoundSpecialOutput(double dot, const ExactTerms& terms,
                                                   ExactOutput output) {
  const double value = exact_output::SpecialValue(dot, terms);
  const uint32_t amax = EncodeDouble<Float32>(value < 0 ? -value : value);
  return {exact_output::Encode(value * exact_output::ClassOf(terms.d_scale), output),
          amax & Float32::kCanonicalNan};
}

/// RNE((alpha * scale_a * scale_b * dot / divisor + beta * c + bias) * d_scale) of a finite dot
/// product.
QG_HOST_DEVICE inline ExactCode RoundExactOutput(const ExactDot& dot, const ExactTerms& terms,
                                                 ExactOutput output) {
  const ExactDot::Magnitude total = dot.Total();
  if (!exact_output::AreFinite(terms)) {
    return RoundSpecialOutput(exact_output::ClassOfWide(total), terms, output);
  }
  exact_output::Value::Magnitude value = exact_output::ValueOf(total, terms, 1.0f);
  ExactCode result;
  result.amax = RoundWide<Float32>(value) & 0x7FFFFFFF;
  if (!exact_output::IsFinite(terms.d_scale)) {
    result.code = exact_output::Encode(exact_output::ClassOfWide(value) * terms.d_scale, output);
    return result;
  }
  if (terms.d_scale != 1.0f) value = exact_output::ValueOf(total, terms, terms.d_scale);
  result.code = exact_output::Round(value, output);
  return result;
}

}  // namespace quantgate
