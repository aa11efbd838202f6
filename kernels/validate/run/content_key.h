// What identifies tensors by their contents.
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

/// Fingerprints of tensors that nobody writes to any more. Used by one thread.
class ContentKeys {
 public:
  ContentKeys(Engine& engine, const Cancellation* cancellation)
      : engine_(engine), cancellation_(cancellation) {}

  /// How long what is begun is remembered, and the tensors are kept alive.
  enum class Memory { kUntilForget, kForGood };
  /// Begins to compute those of all these tensors; absent ones are left out. Whoever is the first
  /// to ask for one of them waits for all that were begun, and not for what the engine was given
  /// since.
  absl::Status Start(std::span<const Tensor> tensors, Memory memory);
  void Forget();

  absl::StatusOr<Fingerprint> FingerprintOf(const Tensor& tensor);
  /// Equal for tensors of equal dtypes, shapes and contents, one by one; absent ones too have a
  /// place in it.
  absl::StatusOr<std::string> KeyOf(std::span<const Tensor* const> tensors);

 private:
  /// Two tensors at one address can differ in what they are taken for.
  using Place = std::tuple<const std::byte*, DType, Shape>;
  static Place PlaceOf(const Tensor& tensor) {
    return {tensor.data(), tensor.dtype(), tensor.shape()};
  }
  absl::StatusOr<std::vector<Fingerprint>> FingerprintsOf(std::span<const Tensor> tensors);
  absl::Status ReadStarted();

  /// With the tensor, whose address is not given out again meanwhile.
  struct Known {
    Tensor tensor;
    Memory memory;
    std::optional<Fingerprint> fingerprint;  ///< Once read.
  };

  Engine& engine_;
  const Cancellation* const cancellation_;
  std::map<Place, Known> known_;
  std::vector<Place> unread_;    ///< Those of known_ that are still to be read.
  std::vector<Tensor> started_;  ///< Of Engine::StartFingerprints, in their order.
};

}  // namespace quantgate
