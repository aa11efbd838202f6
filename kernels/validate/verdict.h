// The verdict of a run: its criterion, the threshold, where that comes from, and what was found.
#pragma once

#include <optional>
#include <vector>

#include "kernels/validate/run.h"

namespace quantgate {

Verdict JudgeRun(Requirement requirement, std::optional<int> reference,
                 const std::vector<VariantReport>& variants);

}  // namespace quantgate
