// Rates of the wire beside bare gRPC, SHA-256 and the disk, measured in the same run.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/channel_connection.h"
#include "client/cli/commands/bench_engine.h"

namespace quantgate {

struct WireBenchOptions {
  int64_t upload_bytes = 256 << 20;
  double seconds = 1;  ///< Per small measurement.
  std::string disk;    ///< Where the server's store lies; empty: not measured.
  bool is_in_process = false;
};

/// Latency of a small unary call against a bare gRPC echo, and the rate of an upload whose digest
/// is known against a bare gRPC stream, SHA-256 on one core and fsynced writes. The bare server
/// listens on loopback, or in process when `connection` is in process. The uploaded blob stays in
/// the store.
absl::StatusOr<std::vector<BenchLine>> BenchWire(ChannelConnection& connection,
                                                 const WireBenchOptions& options,
                                                 const BenchProgress& progress);

}  // namespace quantgate
