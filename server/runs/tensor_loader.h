// TensorLoader: makes tensors of the references in requests. Every check that can refuse a
// reference comes before anything large is read or made. Thread-safe.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/device/device.h"
#include "server/store_interfaces.h"
#include "server/wire/tensor_reference.h"

namespace quantgate {

class TensorLoader {
 public:
  TensorLoader(Blobs& blobs, Tensors& tensors) : blobs_(blobs), tensors_(tensors) {}

  /// Completes the types of stored tensors and checks that their blobs are there: INVALID_ARGUMENT
  /// for a digest that is registered under no type or several, FAILED_PRECONDITION naming every
  /// missing blob. Absent references are skipped.
  absl::Status Resolve(std::span<TensorReference* const> references);
  absl::Status Resolve(SlotReferences& references);

  /// The tensor in the memory of the device's engine; no value for an absent reference. Stored and
  /// generated tensors stay there for later calls.
  absl::StatusOr<Tensor> Load(const TensorReference& reference, Device& device,
                              const Cancellation* cancellation);
  /// The tensor in host memory; no value for an absent reference.
  absl::StatusOr<Tensor> LoadToHost(const TensorReference& reference, Device& device,
                                    const Cancellation* cancellation);

  /// Loads the tensor, stores its bytes if they are not stored, and registers it under `name`.
  absl::StatusOr<TensorRecord> Register(const TensorReference& reference, const std::string& name,
                                        const std::string& request_id, const Sha256& content,
                                        Device& device, const Cancellation* cancellation);

 private:
  absl::Status ResolveType(TensorReference& reference);

  Blobs& blobs_;
  Tensors& tensors_;
};

}  // namespace quantgate
