// The conclusions of ExplainCodes: whether the evidence establishes a candidate, and what can be
// said if it establishes none (docs/quantizers.md section 1.6).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/validate/explain/explain_codes.h"

namespace quantgate {

/// The least number of distinct amaxes that establish a scale rule. A rule that differs from the
/// right one for a share s of amaxes gives the scales of n distinct amaxes with a chance of
/// (1 - s)^n: for s = 0.134 and n = 32 that is 0.01.
inline constexpr int64_t kAmaxesMin = 32;
/// The least number of values between two codes that establish a rounding; the same chance of 0.01
/// is for s = 0.07.
inline constexpr int64_t kBetweenMin = 64;
/// The least number of values that tell a rule from the usual one. If each were a coin toss, all
/// would fit with a chance of 2^-10.
inline constexpr int64_t kTellingMin = 10;

/// Why a candidate that reproduces everything is not established; empty if it is.
std::string DoubtOf(const CodesCandidate& candidate);

/// CodesExplanation::conclusion. `libraries`: those of the established candidates. `rejected`: the
/// result of the stochastic test, if all codes are neighbours of their values but the test rejects.
std::vector<std::string> ConclusionOf(const std::vector<CodesCandidate>& candidates,
                                      const std::set<std::string>& libraries,
                                      const std::optional<SpreadResult>& rejected);

/// CodesExplanation::cause where nothing is found.
inline constexpr char kUnknownCause[] = "unknown";

/// Of codes that may be of levels or of floats: whichever gives all, or comes nearer. Where both
/// give all nothing is established.
CodesExplanation JoinExplanations(CodesExplanation of_levels, CodesExplanation of_floats);

}  // namespace quantgate
