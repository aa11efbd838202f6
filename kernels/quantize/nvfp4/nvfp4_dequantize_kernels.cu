// The values of rowwise NVFP4 codes (docs/quantizers.md section 6.2), eight codes a thread.
#include "kernels/numerics/nvfp4.h"
#include "kernels/quantize/nvfp4/nvfp4_steps_cuda.h"
#include "kernels/quantize/nvfp4/nvfp4_tile_kernels.h"

namespace quantgate {
namespace {

namespace steps = nvfp4_steps;

constexpr int kThreads = 256, kCodes = 8;

/// A code's value: below 2^-126 its bits are the upper ones of a float 2^126 times smaller.
__device__ float ValueOf(uint32_t codes, int i) {
  const uint32_t sign = codes << (28 - 4 * i) & 0x80000000;
  const uint32_t magnitude = (i < 6 ? codes << (22 - 4 * i) : codes >> (4 * i - 22)) & 0x01C00000;
  return __uint_as_float(sign | magnitude) * 0x1p126f;
}

__device__ float ScaleOf(const Nvfp4DequantizeParameters& p, uint32_t code, int64_t row) {
  const float decoded = steps::DecodeE4M3(code);
  if (p.amax == nullptr) return decoded;
  return decoded * p.amax[row] * Nvfp4AmaxFactor(p.e4m3_max);
}

template <Nvfp4Float kOut>
__global__ void __launch_bounds__(kThreads)
    DequantizeEights(const __grid_constant__ Nvfp4DequantizeParameters p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.rows * p.columns / kCodes) return;
  const uint32_t codes = reinterpret_cast<const uint32_t*>(p.codes)[i];
  const int64_t row = p.row_scaled ? i / (p.columns / kCodes) : 0;
  const float scale = ScaleOf(p, p.scales[i / 2], row);
  float values[kCodes];
#pragma unroll
  for (int k = 0; k < kCodes; ++k) values[k] = ValueOf(codes, k) * scale;
  auto* out = static_cast<uint4*>(p.out);
  if constexpr (kOut == Nvfp4Float::kF32) {
    // NaN that an instruction makes is canonical.
    auto* floats = reinterpret_cast<float4*>(out);
    floats[2 * i] = make_float4(values[0], values[1], values[2], values[3]);
    floats[2 * i + 1] = make_float4(values[4], values[5], values[6], values[7]);
  } else {
    uint32_t words[kCodes / 2];
#pragma unroll
    for (int k = 0; k < kCodes / 2; ++k) {
      words[k] = kOut == Nvfp4Float::kBF16 ? steps::PackBF16(values[2 * k], values[2 * k + 1])
                                           : steps::PackF16(values[2 * k], values[2 * k + 1]);
    }
    out[i] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

}  // namespace

cudaError_t LaunchNvfp4DequantizeEights(const Nvfp4DequantizeParameters& p, cudaStream_t stream) {
  const int64_t threads = p.rows * p.columns / kCodes;
  if (threads == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  if (p.out_type == Nvfp4Float::kF32) {
    DequantizeEights<Nvfp4Float::kF32><<<grid, kThreads, 0, stream>>>(p);
  } else if (p.out_type == Nvfp4Float::kBF16) {
    DequantizeEights<Nvfp4Float::kBF16><<<grid, kThreads, 0, stream>>>(p);
  } else {
    DequantizeEights<Nvfp4Float::kF16><<<grid, kThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

}  // namespace quantgate
