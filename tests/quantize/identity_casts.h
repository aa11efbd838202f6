// Casts that identity makes, whose codes and kinds are worked out by hand from the formats
// (docs/quantizers.md section 7: RNE; beyond the largest finite value to infinity), for tests of
// the CPU and of the GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/quantize/quantizer.h"

namespace quantgate {

struct IdentityCast {
  std::string name;
  DType source, element;
  std::vector<uint32_t> bits;  ///< Of the elements.
  QuantizationCounts counts;

  /// The elements, [1][n].
  Tensor Source() const {
    Tensor tensor = *Tensor::Allocate(source, {1, static_cast<int64_t>(bits.size())});
    for (size_t i = 0; i < bits.size(); ++i) {
      if (source == DType::kF32) {
        tensor.as<uint32_t>()[i] = bits[i];
      } else {
        tensor.as<uint16_t>()[i] = static_cast<uint16_t>(bits[i]);
      }
    }
    return tensor;
  }
  QuantizerSpec Spec() const { return {.format = QuantizerFormat::kIdentity, .element = element}; }
};

inline std::vector<IdentityCast> IdentityCasts() {
  return {
      {"f32 to f16",
       DType::kF32,
       DType::kF16,
       {0x3F800000, 0x477FEFFF, 0x38800000,  // 1, the last below the midpoint to 2^16, 2^-14.
        0x477FF000, 0x7F7FFFFF,              // The midpoint, and FLT_MAX: to infinity.
        0x38000000, 0x33400000,              // 2^-15 and 1.5 2^-25: subnormal.
        0x33000000, 0x80000001,              // 2^-25, a tie, and less: to zero.
        0x00000000, 0x80000000, 0xFF800000, 0x7FC00000},
       {.normal = 3,
        .zero = 2,
        .subnormal = 2,
        .flushed_to_zero = 2,
        .saturated = 2,
        .infinite = 1,
        .nan = 1}},
      {"f32 to bf16",
       DType::kF32,
       DType::kBF16,
       {0x7F7F7FFF, 0x00800000,  // Below the midpoint to 2^128; the smallest normal.
        0x007F8000,              // Subnormal, a tie of 0x007F and 0x0080: to the smallest normal.
        0x7F7F8000, 0xFF7FFFFF,  // The midpoint to 2^128, and -FLT_MAX: to infinity.
        0x00008001,              // To the smallest subnormal.
        0x00008000, 0x00000001,  // A tie with zero, and less.
        0x7F800001},             // A NaN all of whose payload is cut off.
       {.normal = 3, .subnormal = 1, .flushed_to_zero = 2, .saturated = 2, .nan = 1}},
      {"f16 to bf16",
       DType::kF16,
       DType::kBF16,
       {0x0001, 0x83FF,  // Subnormal, and normal in bf16.
        0x7BFF, 0x3C00, 0x8000, 0xFC00, 0x7E00},
       {.normal = 4, .zero = 1, .infinite = 1, .nan = 1}},
  };
}

}  // namespace quantgate
