// The fp32 accumulators of a GEMM, before its epilogue: blocking, packing, slices of K and threads
// around the panel kernels. Same bits for every instruction set, thread count and blocking.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/operand_view.h"

namespace quantgate {

/// How sm90 cuts K (docs/tensor-cores.md section 3).
struct AccumulationRule {
  int step = 0;  ///< L of the fused step.
  int64_t promote_k =
      0;  ///< Every so many k the accumulator is added to an fp32 total and restarts; 0: never.
  int slices = 1;      ///< Split-K: slices of whole tiles, added in fp32 in order.
  int64_t tile_k = 0;  ///< The k of one tile of split-K.
};

/// The rule for operands of `dtype`; `split` is FAST_ACCUM off, which only FP8 knows.
AccumulationRule Sm90Rule(DType dtype, bool split, int slices);

/// k in [begin, end).
struct KRange {
  int64_t begin, end;
};

/// The non-empty slices of k, in order; one of them unless the rule splits K. They may leave the
/// last products out, as cuBLASLt does.
std::vector<KRange> SlicesOf(const AccumulationRule& rule, int64_t k);

/// Accumulators of rows [row, row + rows) x columns [column, column + columns), columns <= 64.
struct AccumulatorTile {
  int64_t row, rows;
  int64_t column;
  int columns;
  const float* values;  ///< [rows][stride]
  int64_t stride;
};

/// Receives every output exactly once, from several threads at a time.
using AccumulatorSink = absl::FunctionRef<void(const AccumulatorTile& tile)>;

/// sum over k of a(m, k) * b(n, k) as Hopper's tensor cores accumulate it. CANCELLED or
/// DEADLINE_EXCEEDED by the context; RESOURCE_EXHAUSTED when the workspace cannot be had.
absl::Status AccumulateSm90(const OperandView& a, const OperandView& b,
                            const AccumulationRule& rule, const ExecutionContext& context,
                            AccumulatorSink sink);

/// The same by sequential fp32 FMA over k, from +0, on the decoded operands.
absl::Status AccumulateFp32(const OperandView& a, const OperandView& b,
                            const ExecutionContext& context, AccumulatorSink sink);

}  // namespace quantgate
