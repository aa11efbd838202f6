// TensorStore: descriptors bound to digests, and the requests that made them. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/database.h"
#include "server/store_interfaces.h"

namespace quantgate {

class TensorStore : public Tensors {
 public:
  explicit TensorStore(Database& database) : database_(database) {}

  absl::StatusOr<std::optional<TensorRecord>> FindRequest(const std::string& request_id,
                                                          const Sha256& content) override;
  /// Waits until the disk has the registration.
  absl::StatusOr<TensorRecord> Put(const TensorRecord& record, const std::string& request_id,
                                   const Sha256& content) override;
  absl::StatusOr<std::vector<TensorRecord>> Find(const Digest& digest) override;
  absl::StatusOr<TensorPage> List(int64_t before_id, int page_size) override;

 private:
  absl::StatusOr<TensorRecord> Insert(const TensorRecord& record, const std::string& request_id,
                                      const Sha256& content);

  Database& database_;
};

}  // namespace quantgate
