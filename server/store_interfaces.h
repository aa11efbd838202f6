// Interfaces of the stores of bytes and of tensors' registrations: a server's stores on disk, or
// the memory of a command. Implementations are thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor/tensor.h"
#include "server/tensor_record.h"

namespace quantgate {

class Blobs {
 public:
  virtual ~Blobs() = default;
  /// The empty blob always exists.
  virtual bool Contains(const Digest& digest) = 0;
  /// Stores bytes, unless they are stored already, and returns their digest. RESOURCE_EXHAUSTED for
  /// quota, disk or memory.
  virtual absl::StatusOr<Digest> Put(std::span<const std::byte> bytes) = 0;
  /// The whole blob, verified. NOT_FOUND, DATA_LOSS, RESOURCE_EXHAUSTED (memory).
  virtual absl::StatusOr<std::shared_ptr<Buffer>> Load(const Digest& digest) = 0;
};

class Tensors {
 public:
  virtual ~Tensors() = default;
  /// The record of an earlier request with this id. ALREADY_EXISTS when its content was another.
  virtual absl::StatusOr<std::optional<TensorRecord>> FindRequest(const std::string& request_id,
                                                                  const Sha256& content) = 0;
  /// Registers; the same digest, type and name again is the same record. An empty request id is not
  /// remembered.
  virtual absl::StatusOr<TensorRecord> Put(const TensorRecord& record,
                                           const std::string& request_id,
                                           const Sha256& content) = 0;
  /// Every type under which a digest is registered, newest first.
  virtual absl::StatusOr<std::vector<TensorRecord>> Find(const Digest& digest) = 0;
  /// A page of records, newest first, with ids below `before_id`; 0 means from the newest on.
  virtual absl::StatusOr<TensorPage> List(int64_t before_id, int page_size) = 0;
};

}  // namespace quantgate
