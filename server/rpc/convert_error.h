// From the engine's and stores' status to gRPC's.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace quantgate {

/// Code, text (cut to kStatusMessageBytesMax) and a serialized v1.ErrorDetail. Called by Call::End
/// only.
grpc::Status StatusToGrpc(const absl::Status& status);

}  // namespace quantgate
