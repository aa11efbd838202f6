// TensorLoader: from references to tensors. What can be refused is refused before anything large is
// read or made. Thread-safe.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "server/store/blob_store.h"
#include "server/store/tensor_store.h"
#include "server/tensor_reference.h"

namespace quantgate {

class TensorLoader {
 public:
  TensorLoader(BlobStore& blobs, TensorStore& tensors, Engine& engine)
      : blobs_(blobs), tensors_(tensors), engine_(engine) {}

  /// Completes the types of stored tensors and checks that their blobs are there: INVALID_ARGUMENT
  /// for a digest that is registered under no type or several, FAILED_PRECONDITION naming every
  /// missing blob. Absent ones are skipped.
  absl::Status Resolve(std::span<TensorReference* const> references);

  /// A tensor of this type without memory, for checks of dtypes and shapes only; no value for an
  /// absent reference.
  static Tensor Outline(const TensorReference& reference);

  /// The tensor; no value for an absent reference.
  absl::StatusOr<Tensor> Load(const TensorReference& reference, const Cancellation* cancellation);

  /// Loads the tensor, stores its bytes if they are not stored, and registers it under `name`.
  absl::StatusOr<TensorRecord> Register(const TensorReference& reference, const std::string& name,
                                        const std::string& request_id, const Sha256& content,
                                        const Cancellation* cancellation);

 private:
  absl::Status ResolveType(TensorReference& reference);

  BlobStore& blobs_;
  TensorStore& tensors_;
  Engine& engine_;
};

}  // namespace quantgate
