#include "kernels/engine/engine.h"

#include "kernels/base/status_macros.h"

namespace quantgate {

absl::StatusOr<Fingerprint> Engine::FingerprintOf(const Tensor& tensor,
                                                  const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(const Tensor started, StartFingerprint(tensor, cancellation));
  QG_ASSIGN_OR_RETURN(const std::vector<Fingerprint> read, ReadFingerprints({&started, 1}));
  return read[0];
}

}  // namespace quantgate
