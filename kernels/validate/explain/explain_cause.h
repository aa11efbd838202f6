// Why codes are not those of this build's quantizers: one thing that went wrong, found by undoing
// it (docs/quantizers.md section 1.6). A cause is stated only where it gives every code and scale.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/validate/explain/explain_codes.h"
#include "kernels/validate/explain/explain_scale_rules.h"

namespace quantgate {

struct CodesCause {
  std::string what;      ///< "scales lie K-major".
  std::string evidence;  ///< What was compared: rule, blocks, and how it fits.
};

/// Whether a quantizer of this build has the rule and scales elements so (sections 3 to 6).
bool IsOwnRule(std::string_view rule, ElementScaling scaling);

/// The cause; absent if none that is tried fits. `source`: request.source as f32.
absl::StatusOr<std::optional<CodesCause>> FindCause(const ExplainCodesRequest& request,
                                                    const std::vector<float>& source,
                                                    const ExecutionContext& context);

}  // namespace quantgate
