// f32, bf16 and f16 tensors as rows of floats in kernels: one element, or eight in 16-byte
// accesses.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/tensor/encode_lanes.h"
#include "kernels/tensor/number_source.h"

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

/// Whether eight elements from a multiple of eight can be reached in 16-byte accesses.
inline bool IsAlignedForEight(const void* data) {
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

/// Eight elements as loaded; NaN is as the type has it.
struct EightFloats {
  uint4 raw[2];
  NumberEncoding encoding;

  __device__ void Load(const FloatsIn& from, int64_t at) {
    encoding = from.encoding;
    if (encoding == NumberEncoding::kF32) {
      const auto* words = reinterpret_cast<const uint4*>(static_cast<const float*>(from.data) + at);
      raw[0] = words[0];
      raw[1] = words[1];
    } else {
      raw[0] = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(from.data) + at);
    }
  }

  __device__ void Decode(float (&values)[8]) const {
    const uint32_t words[8] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w,
                               raw[1].x, raw[1].y, raw[1].z, raw[1].w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t word = words[i / 2];
      if (encoding == NumberEncoding::kF32) {
        values[i] = __uint_as_float(words[i]);
      } else if (encoding == NumberEncoding::kBF16) {
        values[i] = __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
      } else {
        values[i] = HalfToFloat(i % 2 == 0 ? word : word >> 16);
      }
    }
  }
};

__device__ inline void LoadEight(const FloatsIn& from, int64_t at, float (&values)[8]) {
  EightFloats eight;
  eight.Load(from, at);
  eight.Decode(values);
}

template <class F>
__device__ inline uint4 PackEight(const float (&values)[8]) {
  return make_uint4(EncodePair<F>(values[0], values[1]), EncodePair<F>(values[2], values[3]),
                    EncodePair<F>(values[4], values[5]), EncodePair<F>(values[6], values[7]));
}

__device__ inline void StoreEight(const FloatsOut& to, int64_t at, const float (&values)[8]) {
  if (to.encoding == NumberEncoding::kF32) {
    auto* words = reinterpret_cast<float4*>(static_cast<float*>(to.data) + at);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      words[i] = make_float4(CanonicalFloat(values[4 * i]), CanonicalFloat(values[4 * i + 1]),
                             CanonicalFloat(values[4 * i + 2]), CanonicalFloat(values[4 * i + 3]));
    }
    return;
  }
  auto* words = reinterpret_cast<uint4*>(static_cast<uint16_t*>(to.data) + at);
  *words = to.encoding == NumberEncoding::kBF16 ? PackEight<BFloat16>(values)
                                                : PackEight<Float16>(values);
}

#endif

}  // namespace quantgate
