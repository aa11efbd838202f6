#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/ops/element_runs.h"
#include "kernels/ops/elementwise/elementwise.h"
#include "kernels/ops/row_kernels.h"

namespace quantgate {
namespace {

/// Rows of bytes, `bytes` apart.
struct Pitch {
  std::byte* data;
  int64_t bytes;
};

/// The first `width` bytes of each of `rows` rows.
void CopyRows(const Pitch& from, const Pitch& to, int64_t width, int64_t rows,
              const ExecutionContext& context) {
  constexpr int64_t kGrainBytes = int64_t{1} << 20;
  if (width == 0) return;
  const int64_t grain = std::max<int64_t>(1, kGrainBytes / width);
  ParallelFor(context, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(to.data + row * to.bytes, from.data + row * from.bytes,
                  static_cast<size_t>(width));
    }
  });
}

}  // namespace
absl::StatusOr<Tensor> AddCpu(const Tensor& a, const Tensor& b, DType out,
                              const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckAdd(a, b, out));
  QG_ASSIGN_OR_RETURN(Tensor sum, Tensor::Allocate(out, a.shape()));
  const RowKernels& kernels = RowKernelsOf(context.isa);
  QG_RETURN_IF_ERROR(ForRuns(context, a.element_count(), [&](int64_t at, int64_t count) {
    alignas(64) float left[kElementRun], right[kElementRun];
    LoadRow(kernels, a, at, count, left);
    LoadRow(kernels, b, at, count, right);
    kernels.add(right, count, left);
    StoreRow(kernels, left, at, count, sum);
  }));
  return sum;
}

absl::StatusOr<Tensor> ScaleCpu(const Tensor& x, float factor, DType out,
                                const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckScale(x, out));
  QG_ASSIGN_OR_RETURN(Tensor scaled, Tensor::Allocate(out, x.shape()));
  const RowKernels& kernels = RowKernelsOf(context.isa);
  QG_RETURN_IF_ERROR(ForRuns(context, x.element_count(), [&](int64_t at, int64_t count) {
    alignas(64) float values[kElementRun];
    LoadRow(kernels, x, at, count, values);
    kernels.scale(factor, count, values);
    StoreRow(kernels, values, at, count, scaled);
  }));
  return scaled;
}

absl::StatusOr<Tensor> ConcatenateRowsCpu(std::span<const Tensor> parts,
                                          const ExecutionContext& context) {
  QG_ASSIGN_OR_RETURN(Shape shape, ConcatenatedShape(parts));
  QG_ASSIGN_OR_RETURN(Tensor whole, Tensor::Allocate(parts[0].dtype(), std::move(shape)));
  constexpr int64_t kGrainBytes = int64_t{1} << 20;
  std::byte* to = whole.data();
  for (const Tensor& part : parts) {
    ParallelFor(context, static_cast<int64_t>(part.byte_size()), kGrainBytes,
                [&](int64_t begin, int64_t end) {
                  std::memcpy(to + begin, part.data() + begin, static_cast<size_t>(end - begin));
                });
    to += part.byte_size();
  }
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return whole;
}

absl::StatusOr<Tensor> ConcatenateColumnsCpu(std::span<const Tensor> parts,
                                             const ExecutionContext& context) {
  QG_ASSIGN_OR_RETURN(Shape shape, ConcatenatedColumnsShape(parts));
  QG_ASSIGN_OR_RETURN(Tensor whole, Tensor::Allocate(parts[0].dtype(), std::move(shape)));
  const int64_t element = DTypeBytes(whole.dtype());
  const Pitch to = {whole.data(), whole.columns() * element};
  int64_t begin = 0;
  for (Tensor part : parts) {
    const int64_t width = part.columns() * element;
    CopyRows({part.data(), width}, {to.data + begin, to.bytes}, width, part.rows(), context);
    begin += width;
  }
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return whole;
}

absl::StatusOr<Tensor> SliceCpu(const Tensor& source, int dim, int64_t begin, int64_t count,
                                const ExecutionContext& context) {
  QG_ASSIGN_OR_RETURN(const SlicePlan plan, PlanSlice(source, dim, begin, count));
  QG_ASSIGN_OR_RETURN(Tensor slice, Tensor::Allocate(source.dtype(), plan.shape));
  Tensor from = source;
  CopyRows({from.data() + plan.begin, plan.pitch}, {slice.data(), plan.width}, plan.width,
           plan.rows, context);
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return slice;
}

}  // namespace quantgate
