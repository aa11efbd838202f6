// Run specifications from the wire. Failures are INVALID_ARGUMENT (UNIMPLEMENTED for an arithmetic
// that needs hardware this build cannot drive) naming the field below "spec".
#pragma once

#include "absl/status/statusor.h"
#include "quantgate/v1/layer.pb.h"
#include "server/layer_run.h"

namespace quantgate {

absl::StatusOr<LayerRun> LayerRunFromProto(const v1::RunSpec& proto, int64_t tensor_bytes_max);

}  // namespace quantgate
