// A few neighbouring elements of a row in a kernel's registers.
#pragma once

#include <cstdint>

#include "kernels/tensor/files/number_source.h"

#if defined(__CUDACC__)

namespace quantgate {

/// kWidth values of one row, as loaded and as numbers; -0.0 until they are loaded. Addresses are
/// aligned to the piece. NaN is left as it is: the end of the sum makes it canonical.
template <NumberEncoding kEncoding, int kWidth>
struct RowPiece;
template <>
struct RowPiece<NumberEncoding::kF32, 1> {
  float raw = -0.0f;
  __device__ void Load(const void* data, int64_t at) { raw = static_cast<const float*>(data)[at]; }
  __device__ float Value(int) const { return raw; }
};
template <>
struct RowPiece<NumberEncoding::kF32, 2> {
  float2 raw = {-0.0f, -0.0f};
  __device__ void Load(const void* data, int64_t at) {
    raw = __ldcs(reinterpret_cast<const float2*>(static_cast<const float*>(data) + at));
  }
  __device__ float Value(int i) const { return i == 0 ? raw.x : raw.y; }
};
template <>
struct RowPiece<NumberEncoding::kF32, 4> {
  float4 raw = {-0.0f, -0.0f, -0.0f, -0.0f};
  __device__ void Load(const void* data, int64_t at) {
    raw = __ldcs(reinterpret_cast<const float4*>(static_cast<const float*>(data) + at));
  }
  __device__ float Value(int i) const {
    return i == 0 ? raw.x : i == 1 ? raw.y : i == 2 ? raw.z : raw.w;
  }
};
template <NumberEncoding kEncoding>
__device__ inline float HalfWord(uint32_t word, int half) {
  if constexpr (kEncoding == NumberEncoding::kBF16) {
    return __uint_as_float(half == 0 ? word << 16 : word & 0xFFFF0000u);
  } else {
    return HalfToFloat(half == 0 ? word : word >> 16);
  }
}
template <NumberEncoding kEncoding>
struct RowPiece<kEncoding, 1> {
  uint32_t raw = 0x8000u;
  __device__ void Load(const void* data, int64_t at) {
    raw = static_cast<const uint16_t*>(data)[at];
  }
  __device__ float Value(int) const { return HalfWord<kEncoding>(raw, 0); }
};
template <NumberEncoding kEncoding>
struct RowPiece<kEncoding, 2> {
  uint32_t raw = 0x80008000u;
  __device__ void Load(const void* data, int64_t at) {
    raw = __ldcs(reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(data) + at));
  }
  __device__ float Value(int i) const { return HalfWord<kEncoding>(raw, i); }
};
template <NumberEncoding kEncoding>
struct RowPiece<kEncoding, 8> {
  uint4 raw = {0x80008000u, 0x80008000u, 0x80008000u, 0x80008000u};
  __device__ void Load(const void* data, int64_t at) {
    raw = __ldcs(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(data) + at));
  }
  __device__ float Value(int i) const {
    const uint32_t word = i < 2 ? raw.x : i < 4 ? raw.y : i < 6 ? raw.z : raw.w;
    return HalfWord<kEncoding>(word, i % 2);
  }
};

}  // namespace quantgate

#endif
