// Operands as a function of (pattern, format, seed, index), in integer arithmetic only, so that the
// programs that run on a GPU host and the tests that run anywhere draw the same bytes. Shares no
// code with the engine under test.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace quantgate::testing {

/// A binary format as field widths. `max_finite` is a magnitude code.
struct CodeFormat {
  int bytes, exponent_bits, mantissa_bits, bias;
  uint32_t max_finite, infinity, nan;  // infinity == nan where the format has no infinity.
};
inline constexpr CodeFormat kFloat32Codes{4, 8, 23, 127, 0x7F7FFFFF, 0x7F800000, 0x7FFFFFFF};
inline constexpr CodeFormat kBfloat16Codes{2, 8, 7, 127, 0x7F7F, 0x7F80, 0x7FFF};
inline constexpr CodeFormat kFloat16Codes{2, 5, 10, 15, 0x7BFF, 0x7C00, 0x7FFF};
inline constexpr CodeFormat kE4m3Codes{1, 4, 3, 7, 0x7E, 0x7F, 0x7F};
inline constexpr CodeFormat kE5m2Codes{1, 5, 2, 15, 0x7B, 0x7C, 0x7F};

/// By the names of tests' case tables: "f32", "bf16", "f16", "f8_e4m3", "f8_e5m2".
inline const CodeFormat& CodeFormatOf(std::string_view name) {
  if (name == "f32") return kFloat32Codes;
  if (name == "bf16") return kBfloat16Codes;
  if (name == "f16") return kFloat16Codes;
  return name == "f8_e4m3" ? kE4m3Codes : kE5m2Codes;
}

enum class Pattern {
  kCodes,    ///< Every finite code alike.
  kWide,     ///< Exponents uniform within 12 of 2^0, any mantissa and sign.
  kModel,    ///< As products of training: exponent -1-j with probability 2^-j-1, any mantissa and
             ///< sign.
  kMaximal,  ///< All-ones mantissas, one sign per row; the first `chunk` of K is scaled so that the
             ///< accumulator is as large as it can be without raising the maximum exponent of the
             ///< next step.
  kMaxFinite,  ///< The largest finite code, one sign per row.
  kSpecials,   ///< kModel with one NaN (any payload) or infinity in 256.
  kSubnormal,  ///< Three in four subnormal, the others of the smallest normal exponents.
  kTiny,       ///< Exponents near half of binary32's smallest: products about 2^-150.
  kHuge,       ///< Exponents near half of binary32's largest: sums that pass 2^128 and come back.
  kZeros,      ///< Zeros of both signs.
  kSparse,     ///< Three in four zero, of both signs; else kModel.
  kCancel,     ///< 0, +-1, +-1.5, +-2: sums that cancel to zero.
};

inline constexpr struct {
  Pattern pattern;
  std::string_view name;
} kPatterns[] = {
    {Pattern::kCodes, "codes"},
    {Pattern::kWide, "wide"},
    {Pattern::kModel, "model"},
    {Pattern::kMaximal, "maximal"},
    {Pattern::kMaxFinite, "max_finite"},
    {Pattern::kSpecials, "specials"},
    {Pattern::kSubnormal, "subnormal"},
    {Pattern::kTiny, "tiny"},
    {Pattern::kHuge, "huge"},
    {Pattern::kZeros, "zeros"},
    {Pattern::kSparse, "sparse"},
    {Pattern::kCancel, "cancel"},
};

inline std::string_view PatternName(Pattern pattern) {
  return kPatterns[static_cast<int>(pattern)].name;
}

/// 64 well-mixed bits of (seed, index): two rounds of multiply and xor-shift.
inline uint64_t Mix(uint64_t seed, uint64_t index) {
  uint64_t x = (seed + 1) * 0x9E3779B97F4A7C15u + index * 0xD1B54A32D192ED03u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// The code at `row`, `k` of a matrix with one row for each m (or n). `chunk` is the number of
/// products of one fused step.
inline uint32_t PatternCode(Pattern pattern, const CodeFormat& f, int chunk, uint64_t seed,
                            int64_t row, int64_t k, int64_t row_length) {
  const uint64_t h = Mix(seed, static_cast<uint64_t>(row * row_length + k));
  const uint32_t mantissa_mask = (1u << f.mantissa_bits) - 1;
  const uint32_t sign_bit = 1u << (f.exponent_bits + f.mantissa_bits);
  const uint32_t mantissa = static_cast<uint32_t>(h >> 40) & mantissa_mask;
  const uint32_t sign = (h & 1) ? sign_bit : 0;
  const uint32_t row_sign = (Mix(seed + 77, static_cast<uint64_t>(row)) & 1) ? sign_bit : 0;
  const int exponent_max = static_cast<int>(f.max_finite >> f.mantissa_bits);
  const auto code = [&](int field, uint32_t fraction) {
    const int clamped = std::clamp(field, 0, exponent_max);
    return std::min((static_cast<uint32_t>(clamped) << f.mantissa_bits) | fraction, f.max_finite);
  };
  const uint32_t model = code(f.bias - 1 - std::countl_zero((h << 8) | 1), mantissa) | sign;
  switch (pattern) {
    case Pattern::kCodes:
      return static_cast<uint32_t>((h >> 8) % (f.max_finite + 1)) | sign;
    case Pattern::kWide:
      return code(f.bias - 12 + static_cast<int>((h >> 8) % 25), mantissa) | sign;
    case Pattern::kModel:
      return model;
    case Pattern::kMaximal: {
      // chunk products of (2 - u)^2 sum to just below 4 * chunk: 2 after a shift by log2(chunk)
      // + 1. Only one operand is shifted (the one with an even seed), so that products shift once.
      const bool shifted = k < chunk && seed % 2 == 0;
      const int shift = shifted ? std::bit_width(static_cast<unsigned>(chunk)) : 0;
      // Of binary32 the 10 bits that tf32 keeps: more would round up to a power of two.
      const uint32_t ones = f.mantissa_bits == 23 ? mantissa_mask & ~0x1FFFu : mantissa_mask;
      return code(f.bias - shift, ones) | row_sign;
    }
    case Pattern::kMaxFinite:
      return f.max_finite | row_sign;
    case Pattern::kSpecials: {
      if ((h >> 8) % 256 != 0) return model;
      const bool infinite = (h >> 16) % 2 != 0;
      if (infinite || f.infinity == f.nan) return f.infinity | sign;
      return f.infinity | std::max(mantissa, 1u) | sign;
    }
    case Pattern::kSubnormal:
      return code((h >> 8) % 4 != 0 ? 0 : 1 + static_cast<int>((h >> 10) % 4), mantissa) | sign;
    case Pattern::kTiny:
      return code(f.bias - 72 - static_cast<int>((h >> 8) % 6), mantissa) | sign;
    case Pattern::kHuge:
      return code(f.bias + 58 + static_cast<int>((h >> 8) % 6), mantissa) | sign;
    case Pattern::kZeros:
      return sign;
    case Pattern::kSparse:
      return (h >> 8) % 4 != 0 ? sign : model;
    case Pattern::kCancel: {
      const uint32_t half = 1u << (f.mantissa_bits - 1);
      const uint32_t values[4] = {0, code(f.bias, 0), code(f.bias, half), code(f.bias + 1, 0)};
      return values[(h >> 8) % 4] | sign;
    }
  }
  return 0;
}

/// A row-major matrix of little-endian codes.
inline std::vector<uint8_t> PatternMatrix(Pattern pattern, const CodeFormat& f, int chunk,
                                          uint64_t seed, int64_t rows, int64_t columns) {
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * columns * f.bytes));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < columns; ++k) {
      const uint32_t code = PatternCode(pattern, f, chunk, seed, row, k, columns);
      std::memcpy(&bytes[static_cast<size_t>((row * columns + k) * f.bytes)], &code, f.bytes);
    }
  }
  return bytes;
}

}  // namespace quantgate::testing
