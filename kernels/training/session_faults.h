// Bugs that a training session can have, by the rows of docs/quantizers.md section 13: names for
// SeededFaults. Each is in place only where a scenario run asks for it.
#pragma once

namespace quantgate {

// Quantized weights.

/// Row 1: an update of a quantized weight leaves its columnwise codes as they were.
inline constexpr char kFaultColumnwiseLeftStale[] = "columnwise_left_stale";
/// Row 49: an update refreshes the columnwise codes of the first expert alone.
inline constexpr char kFaultLaterExpertsLeftStale[] = "later_experts_left_stale";
/// Row 2: an evaluation drops the columnwise codes of quantized weights.
inline constexpr char kFaultUsagesLostInEvaluation[] = "usages_lost_in_evaluation";
/// Row 32: cached weights stay in use after the update of their parameters.
inline constexpr char kFaultWorkspaceKeptAfterUpdate[] = "workspace_kept_after_update";
/// Row 40: quantized weights are rounded stochastically when they are updated (nvfp4).
inline constexpr char kFaultWeightsRoundedStochastically[] = "weights_rounded_stochastically";
/// Weights are requantized through bf16 where f32 is asked for, and the other way round.
inline constexpr char kFaultRequantizationTheOtherWay[] = "requantization_the_other_way";
/// The optimizer updates the parameter's rounded values and not its master.
inline constexpr char kFaultMasterIgnored[] = "master_ignored";

// Delayed scaling.

/// Row 17: an evaluation leaves its amaxes in the histories.
inline constexpr char kFaultEvaluationPollutesHistory[] = "evaluation_pollutes_history";
/// Row 18: forwards in flight together share one update, which merges their amaxes.
inline constexpr char kFaultUpdatesMerged[] = "updates_merged";
/// Row 19: the fused rule updates where the unfused one is asked for, and the other way round.
inline constexpr char kFaultUpdateRuleSwapped[] = "update_rule_swapped";
/// Row 20: an infinite amax is forgotten at once.
inline constexpr char kFaultInfiniteAmaxForgotten[] = "infinite_amax_forgotten";
/// The scales of gradients are never updated.
inline constexpr char kFaultBackwardUpdateSkipped[] = "backward_update_skipped";
/// Row 46: every forward begins with fresh histories and random numbers.
inline constexpr char kFaultStateRebuiltEveryForward[] = "state_rebuilt_every_forward";

// Recipes.

/// Row 13: the same recipe with other knobs changes nothing.
inline constexpr char kFaultKnobChangeIgnored[] = "knob_change_ignored";
/// Row 16: a change of amax_compute_algo alone changes nothing.
inline constexpr char kFaultAlgorithmChangeIgnored[] = "algorithm_change_ignored";
/// Row 44: backward follows the recipe of its own time, not its forward's.
inline constexpr char kFaultBackwardReadsLiveRecipe[] = "backward_reads_live_recipe";

// Between forward and backward.

/// Row 3: a later layer's buffer lies over what an earlier one saved.
inline constexpr char kFaultSavedOperandOverwritten[] = "saved_operand_overwritten";
/// Row 4: backward dequantizes with the scales of another microbatch in flight.
inline constexpr char kFaultScalesOfAnotherMicrobatch[] = "scales_of_another_microbatch";
/// Row 41: backward clears the x that it was given.
inline constexpr char kFaultInputCleared[] = "input_cleared";
/// Row 21: a recomputation quantizes with the scales of its own time.
inline constexpr char kFaultRecomputationUsesCurrentScales[] = "recomputation_uses_current_scales";
/// Row 21: a recomputation draws new random numbers.
inline constexpr char kFaultRecomputationDrawsAnew[] = "recomputation_draws_anew";
/// Row 22: every microbatch draws the same random numbers.
inline constexpr char kFaultRandomNumbersReused[] = "random_numbers_reused";
/// Row 33: a microbatch after the first overwrites the main gradients.
inline constexpr char kFaultMainGradientOverwritten[] = "main_gradient_overwritten";
/// Row 33: the first microbatch adds to main gradients that it should overwrite.
inline constexpr char kFaultMainGradientKept[] = "main_gradient_kept";

// Offload and checkpoints.

/// An offload leaves scales out, and the reload finds zeros.
inline constexpr char kFaultOffloadDropsScales[] = "offload_drops_scales";
/// A restored session begins with fresh histories.
inline constexpr char kFaultCheckpointDropsHistories[] = "checkpoint_drops_histories";
/// A restored session draws its first random numbers once more.
inline constexpr char kFaultCheckpointRestartsRandomNumbers[] =
    "checkpoint_restarts_random_numbers";

}  // namespace quantgate
