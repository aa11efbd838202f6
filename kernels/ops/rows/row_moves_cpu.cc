#include <algorithm>
#include <cstring>

#include "kernels/base/status_macros.h"
#include "kernels/ops/row_kernels.h"
#include "kernels/ops/rows/row_moves.h"

namespace quantgate {
namespace {

constexpr int64_t kGrainRows = 16;
/// Elements that stay in the L1 cache from load to store.
constexpr int64_t kRun = 2048;

/// Calls body(row, first column, columns) for runs of at most kRun elements of rows x columns.
template <class Body>
absl::Status ForRowRuns(const ExecutionContext& context, int64_t rows, int64_t columns,
                        const Body& body) {
  ParallelFor(context, rows, kGrainRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t at = 0; at < columns; at += kRun) body(row, at, std::min(kRun, columns - at));
    }
  });
  return context.CheckCancelled();
}

/// What one choice adds to a run of a row.
void LoadTerm(const RowKernels& kernels, const RowSums& sums, int64_t choice, int64_t column,
              int64_t count, float* term) {
  const int64_t row = sums.positions[static_cast<size_t>(choice)];
  if (row == kNoRow) {
    std::fill(term, term + count, 0.0f);
    return;
  }
  LoadRow(kernels, sums.rows, row * sums.rows.columns() + column, count, term);
  if (sums.weights.has_value()) kernels.scale(sums.weights.as<float>()[choice], count, term);
}

}  // namespace

absl::StatusOr<Tensor> GatherRowsCpu(const Tensor& source, std::span<const int64_t> rows,
                                     const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckGatherRows(source, rows));
  Shape shape = source.shape();
  shape[0] = static_cast<int64_t>(rows.size());
  QG_ASSIGN_OR_RETURN(Tensor gathered, Tensor::Allocate(source.dtype(), std::move(shape)));
  if (gathered.byte_size() == 0) return gathered;
  const size_t row_bytes = gathered.byte_size() / rows.size();
  ParallelFor(
      context, static_cast<int64_t>(rows.size()), kGrainRows, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
          std::byte* to = gathered.data() + i * row_bytes;
          if (rows[i] == kNoRow) {
            std::memset(to, 0, row_bytes);
          } else {
            std::memcpy(to, source.data() + static_cast<size_t>(rows[i]) * row_bytes, row_bytes);
          }
        }
      });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return gathered;
}

absl::StatusOr<Tensor> ScaleRowsCpu(const Tensor& source, const Tensor& factors,
                                    const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckScaleRows(source, factors));
  QG_ASSIGN_OR_RETURN(Tensor scaled, Tensor::Allocate(source.dtype(), source.shape()));
  const RowKernels& kernels = RowKernelsOf(context.isa);
  const int64_t columns = source.columns();
  QG_RETURN_IF_ERROR(
      ForRowRuns(context, source.rows(), columns, [&](int64_t row, int64_t column, int64_t count) {
        alignas(64) float values[kRun];
        LoadRow(kernels, source, row * columns + column, count, values);
        kernels.scale(factors.as<float>()[row], count, values);
        StoreRow(kernels, values, row * columns + column, count, scaled);
      }));
  return scaled;
}

absl::StatusOr<Tensor> SumRowsCpu(const RowSums& sums, const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckSumRows(sums));
  const int64_t columns = sums.rows.columns();
  const int64_t rows = static_cast<int64_t>(sums.positions.size()) / sums.choices;
  QG_ASSIGN_OR_RETURN(Tensor total, Tensor::Allocate(sums.out, {rows, columns}));
  const RowKernels& kernels = RowKernelsOf(context.isa);
  const int rounded =
      sums.accumulation == SumAccumulation::kElement ? RowType(sums.rows.dtype()) : 0;
  QG_RETURN_IF_ERROR(
      ForRowRuns(context, rows, columns, [&](int64_t row, int64_t column, int64_t count) {
        alignas(64) float partial[kRun], term[kRun];
        alignas(64) float scratch[kRun];
        const auto round = [&](float* values) {
          if (rounded == 0) return;
          kernels.store[rounded](values, count, scratch);
          kernels.load[rounded](scratch, count, values);
        };
        LoadTerm(kernels, sums, row * sums.choices, column, count, partial);
        round(partial);
        for (int64_t i = 1; i < sums.choices; ++i) {
          LoadTerm(kernels, sums, row * sums.choices + i, column, count, term);
          round(term);
          kernels.add(term, count, partial);
          round(partial);
        }
        StoreRow(kernels, partial, row * columns + column, count, total);
      }));
  return total;
}

}  // namespace quantgate
