// Uploads: digest first, so that bytes the server has are never sent; 1 MiB chunks with CRC32C; a
// broken stream resumes where the server says it stopped.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connection.h"

namespace quantgate {

/// Bytes of one WriteRequest; within every server's message cap of 4 MiB.
inline constexpr int64_t kUploadChunkBytes = 1 << 20;

/// SHA-256 and size of `bytes`.
v1::Digest DigestOf(std::span<const std::byte> bytes);
/// "SHA256/SIZE", the form after "digest:" on the command line.
std::string DigestText(const v1::Digest& digest);

struct Upload {
  bool already_present = false;  ///< Nothing had to be sent, or somebody else finished first.
  int64_t bytes_sent = 0;        ///< Over the wire, what a broken stream lost included.
  int resumptions = 0;
};

/// Called after every chunk with the bytes that are under way or stored, and the size of the blob.
using UploadProgress = std::function<void(int64_t done, int64_t size)>;

/// Makes sure the server has `bytes`, whose digest is `digest`. The status is the server's;
/// UNAVAILABLE once resuming brought no progress ConnectionOptions.attempts_max times in a row.
absl::StatusOr<Upload> UploadBlob(Connection& connection, std::span<const std::byte> bytes,
                                  const v1::Digest& digest, const UploadProgress& progress = {});

/// Sends without asking first, for measuring.
absl::StatusOr<Upload> WriteBlob(Connection& connection, std::span<const std::byte> bytes,
                                 const v1::Digest& digest, const UploadProgress& progress = {});

}  // namespace quantgate
