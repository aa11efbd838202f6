// Bugs that a layer's step can have, by the rows of docs/scenarios.md section 3: names for
// SeededFaults. Each is in place only where a scenario run asks for it.
#pragma once

namespace quantgate {

/// Row 8: what x requires is taken for what the weight requires, and the other way round.
inline constexpr char kFaultRequiresGradSwapped[] = "requires-grad-swapped";
/// Row 9: under a backward override the bias gradient comes with the weight's or not at all.
inline constexpr char kFaultBiasGradientLeftToWgrad[] = "bias-gradient-left-to-wgrad";

}  // namespace quantgate
