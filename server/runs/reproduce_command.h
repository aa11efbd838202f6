// A run as a command that repeats it.
#pragma once

#include <string>

#include "server/wire/layer_run.h"

namespace quantgate {

/// One shell command that repeats the run: `quantgate run ...`, `quantgate compare ...`, or, where
/// no product of recipes, overrides and arithmetics gives the variants, several joined by &&.
/// Inline tensors must be stored.
std::string ReproduceCommand(const LayerRun& run);

}  // namespace quantgate
