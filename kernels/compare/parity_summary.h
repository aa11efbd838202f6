// From what a bitwise comparison counted to its report: shared by the engines.
#pragma once

#include "absl/status/status.h"
#include "kernels/compare/parity_findings.h"
#include "kernels/compare/parity_report.h"

namespace quantgate {

static_assert(kClassCount == kValueClassCount);

/// INVALID_ARGUMENT unless shapes and dtypes are equal.
absl::Status CheckSameTypes(const Tensor& subject, const Tensor& reference);

/// `first` and `worst` are the elements that `findings` names; empty where nothing differs.
ParityReport ReportOf(const ParityFindings& findings, int64_t element_count, ElementPair first,
                      ElementPair worst);

}  // namespace quantgate
