#include "kernels/validate/explain/explain_evidence.h"

#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/grouped_digits.h"

namespace quantgate {
namespace {

/// "all 8,192 match", "3,280 of 4,096 match".
std::string MatchText(int64_t part, int64_t all) {
  return part == all ? absl::StrCat("all ", GroupedDigits(all), " match")
                     : absl::StrCat(GroupedDigits(part), " of ", GroupedDigits(all), " match");
}

/// The least power of two that is not below `value`.
std::string PowerOfTwoText(double value) {
  int exponent = 0;
  const double mantissa = std::frexp(value, &exponent);
  return absl::StrCat("2^", mantissa == 0.5 ? exponent - 1 : exponent);
}

std::string SpreadText(const SpreadResult& spread) {
  if (!spread.is_enough) {
    return absl::StrFormat(
        "%s values lie between two codes, of at least %d at different fractions that its test "
        "needs",
        GroupedDigits(spread.count), kSpreadCountMin);
  }
  return absl::StrFormat(
      "of %s values between two codes: bias %.2f, slope %.2f, nearness %.2f and ripple %.2f "
      "standard "
      "deviations, chi-square %.1f of %d bins and %.1f of %d, rarest outcome %.2g; level %g",
      GroupedDigits(spread.count), spread.bias, spread.slope, spread.nearness, spread.ripple,
      spread.chi_square, spread.bins, spread.fine_chi_square, spread.fine_bins, spread.rarest,
      kSpreadLevel);
}

/// A remark for scale rules with a bound that decides some scales.
std::string AtBoundText(const CodesEvidence& evidence) {
  if (evidence.amax_bound_count == 0) return "";
  return absl::StrCat(" (not counting ", GroupedDigits(evidence.amax_bound_count),
                      " whose scale lies at a bound of the rule)");
}

std::string EvidenceText(const CodesCandidate& candidate) {
  const CodesEvidence& evidence = candidate.evidence;
  std::string text = absl::StrCat(
      "Behind it: ", GroupedDigits(evidence.scale_distinct), " distinct scales of ",
      GroupedDigits(evidence.amax_distinct), " distinct amaxes", AtBoundText(evidence), "; ",
      GroupedDigits(evidence.between_count), " values between two codes, of which ",
      GroupedDigits(evidence.tie_count), " exact ties");
  if (candidate.is_deterministic && evidence.telling_count > 0) {
    absl::StrAppend(&text, "; ", GroupedDigits(evidence.telling_count),
                    " values tell the rounding from nearest_even");
  }
  if (evidence.zero_telling_count > 0) {
    absl::StrAppend(&text, "; ", GroupedDigits(evidence.zero_telling_count), " zeros the sign");
  }
  absl::StrAppend(&text, ".");
  if (candidate.is_deterministic && evidence.tie_count == 0) {
    absl::StrAppend(&text, " Without ties their rule cannot be told.");
  } else if (!evidence.untold_roundings.empty()) {
    absl::StrAppend(&text, " No tie tells nearest_even from ",
                    absl::StrJoin(evidence.untold_roundings, ", "), ".");
  }
  if (evidence.overflow_count == 0) {
    absl::StrAppend(&text, " Nothing overflows, so what becomes of that cannot be told.");
  }
  return text;
}

/// "scales: all 8,192 match; codes: 130,987 of 131,072 match; 85 one step up, each within 2^-20 of
/// a tie".
std::string NearestText(const CodesCandidate& candidate) {
  const CodesEvidence& evidence = candidate.evidence;
  std::vector<std::string> parts = {
      absl::StrCat("scales: ", MatchText(candidate.scale_matches, candidate.scale_count)),
      absl::StrCat("codes: ", MatchText(candidate.code_matches, candidate.code_count))};
  if (const auto& at = candidate.first_scale_difference; at.has_value()) {
    absl::StrAppend(&parts.front(), ", the first that differs, of group ", at->group, ", is ",
                    at->given, ", not ", at->expected);
  }
  if (candidate.zero_count > 0) {
    parts.insert(parts.begin() + 1, absl::StrCat("zero points: ", MatchText(candidate.zero_matches,
                                                                            candidate.zero_count)));
  }
  const int64_t steps = evidence.step_up_count + evidence.step_down_count;
  if (evidence.step_up_count > 0) {
    parts.push_back(absl::StrCat(GroupedDigits(evidence.step_up_count), " one step up"));
  }
  if (evidence.step_down_count > 0) {
    parts.push_back(absl::StrCat(GroupedDigits(evidence.step_down_count), " one step down"));
  }
  if (steps > 0) {
    absl::StrAppend(
        &parts.back(),
        evidence.off_tie_max == 0
            ? ", each an exact tie"
            : absl::StrCat(", each within ", PowerOfTwoText(evidence.off_tie_max), " of a tie"));
  }
  const int64_t farther = candidate.code_count - candidate.code_matches - steps;
  if (farther > 0) parts.push_back(absl::StrCat(GroupedDigits(farther), " farther off"));
  if (const auto& at = candidate.first_difference; at.has_value()) {
    parts.push_back(absl::StrFormat("the first, at (%d, %d), is 0x%x, not 0x%x", at->row,
                                    at->column, at->given, at->expected));
  }
  return absl::StrJoin(parts, "; ");
}

std::string RulesText(const CodesCandidate& candidate) {
  return absl::StrCat(candidate.element, " ", candidate.block, ", ", candidate.scale_rule, ", ",
                      candidate.element_rule);
}

/// The shares of codes and scales that the best candidate gives.
double NearnessOf(const CodesExplanation& explanation) {
  if (explanation.candidates.empty()) return 0;
  const CodesCandidate& best = explanation.candidates.front();
  return static_cast<double>(best.code_matches) / best.code_count +
         static_cast<double>(best.scale_matches) / best.scale_count;
}

bool IsEntire(const CodesExplanation& explanation) {
  return !explanation.candidates.empty() && explanation.candidates.front().is_entire();
}

}  // namespace

std::string DoubtOf(const CodesCandidate& candidate) {
  const CodesEvidence& evidence = candidate.evidence;
  const auto few = [](int64_t count, const char* what, int64_t least) {
    return absl::StrCat(GroupedDigits(count), what, ", of at least ", least);
  };
  if (!candidate.is_entire()) return "it does not give everything";
  if (candidate.scale_count == 1) return "a single scale is no evidence for a scale rule";
  if (evidence.scale_distinct == 1)
    return "all scales are one, which is no evidence for their rule";
  if (evidence.amax_distinct < kAmaxesMin) {
    return few(evidence.amax_distinct,
               evidence.amax_bound_count == 0
                   ? " distinct amaxes stand behind the scale rule"
                   : " distinct amaxes whose scale lies at no bound stand behind the scale rule",
               kAmaxesMin);
  }
  if (evidence.between_count < kBetweenMin) {
    return few(evidence.between_count, " values between two codes stand behind the rounding",
               kBetweenMin);
  }
  if (candidate.is_deterministic && evidence.telling_count > 0 &&
      evidence.telling_count < kTellingMin) {
    return few(evidence.telling_count, " values tell the rounding from nearest_even", kTellingMin);
  }
  if (evidence.zero_telling_count > 0 && evidence.zero_telling_count < kTellingMin) {
    return few(evidence.zero_telling_count, " zeros tell what becomes of the sign", kTellingMin);
  }
  return "";
}

std::vector<std::string> ConclusionOf(const std::vector<CodesCandidate>& candidates,
                                      const std::set<std::string>& libraries,
                                      const std::optional<SpreadResult>& rejected) {
  const CodesCandidate& best = candidates.front();
  int64_t entire = 0;
  for (const CodesCandidate& candidate : candidates) entire += candidate.is_entire() ? 1 : 0;
  std::vector<std::string> lines;
  if (entire == 0) {
    lines.push_back("Nothing tried gives all codes and scales.");
    lines.push_back(absl::StrCat("Nearest is ", RulesText(best), ": ", NearestText(best), "."));
    if (rejected.has_value()) {
      lines.push_back(absl::StrCat("Every code is a neighbour of its value, but ",
                                   rejected->is_enough
                                       ? "not spread as stochastic rounding spreads them: "
                                       : "that is no evidence for stochastic rounding: ",
                                   SpreadText(*rejected), "."));
    }
    return lines;
  }
  lines.push_back(
      absl::StrCat(entire, entire == 1 ? " candidate gives all " : " candidates give all ",
                   GroupedDigits(best.code_count), " codes and ", GroupedDigits(best.scale_count),
                   best.scale_count == 1 ? " scale" : " scales",
                   best.zero_count > 0 ? " and their zero points" : "",
                   entire == 1 ? "." : "; this data does not tell them apart."));
  if (best.has_other_names) {
    lines.push_back(
        "Names joined by \"or\" are one rule here: they make the same scales and scale every "
        "element "
        "of this source alike.");
  }
  lines.push_back(EvidenceText(best));
  if (best.evidence.spread.has_value()) {
    lines.push_back(absl::StrCat("The spread of the codes is consistent with stochastic rounding: ",
                                 SpreadText(*best.evidence.spread), "."));
    lines.push_back(
        "Whether neighbours are rounded independently was not judged: an ordered dither or error "
        "diffusion can have this spread too.");
  }
  if (!best.is_established) {
    lines.push_back(absl::StrCat("No rule is established: ", DoubtOf(best), "."));
  } else if (libraries.size() == 1) {
    lines.push_back(absl::StrCat("Of the libraries whose rules are tried, none fits but that of ",
                                 *libraries.begin(), "."));
  } else if (libraries.size() > 1) {
    lines.push_back(absl::StrCat("Whose rule it is cannot be told: it fits ",
                                 absl::StrJoin(libraries, "; "), "."));
  }
  return lines;
}

CodesExplanation JoinExplanations(CodesExplanation of_levels, CodesExplanation of_floats) {
  const bool has_levels = IsEntire(of_levels), has_floats = IsEntire(of_floats);
  // A cause that is known gives all, too.
  const bool has_cause = !of_floats.cause.empty() && of_floats.cause != kUnknownCause;
  const bool is_levels =
      !has_floats && !has_cause && (has_levels || NearnessOf(of_levels) > NearnessOf(of_floats));
  CodesExplanation joined = is_levels ? std::move(of_levels) : std::move(of_floats);
  CodesExplanation& other = is_levels ? of_floats : of_levels;
  joined.tried += other.tried;
  if (has_levels && has_floats) {
    std::move(other.candidates.begin(), other.candidates.end(),
              std::back_inserter(joined.candidates));
    joined.is_established = false;
    for (CodesCandidate& candidate : joined.candidates) {
      candidate.is_established = false;
      candidate.scale_origin.clear();
    }
    joined.conclusion = {
        "Rules of floats and rules of levels give all codes and scales: this data "
        "does not tell them apart."};
  }
  if (joined.candidates.size() > kCandidatesKept) joined.candidates.resize(kCandidatesKept);
  return joined;
}

}  // namespace quantgate
