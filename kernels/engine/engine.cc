#include "kernels/engine/engine.h"

#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/engine/copy_checks.h"

namespace quantgate {
namespace {

template <typename Report>
absl::StatusOr<Report> WaitedFor(absl::StatusOr<Deferred<Report>> started) {
  QG_RETURN_IF_ERROR(started.status());
  return (*std::move(started))();
}

}  // namespace

absl::StatusOr<StartedGemm> ReadyGemm(absl::StatusOr<GemmResult> result) {
  QG_RETURN_IF_ERROR(result.status());
  Deferred<std::string> note = Ready(std::exchange(result->note, ""));
  return StartedGemm{*std::move(result), std::move(note)};
}

absl::StatusOr<GemmResult> Engine::Gemm(const GemmDesc& desc, const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(StartedGemm started, StartGemm(desc, cancellation));
  QG_ASSIGN_OR_RETURN(started.result.note, std::move(started.note)());
  return std::move(started.result);
}

absl::StatusOr<ParityReport> Engine::CompareBits(const Tensor& subject, const Tensor& reference,
                                                 const Cancellation* cancellation) {
  return WaitedFor(StartCompareBits(subject, reference, cancellation));
}

absl::StatusOr<ErrorReport> Engine::MeasureError(const Tensor& subject, const Tensor& reference,
                                                 const Cancellation* cancellation) {
  return WaitedFor(StartMeasureError(subject, reference, cancellation));
}

absl::StatusOr<BoundCheck> Engine::CheckBound(const GemmDesc& desc, const Tensor& subject,
                                              const Tensor& exact,
                                              const Cancellation* cancellation) {
  return WaitedFor(StartCheckBound(desc, subject, exact, cancellation));
}

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
