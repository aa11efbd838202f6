// What a checkpoint and the session that goes on from it must agree on, as canonical JSON. Private
// to kernels/training.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kernels/training/training_session.h"

namespace quantgate {

/// Layers, storage, masters, optimizer, main gradients and seed: all but the recipe, the
/// arithmetic, the ranks with how they divide layers, and what only opening reads. Keys are sorted,
/// floats by their shortest decimal.
nlohmann::json SessionSpecJson(const SessionSpec& spec);

/// Of one line, in ASCII.
std::string JsonText(const nlohmann::json& json);

/// FAILED_PRECONDITION naming the first place where they differ and both values.
absl::Status CheckSameSpec(const nlohmann::json& checkpoint, const nlohmann::json& session);

}  // namespace quantgate
