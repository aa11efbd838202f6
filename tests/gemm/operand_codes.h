// Seeded operand codes that reach the corner cases of a GEMM.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "kernels/numerics/float_format.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

enum class CodePattern {
  kFinite,    ///< Every finite code with equal probability, so all exponents of the format.
  kNear,      ///< Exponents within a few of 1: sums that cancel and round.
  kWideRows,  ///< Near codes, each row at its own exponent, far apart.
  kSmall,     ///< Zeros, subnormals and the smallest normals.
  kSparse,    ///< Mostly zeros of both signs.
  kMaximal,   ///< The largest finite value: the sums that need the most bits.
  kNegativeMaximal,
  kAll,    ///< Every code, NaN and infinity included.
  kLaced,  ///< Finite codes, with a NaN or an infinity in about one row of four.
};

inline std::string PatternName(CodePattern pattern) {
  static const char* const kNames[] = {"finite", "near",    "wide_rows",        "small",
                                       "sparse", "maximal", "negative_maximal", "all",
                                       "laced"};
  return kNames[static_cast<int>(pattern)];
}

template <class Format>
typename Format::Storage DrawCode(std::mt19937& random, CodePattern pattern, int64_t row) {
  using C = FormatConstants<Format>;
  using Storage = typename Format::Storage;
  const auto below = [&](uint64_t count) { return static_cast<Storage>(random() % count); };
  const Storage sign = random() % 2 == 0 ? Storage(0) : C::kSignMask;
  const auto finite = [&] {
    return static_cast<Storage>(sign | below(uint64_t(C::kMaxFinite) + 1));
  };
  const auto at_exponent = [&](int field) {
    return static_cast<Storage>(sign | Storage(Storage(field) << Format::kMantissaBits) |
                                (Storage(random()) & C::kMantissaMask));
  };
  switch (pattern) {
    case CodePattern::kFinite:
      return finite();
    case CodePattern::kNear:
      if (C::kBits < 8) return finite();  // All of FP6 and FP4 is near 1.
      return at_exponent(Format::kBias - 2 + static_cast<int>(random() % 5));
    case CodePattern::kWideRows: {
      if (C::kBits < 8) return finite();
      const int fields = C::kExponentAllOnes - 4;
      return at_exponent(static_cast<int>((row * 37) % fields) + static_cast<int>(random() % 4));
    }
    case CodePattern::kSmall:
      return static_cast<Storage>(sign | below(uint64_t(2) << Format::kMantissaBits));
    case CodePattern::kSparse:
      return random() % 8 == 0 ? finite() : sign;
    case CodePattern::kMaximal:
      return C::kMaxFinite;
    case CodePattern::kNegativeMaximal:
      return C::kMaxFinite | C::kSignMask;
    case CodePattern::kAll:
      return static_cast<Storage>(random());
    case CodePattern::kLaced: {
      if (C::kBits < 8) return finite();
      const bool special = row % 4 == 1 && random() % 16 == 0;
      return special ? static_cast<Storage>(sign | Storage(C::kMaxFinite + 1 + random() % 2))
                     : finite();
    }
  }
  return 0;
}

template <class Format>
void FillCodes(Tensor& tensor, CodePattern pattern, std::mt19937& random) {
  auto* codes = tensor.as<typename Format::Storage>();
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    codes[i] = DrawCode<Format>(random, pattern, i / tensor.columns());
  }
}

/// Fills a packed FP4 tensor, two codes in each byte along the columns.
inline void FillPacked(Tensor& tensor, CodePattern pattern, std::mt19937& random) {
  auto* bytes = tensor.as<uint8_t>();
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    const int64_t row = i / tensor.columns();
    const uint8_t low = DrawCode<E2M1>(random, pattern, row) & 15;
    const uint8_t high = DrawCode<E2M1>(random, pattern, row) & 15;
    bytes[i] = static_cast<uint8_t>(low | high << 4);
  }
}

/// A tensor of `rows` x `columns` codes (FP4: columns even); the same for the same arguments.
inline Tensor MakeCodes(DType dtype, int64_t rows, int64_t columns, CodePattern pattern,
                        uint32_t seed) {
  const bool packed = dtype == DType::kF4E2M1x2;
  Tensor tensor = Tensor::Allocate(dtype, {rows, packed ? columns / 2 : columns}).value();
  std::mt19937 random(seed);
  switch (dtype) {
    case DType::kBF16:
      FillCodes<BFloat16>(tensor, pattern, random);
      break;
    case DType::kF16:
      FillCodes<Float16>(tensor, pattern, random);
      break;
    case DType::kF8E4M3:
      FillCodes<E4M3>(tensor, pattern, random);
      break;
    case DType::kF8E5M2:
      FillCodes<E5M2>(tensor, pattern, random);
      break;
    case DType::kF6E2M3:
      FillCodes<E2M3>(tensor, pattern, random);
      break;
    case DType::kF6E3M2:
      FillCodes<E3M2>(tensor, pattern, random);
      break;
    case DType::kF4E2M1x2:
      FillPacked(tensor, pattern, random);
      break;
    default:
      FillCodes<Float32>(tensor, pattern, random);
      break;
  }
  return tensor;
}

}  // namespace quantgate
