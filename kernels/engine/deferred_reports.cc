#include "kernels/engine/deferred_reports.h"

#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

DeferredReports* Deferring(Engine& engine) { return dynamic_cast<DeferredReports*>(&engine); }

template <typename Report>
absl::StatusOr<Deferred<Report>> AtOnce(absl::StatusOr<Report> report) {
  QG_RETURN_IF_ERROR(report.status());
  return Ready(*std::move(report));
}

}  // namespace

bool DefersReports(Engine& engine) { return Deferring(engine) != nullptr; }

absl::StatusOr<Deferred<ParityReport>> StartCompareBits(Engine& engine, const Tensor& subject,
                                                        const Tensor& reference,
                                                        const Cancellation* cancellation) {
  if (DeferredReports* const deferring = Deferring(engine)) {
    return deferring->StartCompareBits(subject, reference, cancellation);
  }
  return AtOnce(engine.CompareBits(subject, reference, cancellation));
}

absl::StatusOr<Deferred<ErrorReport>> StartMeasureError(Engine& engine, const Tensor& subject,
                                                        const Tensor& reference,
                                                        const Cancellation* cancellation) {
  if (DeferredReports* const deferring = Deferring(engine)) {
    return deferring->StartMeasureError(subject, reference, cancellation);
  }
  return AtOnce(engine.MeasureError(subject, reference, cancellation));
}

absl::StatusOr<Deferred<BoundCheck>> StartCheckBound(Engine& engine, const GemmDesc& desc,
                                                     const Tensor& subject, const Tensor& exact,
                                                     const Cancellation* cancellation) {
  if (DeferredReports* const deferring = Deferring(engine)) {
    return deferring->StartCheckBound(desc, subject, exact, cancellation);
  }
  return AtOnce(engine.CheckBound(desc, subject, exact, cancellation));
}

absl::StatusOr<StartedGemm> StartGemm(Engine& engine, const GemmDesc& desc,
                                      const Cancellation* cancellation) {
  if (DeferredReports* const deferring = Deferring(engine)) {
    return deferring->StartGemm(desc, cancellation);
  }
  QG_ASSIGN_OR_RETURN(GemmResult result, engine.Gemm(desc, cancellation));
  Deferred<std::string> note = Ready(std::exchange(result.note, ""));
  return StartedGemm{std::move(result), std::move(note)};
}

}  // namespace quantgate
