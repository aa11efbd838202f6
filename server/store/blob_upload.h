// BlobUpload: one stream of bytes on its way into the blob store. Hash() and Write() may run on two
// threads at once, each of them in order; everything else is called while neither runs. Its file is
// open while it writes, and between writes only for the first uploads
// (BlobStoreOptions::open_uploads_max), so that thousands of clients that send nothing hold no
// descriptors. Its destructor keeps the bytes for a later resume.
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
  /// Whether the blob exists, no matter which upload stored it.
  bool IsPresent() const;

  void Hash(Pieces pieces);
  /// RESOURCE_EXHAUSTED for a full disk or the lack of a descriptor. DATA_LOSS, and nothing is
  /// kept, where another file has taken the place of the upload's file.
  absl::Status Write(Pieces pieces);
  /// Checks the digest, syncs the file and publishes it as a blob. INVALID_ARGUMENT for bytes that
  /// are too few (they are kept) or have another digest (they are discarded).
  absl::Status Commit();

 private:
  friend class BlobStore;
  /// `file` is open. It is closed here unless it may stay open.
  BlobUpload(BlobStore* store, std::string key, Digest digest, File file, FileIdentity identity,
             int64_t offset, std::unique_ptr<Sha256Stream> hash);

  void Use(File file);
  absl::Status Open();
  /// Closes the file until Open() is called again, unless it stays open.
  void Rest();

  BlobStore* const store_;
  const std::string key_;
  const Digest digest_;
  const FileIdentity identity_;  // Identity of the file.
  const bool stays_open_;
  File file_;
  // The same file, opened for direct writes; not open where these bring nothing.
  DirectFile direct_file_;
  std::unique_ptr<Sha256Stream> hash_;
  std::atomic<int64_t> hashed_;
  std::atomic<int64_t> written_;
  int64_t writeback_started_;
  bool is_over_ = false;  // Whether it is committed or discarded: nothing is left to resume then.
};

}  // namespace quantgate
