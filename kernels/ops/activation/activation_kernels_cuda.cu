// Activations, one thread for eight neighbouring outputs, or for one.
#include "kernels/ops/activation/activation_few_cuda.h"
#include "kernels/ops/launch_cuda.h"

namespace quantgate {
namespace {

template <ActivationFunction kFunction, ActivationVariant kVariant, bool kIsBackward, int kCount>
__device__ void Few(const ActivationParameters& parameters, int64_t at) {
  FewOutputs<kFunction, kVariant, kIsBackward, kCount> few;
  few.Load(parameters, parameters.h, at);
  few.Finish(parameters, ComputedInner<kFunction, kVariant>());
}

/// Outputs [begin, end), kCount at a time.
template <ActivationFunction kFunction, bool kIsBackward, int kCount>
__global__ void __launch_bounds__(kItemThreads)
    ComputeActivation(const __grid_constant__ ActivationParameters parameters, int64_t begin,
                      int64_t end) {
  constexpr ActivationVariant kOther = OtherVariant(kFunction);
  for (int64_t at = begin + kCount * FirstItem(); at < end; at += kCount * ItemStride()) {
    if (parameters.options.variant == kOther) {
      Few<kFunction, kOther, kIsBackward, kCount>(parameters, at);
    } else {
      Few<kFunction, ActivationVariant::kCanonical, kIsBackward, kCount>(parameters, at);
    }
  }
}

template <ActivationFunction kFunction, bool kIsBackward, int kCount>
void Launch(const ActivationParameters& parameters, int64_t begin, int64_t end,
            cudaStream_t stream) {
  if (begin >= end) return;
  ComputeActivation<kFunction, kIsBackward, kCount>
      <<<BlocksFor((end - begin) / kCount), kItemThreads, 0, stream>>>(parameters, begin, end);
}

/// Outputs [begin, by_eights) in eights, the rest one by one.
template <ActivationFunction kFunction>
void LaunchDirection(const ActivationParameters& parameters, int64_t begin, int64_t by_eights,
                     cudaStream_t stream) {
  const int64_t count = parameters.rows * parameters.columns;
  if (parameters.dy.data != nullptr) {
    Launch<kFunction, true, 8>(parameters, begin, by_eights, stream);
    Launch<kFunction, true, 1>(parameters, by_eights, count, stream);
  } else {
    Launch<kFunction, false, 8>(parameters, begin, by_eights, stream);
    Launch<kFunction, false, 1>(parameters, by_eights, count, stream);
  }
}

/// How many outputs from the first can be taken in eights: whole rows where there is a gate.
int64_t CountByEights(const ActivationParameters& parameters) {
  const bool is_aligned = IsAlignedForLanes(parameters.h.data) &&
                          IsAlignedForLanes(parameters.dy.data) &&
                          IsAlignedForLanes(parameters.out.data);
  if (!is_aligned || (IsGated(parameters.options.kind) && parameters.columns % 8 != 0)) return 0;
  return parameters.rows * parameters.columns / 8 * 8;
}

void LaunchComputed(const ActivationParameters& parameters, int64_t begin, int64_t by_eights,
                    cudaStream_t stream) {
  using F = ActivationFunction;
  switch (FunctionOf(parameters.options.kind)) {
    case F::kGelu:
      return LaunchDirection<F::kGelu>(parameters, begin, by_eights, stream);
    case F::kSigmoid:
      return LaunchDirection<F::kSigmoid>(parameters, begin, by_eights, stream);
    case F::kQuickGelu:
      return LaunchDirection<F::kQuickGelu>(parameters, begin, by_eights, stream);
    case F::kRelu:
      return LaunchDirection<F::kRelu>(parameters, begin, by_eights, stream);
    case F::kSquaredRelu:
      return LaunchDirection<F::kSquaredRelu>(parameters, begin, by_eights, stream);
    case F::kSilu:
      return LaunchDirection<F::kSilu>(parameters, begin, by_eights, stream);
    case F::kClampedSilu:
      return LaunchDirection<F::kClampedSilu>(parameters, begin, by_eights, stream);
  }
}

}  // namespace

cudaError_t LaunchActivation(const ActivationParameters& parameters, KernelPath path,
                             cudaStream_t stream) {
  if (parameters.rows == 0 || parameters.columns == 0) return cudaSuccess;
  const int64_t by_eights = path == KernelPath::kTuned ? CountByEights(parameters) : 0;
  int64_t done = 0;
  if (IsForActivationTable(parameters, by_eights)) {
    const cudaError_t error = LaunchActivationByTable(parameters, by_eights, stream);
    if (error != cudaSuccess) return error;
    done = by_eights;
  }
  LaunchComputed(parameters, done, by_eights, stream);
  return cudaGetLastError();
}

}  // namespace quantgate
