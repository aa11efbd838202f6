// Which library's rule made these codes of levels: integers, or places in a table.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/validate/explain/explain_codes.h"

namespace quantgate {

/// Whether codes of levels may have this dtype: that of an element, or i32.
bool IsOfLevels(DType codes);

/// Whether the codes are of levels (docs/quantizers.md section 11): by their dtype, or since they
/// have zero points.
bool AreLevels(const ExplainCodesRequest& request);

/// Whether codes and scales may be of levels: those, and u8 with scales in the order of groups.
bool MayBeLevels(const ExplainCodesRequest& request);

/// CheckExplainCodes of codes of levels.
absl::Status CheckLevels(const ExplainCodesRequest& request);

/// ExplainCodes as codes of levels: every group, spelling, rule, zero point and operation_dtype
/// that the tensors allow. INVALID_ARGUMENT naming what fits none; the request passed
/// CheckExplainCodes.
absl::StatusOr<CodesExplanation> ExplainLevels(const ExplainCodesRequest& request,
                                               const ExecutionContext& context);

}  // namespace quantgate
