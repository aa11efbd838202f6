#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/numerics/reduction.h"
#include "kernels/ops/element_runs.h"
#include "kernels/ops/reduction/ordered_reduction.h"
#include "kernels/ops/row_kernels.h"

namespace quantgate {
namespace {

/// Rounds partial sums to `dtype` through `scratch`, which holds as many of its elements.
void RoundPartials(const RowKernels& kernels, DType dtype, int64_t count, uint16_t* scratch,
                   float* sums) {
  if (dtype == DType::kF32) return;
  kernels.store[RowType(dtype)](sums, count, scratch);
  kernels.load[RowType(dtype)](scratch, count, sums);
}

}  // namespace

absl::Status OrderedSumToCpu(std::span<const Tensor> parts_in_order, SumAccumulation accumulation,
                             const Tensor& to, const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckOrderedSumTo(parts_in_order, to));
  const Tensor& first = parts_in_order[0];
  Tensor total = to;
  const DType rounded = accumulation == SumAccumulation::kElement ? first.dtype() : DType::kF32;
  const RowKernels& kernels = RowKernelsOf(context.isa);
  return ForRuns(context, first.element_count(), [&](int64_t at, int64_t count) {
    alignas(64) float sums[kElementRun], part[kElementRun];
    alignas(64) uint16_t scratch[kElementRun];
    LoadRow(kernels, first, at, count, sums);
    for (const Tensor& next : parts_in_order.subspan(1)) {
      LoadRow(kernels, next, at, count, part);
      kernels.add(part, count, sums);
      RoundPartials(kernels, rounded, count, scratch, sums);
    }
    StoreRow(kernels, sums, at, count, total);
  });
}

absl::StatusOr<Tensor> OrderedSumCpu(std::span<const Tensor> parts_in_order,
                                     SumAccumulation accumulation, DType out,
                                     const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckOrderedSum(parts_in_order, out));
  QG_ASSIGN_OR_RETURN(Tensor total, Tensor::Allocate(out, parts_in_order[0].shape()));
  QG_RETURN_IF_ERROR(OrderedSumToCpu(parts_in_order, accumulation, total, context));
  return total;
}

absl::StatusOr<Tensor> MaximumCpu(std::span<const Tensor> parts, const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckMaximum(parts));
  QG_ASSIGN_OR_RETURN(Tensor largest, Tensor::Allocate(DType::kF32, parts[0].shape()));
  QG_RETURN_IF_ERROR(ForRuns(context, parts[0].element_count(), [&](int64_t at, int64_t count) {
    float* to = largest.as<float>() + at;
    for (int64_t i = 0; i < count; ++i) to[i] = CanonicalFloat(parts[0].as<float>()[at + i]);
    for (const Tensor& next : parts.subspan(1)) {
      const float* from = next.as<float>() + at;
      for (int64_t i = 0; i < count; ++i) to[i] = MaximumStep(to[i], from[i]);
    }
  }));
  return largest;
}

}  // namespace quantgate
