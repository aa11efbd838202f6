// The verdict of a run: the criterion, the threshold and its source, and what was found.
#pragma once

#include <optional>
#include <vector>

#include "kernels/base/non_finite.h"
#include "kernels/validate/run/run.h"

namespace quantgate {

/// The numbers of NaN and infinities in one tensor.
struct NonFinite {
  std::string tensor;
  NonFiniteCounts counts;

  bool any() const { return counts.count() > 0; }
};

/// The counts of the subject of a comparison.
NonFinite NonFiniteOf(const std::string& tensor, const ParityReport& parity);

/// Whether any output of a variant, its exact value or a tensor that a variant quantized has NaN or
/// infinities. JudgeRun then needs those of the inputs.
bool HasNonFinite(const std::vector<VariantReport>& variants);

/// The verdict over all variants. `inputs` are read only if HasNonFinite. NaN and infinities pass a
/// bound only where the exact value has the same in the same place (CheckBound); the verdict counts
/// those of both sides.
Verdict JudgeRun(Requirement requirement, std::optional<int> reference,
                 const std::vector<VariantReport>& variants,
                 const std::vector<NonFinite>& inputs = {});

}  // namespace quantgate
