// Bugs that a layer's step can have, by the rows of docs/scenarios.md section 3: names for
// SeededFaults. Each is in place only where a scenario run asks for it.
#pragma once

namespace quantgate {

/// Row 8: what x requires is taken for what the weight requires, and the other way round.
inline constexpr char kFaultRequiresGradSwapped[] = "requires-grad-swapped";
/// Row 9: under a backward override the bias gradient comes with the weight's or not at all.
inline constexpr char kFaultBiasGradientLeftToWgrad[] = "bias-gradient-left-to-wgrad";
/// What a backward override gathered in high precision is quantized as without one.
inline constexpr char kFaultOverrideQuantizes[] = "override-quantizes-gathered";
/// Under the override dequantized a rank keeps and gathers the source of x.
inline constexpr char kFaultOverrideGathersOriginal[] = "override-gathers-original";
/// A row-parallel bias is added by each rank's GEMM, and so N times.
inline constexpr char kFaultBiasOnAllRanks[] = "bias-on-all-ranks";
/// Backward's gather takes the scale that the quantizer had last in place of the one that was saved
/// with the codes.
inline constexpr char kFaultScaleOfQuantizer[] = "scale-from-quantizer-at-backward";
/// Columnwise codes of an earlier step are kept in place of this one's (pull request #2929).
inline constexpr char kFaultColumnBytesStale[] = "saved-columnwise-codes-stale";
/// A step without a group reduces its amax over that of the step before (a quantizer that keeps
/// it).
inline constexpr char kFaultGroupKept[] = "group-kept-after-its-step";
/// Of a hybrid quantizer's two rules neither knows of the group that was set on the quantizer.
inline constexpr char kFaultGroupOfWrapper[] = "amax-group-on-wrapper-alone";
/// Backward communicates in the group of the last forward (pull request #3104).
inline constexpr char kFaultBackwardUsesLastGroup[] = "backward-uses-last-group";
/// The codes of a divided grouped_linear's x or grad_output are made under the largest amax of the
/// ranks, though none of them are joined with another rank's.
inline constexpr char kFaultExpertAmaxOverRanks[] = "expert-amax-over-ranks";
/// What a divided grouped_linear gives is taken for the sum over the ranks.
inline constexpr char kFaultExpertPartialLeft[] = "expert-partial-left";

}  // namespace quantgate
