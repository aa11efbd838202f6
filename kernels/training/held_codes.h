// Weights that a session is given as codes, which it holds as they are (docs/sessions.md section
// 2). Private to kernels/training.
#pragma once

#include <map>
#include <string>

#include "kernels/training/session_state.h"

namespace quantgate {

/// Codes by the names of parameters, "fc1.weight".
using CodesByName = std::map<std::string, QuantizedTensor>;

/// Checks that a session of this spec can hold the codes. INVALID_ARGUMENT naming parameter, value
/// and rule: a session that does not hold weights quantized, ranks that divide weights, a parameter
/// that is no weight, masters that have no bf16 parameter, and what the recipe's rule for the
/// weight would not have made: another format, or parts that are missing.
absl::Status CheckHeldCodes(const SessionSpec& spec, const CodesByName& codes);

/// The values that the weights begin with: f32, for masters.
absl::StatusOr<std::map<std::string, Tensor>> ValuesOfHeld(Engine& engine, const CodesByName& codes,
                                                           const Cancellation* cancellation);

/// Puts the codes, which CheckHeldCodes accepts, in place of those that were made of the values,
/// derives the columnwise direction that the session's steps read, and forgets the amaxes that
/// delayed scaling noted of the values.
absl::Status HoldCodes(Engine& engine, const SessionSpec& spec, const CodesByName& codes,
                       const Cancellation* cancellation, SessionState& state);

}  // namespace quantgate
