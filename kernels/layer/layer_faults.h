// Bugs that a layer's step can have, by the rows of docs/scenarios.md section 3: names for
// SeededFaults. Each is in place only where a scenario run asks for it.
#pragma once

namespace quantgate {

/// Row 8: the requires_grad of x and of the weight are swapped.
inline constexpr char kFaultRequiresGradSwapped[] = "requires-grad-swapped";
/// Row 9: under a backward override the bias gradient is computed only where the weight's is.
inline constexpr char kFaultBiasGradientLeftToWgrad[] = "bias-gradient-left-to-wgrad";
/// What a backward override gathered in high precision is quantized as if there were no override.
inline constexpr char kFaultOverrideQuantizes[] = "override-quantizes-gathered";
/// Under the override dequantized a rank keeps and gathers the source of x.
inline constexpr char kFaultOverrideGathersOriginal[] = "override-gathers-original";
/// dx is left to a wgrad that the step's plan overlaps, and the unit runs without: nobody sums it.
inline constexpr char kFaultSumLeftToWgrad[] = "dx-sum-left-to-wgrad";
/// A row-parallel bias is added by each rank's GEMM, and so N times.
inline constexpr char kFaultBiasOnAllRanks[] = "bias-on-all-ranks";
/// Backward's gather takes the scale that the quantizer had last in place of the one that was saved
/// with the codes.
inline constexpr char kFaultScaleOfQuantizer[] = "scale-from-quantizer-at-backward";
/// Columnwise codes of an earlier step are kept in place of this one's (pull request #2929).
inline constexpr char kFaultColumnBytesStale[] = "saved-columnwise-codes-stale";
/// A step without a group reduces its amax over the group of the step before: the quantizer keeps
/// the group.
inline constexpr char kFaultGroupKept[] = "group-kept-after-its-step";
/// Neither of a hybrid quantizer's two rules knows of the group that was set on the quantizer.
inline constexpr char kFaultGroupOfWrapper[] = "amax-group-on-wrapper-alone";
/// Backward communicates in the group of the last forward (pull request #3104).
inline constexpr char kFaultBackwardUsesLastGroup[] = "backward-uses-last-group";
/// The codes of a divided grouped_linear's x or grad_output are made under the largest amax of the
/// ranks, though none of them are joined with another rank's.
inline constexpr char kFaultExpertAmaxOverRanks[] = "expert-amax-over-ranks";
/// What one rank of a divided grouped_linear gives is taken for the sum over the ranks.
inline constexpr char kFaultExpertPartialLeft[] = "expert-partial-left";

/// y and dx are handed on as the GEMM gave them, although the recipe has a rule for them.
inline constexpr char kFaultResultLeft[] = "result-rule-ignored";
/// y is quantized by the rule for dx, and dx by that for y.
inline constexpr char kFaultResultRulesSwapped[] = "result-rules-swapped";
/// Columnwise codes that were derived from the rowwise codes of an earlier x or grad_output are
/// kept although other rowwise codes are given.
inline constexpr char kFaultDerivedCodesKept[] = "derived-codes-kept";

/// Row 57: a weight is cast again where its cached codes are to be kept.
inline constexpr char kFaultSkippedCastDone[] = "skipped-cast-done";
/// Row 57: there the codes are kept, and scales and amaxes are written anew.
inline constexpr char kFaultSkippedCastInPart[] = "skipped-cast-writes-scales";

/// The amax of a cast is noted in the history of the tensor's other direction, if that has one.
inline constexpr char kFaultAmaxOfOtherDirection[] = "amax-noted-for-other-direction";

/// The bytes that are saved for backward are counted without scales.
inline constexpr char kFaultScalesUncounted[] = "saved-scales-uncounted";
/// A module keeps the grad_output that it has gathered after its backward.
inline constexpr char kFaultGatheredGradientKept[] = "gathered-gradient-kept";

// The faults below are of attention and of the layers around it.

/// The causal mask lets every query have the key behind it too.
inline constexpr char kFaultMaskOneKeyMore[] = "attention-mask-one-key-more";
/// A query head reads the key and the value of group (head mod groups): heads of one group lie
/// apart, as where keys and values are repeated group after group.
inline constexpr char kFaultGroupOfWrongHead[] = "attention-group-of-wrong-head";
/// Backward applies the forward rotation to the gradients of queries and keys.
inline constexpr char kFaultRotationNotTransposed[] = "rotation-not-transposed";
/// The addend of a residual is added twice.
inline constexpr char kFaultAddendTwice[] = "residual-added-twice";
/// The bytes that are saved for backward are counted without the probabilities of attention.
inline constexpr char kFaultProbabilitiesUncounted[] = "saved-probabilities-uncounted";

// The faults below are of experts on several ranks.

/// An expert's rows lie in the order of source ranks from the last to the first.
inline constexpr char kFaultSourcesReversed[] = "dispatch-sources-reversed";
/// Experts of every rank draw the random numbers of the first rank's experts.
inline constexpr char kFaultExpertCallsAlone[] = "expert-calls-forgotten";

/// Every rank puts its experts' amaxes first in the vector of all experts' amaxes.
inline constexpr char kFaultExpertAmaxPlace[] = "expert-amaxes-misplaced";

// The faults below are of sessions whose experts are divided over ranks.

/// Rows that come out of a session stay in the order of its ranks.
inline constexpr char kFaultRankOrderLeft[] = "tokens-left-in-rank-order";
/// The gradients of different experts that have equal places on their ranks are summed.
inline constexpr char kFaultExpertGradientsSummed[] = "expert-gradients-summed";
/// The gradients of experts are summed over the ranks of one copy, which have different experts, in
/// place of the ranks that have the same ones.
inline constexpr char kFaultExpertGradientsOfCopy[] = "expert-gradients-summed-in-copy";
/// Every rank takes the rows that come one after its own.
inline constexpr char kFaultExpertRowsOneOff[] = "expert-rows-one-off";
/// Every copy takes the rows of the first.
inline constexpr char kFaultCopiesNotDivided[] = "copies-not-divided";
/// Row 49: after a restore an update refreshes the columnwise codes of the first expert alone.
inline constexpr char kFaultRestoredExpertsStale[] = "restored-experts-left-stale";

}  // namespace quantgate
