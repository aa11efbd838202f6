// Bugs that a training session can have, by the rows of docs/scenarios.md section 3: names for
// SeededFaults. Each is in place only where a scenario run asks for it.
#pragma once

namespace quantgate {

// Quantized weights.

/// Row 1: an update of a quantized weight leaves its columnwise codes as they were.
inline constexpr char kFaultColumnwiseLeftStale[] = "columnwise-left-stale";
/// Row 49: an update refreshes the columnwise codes of the first expert alone.
inline constexpr char kFaultLaterExpertsLeftStale[] = "later-experts-left-stale";
/// Row 2: an evaluation drops the columnwise codes of quantized weights.
inline constexpr char kFaultUsagesLostInEvaluation[] = "usages-lost-in-evaluation";
/// Row 32: cached weights stay in use after the update of their parameters.
inline constexpr char kFaultWorkspaceKeptAfterUpdate[] = "workspace-kept-after-update";
/// Row 40: quantized weights are rounded stochastically when they are updated (nvfp4).
inline constexpr char kFaultWeightsRoundedStochastically[] = "weights-rounded-stochastically";
/// Weights are requantized through bf16 where f32 is asked for, and vice versa.
inline constexpr char kFaultRequantizationTheOtherWay[] = "requantization-the-other-way";
/// An update of a quantized weight takes the rank's own amax in place of its group's.
inline constexpr char kFaultUpdateForgetsGroup[] = "amax-group-forgotten-by-update";
/// A change to another recipe keeps the codes of held weights, as if its own rule had made them.
inline constexpr char kFaultCodesKeptAtChange[] = "codes-kept-at-recipe-change";
/// The optimizer updates the parameter's rounded values and not its master.
inline constexpr char kFaultMasterIgnored[] = "master-ignored";

// Delayed scaling.

/// Row 17: an evaluation leaves its amaxes in the histories.
inline constexpr char kFaultEvaluationPollutesHistory[] = "evaluation-pollutes-history";
/// Row 18: forwards in flight together share one update, which merges their amaxes.
inline constexpr char kFaultUpdatesMerged[] = "updates-merged";
/// Row 19: the fused rule updates where the unfused one is asked for, and vice versa.
inline constexpr char kFaultUpdateRuleSwapped[] = "update-rule-swapped";
/// Row 20: an infinite amax is forgotten at once.
inline constexpr char kFaultInfiniteAmaxForgotten[] = "infinite-amax-forgotten";
/// The scales of gradients are never updated.
inline constexpr char kFaultBackwardUpdateSkipped[] = "backward-update-skipped";
/// Row 46: every forward begins with fresh histories and random numbers.
inline constexpr char kFaultStateRebuiltEveryForward[] = "state-rebuilt-every-forward";

// Recipes.

/// Row 13: the same recipe with other knobs changes nothing.
inline constexpr char kFaultKnobChangeIgnored[] = "knob-change-ignored";
/// Row 16: a change of amax_compute_algo alone changes nothing.
inline constexpr char kFaultAlgorithmChangeIgnored[] = "algorithm-change-ignored";
/// Row 44: backward follows the recipe of its own time, not its forward's.
inline constexpr char kFaultBackwardReadsLiveRecipe[] = "backward-reads-live-recipe";

/// Row 10: a backward override is dropped under delayed scaling, which has none.
inline constexpr char kFaultOverrideIgnoredUnderDelayed[] = "override-ignored-under-delayed";

/// Every layer follows the rules that a custom recipe has for the first.
inline constexpr char kFaultRulesOfFirstLayer[] = "rules-of-first-layer";

// Between forward and backward.

/// Row 38: a forward that fails leaves what it had done.
inline constexpr char kFaultFailedStepKeptInPart[] = "failed-step-kept-in-part";

/// Row 3: a later layer's buffer overlaps what an earlier layer saved.
inline constexpr char kFaultSavedOperandOverwritten[] = "saved-operand-overwritten";
/// Row 4: backward dequantizes with the scales of another microbatch in flight.
inline constexpr char kFaultScalesOfAnotherMicrobatch[] = "scales-of-another-microbatch";
/// Row 41: backward clears the x that it was given.
inline constexpr char kFaultInputCleared[] = "input-cleared";
/// Row 21: a recomputation quantizes with the scales of its own time.
inline constexpr char kFaultRecomputationUsesCurrentScales[] = "recomputation-uses-current-scales";
/// Row 21: a recomputation draws new random numbers.
inline constexpr char kFaultRecomputationDrawsAnew[] = "recomputation-draws-anew";
/// Row 55: a recomputation follows the recipe that the session began with, around its forward's.
inline constexpr char kFaultRecomputesUnderOuterRecipe[] = "recomputation-under-outer-recipe";
/// Row 55: whether a recomputation keeps delayed scaling's states for it is asked of the recipe
/// that the session began with.
inline constexpr char kFaultStatesLeftToOuterRecipe[] = "recomputation-states-left-to-outer-recipe";
/// Row 56: y that has the values of its codes does not require a gradient in the layer after it.
inline constexpr char kFaultGradLostWithCodes[] = "requires-grad-lost-with-codes";
/// Row 56: no layer's x requires a gradient where the first one's does not.
inline constexpr char kFaultGradLostBehindInput[] = "requires-grad-lost-behind-input";
/// Row 56: the x of a layer whose weight is frozen requires no gradient.
inline constexpr char kFaultGradLostBehindFrozen[] = "requires-grad-lost-behind-frozen-weight";
/// Row 22: every microbatch draws the same random numbers.
inline constexpr char kFaultRandomNumbersReused[] = "random-numbers-reused";
/// Row 33: a microbatch after the first overwrites the main gradients.
inline constexpr char kFaultMainGradientOverwritten[] = "main-gradient-overwritten";
/// Row 33: the first microbatch adds to main gradients that it should overwrite.
inline constexpr char kFaultMainGradientKept[] = "main-gradient-kept";

// Offload and checkpoints.

/// An offload leaves scales out, and the reload finds zeros.
inline constexpr char kFaultOffloadDropsScales[] = "offload-drops-scales";
/// A restored session begins with fresh histories.
inline constexpr char kFaultCheckpointDropsHistories[] = "checkpoint-drops-histories";
/// A restored session draws its first random numbers once more.
inline constexpr char kFaultCheckpointRestartsRandomNumbers[] =
    "checkpoint-restarts-random-numbers";

}  // namespace quantgate
