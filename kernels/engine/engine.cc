#include "kernels/engine/engine.h"

#include "kernels/base/status_macros.h"

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

}  // namespace quantgate
