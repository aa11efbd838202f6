// BlobReader: a stored blob, piece by piece, verified on the way out. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "server/digest.h"
#include "server/store/disk.h"

namespace quantgate {

class BlobStore;

class BlobReader {
 public:
  /// Fills `out` as far as the range goes and returns the bytes filled; 0 at the end. DATA_LOSS for
  /// a damaged blob, at the latest in place of the last piece, so that a damaged range is never
  /// delivered whole; also where another file has taken the blob's place meanwhile.
  absl::StatusOr<size_t> Next(std::span<std::byte> out);
  /// Closes the file until Next() is called again, so that no descriptor is held while nobody
  /// reads.
  void Rest() { file_ = File(); }
  /// Bytes that Next() has yet to return.
  int64_t remaining() const { return end_ - offset_; }

 private:
  friend class BlobStore;
  BlobReader(BlobStore* store, const Digest& digest, File file, int64_t begin, int64_t end)
      : store_(store), digest_(digest), file_(std::move(file)), offset_(begin), end_(end) {}

  absl::Status Reopen();
  /// Sets the blob's file aside and returns the error that tells of the damage.
  absl::Status Damaged(const std::string& how);

  BlobStore* store_;
  Digest digest_;
  File file_;
  int64_t offset_;
  int64_t end_;
  FileIdentity identity_;  ///< Identity of the file that is read.
  /// Hash of the range: the blob's own, or that of a part, computed when the whole was verified.
  Sha256 expected_;
  std::unique_ptr<Sha256Stream> hash_;
};

}  // namespace quantgate
