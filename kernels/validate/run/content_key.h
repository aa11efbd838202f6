// ContentKeys: fingerprints of tensors, by which equal tensors are recognised.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"

namespace quantgate {

/// Fingerprints of tensors that are not written to any more. Used by one thread.
class ContentKeys {
 public:
  ContentKeys(Engine& engine, const Cancellation* cancellation)
      : engine_(engine), cancellation_(cancellation) {}

  /// How long fingerprints are remembered and their tensors kept alive.
  enum class Memory { kUntilForget, kForGood };
  /// Begins to compute the fingerprints of all these tensors, except absent ones. The first call
  /// that asks for one of them waits for all that were begun, but not for later work of the engine.
  absl::Status Start(std::span<const Tensor> tensors, Memory memory);
  /// Forgets the fingerprints that were begun with kUntilForget.
  void Forget();

  absl::StatusOr<Fingerprint> FingerprintOf(const Tensor& tensor);
  /// A key of a list of tensors, equal for lists whose tensors have equal dtypes, shapes and
  /// contents one by one. Absent tensors count.
  absl::StatusOr<std::string> KeyOf(std::span<const Tensor* const> tensors);

 private:
  /// Tensors at one address may differ in dtype and shape.
  using Place = std::tuple<const std::byte*, DType, Shape>;
  static Place PlaceOf(const Tensor& tensor) {
    return {tensor.data(), tensor.dtype(), tensor.shape()};
  }
  absl::StatusOr<std::vector<Fingerprint>> FingerprintsOf(std::span<const Tensor> tensors);
  absl::Status ReadStarted();

  struct Known {
    Tensor tensor;  ///< Kept alive, so that its address is not reused.
    Memory memory;
    std::optional<Fingerprint> fingerprint;  ///< Absent until it is read.
  };

  Engine& engine_;
  const Cancellation* const cancellation_;
  std::map<Place, Known> known_;
  std::vector<Place> unread_;    ///< Keys of known_ whose fingerprints are still to be read.
  std::vector<Tensor> started_;  ///< Results of Engine::StartFingerprints, in the order of unread_.
};

}  // namespace quantgate
