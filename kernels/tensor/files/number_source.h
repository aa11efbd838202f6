// How kernels read the elements of a floating-point tensor of any type as numbers.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/numerics/cast.h"

namespace quantgate {

enum class NumberEncoding {
  kF64,
  kF32,
  kBF16,
  kF16,
  kBytes,  ///< 8-bit codes, by a table of their values.
};

/// The values of the 256 codes of an 8-bit type. Every one is a binary32 number.
struct ByteValues {
  float value[256];
};

/// A tensor in device memory.
struct NumberSource {
  const void* data = nullptr;
  NumberEncoding encoding = NumberEncoding::kF32;
  ByteValues bytes = {};  ///< For kBytes.
};

#if defined(__CUDACC__)

/// Element `index` of any encoding but kF64; `table` holds the values of ByteValues, best in
/// shared memory. NaN is as the type has it.
__device__ inline float FloatAt(const void* data, NumberEncoding encoding, const float* table,
                                int64_t index) {
  switch (encoding) {
    case NumberEncoding::kF32:
      return static_cast<const float*>(data)[index];
    case NumberEncoding::kBF16:
      return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(data)[index]} << 16);
    case NumberEncoding::kF16:
      return DecodeFloat<Float16>(static_cast<const uint16_t*>(data)[index]);
    case NumberEncoding::kBytes:
      return table[static_cast<const uint8_t*>(data)[index]];
    case NumberEncoding::kF64:
      break;
  }
  return 0.0f;
}

/// Element `index` of any encoding.
__device__ inline double DoubleAt(const void* data, NumberEncoding encoding, const float* table,
                                  int64_t index) {
  if (encoding == NumberEncoding::kF64) return static_cast<const double*>(data)[index];
  return FloatAt(data, encoding, table, index);
}

/// Copies a table of parameters, which is slow to read at differing places, to shared memory. The
/// block meets at a barrier before it reads.
__device__ inline void LoadByteValues(const NumberSource& source, float* table) {
  if (source.encoding != NumberEncoding::kBytes) return;
  for (int code = threadIdx.x; code < 256; code += blockDim.x) {
    table[code] = source.bytes.value[code];
  }
}

/// binary16 as the hardware converts it; NaN becomes 0x7FFFFFFF.
__device__ inline float HalfToFloat(uint32_t code) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<uint16_t>(code)));
  return CanonicalFloat(value);
}

#endif

}  // namespace quantgate
