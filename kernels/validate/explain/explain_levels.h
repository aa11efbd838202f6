// Which library's rule made these codes of levels: integers, or places in a table.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/validate/explain/explain_codes.h"

namespace quantgate {

/// Whether the codes are of int8, int4, nf4 or bnb_fp4.
bool AreLevels(const Tensor& codes);

/// ExplainCodes of such codes, [M][K] with fp32, bf16 or f16 scales in the order of groups: every
/// rule, zero point and operation_dtype that the format has quantizes the source. A candidate is
/// established where it alone gives all codes and scales, and not every code is one and the same.
/// INVALID_ARGUMENT naming what does not fit.
absl::StatusOr<CodesExplanation> ExplainLevels(const ExplainCodesRequest& request,
                                               const ExecutionContext& context);

}  // namespace quantgate
