#include "kernels/ops/rows/row_moves_cuda.h"

#include <utility>

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/float_operands.h"
#include "kernels/ops/rows/row_moves_kernels.h"

namespace quantgate {
namespace {

absl::StatusOr<Tensor> NumbersOnDevice(CudaDevice& device, std::span<const int64_t> numbers) {
  QG_ASSIGN_OR_RETURN(const Tensor host,
                      Tensor::FromBytes(DType::kI64, {static_cast<int64_t>(numbers.size())},
                                        std::as_bytes(numbers)));
  return device.ToDevice(host);
}

}  // namespace

absl::StatusOr<Tensor> GatherRowsCuda(CudaDevice& device, const Tensor& source,
                                      std::span<const int64_t> rows) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckGatherRows(source, rows));
  Shape shape = source.shape();
  shape[0] = static_cast<int64_t>(rows.size());
  QG_ASSIGN_OR_RETURN(Tensor gathered, device.Allocate(source.dtype(), std::move(shape)));
  if (gathered.byte_size() == 0) return gathered;
  QG_ASSIGN_OR_RETURN(const Tensor numbers, NumbersOnDevice(device, rows));
  const RowGatherParameters parameters = {
      .from = source.data(),
      .to = gathered.data(),
      .rows = numbers.as<int64_t>(),
      .count = gathered.shape()[0],
      .row_bytes = static_cast<int64_t>(gathered.byte_size() / rows.size())};
  QG_CUDA_RETURN_IF_ERROR(LaunchGatherRows(parameters, device.stream()));
  return gathered;
}

absl::StatusOr<Tensor> ScaleRowsCuda(CudaDevice& device, const Tensor& source,
                                     const Tensor& factors) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckScaleRows(source, factors));
  QG_ASSIGN_OR_RETURN(Tensor scaled, device.Allocate(source.dtype(), source.shape()));
  const RowSumParameters parameters = {.rows = FloatsOf(source),
                                       .weights = factors.as<float>(),
                                       .to = WritableFloatsOf(scaled),
                                       .count = source.rows(),
                                       .columns = source.columns()};
  QG_CUDA_RETURN_IF_ERROR(LaunchSumRows(parameters, device.stream()));
  return scaled;
}

absl::StatusOr<Tensor> SumRowsCuda(CudaDevice& device, const RowSums& sums) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckSumRows(sums));
  const int64_t columns = sums.rows.columns();
  const int64_t rows = static_cast<int64_t>(sums.positions.size()) / sums.choices;
  QG_ASSIGN_OR_RETURN(Tensor total, device.Allocate(sums.out, {rows, columns}));
  QG_ASSIGN_OR_RETURN(const Tensor positions, NumbersOnDevice(device, sums.positions));
  const RowSumParameters parameters = {
      .rows = FloatsOf(sums.rows),
      .positions = positions.as<int64_t>(),
      .weights = sums.weights.has_value() ? sums.weights.as<float>() : nullptr,
      .to = WritableFloatsOf(total),
      .count = rows,
      .columns = columns,
      .choices = sums.choices,
      .rounds_terms = sums.accumulation == SumAccumulation::kElement};
  QG_CUDA_RETURN_IF_ERROR(LaunchSumRows(parameters, device.stream()));
  return total;
}

}  // namespace quantgate
