// The names of blobs' files: "<sha256>.<size>".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/digest.h"
#include "server/store/disk.h"

namespace quantgate {

struct BlobName {
  Sha256 sha256;
  std::optional<int64_t> size;  ///< Absent in version 0.1.0.
};
/// Without its folders. INVALID_ARGUMENT for any other name.
absl::StatusOr<BlobName> ParseBlobName(const std::string& file_name);
/// Of all its bytes.
absl::StatusOr<Sha256> HashOfFile(const std::string& path);
absl::StatusOr<Sha256> HashOfFile(const File& file);

}  // namespace quantgate
