// A run's request as its report keeps it.
#pragma once

#include "quantgate/v1/layer.pb.h"
#include "server/wire/layer_run.h"

namespace quantgate {

/// `spec`, of which `run` was made, with digests in place of bytes that came with it, and the types
/// of all stored tensors. The types of all references must be known.
v1::RunSpec KeptRequest(const v1::RunSpec& spec, const LayerRun& run);

/// What run_id's report tells to repeat it: `quantgate run --spec run:ID`.
std::string RepeatCommand(const std::string& run_id);

}  // namespace quantgate
