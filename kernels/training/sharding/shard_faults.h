// Bugs that sharded weights and their optimizers can have: names for SeededFaults, which code asks
// for where the bug would be. Only a scenario run puts one in place.
#pragma once

namespace quantgate {

/// A second gather of a weight refreshes its codes and keeps the scale of the first one.
inline constexpr char kFaultScaleOfFirstGather[] = "stale-scale-after-second-gather";
/// Columnwise codes made from one gather's rowwise codes are used again for the next gather.
inline constexpr char kFaultDerivedColumnsKept[] = "column-bytes-stale";
/// A weight gathered for forward and kept is read in backward after an update.
inline constexpr char kFaultGatheredKeptAfterUpdate[] = "gathered-kept-after-update";
/// Every rank's rows have the scale of their own amax.
inline constexpr char kFaultShardAmaxAlone[] = "shard-amax-not-reduced";
/// Random numbers of stochastic rounding count from the first row of each shard.
inline constexpr char kFaultShardCountsAlone[] = "shard-offset-forgotten";
/// Fragments of FP4 weights may begin at odd elements: half a byte each belongs to two ranks.
inline constexpr char kFaultOddFragments[] = "fragment-odd-offset-in-fp4";
/// Row 54: a rank without elements of an mxfp8 weight brings to the maximum what the memory had.
inline constexpr char kFaultEmptyFragmentUnmeasured[] = "empty-fragment-left-unmeasured";
/// The amaxes of fragments are taken from masters before their rounding to bf16.
inline constexpr char kFaultAmaxBeforeRounding[] = "amax-of-unrounded-master";
/// Scales of weights cast from fragments keep subnormals as the quantizer of a whole tensor does.
inline constexpr char kFaultFragmentSubnormalsKept[] = "sharded-update-keeps-subnormals";
/// They flush subnormals although the recipe says never.
inline constexpr char kFaultFragmentSubnormalsFlushed[] = "sharded-update-always-flushes";

// The faults below are of sessions whose copies divide weights, or masters and moments.

/// Every forward takes the weight that the first forward gathered.
inline constexpr char kFaultGatheredOnce[] = "gathered-weight-not-refreshed";
/// Backward gathers the rows as they are by then, whatever its forward read.
inline constexpr char kFaultBackwardGathersLive[] = "backward-gathers-updated-rows";
/// An update puts new codes in place and leaves the scales of the ones before.
inline constexpr char kFaultShardScaleKept[] = "scale-kept-after-requantization";
/// Rows of masters and moments begin one row before those of their weight.
inline constexpr char kFaultMastersOneRowOff[] = "masters-one-row-off";
/// Rows of an expert are gathered over the ranks of a copy, which have other experts, in place of
/// those that have it.
inline constexpr char kFaultExpertRowsOfCopy[] = "expert-rows-gathered-in-copy";
/// Elements of masters and moments begin one element before those that a rank updates.
inline constexpr char kFaultFragmentsOneOff[] = "fragments-one-element-off";
/// A checkpoint's fragments of masters and moments are joined in another order than their ranks'.
inline constexpr char kFaultFragmentPlaceIgnored[] = "fragment-place-ignored";
/// Gradients are summed over the tensor-parallel group in place of the copies.
inline constexpr char kFaultGradientOfOtherGroup[] = "gradient-summed-over-other-group";
/// Gradients are summed over the copies, and the sums once more.
inline constexpr char kFaultGradientSummedTwice[] = "gradient-summed-twice";

}  // namespace quantgate
