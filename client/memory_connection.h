// Connections to the caller's own process whose tensors are in its memory alone, until the
// connection is gone. They need no database.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/local_connection.h"
#include "server/runs/memory_store.h"

namespace quantgate {

/// `elsewhere` finds blobs that are not in memory; empty: there are no others. Errors as
/// LocalConnection::Open.
absl::StatusOr<std::unique_ptr<Connection>> ConnectInMemory(MemoryStore::Elsewhere elsewhere,
                                                            const LocalOptions& local,
                                                            const ConnectionOptions& options);

}  // namespace quantgate
