// TensorStore: descriptors bound to digests, and the requests that made them. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor/tensor.h"
#include "server/digest.h"
#include "server/store/database.h"

namespace quantgate {

/// What the bytes of a tensor mean.
struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;
  friend bool operator==(const TensorType&, const TensorType&) = default;
};
/// "bf16[256x512]".
std::string TensorTypeText(const TensorType& type);

struct TensorRecord {
  int64_t id = 0;  ///< Ascending with time.
  Digest digest;
  TensorType type;
  std::string name;
  Fingerprint fingerprint;
};

struct TensorPage {
  std::vector<TensorRecord> records;
  int64_t next_before_id = 0;  ///< 0: this was the last page.
};

class TensorStore {
 public:
  explicit TensorStore(Database& database) : database_(database) {}

  /// The record of an earlier request with this id. ALREADY_EXISTS when its content was another.
  absl::StatusOr<std::optional<TensorRecord>> FindRequest(const std::string& request_id,
                                                          const Sha256& content);
  /// Registers, and waits for the disk; the same digest, type and name again is the same record. An
  /// empty request id is not remembered.
  absl::StatusOr<TensorRecord> Put(const TensorRecord& record, const std::string& request_id,
                                   const Sha256& content);
  /// Every type under which a digest is registered, newest first.
  absl::StatusOr<std::vector<TensorRecord>> Find(const Digest& digest);
  /// Newest first, ids below `before_id` (0: from the newest).
  absl::StatusOr<TensorPage> List(int64_t before_id, int page_size);

 private:
  absl::StatusOr<TensorRecord> Insert(const TensorRecord& record, const std::string& request_id,
                                      const Sha256& content);

  Database& database_;
};

}  // namespace quantgate
