// The bound of a result that has the values of its codes (docs/reports.md section 4.1).
#pragma once

#include "absl/status/statusor.h"
#include "kernels/gemm/bound/error_bound.h"
#include "kernels/layer/step_recorder.h"

namespace quantgate {

/// Checks that gemm.result_codes are no further from gemm.result.d than their rule rounds, and that
/// `values`, of result.d's shape and dtype, are theirs. What lies beyond the largest code may have
/// that code; any finite element may have the value 0 where the scale is 0.
absl::StatusOr<BoundCheck> CheckResultCodes(Engine& engine, const GemmRecord& gemm,
                                            const Tensor& values, const Cancellation* cancellation);

}  // namespace quantgate
