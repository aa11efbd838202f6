// Blobs between a client and a server. An upload asks for the digest first, so that bytes the
// server has are never sent, and sends 1 MiB chunks from the caller's memory without a copy, with
// CRC32C unless the server is on the same machine. A broken upload resumes where the server says it
// stopped, also for the next client with the same bytes. A download resumes too and is checked
// against its digest.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/connection.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// Bytes of one WriteRequest; within every server's message cap of 4 MiB.
inline constexpr int64_t kUploadChunkBytes = 1 << 20;

/// SHA-256 and size of `bytes`.
v1::Digest DigestOf(std::span<const std::byte> bytes);
/// The upload id that every client uses for this blob, unless another client is writing with it.
std::string SharedUploadId(const v1::Digest& digest);

/// True for a peer, as gRPC names it, on this machine. What damages a chunk in this machine's
/// memory would damage the whole blob too, which SHA-256 guards; CRC-32C of every chunk would cost
/// each side a tenth of what SHA-256 does.
bool IsOnThisMachine(absl::string_view peer);

/// Bytes to send, and what keeps them alive: gRPC lets go of the last ones some time after an
/// upload that failed has returned.
struct SharedBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};
/// The bytes of a tensor, whose buffer they share.
SharedBytes SharedBytesOf(const Tensor& tensor);

struct Upload {
  bool already_present = false;  ///< Nothing had to be sent, or somebody else finished first.
  int64_t bytes_sent = 0;        ///< Over the wire, including what broken streams lost.
  int resumptions = 0;
};

/// Makes sure the server has `bytes`, whose digest is `digest`. The status is the server's;
/// UNAVAILABLE once resuming brought no progress ConnectionOptions.attempts_max times in a row.
absl::StatusOr<Upload> UploadBlob(Connection& connection, const SharedBytes& bytes,
                                  const v1::Digest& digest, const UploadProgress& progress = {});

class RemoteConnection;
/// UploadBlob without asking first whether the server has the bytes; for benchmarks.
absl::StatusOr<Upload> WriteBlob(RemoteConnection& connection, const SharedBytes& bytes,
                                 const v1::Digest& digest, const UploadProgress& progress = {});

/// The blob's bytes. DATA_LOSS when they do not have this digest; NOT_FOUND from the server.
absl::StatusOr<std::shared_ptr<Buffer>> DownloadBlob(Connection& connection,
                                                     const v1::Digest& digest,
                                                     const DownloadProgress& progress = {});

/// The tensor that a call returned, from its inline bytes or its blob.
absl::StatusOr<Tensor> FetchTensor(Connection& connection, const v1::NamedTensor& tensor,
                                   const DownloadProgress& progress = {});

}  // namespace quantgate
