// A data directory without a server: what the command line looks up and clears in its local store.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/digest.h"
#include "server/store/tensor_store.h"

namespace quantgate {

struct StoredAtRest {
  std::string path;  ///< Path of the blob's file.
  struct Registration {
    TensorType type;
    std::string name;
  };
  std::vector<Registration> registrations;  ///< Oldest first.
};

/// Whether a store was ever kept there. Neither this function nor those below create one where
/// there is none.
bool HasStore(const std::string& data_dir);

/// Takes no lock and changes nothing: a server may use the directory meanwhile. NOT_FOUND where the
/// blob is not stored.
absl::StatusOr<StoredAtRest> FindAtRest(const std::string& data_dir, const Digest& digest);

struct DirectoryUsage {
  int64_t bytes = 0;
  int64_t files = 0;
};
/// Usage of all files below `path`; zeros where there is no such directory.
DirectoryUsage UsageOf(const std::string& path);

struct Cleared {
  int64_t bytes = 0;  ///< Bytes by which the directory has shrunk.
  int64_t tensors = 0;
};

/// Removes the blobs and their registrations. FAILED_PRECONDITION while a server uses the
/// directory, and where the database with the registrations is gone; NOT_FOUND naming the first
/// blob that is not stored, and then nothing is removed.
absl::StatusOr<Cleared> RemoveTensors(const std::string& data_dir, std::span<const Digest> digests);
/// RemoveTensors of every registered tensor.
absl::StatusOr<Cleared> RemoveAllTensors(const std::string& data_dir);
/// Removes what no registered tensor refers to: blobs, partial uploads, blobs set aside, and runs
/// that have ended, which no command shows. Sessions live no longer than their server, so none
/// refers to anything at rest.
absl::StatusOr<Cleared> CollectGarbage(const std::string& data_dir);

}  // namespace quantgate
