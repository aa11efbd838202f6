// Checking a data directory at rest: pages, indexes and events of the database, sizes and hashes of
// the blobs.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace quantgate {

struct FsckResult {
  int64_t runs = 0;
  int64_t events = 0;
  int64_t tensors = 0;
  int64_t blobs = 0;
  int64_t blob_bytes = 0;
  int64_t problems = 0;
  int64_t mended = 0;
};

/// `tell` gets a line for each problem. With `repairs`, damaged blobs and side files go to
/// quarantine, runs with damaged events are removed, and a damaged database is written anew with
/// what is left of it. As every start it moves the database's log into its file, and writes a
/// database of version 0.1.0 anew. FAILED_PRECONDITION for a directory that is not there or that a
/// server uses.
absl::StatusOr<FsckResult> CheckStore(const std::string& data_dir, bool repairs,
                                      absl::FunctionRef<void(const std::string& line)> tell);

}  // namespace quantgate
