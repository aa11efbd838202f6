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
  /// Fills `out` as far as the range goes and says how much; 0 at its end. DATA_LOSS for a damaged
  /// blob, at the latest in place of the last piece, so that a damaged blob is never delivered
  /// whole.
  absl::StatusOr<size_t> Next(std::span<std::byte> out);
  /// Closes the file until Next() is called again: a descriptor less while nobody reads.
  void Rest() { file_ = File(); }
  /// Bytes that Next() has yet to give.
  int64_t remaining() const { return end_ - offset_; }

 private:
  friend class BlobStore;
  BlobReader(BlobStore* store, const Digest& digest, File file, int64_t begin, int64_t end)
      : store_(store), digest_(digest), file_(std::move(file)), offset_(begin), end_(end) {}

  BlobStore* store_;
  Digest digest_;
  File file_;
  int64_t offset_;
  int64_t end_;
  std::unique_ptr<Sha256Stream> hash_;  // Present when the range is the whole blob.
};

}  // namespace quantgate
