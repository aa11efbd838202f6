#include <utility>

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/attention/attention_kernels.h"
#include "kernels/ops/float_operands.h"
#include "kernels/ops/ops_cuda.h"

namespace quantgate {
namespace {

ScoreShape ScoreShapeOf(const Tensor& scores, AttentionMask mask) {
  return {.rows = scores.rows(),
          .queries = scores.shape()[scores.rank() - 2],
          .keys = scores.columns(),
          .is_causal = mask == AttentionMask::kCausal};
}

}  // namespace

absl::StatusOr<Tensor> SwapDimsCuda(CudaDevice& device, const Tensor& source) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckSwapDims(source));
  Shape shape = source.shape();
  std::swap(shape[0], shape[1]);
  QG_ASSIGN_OR_RETURN(Tensor swapped, device.Allocate(source.dtype(), std::move(shape)));
  if (swapped.byte_size() == 0) return swapped;
  const int64_t outer = source.shape()[0], inner = source.shape()[1];
  const SwapParameters parameters = {
      .from = source.data(),
      .to = swapped.data(),
      .outer = outer,
      .inner = inner,
      .element_bytes = static_cast<int64_t>(source.byte_size()) / (outer * inner)};
  QG_CUDA_RETURN_IF_ERROR(LaunchSwapDims(parameters, device.stream()));
  return swapped;
}

absl::StatusOr<Tensor> RotateCuda(CudaDevice& device, const RotaryDesc& desc) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckRotary(desc));
  QG_ASSIGN_OR_RETURN(Tensor rotated, device.Allocate(desc.heads.dtype(), desc.heads.shape()));
  const RotaryParameters parameters = {.heads = FloatsOf(desc.heads),
                                       .cosines = FloatsOf(desc.table.cosines),
                                       .sines = FloatsOf(desc.table.sines),
                                       .to = WritableFloatsOf(rotated),
                                       .heads_count = desc.heads.shape()[0],
                                       .positions = desc.heads.shape()[1],
                                       .half = desc.heads.columns() / 2,
                                       .period = desc.period,
                                       .rotated = desc.rotated,
                                       .sign = desc.is_backward ? -1.0f : 1.0f};
  QG_CUDA_RETURN_IF_ERROR(LaunchRotate(parameters, device.stream()));
  return rotated;
}

absl::StatusOr<SoftmaxResult> SoftmaxForwardCuda(CudaDevice& device, const SoftmaxDesc& desc,
                                                 KernelPath path) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckSoftmax(desc));
  SoftmaxResult result;
  QG_ASSIGN_OR_RETURN(result.probabilities, device.Allocate(DType::kF32, desc.scores.shape()));
  SoftmaxParameters parameters = {.scores = FloatsOf(desc.scores),
                                  .probabilities = result.probabilities.as<float>(),
                                  .shape = ScoreShapeOf(desc.scores, desc.mask),
                                  .scale = desc.scale};
  if (desc.scores.dtype() == DType::kF32) {
    result.rounded = result.probabilities;
  } else {
    QG_ASSIGN_OR_RETURN(result.rounded, device.Allocate(desc.scores.dtype(), desc.scores.shape()));
    parameters.rounded = WritableFloatsOf(result.rounded);
  }
  QG_CUDA_RETURN_IF_ERROR(LaunchSoftmax(parameters, path, device.stream()));
  return result;
}

absl::StatusOr<Tensor> SoftmaxBackwardCuda(CudaDevice& device, const SoftmaxBackwardDesc& desc,
                                           KernelPath path) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckSoftmax(desc));
  QG_ASSIGN_OR_RETURN(Tensor result, device.Allocate(desc.gradient.dtype(), desc.gradient.shape()));
  const SoftmaxBackwardParameters parameters = {.gradient = FloatsOf(desc.gradient),
                                                .probabilities = desc.probabilities.as<float>(),
                                                .to = WritableFloatsOf(result),
                                                .shape = ScoreShapeOf(desc.gradient, desc.mask),
                                                .scale = desc.scale};
  QG_CUDA_RETURN_IF_ERROR(LaunchSoftmax(parameters, path, device.stream()));
  return result;
}

}  // namespace quantgate
