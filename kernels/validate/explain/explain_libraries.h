// The quantizers of libraries in use, by their sources or documents: which of the rules each has,
// and the formats and blocks that it makes (docs/quantizers.md section 1.6).
#pragma once

#include <optional>
#include <string_view>

#include "kernels/validate/explain/explain_candidates.h"

namespace quantgate {

/// The library that writes such codes; empty where none is known to. Its scale rule, way to scale,
/// rounding, elements, blocks, orientation and signs of zeros must all be those of the candidate:
/// `by` of `group`, whose codes are `counts`; without `rounding`, stochastic.
std::string_view LibraryOf(const ScaledGroup& group, const ScaledBy& by,
                           const RoundingCounts& counts, std::optional<CodeRounding> rounding);

}  // namespace quantgate
