#include "tests/quantize/cuda/packed_casts_cuda.h"

#include "kernels/numerics/cast.h"
#include "kernels/quantize/cuda/packed_casts_cuda.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kBlocks = 1u << 16;

/// Every binary32 pattern beside another one, and every scale.
template <class F>
__global__ void CompareCasts(unsigned long long* differences) {
  const uint64_t threads = uint64_t{gridDim.x} * kThreads;
  unsigned long long found = 0;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < uint64_t{1} << 32;
       i += threads) {
    const uint32_t bits = static_cast<uint32_t>(i);
    const float value = __uint_as_float(bits), other = __uint_as_float(bits ^ 0x80000001);
    const uint32_t code = EncodeFloat<F>(value), next = EncodeFloat<F>(other);
    found +=
        EncodeFour<F>(value, other, other, value) != (code | next << 8 | next << 16 | code << 24);
  }
  // Every finite magnitude of bf16.
  const uint32_t magnitude = static_cast<uint32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (magnitude <= FormatConstants<BFloat16>::kMaxFinite) {
    const uint8_t scale =
        E8m0Scale<F>(DecodeFloat<BFloat16>(static_cast<uint16_t>(magnitude)), ScaleRule::kRoundUp);
    found += RoundUpScale<F>(magnitude) != scale;
    found += __float_as_uint(RoundUpMultiplier(scale)) != __float_as_uint(E8m0Multiplier(scale));
  }
  if (found != 0) atomicAdd(differences, found);
}

__global__ void CompareSixteenBits(unsigned long long* differences) {
  const uint64_t threads = uint64_t{gridDim.x} * kThreads;
  unsigned long long found = 0;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < uint64_t{1} << 32;
       i += threads) {
    const float value = __uint_as_float(static_cast<uint32_t>(i));
    found += RoundToBf16(value) != EncodeFloat<BFloat16>(value);
    found += RoundToF16(value) != EncodeFloat<Float16>(value);
  }
  if (found != 0) atomicAdd(differences, found);
}

/// As the definition: max of magnitudes where NaN counts as 0, or wins.
template <class F>
__device__ uint16_t MaxOf(uint16_t a, uint16_t b, bool nan_wins) {
  constexpr uint16_t kInfinity = kBeyondMaxFinite<F>;
  uint16_t x = a & 0x7FFF, y = b & 0x7FFF;
  if (nan_wins && (x > kInfinity || y > kInfinity)) return F::kCanonicalNan;
  if (x > kInfinity) x = 0;
  if (y > kInfinity) y = 0;
  return x < y ? y : x;
}

/// Every pair of bf16 and of f16 patterns. Where NaN gives way, the maximum so far is a number.
__global__ void CompareMaxima(unsigned long long* differences) {
  const uint64_t threads = uint64_t{gridDim.x} * kThreads;
  unsigned long long found = 0;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < uint64_t{1} << 32;
       i += threads) {
    const uint32_t pair = static_cast<uint32_t>(i), turned = pair << 16 | pair >> 16;
    const uint16_t a = static_cast<uint16_t>(pair), b = static_cast<uint16_t>(pair >> 16);
    const uint16_t larger = MaxOf<BFloat16>(a, b, true);
    const uint32_t both = larger | static_cast<uint32_t>(larger) << 16;
    found += MaxOrNanOfBf16(pair, turned) != both;
    found += MaxOrNanMagnitudesBf16(pair & kPairMagnitude, turned) != both;
    found += LargerHalf(pair & kPairMagnitude) != ::max(a & 0x7FFF, b & 0x7FFF);
    const uint16_t bf16 = MaxOf<BFloat16>(0, a, false), f16 = MaxOf<Float16>(0, a, false);
    found += MaxMagnitudesBf16(bf16, pair) !=
             (MaxOf<BFloat16>(bf16, a, false) | uint32_t{MaxOf<BFloat16>(0, b, false)} << 16);
    found += MaxMagnitudesF16(f16, turned) !=
             (MaxOf<Float16>(f16, b, false) | uint32_t{MaxOf<Float16>(0, a, false)} << 16);
  }
  if (found != 0) atomicAdd(differences, found);
}

}  // namespace

cudaError_t LaunchCompareE4M3(unsigned long long* differences, cudaStream_t stream) {
  CompareCasts<E4M3><<<kBlocks, kThreads, 0, stream>>>(differences);
  return cudaGetLastError();
}
cudaError_t LaunchCompareE5M2(unsigned long long* differences, cudaStream_t stream) {
  CompareCasts<E5M2><<<kBlocks, kThreads, 0, stream>>>(differences);
  return cudaGetLastError();
}
cudaError_t LaunchCompareSixteenBits(unsigned long long* differences, cudaStream_t stream) {
  CompareSixteenBits<<<kBlocks, kThreads, 0, stream>>>(differences);
  return cudaGetLastError();
}
cudaError_t LaunchCompareMaxima(unsigned long long* differences, cudaStream_t stream) {
  CompareMaxima<<<kBlocks, kThreads, 0, stream>>>(differences);
  return cudaGetLastError();
}

}  // namespace quantgate
