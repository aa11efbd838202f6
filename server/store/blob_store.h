// BlobStore: content-addressed files, cas/ab/cd/<sha256>.<size>. A blob is written to a temporary
// file, synced and renamed, and its directory is synced: an acknowledged blob survives a crash, and
// a file has the hash that its name says. A file whose size differs from its name's is set aside
// wherever it is found, so that an upload can bring the blob again; other damage is found by
// reading. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/execution.h"
#include "kernels/base/steady_time.h"
#include "kernels/tensor/tensor.h"
#include "server/digest.h"
#include "server/store/blob_reader.h"
#include "server/store/blob_upload.h"
#include "server/store/disk.h"
#include "server/store_interfaces.h"

namespace quantgate {

struct BlobStoreOptions {
  std::string blobs_path;
  std::string partial_path;
  std::string quarantine_path;
  int64_t blob_bytes_max = 0;
  int64_t store_bytes_max = 0;
  bool fsync = true;
  /// The number of uploads whose files stay open between two writes: those that begin first. Other
  /// uploads open their files for each write.
  int64_t open_uploads_max = std::numeric_limits<int64_t>::max();
  /// Called for every blob found damaged. `where`: "read", "lookup" (of a blob that may be there)
  /// or "startup".
  std::function<void(std::string_view where)> on_corruption = [](std::string_view) {};
  /// The clock of partial uploads' ages; tests set another one.
  std::function<absl::Time()> now = &SteadyNow;
};

struct BlobStoreUsage {
  int64_t committed_bytes = 0;
  int64_t committed_objects = 0;
  int64_t partial_bytes = 0;
  int64_t partial_objects = 0;
};

struct UploadState {
  int64_t committed_size = 0;
  bool complete = false;
};

class BlobStore : public Blobs {
 public:
  /// Lists the stored blobs, sets aside those whose files have a wrong size, and drops partial
  /// uploads that are too old.
  static absl::StatusOr<std::unique_ptr<BlobStore>> Open(BlobStoreOptions options);

  /// Whether the blob is stored, with a file of the right size.
  bool Contains(const Digest& digest) override;
  absl::StatusOr<Digest> Put(std::span<const std::byte> bytes) override;
  /// The whole blob, verified. A damaged blob is set aside.
  absl::StatusOr<std::shared_ptr<Buffer>> Load(const Digest& digest) override;
  /// Reads `limit` bytes from `offset` on; `limit` 0 means to the end. NOT_FOUND, OUT_OF_RANGE. To
  /// read a part, the whole blob is verified first, which `cancellation` can end.
  absl::StatusOr<BlobReader> Read(const Digest& digest, int64_t offset, int64_t limit,
                                  const Cancellation* cancellation = nullptr);

  /// Starts or resumes an upload. OUT_OF_RANGE for a wrong offset, ABORTED while another stream
  /// writes the same upload, RESOURCE_EXHAUSTED for a size over the limits. The store must outlive
  /// the upload.
  absl::StatusOr<std::unique_ptr<BlobUpload>> BeginUpload(const std::string& upload_id,
                                                          const Digest& digest, int64_t offset);
  /// The state of an upload, which is complete once the blob exists. NOT_FOUND for an unknown
  /// upload.
  absl::StatusOr<UploadState> QueryUpload(const std::string& upload_id, const Digest& digest);

  /// Removes interrupted uploads that nobody has resumed for kPartialUploadAgeMax. The time is
  /// measured by SteadyNow, and for the time before this process by the file's own time.
  void ExpirePartials();
  BlobStoreUsage usage() const;
  int64_t bytes_max() const { return options_.store_bytes_max; }

 private:
  friend class BlobUpload;
  friend class BlobReader;

  struct Sha256Hash {
    size_t operator()(const Sha256& sha256) const;
  };
  struct Blob {
    int64_t size = 0;
    /// False for a blob of version 0.1.0: `size` is then the size of its file when it was listed.
    bool is_size_recorded = true;
  };
  /// An upload that has begun and not been committed.
  struct Partial {
    bool is_busy = false;
    int64_t size = 0;  ///< Bytes in the file.
    int64_t reserved =
        0;  ///< Counted against the quota: the declared size while busy, else `size`.
    /// The last use, by SteadyNow. For the upload of an earlier process, by the wall time of its
    /// file.
    absl::Time touched;
    std::unique_ptr<Sha256Stream> hash;  ///< Hash of the bytes in the file; absent after a restart.
  };

  explicit BlobStore(BlobStoreOptions options) : options_(std::move(options)) {}
  absl::Status ScanBlobs();
  absl::Status ScanPartials();

  absl::Status ScanBlob(const std::string& path);
  /// Whether the blob is stored. DATA_LOSS where its file has a wrong size; the blob is then set
  /// aside. A blob without a recorded size is verified by its hash, and its size is then recorded.
  absl::StatusOr<bool> Look(const Digest& digest, std::string_view where);
  /// Records the size of a blob whose hash was verified.
  void RecordSize(const Sha256& sha256);
  /// Opens a blob's file. DATA_LOSS where the file is gone or damaged, and the blob is set aside;
  /// NOT_FOUND for an unknown blob.
  absl::StatusOr<File> OpenBlob(const Digest& digest);
  /// UNAVAILABLE where there is no such blob, NOT_FOUND where its file is gone.
  absl::StatusOr<File> OpenFile(const Sha256& sha256, Blob& blob) const;

  std::string BlobPath(const Sha256& sha256, const Blob& blob) const;
  std::string PartialPath(const std::string& key) const {
    return options_.partial_path + "/" + key;
  }
  int64_t UsedBytes() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRoom(int64_t bytes) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status MakeRoomForPartial() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::map<std::string, Partial>::iterator> ClaimPartial(
      const std::string& key, const std::string& upload_id, const Digest& digest, int64_t offset)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Moves a complete, synced file to its final name.
  absl::Status Publish(const std::string& path, const Digest& digest) noexcept;
  /// Sets the blob's file aside if it is still the file `damaged`, which is absent where there was
  /// none.
  void Quarantine(const Digest& digest, std::string_view where,
                  std::optional<FileIdentity> damaged);
  void EndUpload(const std::string& key, int64_t size, std::unique_ptr<Sha256Stream> hash);
  void ForgetPartial(const std::string& key);

  const BlobStoreOptions options_;
  mutable std::mutex mutex_;
  absl::flat_hash_map<Sha256, Blob, Sha256Hash> blobs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Partial> partials_ ABSL_GUARDED_BY(mutex_);
  int64_t committed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t reserved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t next_temporary_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> open_uploads_{0};  ///< The number of uploads whose file stays open.
};

// The names of blobs' files: "<sha256>.<size>".

struct BlobName {
  Sha256 sha256;
  std::optional<int64_t> size;  ///< Absent in version 0.1.0.
};
/// Parses a file's name without its folders. INVALID_ARGUMENT for a name of another form.
absl::StatusOr<BlobName> ParseBlobName(const std::string& file_name);
/// SHA-256 of all bytes of a file.
absl::StatusOr<Sha256> HashOfFile(const std::string& path);
absl::StatusOr<Sha256> HashOfFile(const File& file);

}  // namespace quantgate
