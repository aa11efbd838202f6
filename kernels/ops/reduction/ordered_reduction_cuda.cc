#include "kernels/ops/reduction/ordered_reduction_cuda.h"

#include <algorithm>

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/float_operands.h"
#include "kernels/ops/reduction/ordered_reduction_kernels.h"

namespace quantgate {
namespace {

using Launcher = cudaError_t (*)(const ReductionParameters& parameters, cudaStream_t stream);

/// `first` and the parts after it, at most kReductionPartsMax of them, to `to`.
absl::Status ReduceOnce(CudaDevice& device, const Tensor& first, std::span<const Tensor> parts,
                        NumberEncoding rounded, Tensor to, Launcher launch) {
  ReductionParameters parameters = {.first = FloatsOf(first),
                                    .part_count = static_cast<int>(parts.size()),
                                    .rounded = rounded,
                                    .to = WritableFloatsOf(to),
                                    .count = first.element_count()};
  for (size_t i = 0; i < parts.size(); ++i) {
    parameters.parts[i] = parts[i].data();
    parameters.encoding = FloatEncoding(parts[i].dtype());
  }
  return QG_CUDA_STATUS(launch(parameters, device.stream()));
}

/// Of any number of parts: what is reduced so far goes on in fp32, which holds it exactly.
absl::Status Reduce(CudaDevice& device, std::span<const Tensor> parts, NumberEncoding rounded,
                    const Tensor& to, Launcher launch) {
  Tensor so_far = parts[0];
  std::span<const Tensor> rest = parts.subspan(1);
  while (rest.size() > kReductionPartsMax) {
    QG_ASSIGN_OR_RETURN(const Tensor reduced, device.Allocate(DType::kF32, so_far.shape()));
    QG_RETURN_IF_ERROR(
        ReduceOnce(device, so_far, rest.first(kReductionPartsMax), rounded, reduced, launch));
    so_far = reduced;
    rest = rest.subspan(kReductionPartsMax);
  }
  return ReduceOnce(device, so_far, rest, rounded, to, launch);
}

}  // namespace

absl::Status OrderedSumToCuda(CudaDevice& device, std::span<const Tensor> parts_in_order,
                              SumAccumulation accumulation, const Tensor& to) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckOrderedSumTo(parts_in_order, to));
  const NumberEncoding rounded = accumulation == SumAccumulation::kElement
                                     ? FloatEncoding(parts_in_order[0].dtype())
                                     : NumberEncoding::kF32;
  return Reduce(device, parts_in_order, rounded, to, &LaunchOrderedSum);
}

absl::StatusOr<Tensor> OrderedSumCuda(CudaDevice& device, std::span<const Tensor> parts_in_order,
                                      SumAccumulation accumulation, DType out) {
  QG_RETURN_IF_ERROR(CheckOrderedSum(parts_in_order, out));
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_ASSIGN_OR_RETURN(const Tensor sum, device.Allocate(out, parts_in_order[0].shape()));
  QG_RETURN_IF_ERROR(OrderedSumToCuda(device, parts_in_order, accumulation, sum));
  return sum;
}

absl::StatusOr<Tensor> MaximumCuda(CudaDevice& device, std::span<const Tensor> parts) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckMaximum(parts));
  QG_ASSIGN_OR_RETURN(const Tensor largest, device.Allocate(DType::kF32, parts[0].shape()));
  QG_RETURN_IF_ERROR(Reduce(device, parts, NumberEncoding::kF32, largest, &LaunchMaximum));
  return largest;
}

}  // namespace quantgate
