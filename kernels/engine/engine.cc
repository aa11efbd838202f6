#include "kernels/engine/engine.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"

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

absl::StatusOr<Tensor> Zeros(Engine& engine, const Shape& shape, const Cancellation* cancellation,
                             DType dtype) {
  GeneratorSpec zeros;
  zeros.distribution = Distribution::kAllZero;
  zeros.dtype = dtype;
  zeros.shape = shape;
  return engine.Generate(zeros, cancellation);
}

absl::Status CheckCopy(const Tensor& source, const Tensor& to, int64_t offset) {
  if (!source.has_value()) return RefuseAbsent("copy.source", "it must be given");
  if (!to.has_value()) return RefuseAbsent("copy.to", "it must be given");
  const auto bytes = static_cast<int64_t>(source.byte_size());
  const auto room = static_cast<int64_t>(to.byte_size());
  if (offset >= 0 && offset <= room && bytes <= room - offset) return absl::OkStatus();
  return Refuse("copy.source",
                absl::StrCat(bytes, " bytes of ", TensorText(source), " at byte ", offset),
                absl::StrCat("must lie within the ", room, " bytes of ", TensorText(to)));
}

absl::Status CheckRead(const Tensor& tensor, std::span<const std::byte> bytes) {
  if (bytes.size() == tensor.byte_size()) return absl::OkStatus();
  return Refuse("bytes", absl::StrCat(bytes.size()),
                absl::StrCat(TensorText(tensor), " has ", tensor.byte_size()));
}

absl::Status OtherEngineKindError() {
  return Refuse("moment", "of another kind of engine", "must be of this one's");
}

}  // namespace quantgate
