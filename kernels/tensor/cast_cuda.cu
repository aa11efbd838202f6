// Casts between element types.
#include <algorithm>

#include "kernels/tensor/encode_lanes.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256;
constexpr int kQuadsPerThread = 4;
constexpr int64_t kTileElements = int64_t{4} * kThreads * kQuadsPerThread;

template <class To>
__device__ typename To::Storage CastAt(const CastParameters& parameters, const float* table,
                                       int64_t index) {
  const NumberSource& from = parameters.from;
  if (from.encoding == NumberEncoding::kF64) {
    return EncodeDouble<To>(static_cast<const double*>(from.data)[index]);
  }
  return StoredCode<To>(FloatAt(from.data, from.encoding, table, index));
}

/// Casts element by element, from `begin` on.
template <class To>
__global__ void __launch_bounds__(kThreads)
    CastElements(const __grid_constant__ CastParameters parameters, int64_t begin) {
  __shared__ float table[256];
  LoadByteValues(parameters.from, table);
  __syncthreads();
  auto* to = static_cast<typename To::Storage*>(parameters.to);
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = begin + int64_t{blockIdx.x} * kThreads + threadIdx.x; i < parameters.count;
       i += stride) {
    to[i] = CastAt<To>(parameters, table, i);
  }
}

/// Four elements of one encoding: as loaded, and as numbers.
template <NumberEncoding kEncoding>
struct Loaded;
template <>
struct Loaded<NumberEncoding::kF32> {
  uint4 raw;
  __device__ void Load(const void* data, int64_t quad) {
    raw = __ldcs(static_cast<const uint4*>(data) + quad);
  }
  __device__ void Values(const float*, float (&values)[4]) const {
    values[0] = __uint_as_float(raw.x);
    values[1] = __uint_as_float(raw.y);
    values[2] = __uint_as_float(raw.z);
    values[3] = __uint_as_float(raw.w);
  }
};
template <>
struct Loaded<NumberEncoding::kBF16> {
  uint2 raw;
  __device__ void Load(const void* data, int64_t quad) {
    raw = __ldcs(static_cast<const uint2*>(data) + quad);
  }
  __device__ void Values(const float*, float (&values)[4]) const {
    values[0] = __uint_as_float(raw.x << 16);
    values[1] = __uint_as_float(raw.x & 0xFFFF0000u);
    values[2] = __uint_as_float(raw.y << 16);
    values[3] = __uint_as_float(raw.y & 0xFFFF0000u);
  }
};
template <>
struct Loaded<NumberEncoding::kF16> {
  uint2 raw;
  __device__ void Load(const void* data, int64_t quad) {
    raw = __ldcs(static_cast<const uint2*>(data) + quad);
  }
  __device__ void Values(const float*, float (&values)[4]) const {
    values[0] = HalfToFloat(raw.x);
    values[1] = HalfToFloat(raw.x >> 16);
    values[2] = HalfToFloat(raw.y);
    values[3] = HalfToFloat(raw.y >> 16);
  }
};
template <>
struct Loaded<NumberEncoding::kBytes> {
  uint32_t raw;
  __device__ void Load(const void* data, int64_t quad) {
    raw = __ldcs(static_cast<const uint32_t*>(data) + quad);
  }
  __device__ void Values(const float* table, float (&values)[4]) const {
    for (int i = 0; i < 4; ++i) values[i] = table[raw >> (8 * i) & 0xFF];
  }
};

/// Casts the first gridDim.x * kTileElements elements, four at a time.
template <class To, NumberEncoding kEncoding>
__global__ void __launch_bounds__(kThreads)
    CastQuads(const __grid_constant__ CastParameters parameters) {
  __shared__ float table[256];
  if constexpr (kEncoding == NumberEncoding::kBytes) {
    LoadByteValues(parameters.from, table);
    __syncthreads();
  }
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kQuadsPerThread) + threadIdx.x;
  Loaded<kEncoding> loaded[kQuadsPerThread];
#pragma unroll
  for (int i = 0; i < kQuadsPerThread; ++i) {
    loaded[i].Load(parameters.from.data, first + i * kThreads);
  }
#pragma unroll
  for (int i = 0; i < kQuadsPerThread; ++i) {
    float values[4];
    loaded[i].Values(table, values);
    auto* to = static_cast<typename To::Storage*>(parameters.to) + 4 * (first + i * kThreads);
    EncodeQuad<To>(values).Store(to);
  }
}

template <class To>
void LaunchQuads(const CastParameters& parameters, unsigned blocks, cudaStream_t stream) {
  switch (parameters.from.encoding) {
    case NumberEncoding::kF32:
      CastQuads<To, NumberEncoding::kF32><<<blocks, kThreads, 0, stream>>>(parameters);
      break;
    case NumberEncoding::kBF16:
      CastQuads<To, NumberEncoding::kBF16><<<blocks, kThreads, 0, stream>>>(parameters);
      break;
    case NumberEncoding::kF16:
      CastQuads<To, NumberEncoding::kF16><<<blocks, kThreads, 0, stream>>>(parameters);
      break;
    case NumberEncoding::kBytes:
      CastQuads<To, NumberEncoding::kBytes><<<blocks, kThreads, 0, stream>>>(parameters);
      break;
    case NumberEncoding::kF64:
      break;
  }
}

bool QuadsAreAligned(const NumberSource& from) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(from.data);
  switch (from.encoding) {
    case NumberEncoding::kF32:
      return address % 16 == 0;
    case NumberEncoding::kBF16:
    case NumberEncoding::kF16:
      return address % 8 == 0;
    case NumberEncoding::kBytes:
      return address % 4 == 0;
    case NumberEncoding::kF64:
      break;
  }
  return false;
}

}  // namespace

cudaError_t LaunchCast(const CastParameters& parameters, KernelPath path, cudaStream_t stream) {
  if (parameters.count == 0) return cudaSuccess;
  VisitFormat<ElementFormats>(parameters.format, [&]<class To>() {
    int64_t begin = 0;
    if (path == KernelPath::kTuned && QuadsAreAligned(parameters.from)) {
      const int64_t tiles = std::min<int64_t>(parameters.count / kTileElements, 0x7FFFFFFF);
      if (tiles > 0) LaunchQuads<To>(parameters, static_cast<unsigned>(tiles), stream);
      begin = tiles * kTileElements;
    }
    const int64_t blocks = (parameters.count - begin + kThreads - 1) / kThreads;
    if (blocks == 0) return;
    CastElements<To>
        <<<static_cast<unsigned>(std::min<int64_t>(blocks, 1 << 16)), kThreads, 0, stream>>>(
            parameters, begin);
  });
  return cudaGetLastError();
}

}  // namespace quantgate
