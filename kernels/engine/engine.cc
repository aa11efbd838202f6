#include "kernels/engine/engine.h"

#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/engine/copy_checks.h"

namespace quantgate {

absl::StatusOr<std::vector<Fingerprint>> Engine::FingerprintsOf(std::span<const Tensor> tensors,
                                                                const Cancellation* cancellation) {
  if (tensors.empty()) return std::vector<Fingerprint>();
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> started, StartFingerprints(tensors, cancellation));
  return ReadFingerprints(started);
}

absl::StatusOr<Fingerprint> Engine::FingerprintOf(const Tensor& tensor,
                                                  const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(const std::vector<Fingerprint> read,
                      FingerprintsOf({&tensor, 1}, cancellation));
  return read[0];
}

Engine::HostRead ReadOfHostTensor(const Tensor& tensor) {
  return [tensor](std::span<std::byte> bytes) -> absl::Status {
    const std::span<const std::byte> from = tensor.bytes();
    QG_RETURN_IF_ERROR(CheckRead(tensor, bytes));
    std::copy(from.begin(), from.end(), bytes.begin());
    return absl::OkStatus();
  };
}

}  // namespace quantgate
