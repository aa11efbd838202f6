// Attention between its projections, forward and backward (docs/quantizers.md section 10.11): heads
// taken out of qkv's output, scores, softmax and contexts. No recipe quantizes here: every GEMM is
// one in high precision, in the activation dtype.
#pragma once

#include <string>

#include "kernels/layer/layer_values.h"

namespace quantgate {

/// The dims of one rank's attention that reads `qkv`, [S][columns] or [S][B][columns]. `ranks`
/// divide the groups if operation.divides_heads. INVALID_ARGUMENT naming field, value and rule.
absl::StatusOr<AttentionDims> CheckAttentionDims(const ProgramOperation& operation,
                                                 const Shape& qkv, int ranks);
/// Those of an operation that CheckAttentionDims accepts.
AttentionDims AttentionDimsOf(const ProgramOperation& operation, const Shape& qkv, int ranks);
/// The shape of what it gives, [S][heads * D] or [S][B][heads * D].
Shape AttentionOutputShape(const AttentionDims& dims, Shape qkv);

/// 1 / sqrt(D), which multiplies the scores, rounded to f32.
float AttentionScale(const AttentionDims& dims);
/// The names of the rotated heads and of their gradient, [B * groups * members][S][D], in a
/// result's intermediates. Where nothing is rotated there are none.
std::string RotatedHeadsName(const ProgramOperation& operation);
std::string RotatedHeadsGradientName(const ProgramOperation& operation);

/// The products of one head as those of a linear unit without quantization, for checks and notes:
/// fprop is queries times keys, dgrad what multiplies probabilities, wgrad what contracts over
/// queries.
LinearUnit AttentionUnit(const std::string& name, const AttentionDims& dims, DType dtype,
                         bool has_backward);

absl::StatusOr<LayerValue> ForwardAttention(ProgramRun& run, size_t operation, const LayerValue& x,
                                            OperationSaved& saved);
absl::StatusOr<ValueGradient> BackwardAttention(ProgramRun& run, size_t operation,
                                                const OperationSaved& saved,
                                                const ValueGradient& dy);

}  // namespace quantgate
