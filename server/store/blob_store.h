// Content-addressed files: cas/ab/cd/<sha256>.<size>, written to a temporary file, synced, renamed,
// the directory synced. What is acknowledged survives a crash; what lies under a name has that
// hash. A file whose size is not that of its name is set aside wherever it is met, so that an
// upload brings it again; other damage is met by reading. Thread-safe.
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
  /// Uploads whose files stay open between two writes: the first to come. Others open theirs anew.
  int64_t open_uploads_max = std::numeric_limits<int64_t>::max();
  /// Called for every blob found damaged. `where`: "read", "lookup" (of a blob that may be there)
  /// or "startup".
  std::function<void(std::string_view where)> on_corruption = [](std::string_view) {};
  std::function<absl::Time()> now = &SteadyNow;  ///< The clock of partial uploads' ages; for tests.
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
  /// Lists what is stored and sets aside what is cut short; drops partial uploads that are too old.
  static absl::StatusOr<std::unique_ptr<BlobStore>> Open(BlobStoreOptions options);

  /// Checks the file's size too.
  bool Contains(const Digest& digest) override;
  absl::StatusOr<Digest> Put(std::span<const std::byte> bytes) override;
  /// Sets a damaged blob aside.
  absl::StatusOr<std::shared_ptr<Buffer>> Load(const Digest& digest) override;
  /// `limit` 0: to the end. NOT_FOUND, OUT_OF_RANGE. To read a part, the whole blob is verified
  /// first, which `cancellation` can end.
  absl::StatusOr<BlobReader> Read(const Digest& digest, int64_t offset, int64_t limit,
                                  const Cancellation* cancellation = nullptr);

  /// Starts or resumes an upload. OUT_OF_RANGE for a wrong offset, ABORTED while another stream
  /// writes it, RESOURCE_EXHAUSTED for a size over the limits. The store must outlive it.
  absl::StatusOr<std::unique_ptr<BlobUpload>> BeginUpload(const std::string& upload_id,
                                                          const Digest& digest, int64_t offset);
  /// NOT_FOUND for an upload that never was; complete once the blob exists.
  absl::StatusOr<UploadState> QueryUpload(const std::string& upload_id, const Digest& digest);

  /// Removes interrupted uploads that nobody went on with for kPartialUploadAgeMax: since then by a
  /// clock that nobody sets, and before this process by the file's time.
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
    /// False for a blob of version 0.1.0: `size` is then what the file had when it was listed.
    bool is_size_recorded = true;
  };
  /// An upload that has begun and not been committed.
  struct Partial {
    bool is_busy = false;
    int64_t size = 0;  ///< Bytes in the file.
    int64_t reserved =
        0;               ///< Counted against the quota: the declared size while busy, else `size`.
    absl::Time touched;  ///< As SteadyNow; of what a process before left, by the file's wall time.
    std::unique_ptr<Sha256Stream> hash;  ///< Of those bytes; absent after a restart.
  };

  explicit BlobStore(BlobStoreOptions options) : options_(std::move(options)) {}
  absl::Status ScanBlobs();
  absl::Status ScanPartials();

  absl::Status ScanBlob(const std::string& path);
  /// Whether the blob is there. DATA_LOSS, the blob set aside, where its file has another size than
  /// it should; of a blob without a recorded size its hash decides, which is then recorded.
  absl::StatusOr<bool> Look(const Digest& digest, std::string_view where);
  /// Notes the size of a blob that has its hash.
  void RecordSize(const Sha256& sha256);
  /// DATA_LOSS, and the blob is set aside, when its file is not what it was; NOT_FOUND.
  absl::StatusOr<File> OpenBlob(const Digest& digest);
  /// UNAVAILABLE: there is no such blob; NOT_FOUND: its file is gone.
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
  /// Sets the blob's file aside if it is still the damaged one; absent: it was no file at all.
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
  std::atomic<int64_t> open_uploads_{0};  ///< Of those whose file stays open.
};

// The names of blobs' files: "<sha256>.<size>".

struct BlobName {
  Sha256 sha256;
  std::optional<int64_t> size;  ///< Absent in version 0.1.0.
};
/// Of a file's name without its folders. INVALID_ARGUMENT for any other name.
absl::StatusOr<BlobName> ParseBlobName(const std::string& file_name);
/// SHA-256 of all bytes of a file.
absl::StatusOr<Sha256> HashOfFile(const std::string& path);
absl::StatusOr<Sha256> HashOfFile(const File& file);

}  // namespace quantgate
