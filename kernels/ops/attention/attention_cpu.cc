#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/numerics/attention.h"
#include "kernels/ops/attention/attention.h"
#include "kernels/ops/attention/attention_loops.h"
#include "kernels/ops/row_kernels.h"

namespace quantgate {
namespace {

/// The number of elements in a piece of rows.
constexpr int64_t kPieceElements = 1 << 15;

int64_t PieceRows(int64_t columns) { return std::max<int64_t>(1, kPieceElements / columns); }

/// Rounds floats to a dtype; `scratch` holds as many.
void RoundRow(const RowKernels& kernels, DType dtype, int64_t count, float* scratch,
              float* values) {
  if (dtype == DType::kF32) return;
  kernels.store[RowType(dtype)](values, count, scratch);
  kernels.load[RowType(dtype)](scratch, count, values);
}

/// The rows of scores [..., S_q][S_k], and how many of its keys each takes.
struct ScoreRows {
  int64_t rows, queries, keys;
  bool is_causal;

  int64_t Taken(int64_t row) const { return TakenKeys(is_causal, row % queries, queries, keys); }
};

ScoreRows RowsOf(const Tensor& scores, AttentionMask mask) {
  return {scores.rows(), scores.shape()[scores.rank() - 2], scores.columns(),
          mask == AttentionMask::kCausal};
}

/// Calls body(row, taken, values, scratch) for each row in parallel, both with room for a row.
template <class Body>
absl::Status ForScoreRows(const ExecutionContext& context, const ScoreRows& scores,
                          const Body& body) {
  ParallelFor(context, scores.rows, PieceRows(scores.keys), [&](int64_t begin, int64_t end) {
    std::vector<float> values(scores.keys), scratch(scores.keys);
    for (int64_t row = begin; row < end; ++row) {
      body(row, scores.Taken(row), values.data(), scratch.data());
    }
  });
  return context.CheckCancelled();
}

/// What Rotate does to a row of D elements.
class RowRotation {
 public:
  RowRotation(const RotaryDesc& desc, const ExecutionContext& context)
      : kernels_(RowKernelsOf(context.isa)),
        loops_(AttentionLoopsOf(context.isa)),
        desc_(desc),
        half_(desc.heads.columns() / 2),
        memory_(static_cast<size_t>(12 * half_)) {}

  void Rotate(int64_t row, Tensor& rotated) {
    float* const x = memory_.data();
    float* const cosines = x + 2 * half_;
    float* const sines = cosines + half_;
    float* const products = sines + half_;  // Four, and as much memory behind them.
    float* const scratch = products + 4 * half_;
    const int64_t position = row % desc_.heads.shape()[1];
    LoadRow(kernels_, desc_.heads, row * 2 * half_, 2 * half_, x);
    LoadRow(kernels_, desc_.table.cosines, position * half_, half_, cosines);
    LoadRow(kernels_, desc_.table.sines, position * half_, half_, sines);
    if (desc_.is_backward) kernels_.scale(-1.0f, half_, sines);
    loops_.rotary_products(x, cosines, sines, half_, products);
    RoundRow(kernels_, desc_.heads.dtype(), 4 * half_, scratch, products);
    loops_.rotated_pairs(products, half_, x);
    StoreRow(kernels_, x, row * 2 * half_, 2 * half_, rotated);
  }

 private:
  const RowKernels& kernels_;
  const AttentionLoops loops_;
  const RotaryDesc& desc_;
  const int64_t half_;
  std::vector<float> memory_;
};

}  // namespace

absl::StatusOr<Tensor> SwapDimsCpu(const Tensor& source, const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckSwapDims(source));
  Shape shape = source.shape();
  std::swap(shape[0], shape[1]);
  const int64_t outer = shape[0], inner = shape[1];
  QG_ASSIGN_OR_RETURN(Tensor swapped, Tensor::Allocate(source.dtype(), std::move(shape)));
  if (swapped.byte_size() == 0) return swapped;
  const size_t bytes = swapped.byte_size() / static_cast<size_t>(outer * inner);
  const int64_t grain = std::max<int64_t>(1, kPieceElements / static_cast<int64_t>(bytes));
  ParallelFor(context, outer * inner, grain, [&](int64_t begin, int64_t end) {
    for (int64_t to = begin; to < end; ++to) {
      const int64_t from = to % inner * outer + to / inner;
      std::memcpy(swapped.data() + static_cast<size_t>(to) * bytes,
                  source.data() + static_cast<size_t>(from) * bytes, bytes);
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return swapped;
}

absl::StatusOr<Tensor> RotateCpu(const RotaryDesc& desc, const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckRotary(desc));
  const Tensor& heads = desc.heads;
  QG_ASSIGN_OR_RETURN(Tensor rotated, Tensor::Allocate(heads.dtype(), heads.shape()));
  const int64_t positions = heads.shape()[1], columns = heads.columns();
  const auto bytes = static_cast<size_t>(columns) * DTypeBytes(heads.dtype());
  ParallelFor(context, heads.rows(), PieceRows(columns), [&](int64_t begin, int64_t end) {
    RowRotation rotation(desc, context);
    for (int64_t row = begin; row < end; ++row) {
      if (row / positions % desc.period < desc.rotated) {
        rotation.Rotate(row, rotated);
      } else {
        const auto at = static_cast<size_t>(row) * bytes;
        std::memcpy(rotated.data() + at, heads.data() + at, bytes);
      }
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return rotated;
}

absl::StatusOr<SoftmaxResult> SoftmaxForwardCpu(const SoftmaxDesc& desc,
                                                const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckSoftmax(desc));
  const DType dtype = desc.scores.dtype();
  SoftmaxResult result;
  QG_ASSIGN_OR_RETURN(result.probabilities, Tensor::Allocate(DType::kF32, desc.scores.shape()));
  if (dtype == DType::kF32) {
    result.rounded = result.probabilities;
  } else {
    QG_ASSIGN_OR_RETURN(result.rounded, Tensor::Allocate(dtype, desc.scores.shape()));
  }
  const RowKernels& kernels = RowKernelsOf(context.isa);
  const AttentionLoops loops = AttentionLoopsOf(context.isa);
  const ScoreRows rows = RowsOf(desc.scores, desc.mask);
  QG_RETURN_IF_ERROR(
      ForScoreRows(context, rows, [&](int64_t row, int64_t taken, float* values, float* scratch) {
        LoadRow(kernels, desc.scores, row * rows.keys, taken, values);
        kernels.scale(desc.scale, taken, values);
        RoundRow(kernels, dtype, taken, scratch, values);
        loops.terms(loops.largest(values, taken), taken, values);
        const float sum = MaskedRowSum(kernels.sum(values, taken, scratch), taken < rows.keys);
        loops.divide(sum, taken, values);
        std::fill(values + taken, values + rows.keys, 0.0f);
        StoreRow(kernels, values, row * rows.keys, rows.keys, result.probabilities);
        if (dtype != DType::kF32) {
          StoreRow(kernels, values, row * rows.keys, rows.keys, result.rounded);
        }
      }));
  return result;
}

absl::StatusOr<Tensor> SoftmaxBackwardCpu(const SoftmaxBackwardDesc& desc,
                                          const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckSoftmax(desc));
  const DType dtype = desc.gradient.dtype();
  QG_ASSIGN_OR_RETURN(Tensor result, Tensor::Allocate(dtype, desc.gradient.shape()));
  const RowKernels& kernels = RowKernelsOf(context.isa);
  const AttentionLoops loops = AttentionLoopsOf(context.isa);
  const ScoreRows rows = RowsOf(desc.gradient, desc.mask);
  QG_RETURN_IF_ERROR(
      ForScoreRows(context, rows, [&](int64_t row, int64_t taken, float* values, float* scratch) {
        const float* probabilities = desc.probabilities.as<float>() + row * rows.keys;
        LoadRow(kernels, desc.gradient, row * rows.keys, taken, values);
        loops.multiply(values, probabilities, taken, scratch);
        const float sum = MaskedRowSum(kernels.sum(scratch, taken, scratch), taken < rows.keys);
        loops.slopes(sum, probabilities, taken, values);
        RoundRow(kernels, dtype, taken, scratch, values);
        kernels.scale(desc.scale, taken, values);
        std::fill(values + taken, values + rows.keys, 0.0f);
        StoreRow(kernels, values, row * rows.keys, rows.keys, result);
      }));
  return result;
}

}  // namespace quantgate
