// Computes the fp32 accumulators of a GEMM, before its epilogue: blocking, packing, slices of K and
// threads around the panel kernels. The bits are the same for every instruction set, number of
// threads and blocking.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/operand_view.h"
#include "kernels/numerics/fused_rule.h"

namespace quantgate {

/// The range [begin, end) of k.
struct KRange {
  int64_t begin, end;
};

/// The non-empty slices of k in order; only one unless the rule splits K. They may leave out the
/// last products, as cuBLASLt does.
std::vector<KRange> SlicesOf(const FusedRule& rule, int64_t k);

/// The accumulators of rows [row, row + rows) x columns [column, column + columns), columns <= 64.
struct AccumulatorTile {
  int64_t row, rows;
  int64_t column;
  int columns;
  const float* values;  ///< [rows][stride]
  int64_t stride;
};

/// Receives every output exactly once. Called from several threads at a time.
using AccumulatorSink = absl::FunctionRef<void(const AccumulatorTile& tile)>;

/// Gives `sink` the sums over k of a(m, k) * b(n, k) under `rule`, one of those of
/// kernels/gemm/models/rules.h. CANCELLED or DEADLINE_EXCEEDED by the context; RESOURCE_EXHAUSTED
/// where there is no memory for the workspace.
absl::Status AccumulateFused(const OperandView& a, const OperandView& b, const FusedRule& rule,
                             const ExecutionContext& context, AccumulatorSink sink);

/// As AccumulateFused for rules of groups (rule.group > 1): E2M1 codes under E4M3 scales.
absl::Status AccumulateGroups(const OperandView& a, const OperandView& b, const FusedRule& rule,
                              const ExecutionContext& context, AccumulatorSink sink);

/// As AccumulateFused for any rule, output by output and slowly.
absl::Status AccumulateScalar(const OperandView& a, const OperandView& b, const FusedRule& rule,
                              const ExecutionContext& context, AccumulatorSink sink);

/// Gives `sink` the sums by sequential fp32 FMA over k, from +0, of the decoded operands; under
/// block scales of f32(element * scale). Errors as AccumulateFused.
absl::Status AccumulateFp32(const OperandView& a, const OperandView& b,
                            const ExecutionContext& context, AccumulatorSink sink);

}  // namespace quantgate
