// What the candidates of ExplainCodes establish, and what can be said where they establish nothing
// (docs/quantizers.md section 1.6).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/validate/explain/explain_codes.h"

namespace quantgate {

/// A scale rule that departs from the right one for a share s of amaxes gives all scales of n
/// distinct ones with a chance of (1 - s)^n: for s = 0.134 and n = 32 that is 0.01.
inline constexpr int64_t kAmaxesMin = 32;
/// Of values between two codes, for the rounding, by the same reckoning: s = 0.07.
inline constexpr int64_t kBetweenMin = 64;
/// Values that tell a rule from the usual one; were each a coin's toss, all would fit with a chance
/// of 2^-10.
inline constexpr int64_t kTellingMin = 10;

/// Why a candidate that gives everything is not established; empty where it is.
std::string DoubtOf(const CodesCandidate& candidate);

/// `libraries`: those of the established candidates. `rejected`: what stochastic rounding's test
/// said of codes that are all neighbours of their values, where it said no.
std::vector<std::string> ConclusionOf(const std::vector<CodesCandidate>& candidates,
                                      const std::set<std::string>& libraries,
                                      const std::optional<SpreadResult>& rejected);

}  // namespace quantgate
