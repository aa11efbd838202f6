// Why a run's verdict is a failure (docs/reports.md section 10.4).
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "kernels/validate/diagnosis/diagnosis.h"
#include "kernels/validate/run/run.h"

namespace quantgate {

/// Nothing where the verdict passes, or where only subjects leave their bounds: whoever has them
/// asks for their diagnosis. Outputs that fail against `exact` must have OutputReport::exact.
absl::StatusOr<std::optional<Diagnosis>> DiagnoseRun(const LayerRunRequest& request,
                                                     const RunReport& report, Engine& engine,
                                                     const Cancellation* cancellation,
                                                     const DiagnosisBudget& budget);

}  // namespace quantgate
