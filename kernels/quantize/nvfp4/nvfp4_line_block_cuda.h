// One block of one line of an NVFP4 quantization in scalar functions, for kernels. Device code
// only.
#pragma once

#include <cstdint>

#include "kernels/numerics/nvfp4.h"
#include "kernels/quantize/element_kind.h"
#include "kernels/quantize/nvfp4/nvfp4_kernels.h"

namespace quantgate {
namespace nvfp4_blocks {

inline constexpr int kLength = 16;
inline constexpr int kKinds = 7;

/// The bits of |x| widened to fp32, 0 for NaN: they are ordered as the magnitudes.
template <class F>
__device__ uint32_t MagnitudeBits(typename F::Storage code) {
  const uint32_t magnitude = code & (FormatConstants<F>::kSignMask - 1u);
  if (magnitude > kBeyondMaxFinite<F>) return 0;
  return std::bit_cast<uint32_t>(DecodeFloat<F>(static_cast<typename F::Storage>(magnitude)));
}

/// The sixteen elements of one line that share a scale (with their neighbours' in a tile).
template <class Source>
struct LineBlock {
  int64_t line, block;
  typename Source::Storage elements[kLength];

  __device__ float Value(int i) const { return DecodeFloat<Source>(elements[i]); }
};

/// The codes of a block, element i in bits 4i to 4i + 3. `kinds` counts by ElementKind.
template <class Source>
__device__ uint64_t EncodeBlock(const Nvfp4Parameters& p, const LineBlock<Source>& block,
                                const Nvfp4BlockScale& scale, int* kinds) {
  const bool is_stochastic = p.rounding == ElementRounding::kStochastic;
  PhiloxCounter random = {};
  if (is_stochastic) {
    random = StochasticBits(p.stream, static_cast<uint64_t>(block.line + p.line_offset),
                            static_cast<uint64_t>(block.block + p.block_offset));
  }
  uint64_t codes = 0;
  for (int i = 0; i < kLength; ++i) {
    const float scaled = scale.Scaled(block.Value(i));
    const uint8_t byte = StochasticByte(random, i);
    const uint8_t code =
        is_stochastic ? EncodeE2m1Stochastic(scaled, byte) : EncodeFloat<E2M1>(scaled, p.rounding);
    const float rounded = is_stochastic ? AddRandomPart(scaled, byte) : scaled;
    codes |= uint64_t{code} << (4 * i);
    const FloatClass source = Unpack<Source>(block.elements[i]).kind;
    const auto kind = static_cast<int>(KindOfElement<E2M1>(source, rounded, code, p.rounding));
    for (int k = 0; k < kKinds; ++k) kinds[k] += kind == k;
  }
  return codes;
}

}  // namespace nvfp4_blocks
}  // namespace quantgate
