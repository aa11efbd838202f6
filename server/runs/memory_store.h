// MemoryStore: blobs and registrations of tensors that live in memory as long as this object. A
// blob that is not there is looked for elsewhere when it is asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/store_interfaces.h"

namespace quantgate {

class MemoryStore : public Blobs, public Tensors {
 public:
  struct Found {
    std::shared_ptr<Buffer> buffer;
    /// Types and names, oldest first.
    std::vector<std::pair<TensorType, std::string>> registrations;
  };
  /// Looks for a blob elsewhere; NOT_FOUND where there is none. MemoryStore verifies the bytes.
  using Elsewhere = std::function<absl::StatusOr<Found>(const Digest& digest)>;

  explicit MemoryStore(Elsewhere elsewhere = {}) : elsewhere_(std::move(elsewhere)) {}

  /// Keeps the buffer, whose digest the caller has computed and whose bytes must not change.
  void Add(const Digest& digest, std::shared_ptr<Buffer> buffer);

  bool Contains(const Digest& digest) override;
  absl::StatusOr<Digest> Put(std::span<const std::byte> bytes) override;
  absl::StatusOr<std::shared_ptr<Buffer>> Load(const Digest& digest) override;

  absl::StatusOr<std::optional<TensorRecord>> FindRequest(const std::string& request_id,
                                                          const Sha256& content) override;
  absl::StatusOr<TensorRecord> Put(const TensorRecord& record, const std::string& request_id,
                                   const Sha256& content) override;
  absl::StatusOr<std::vector<TensorRecord>> Find(const Digest& digest) override;
  absl::StatusOr<TensorPage> List(int64_t before_id, int page_size) override;

 private:
  /// The blob, or why what was found elsewhere is not it.
  using Blob = absl::StatusOr<std::shared_ptr<Buffer>>;
  /// Finds a blob here or elsewhere; null where there is none.
  const Blob* Look(const Digest& digest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<Buffer>> Bring(const Digest& digest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  TensorRecord Register(TensorRecord record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Elsewhere elsewhere_;
  std::mutex mutex_;
  std::map<Digest, Blob> blobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<TensorRecord> records_ ABSL_GUARDED_BY(mutex_);  ///< Oldest first; ids from 1.
  std::map<std::string, std::pair<Sha256, int64_t>> requests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
