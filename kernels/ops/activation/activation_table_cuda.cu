// Activations of bf16: fp64 arithmetic bounds the kernels of activation_kernels_cuda.cu, and bf16
// has few numbers. Each block computes tanh or sigmoid once for every one that gives another value,
// by the same functions, and looks them up in shared memory. A test compares every code.
#include "kernels/ops/activation/activation_few_cuda.h"
#include "kernels/ops/launch_cuda.h"

namespace quantgate {
namespace {

constexpr int kTableThreads = 1024;  // One block on each multiprocessor: a table costs 9000 values.
constexpr int64_t kTableOutputsMin = int64_t{1} << 21;

// Magnitudes from 2^-27 to 2^8. Below, sigmoid(alpha x) is 1/2 and gelu's tanh too small for
// 1/2 + tanh / 2, 1 + tanh or 1 - tanh^2 to show it; above, tanh is 1 and sigmoid is 0 or 1: for
// the alpha that IsForActivationTable lets through.
constexpr uint32_t kLowestCode = (127 - 27) << 7, kHighestCode = (127 + 8) << 7;
constexpr uint32_t kCodes = kHighestCode - kLowestCode + 1;
constexpr float kAlphaMin = 0.5f, kAlphaMax = 4.0f;

/// Both values of InnerOf need a table where they differ and both are used.
template <ActivationFunction kFunction, bool kIsBackward>
constexpr bool kNeedsTwo = kFunction == ActivationFunction::kGelu&& kIsBackward;

template <ActivationFunction kFunction, bool kIsBackward>
constexpr int kTableBytes = (kNeedsTwo<kFunction, kIsBackward> ? 2 : 1) * 2 * kCodes * 4;

/// InnerOf, looked up: 2 * kCodes for positive and then negative magnitudes, for_slope before
/// for_value where there are both.
template <ActivationFunction kFunction, ActivationVariant kVariant, bool kIsBackward>
class TableOfInner {
 public:
  __device__ explicit TableOfInner(float* table) : table_(table) {}

  /// By all threads of the block.
  __device__ void Build(const ActivationOptions& options) {
    for (uint32_t i = threadIdx.x; i < 2 * kCodes; i += blockDim.x) {
      const uint32_t sign = i < kCodes ? 0u : 0x8000u;
      const uint32_t code = sign | (kLowestCode + i % kCodes);
      const InnerValues inner =
          InnerOf<kFunction, kVariant>(std::bit_cast<float>(code << 16), options);
      table_[i] = kIsBackward ? inner.for_slope : inner.for_value;
      if constexpr (kNeedsTwo<kFunction, kIsBackward>) table_[2 * kCodes + i] = inner.for_value;
    }
  }

  __device__ InnerValues operator()(float x, const ActivationOptions&) const {
    const uint32_t code = std::bit_cast<uint32_t>(x) >> 16;
    const uint32_t magnitude = code & 0x7FFF;
    const uint32_t clamped = min(max(magnitude, kLowestCode), kHighestCode) - kLowestCode;
    const uint32_t i = clamped + (code >> 15) * kCodes;
    const float first = x == x ? table_[i] : x;
    if constexpr (!kNeedsTwo<kFunction, kIsBackward>) return {first, first};
    return {table_[2 * kCodes + i], first};
  }

 private:
  float* table_;
};

/// As many outputs in flight as hide the latency of memory with half the threads of a
/// multiprocessor: backward has more to load for each.
template <ActivationFunction kFunction, ActivationVariant kVariant, bool kIsBackward>
__device__ void LookUp(const ActivationParameters& parameters, int64_t outputs, float* memory) {
  TableOfInner<kFunction, kVariant, kIsBackward> table(memory);
  table.Build(parameters.options);
  __syncthreads();
  constexpr int kSteps = kIsBackward ? 1 : 2;
  const FloatsIn h = {parameters.h.data, NumberEncoding::kBF16};
  const int64_t stride = 8 * ItemStride();
  for (int64_t begin = 8 * FirstItem(); begin < outputs; begin += kSteps * stride) {
    FewOutputs<kFunction, kVariant, kIsBackward, 8> few[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (begin + i * stride < outputs) few[i].Load(parameters, h, begin + i * stride);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (begin + i * stride < outputs) few[i].Finish(parameters, table);
    }
  }
}

template <ActivationFunction kFunction, bool kIsBackward>
__global__ void __launch_bounds__(kTableThreads, 1)
    LookUpActivation(const __grid_constant__ ActivationParameters parameters, int64_t outputs) {
  extern __shared__ float memory[];
  constexpr ActivationVariant kOther = OtherVariant(kFunction);
  if (parameters.options.variant == kOther) {
    LookUp<kFunction, kOther, kIsBackward>(parameters, outputs, memory);
  } else {
    LookUp<kFunction, ActivationVariant::kCanonical, kIsBackward>(parameters, outputs, memory);
  }
}

template <ActivationFunction kFunction, bool kIsBackward>
cudaError_t Launch(const ActivationParameters& parameters, int64_t outputs, cudaStream_t stream) {
  constexpr int kBytes = kTableBytes<kFunction, kIsBackward>;
  // Beyond 48 KiB a kernel has to ask.
  const cudaError_t error =
      cudaFuncSetAttribute(LookUpActivation<kFunction, kIsBackward>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  LookUpActivation<kFunction, kIsBackward>
      <<<parameters.multiprocessors, kTableThreads, kBytes, stream>>>(parameters, outputs);
  return cudaGetLastError();
}

template <ActivationFunction kFunction>
cudaError_t LaunchDirection(const ActivationParameters& parameters, int64_t outputs,
                            cudaStream_t stream) {
  return parameters.dy.data != nullptr ? Launch<kFunction, true>(parameters, outputs, stream)
                                       : Launch<kFunction, false>(parameters, outputs, stream);
}

}  // namespace

bool IsForActivationTable(const ActivationParameters& parameters, int64_t outputs) {
  const ActivationFunction function = FunctionOf(parameters.options.kind);
  if (function == ActivationFunction::kClampedSilu &&
      !(parameters.options.alpha >= kAlphaMin && parameters.options.alpha <= kAlphaMax)) {
    return false;
  }
  return parameters.h.encoding == NumberEncoding::kBF16 && outputs >= kTableOutputsMin &&
         function != ActivationFunction::kRelu && function != ActivationFunction::kSquaredRelu;
}

cudaError_t LaunchActivationByTable(const ActivationParameters& parameters, int64_t outputs,
                                    cudaStream_t stream) {
  using F = ActivationFunction;
  switch (FunctionOf(parameters.options.kind)) {
    case F::kGelu:
      return LaunchDirection<F::kGelu>(parameters, outputs, stream);
    case F::kSigmoid:
      return LaunchDirection<F::kSigmoid>(parameters, outputs, stream);
    case F::kQuickGelu:
      return LaunchDirection<F::kQuickGelu>(parameters, outputs, stream);
    case F::kSilu:
      return LaunchDirection<F::kSilu>(parameters, outputs, stream);
    case F::kClampedSilu:
      return LaunchDirection<F::kClampedSilu>(parameters, outputs, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace quantgate
