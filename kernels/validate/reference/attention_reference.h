// The references of attention's operations (docs/reports.md section 4).
#pragma once

#include "absl/status/statusor.h"
#include "kernels/validate/reference/operation_reference.h"

namespace quantgate {

/// The reference of a call of kAttention, kAttentionDq, kAttentionDk or kAttentionDv. INTERNAL for
/// tensors of other shapes than AttentionCall says; the errors of BoundFor where the arithmetic has
/// no bound.
absl::StatusOr<OperationReference> EvaluateAttention(Engine& engine, const OperationCall& call,
                                                     const ExecutionContext& context);

/// The reference of a call of kRotary.
absl::StatusOr<OperationReference> EvaluateRotary(Engine& engine, const OperationCall& call,
                                                  const ExecutionContext& context);

}  // namespace quantgate
