#include "kernels/engine/engine.h"

#include "kernels/base/status_macros.h"

namespace quantgate {

absl::StatusOr<Fingerprint> Engine::ReadFingerprint(const Tensor& started) {
  QG_ASSIGN_OR_RETURN(const Tensor words, ToHost(started, nullptr));
  return Fingerprint{words.as<uint64_t>()[0], words.as<uint64_t>()[1]};
}

absl::StatusOr<Fingerprint> Engine::FingerprintOf(const Tensor& tensor,
                                                  const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(const Tensor started, StartFingerprint(tensor, cancellation));
  return ReadFingerprint(started);
}

}  // namespace quantgate
