// Bugs that experts on several ranks can have: names for SeededFaults, asked for where the bug
// would be. Each is in place only where a scenario run asks for it.
#pragma once

namespace quantgate {

/// An expert has the rows of the last rank first.
inline constexpr char kFaultSourcesReversed[] = "dispatch-sources-reversed";
/// Experts of every rank draw the random numbers of the first ones.
inline constexpr char kFaultExpertCallsAlone[] = "expert-calls-forgotten";

/// Among the amaxes of all experts a rank's stand first, whichever experts it has.
inline constexpr char kFaultExpertAmaxPlace[] = "expert-amaxes-misplaced";

// Of sessions whose experts are divided over ranks.

/// Rows that come out of a session stay in the order of its ranks.
inline constexpr char kFaultRankOrderLeft[] = "tokens-left-in-rank-order";
/// The gradients of experts of equal places on their ranks are summed.
inline constexpr char kFaultExpertGradientsSummed[] = "expert-gradients-summed";
/// The gradients of experts are summed over the ranks of a copy, which hold others, in place of
/// those that hold the same ones.
inline constexpr char kFaultExpertGradientsOfCopy[] = "expert-gradients-summed-in-copy";
/// Every rank takes the rows that come one after its own.
inline constexpr char kFaultExpertRowsOneOff[] = "expert-rows-one-off";
/// Every copy takes the rows of the first.
inline constexpr char kFaultCopiesNotDivided[] = "copies-not-divided";
/// Row 49: after a restore an update refreshes the columnwise codes of the first expert alone.
inline constexpr char kFaultRestoredExpertsStale[] = "restored-experts-left-stale";

}  // namespace quantgate
