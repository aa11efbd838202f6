// The fp32 accumulators of a GEMM, before its epilogue: blocking, packing, slices of K and threads
// around the panel kernels. Same bits for every instruction set, thread count and blocking.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/operand_view.h"
#include "kernels/numerics/fused_rule.h"

namespace quantgate {

/// k in [begin, end).
struct KRange {
  int64_t begin, end;
};

/// The non-empty slices of k, in order; one of them unless the rule splits K. They may leave the
/// last products out, as cuBLASLt does.
std::vector<KRange> SlicesOf(const FusedRule& rule, int64_t k);

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

/// sum over k of a(m, k) * b(n, k) under `rule`, one of the registry's
/// (kernels/gemm/models/rules.h). CANCELLED or DEADLINE_EXCEEDED by the context; RESOURCE_EXHAUSTED
/// when the workspace cannot be had.
absl::Status AccumulateFused(const OperandView& a, const OperandView& b, const FusedRule& rule,
                             const ExecutionContext& context, AccumulatorSink sink);

/// The same for groups (rule.group > 1): E2M1 codes under E4M3 scales.
absl::Status AccumulateGroups(const OperandView& a, const OperandView& b, const FusedRule& rule,
                              const ExecutionContext& context, AccumulatorSink sink);

/// The same for any rule at all, output by output: slow.
absl::Status AccumulateScalar(const OperandView& a, const OperandView& b, const FusedRule& rule,
                              const ExecutionContext& context, AccumulatorSink sink);

/// The same by sequential fp32 FMA over k, from +0, on the decoded operands: of block-scaled ones,
/// f32(element * scale).
absl::Status AccumulateFp32(const OperandView& a, const OperandView& b,
                            const ExecutionContext& context, AccumulatorSink sink);

}  // namespace quantgate
