// What a request says, as one number: for telling a repeated request from another one.
#pragma once

#include <google/protobuf/message.h>

#include "kernels/tensor/fingerprint.h"

namespace quantgate {

/// SHA-256 of a serialization that does not depend on the order of maps.
Sha256 ContentDigest(const google::protobuf::Message& message);

}  // namespace quantgate
