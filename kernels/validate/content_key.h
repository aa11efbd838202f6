// What identifies tensors by their contents.
#pragma once

#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"

namespace quantgate {

/// Fingerprints of tensors that nobody writes to any more. Used by one thread.
class ContentKeys {
 public:
  ContentKeys(Engine& engine, const Cancellation* cancellation)
      : engine_(engine), cancellation_(cancellation) {}

  /// Computes those of all these tensors with one wait for the engine: it need not be asked again
  /// until the next call. The tensors are kept alive as long; absent ones are left out.
  absl::Status Prepare(std::span<const Tensor> tensors);
  /// The same in two steps: what the engine is given in between, it does while the second waits.
  absl::Status StartPreparing(std::span<const Tensor> tensors);
  absl::Status FinishPreparing();

  absl::StatusOr<Fingerprint> FingerprintOf(const Tensor& tensor);
  /// Equal for tensors of equal dtypes, shapes and contents, one by one; absent ones too have a
  /// place in it.
  absl::StatusOr<std::string> KeyOf(std::initializer_list<const Tensor*> tensors);

 private:
  /// Two tensors at one address can differ in what they are taken for.
  using Place = std::tuple<const std::byte*, DType, Shape>;
  static Place PlaceOf(const Tensor& tensor) {
    return {tensor.data(), tensor.dtype(), tensor.shape()};
  }
  absl::StatusOr<std::vector<Fingerprint>> FingerprintsOf(std::span<const Tensor> tensors);

  Engine& engine_;
  const Cancellation* const cancellation_;
  /// With the tensors, whose addresses are not given out again meanwhile.
  std::map<Place, std::pair<Tensor, Fingerprint>> known_;
  std::vector<Tensor> starting_;  ///< Of StartPreparing.
  std::vector<Tensor> started_;   ///< Of Engine::StartFingerprints.
};

}  // namespace quantgate
