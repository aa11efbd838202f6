#include <algorithm>
#include <cstring>

#include "kernels/base/status_macros.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/row_kernels.h"

namespace quantgate {
namespace {

/// Elements that stay in the L1 cache from load to store.
constexpr int64_t kRun = 2048;
constexpr int64_t kGrainElements = 1 << 16;

/// Calls body(begin, count) for runs of at most kRun elements.
template <class Body>
absl::Status ForRuns(const ExecutionContext& context, int64_t count, const Body& body) {
  ParallelFor(context, count, kGrainElements, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kRun) body(at, std::min(kRun, end - at));
  });
  return context.CheckCancelled();
}

}  // namespace

absl::StatusOr<Tensor> AddCpu(const Tensor& a, const Tensor& b, DType out,
                              const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckAdd(a, b, out));
  QG_ASSIGN_OR_RETURN(Tensor sum, Tensor::Allocate(out, a.shape()));
  const RowKernels& kernels = RowKernelsOf(context.isa);
  QG_RETURN_IF_ERROR(ForRuns(context, a.element_count(), [&](int64_t at, int64_t count) {
    alignas(64) float left[kRun], right[kRun];
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
    alignas(64) float values[kRun];
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

}  // namespace quantgate
