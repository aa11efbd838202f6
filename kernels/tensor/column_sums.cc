#include "kernels/tensor/column_sums.h"

#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/convert.h"

namespace quantgate {
namespace {

template <class Rows>
void SumColumns(const Tensor& tensor, float* out, const ExecutionContext& context) {
  const int64_t rows = tensor.rows(), columns = tensor.columns();
  const auto* from = tensor.as<typename Rows::Storage>();
  ParallelFor(context, columns, kAccumulatorColumns, [&](int64_t begin, int64_t end) {
    RowAccumulator<Rows> accumulator(columns, end - begin);
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8) accumulator.AddEightRows(from + r * columns + begin);
    for (; r < rows; ++r) accumulator.AddRow(from + r * columns + begin);
    accumulator.Sum(out + begin);
  });
}

}  // namespace

absl::Status CheckColumnSums(DType in, DType out) {
  if (!IsHighPrecision(out)) {
    return Refuse("out_dtype", DTypeName(out), "column sums must be f32, bf16 or f16");
  }
  if (!IsHighPrecision(in)) {
    return Refuse("tensor", DTypeName(in), "column sums need f32, bf16 or f16");
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ColumnSums(const Tensor& tensor, DType out,
                                  const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckColumnSums(tensor.dtype(), out));
  QG_ASSIGN_OR_RETURN(Tensor sums, Tensor::Allocate(DType::kF32, {tensor.columns()}));
  switch (tensor.dtype()) {
    case DType::kF32:
      SumColumns<F32Rows>(tensor, sums.as<float>(), context);
      break;
    case DType::kBF16:
      SumColumns<BF16Rows>(tensor, sums.as<float>(), context);
      break;
    default:
      SumColumns<F16Rows>(tensor, sums.as<float>(), context);
      break;
  }
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return CastTensor(sums, out, context);
}

}  // namespace quantgate
