// The verdict of a run: its criterion, the threshold, where that comes from, and what was found.
#pragma once

#include <optional>
#include <vector>

#include "kernels/base/non_finite.h"
#include "kernels/validate/run/run.h"

namespace quantgate {

/// NaN and infinities of one tensor.
struct NonFinite {
  std::string tensor;
  NonFiniteCounts counts;

  bool any() const { return counts.count() > 0; }
};

/// Of the subject of a comparison.
NonFinite NonFiniteOf(const std::string& tensor, const ParityReport& parity);

/// Whether any output of a variant, or what is exact for it, has NaN or infinities: the verdict
/// then needs those of the inputs.
bool HasNonFinite(const std::vector<VariantReport>& variants);

/// `inputs` are read where HasNonFinite. NaN and infinities pass a bound where exact has the same
/// in the same place, and nowhere else (CheckBound): the verdict counts those of both sides.
Verdict JudgeRun(Requirement requirement, std::optional<int> reference,
                 const std::vector<VariantReport>& variants,
                 const std::vector<NonFinite>& inputs = {});

}  // namespace quantgate
