// Results for a whole tensor: the amax, the scale that follows from it, the kinds of elements.
#include "kernels/quantize/cuda/packed_casts_cuda.h"
#include "kernels/quantize/cuda/tile_parts_cuda.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;
constexpr int kUnrolled = 4;

/// Magnitudes in the bits of the format, two per word if it has 16 bits.
template <class Source>
struct Magnitudes {
  static constexpr int kBytes = std::is_same_v<Source, Float32> ? 4 : 2;
  uint32_t max = 0;

  __device__ void Take(uint32_t word) {
    if constexpr (std::is_same_v<Source, Float32>) {
      // If one is NaN, fmaxf gives the other.
      max = __float_as_uint(fmaxf(__uint_as_float(max), fabsf(__uint_as_float(word))));
    } else if constexpr (std::is_same_v<Source, BFloat16>) {
      max = MaxMagnitudesBf16(max, word);
    } else {
      max = MaxMagnitudesF16(max, word);
    }
  }
  __device__ void Take(const uint4& words) {
    Take(words.x);
    Take(words.y);
    Take(words.z);
    Take(words.w);
  }
  __device__ void TakeElement(const void* source, int64_t i) {
    if constexpr (std::is_same_v<Source, Float32>) {
      Take(static_cast<const uint32_t*>(source)[i]);
    } else {
      Take(static_cast<const uint16_t*>(source)[i]);
    }
  }
  __device__ uint32_t Float32Bits() const {
    if constexpr (std::is_same_v<Source, Float32>) return max;
    const uint16_t lower = static_cast<uint16_t>(max), upper = static_cast<uint16_t>(max >> 16);
    if constexpr (std::is_same_v<Source, BFloat16>)
      return static_cast<uint32_t>(::max(lower, upper)) << 16;
    return __float_as_uint(DecodeFloat<Float16>(::max(lower, upper)));
  }
};

template <class Source>
__global__ void __launch_bounds__(kThreads)
    FindAmax(const void* source, int64_t count, uint32_t* amax_bits) {
  constexpr int64_t kPerVector = 16 / Magnitudes<Source>::kBytes;
  const bool is_aligned = reinterpret_cast<uintptr_t>(source) % 16 == 0;
  const int64_t vectors = is_aligned ? count / kPerVector : 0;
  const auto* from = static_cast<const uint4*>(source);
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  Magnitudes<Source> magnitudes;
  int64_t i = thread;
  for (; i + (kUnrolled - 1) * threads < vectors; i += kUnrolled * threads) {
    uint4 words[kUnrolled];
#pragma unroll
    for (int j = 0; j < kUnrolled; ++j) words[j] = from[i + j * threads];
#pragma unroll
    for (int j = 0; j < kUnrolled; ++j) magnitudes.Take(words[j]);
  }
  for (; i < vectors; i += threads) magnitudes.Take(from[i]);
  for (i = vectors * kPerVector + thread; i < count; i += threads) {
    magnitudes.TakeElement(source, i);
  }
  const uint32_t amax = __reduce_max_sync(0xFFFFFFFF, magnitudes.Float32Bits());
  if (threadIdx.x % kWarpLanes == 0) atomicMax(amax_bits, amax);
}

__global__ void MakeTensorScale(const TensorScaleJob job) {
  // The cast may begin to read the source.
  asm volatile("griddepcontrol.launch_dependents;");
  for (int i = 0; i < job.zeroed_words; ++i) job.zeroed[i] = 0;
  if (job.has_given_amax) *job.amax = job.given_amax;
  float scale = 1.0f;
  if (job.given_scale != nullptr) {
    scale = *job.given_scale;
  } else if (!job.is_empty) {
    scale = ComputeScale(*job.amax, job.max_finite, job.options, job.subnormals);
  }
  *job.scale = scale;
  *job.scale_inv = ScaleInverse(scale, job.subnormals);
}

template <class Source, class Kept>
__global__ void __launch_bounds__(kThreads)
    CountKept(const void* source, const void* kept, int64_t count, unsigned long long* counts) {
  const auto* from = static_cast<const typename Source::Storage*>(source);
  const auto* to = static_cast<const typename Kept::Storage*>(kept);
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  ThreadCounts found;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += threads) {
    found.Add(KindOfKept<Source, Kept>(from[i], to[i]));
  }
  __shared__ WarpCounts<kWarps> of_warps;
  found.AddTo(counts, of_warps);
}

using CountKernel = void (*)(const void*, const void*, int64_t, unsigned long long*);

}  // namespace

cudaError_t LaunchAmax(const void* source, FormatId format, int64_t count, uint32_t* amax_bits,
                       int multiprocessors, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const auto kernel =
      VisitFormatIn(SourceFormats{}, format, [&]<class Source>() { return &FindAmax<Source>; });
  kernel<<<multiprocessors * 8, kThreads, 0, stream>>>(source, count, amax_bits);
  return cudaGetLastError();
}

cudaError_t LaunchTensorScale(const TensorScaleJob& job, cudaStream_t stream) {
  MakeTensorScale<<<1, 1, 0, stream>>>(job);
  return cudaGetLastError();
}

cudaError_t LaunchCountKept(const KeptElements& elements, unsigned long long* counts,
                            int multiprocessors, cudaStream_t stream) {
  if (elements.count == 0) return cudaSuccess;
  const CountKernel kernel =
      VisitFormatIn(SourceFormats{}, elements.source_format, [&]<class Source>() {
        return VisitFormatIn(SourceFormats{}, elements.kept_format,
                             [&]<class Kept>() -> CountKernel { return &CountKept<Source, Kept>; });
      });
  kernel<<<multiprocessors * 8, kThreads, 0, stream>>>(elements.source, elements.kept,
                                                       elements.count, counts);
  return cudaGetLastError();
}

}  // namespace quantgate
