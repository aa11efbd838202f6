// BlobUpload: one stream of bytes on its way into the blob store. Hash() and Write() may run on two
// threads at once, each of them in order; everything else is the caller's alone. Its file is open
// while it writes, and in between only as long as there are few of them: thousands of clients that
// send nothing take no descriptors. Destroying it keeps the bytes for a later resume.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "server/digest.h"
#include "server/store/direct_file.h"
#include "server/store/disk.h"

namespace quantgate {

class BlobStore;

class BlobUpload {
 public:
  using Pieces = std::span<const std::span<const std::byte>>;

  ~BlobUpload();
  BlobUpload(const BlobUpload&) = delete;
  BlobUpload& operator=(const BlobUpload&) = delete;

  const Digest& digest() const { return digest_; }
  /// True once the blob exists, whoever stored it.
  bool IsPresent() const;

  void Hash(Pieces pieces);
  /// RESOURCE_EXHAUSTED for a full disk, or without a descriptor. DATA_LOSS, and nothing is kept,
  /// where another file has taken the place of what was written before.
  absl::Status Write(Pieces pieces);
  /// Checks the digest, syncs, publishes. INVALID_ARGUMENT for bytes that are too few (kept) or
  /// have another digest (discarded).
  absl::Status Commit();

 private:
  friend class BlobStore;
  /// `file` is open, and closed here unless it may stay so.
  BlobUpload(BlobStore* store, std::string key, Digest digest, File file, FileIdentity identity,
             int64_t offset, std::unique_ptr<Sha256Stream> hash);

  void Use(File file);
  absl::Status Open();
  /// Until Open() is called again.
  void Rest();

  BlobStore* const store_;
  const std::string key_;
  const Digest digest_;
  const FileIdentity identity_;  // Of the file.
  const bool stays_open_;
  File file_;
  DirectFile direct_file_;  // The same file; not open where that brings nothing.
  std::unique_ptr<Sha256Stream> hash_;
  std::atomic<int64_t> hashed_;
  std::atomic<int64_t> written_;
  int64_t writeback_started_;
  bool is_over_ = false;  // Committed or discarded: nothing is left to resume.
};

}  // namespace quantgate
