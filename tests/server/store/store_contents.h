// What a server's data directory holds after a bit of everything: made by calls, and asked for by
// every call whose answer is read from it.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <vector>

#include "tests/server/store/exchanges.h"

namespace quantgate {

/// Blobs, an interrupted upload, tensors, runs (one of them with events large enough for a side
/// file, one cancelled) and a session's checkpoint.
std::vector<Exchange> FillStore(const std::shared_ptr<grpc::Channel>& channel);

/// Asks for all of it, and for what is not there.
std::vector<Exchange> AskStore(const std::shared_ptr<grpc::Channel>& channel,
                               const std::vector<Exchange>& filled);

}  // namespace quantgate
