// f32, bf16 and f16 tensors as rows of floats in kernels: one element, or a few in one
// access.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/tensor/encode_lanes.h"
#include "kernels/tensor/files/number_source.h"
#include "kernels/tensor/row_piece_cuda.h"

namespace quantgate {

/// A tensor in device memory that a kernel reads; null: none. The encoding is kF32, kBF16 or kF16.
struct FloatsIn {
  const void* data = nullptr;
  NumberEncoding encoding = NumberEncoding::kF32;
};
/// Likewise, written. NaN becomes canonical; bf16 and f16 are rounded to nearest even.
struct FloatsOut {
  void* data = nullptr;
  NumberEncoding encoding = NumberEncoding::kF32;
};

/// Whether LoadLanes and StoreLanes can reach it.
inline bool IsAlignedForLanes(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

#if defined(__CUDACC__)

__device__ inline float LoadFloat(const FloatsIn& from, int64_t at) {
  return FloatAt(from.data, from.encoding, nullptr, at);
}

__device__ inline void StoreFloat(const FloatsOut& to, int64_t at, float value) {
  switch (to.encoding) {
    case NumberEncoding::kBF16:
      static_cast<uint16_t*>(to.data)[at] = EncodeFloat<BFloat16>(value);
      return;
    case NumberEncoding::kF16:
      static_cast<uint16_t*>(to.data)[at] = EncodeFloat<Float16>(value);
      return;
    default:
      static_cast<float*>(to.data)[at] = CanonicalFloat(value);
      return;
  }
}

/// Elements [at, at + kWidth), 4 or 8; `data` is aligned to 16 bytes, `at` is a multiple of kWidth.
/// NaN is as the type has it.
template <int kWidth>
__device__ inline void LoadLanes(const FloatsIn& from, int64_t at, float (&values)[kWidth]) {
  static_assert(kWidth == 4 || kWidth == 8);
  if (from.encoding == NumberEncoding::kF32) {
    const auto* quads = reinterpret_cast<const float4*>(static_cast<const float*>(from.data) + at);
#pragma unroll
    for (int i = 0; i < kWidth / 4; ++i) {
      const float4 quad = quads[i];
      values[4 * i] = quad.x;
      values[4 * i + 1] = quad.y;
      values[4 * i + 2] = quad.z;
      values[4 * i + 3] = quad.w;
    }
    return;
  }
  uint32_t words[kWidth / 2];
  const auto* pairs = reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(from.data) + at);
  if constexpr (kWidth == 8) {
    const uint4 four = *reinterpret_cast<const uint4*>(pairs);
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
  } else {
    words[0] = pairs->x, words[1] = pairs->y;
  }
  const bool is_bf16 = from.encoding == NumberEncoding::kBF16;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    values[i] = is_bf16 ? HalfWord<NumberEncoding::kBF16>(words[i / 2], i % 2)
                        : HalfWord<NumberEncoding::kF16>(words[i / 2], i % 2);
  }
}

template <class F, int kWidth>
__device__ inline void StorePacked(void* to, const float (&values)[kWidth]) {
  uint32_t words[kWidth / 2];
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    words[i] = EncodePair<F>(values[2 * i], values[2 * i + 1]);
  }
  if constexpr (kWidth == 8) {
    *static_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
    *static_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  }
}

/// Likewise, as StoreFloat.
template <int kWidth>
__device__ inline void StoreLanes(const FloatsOut& to, int64_t at, const float (&values)[kWidth]) {
  static_assert(kWidth == 4 || kWidth == 8);
  if (to.encoding == NumberEncoding::kF32) {
    auto* quads = reinterpret_cast<float4*>(static_cast<float*>(to.data) + at);
#pragma unroll
    for (int i = 0; i < kWidth / 4; ++i) {
      quads[i] = make_float4(CanonicalFloat(values[4 * i]), CanonicalFloat(values[4 * i + 1]),
                             CanonicalFloat(values[4 * i + 2]), CanonicalFloat(values[4 * i + 3]));
    }
  } else if (to.encoding == NumberEncoding::kBF16) {
    StorePacked<BFloat16>(static_cast<uint16_t*>(to.data) + at, values);
  } else {
    StorePacked<Float16>(static_cast<uint16_t*>(to.data) + at, values);
  }
}

#endif

}  // namespace quantgate
