#include "kernels/ops/ordered_reduction_cuda.h"

#include <algorithm>

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/float_operands.h"
#include "kernels/ops/ordered_reduction_kernels.h"

namespace quantgate {
namespace {

using Launcher = cudaError_t (*)(const ReductionParameters& parameters, cudaStream_t stream);

/// `first` and the parts after it, at most kReductionPartsMax of them, to a tensor of `out`.
absl::StatusOr<Tensor> ReduceOnce(CudaDevice& device, const Tensor& first,
                                  std::span<const Tensor> parts, NumberEncoding rounded, DType out,
                                  Launcher launch) {
  QG_ASSIGN_OR_RETURN(Tensor reduced, device.Allocate(out, first.shape()));
  ReductionParameters parameters = {.first = FloatsOf(first),
                                    .part_count = static_cast<int>(parts.size()),
                                    .rounded = rounded,
                                    .to = WritableFloatsOf(reduced),
                                    .count = first.element_count()};
  for (size_t i = 0; i < parts.size(); ++i) {
    parameters.parts[i] = parts[i].data();
    parameters.encoding = FloatEncoding(parts[i].dtype());
  }
  QG_CUDA_RETURN_IF_ERROR(launch(parameters, device.stream()));
  return reduced;
}

/// Of any number of parts: what is reduced so far goes on in fp32, which holds it exactly.
absl::StatusOr<Tensor> Reduce(CudaDevice& device, std::span<const Tensor> parts,
                              NumberEncoding rounded, DType out, Launcher launch) {
  Tensor so_far = parts[0];
  std::span<const Tensor> rest = parts.subspan(1);
  while (rest.size() > kReductionPartsMax) {
    QG_ASSIGN_OR_RETURN(so_far, ReduceOnce(device, so_far, rest.first(kReductionPartsMax), rounded,
                                           DType::kF32, launch));
    rest = rest.subspan(kReductionPartsMax);
  }
  return ReduceOnce(device, so_far, rest, rounded, out, launch);
}

}  // namespace

absl::StatusOr<Tensor> OrderedSumCuda(CudaDevice& device, std::span<const Tensor> parts_in_order,
                                      SumAccumulation accumulation, DType out) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckOrderedSum(parts_in_order, out));
  const NumberEncoding rounded = accumulation == SumAccumulation::kElement
                                     ? FloatEncoding(parts_in_order[0].dtype())
                                     : NumberEncoding::kF32;
  return Reduce(device, parts_in_order, rounded, out, &LaunchOrderedSum);
}

absl::StatusOr<Tensor> MaximumCuda(CudaDevice& device, std::span<const Tensor> parts) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckMaximum(parts));
  return Reduce(device, parts, NumberEncoding::kF32, DType::kF32, &LaunchMaximum);
}

}  // namespace quantgate
