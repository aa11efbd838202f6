// Casts of binary32 to smaller formats two at a time, as the hardware converts them. A test
// compares each with EncodeFloat for all 2^32 floats.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/numerics/cast.h"
#include "kernels/tensor/generate/generated_value.h"

namespace quantgate {

#if defined(__CUDACC__)

/// StoredCode of both, `low` in the low bits of the result.
template <class F>
__device__ inline uint32_t EncodePair(float low, float high) {
  return StoredCode<F>(low) | uint32_t{StoredCode<F>(high)} << (8 * sizeof(typename F::Storage));
}
template <>
__device__ inline uint32_t EncodePair<BFloat16>(float low, float high) {
  uint32_t codes;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(high), "f"(low));
  return codes;
}
template <>
__device__ inline uint32_t EncodePair<Float16>(float low, float high) {
  uint32_t codes;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(high), "f"(low));
  return codes;
}
template <>
__device__ inline uint32_t EncodePair<E4M3>(float low, float high) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}
template <>
__device__ inline uint32_t EncodePair<E5M2>(float low, float high) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}

/// Four codes, element 0 in the lowest bits of the first word.
template <class F>
struct Quad {
  static constexpr int kWords = sizeof(typename F::Storage);
  uint32_t word[kWords];

  __device__ void Store(void* out) const {
    if constexpr (kWords == 4) {
      *static_cast<uint4*>(out) = make_uint4(word[0], word[1], word[2], word[3]);
    } else if constexpr (kWords == 2) {
      *static_cast<uint2*>(out) = make_uint2(word[0], word[1]);
    } else {
      *static_cast<uint32_t*>(out) = word[0];
    }
  }
};

template <class F>
__device__ inline Quad<F> EncodeQuad(const float (&values)[4]) {
  Quad<F> quad;
  if constexpr (Quad<F>::kWords == 4) {
    for (int i = 0; i < 4; ++i) quad.word[i] = StoredCode<F>(values[i]);
  } else if constexpr (Quad<F>::kWords == 2) {
    quad.word[0] = EncodePair<F>(values[0], values[1]);
    quad.word[1] = EncodePair<F>(values[2], values[3]);
  } else {
    quad.word[0] = EncodePair<F>(values[0], values[1]) | EncodePair<F>(values[2], values[3]) << 16;
  }
  return quad;
}

#endif

}  // namespace quantgate
