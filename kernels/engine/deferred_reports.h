// Reports that an engine begins now and gives later: between the first and the last of several
// comparisons nothing waits for a device.
#pragma once

#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"

namespace quantgate {

/// What was begun; calling it, once, waits for it. The engine outlives it.
template <typename Report>
using Deferred = absl::AnyInvocable<absl::StatusOr<Report>() &&>;

/// A GEMM whose note may still be on its way.
struct StartedGemm {
  GemmResult result;  ///< Without its note.
  Deferred<std::string> note;
};

/// An engine that can. Which operations these are, what they refuse and what they give is said in
/// kernels/engine/engine.h.
class DeferredReports {
 public:
  virtual ~DeferredReports() = default;
  virtual absl::StatusOr<Deferred<ParityReport>> StartCompareBits(
      const Tensor& subject, const Tensor& reference, const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Deferred<ErrorReport>> StartMeasureError(
      const Tensor& subject, const Tensor& reference, const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Deferred<BoundCheck>> StartCheckBound(
      const GemmDesc& desc, const Tensor& subject, const Tensor& exact,
      const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<StartedGemm> StartGemm(const GemmDesc& desc,
                                                const Cancellation* cancellation) = 0;
};

/// Whether an engine is a DeferredReports: then it goes on by itself with what was begun.
bool DefersReports(Engine& engine);

// The same of any engine: one that is not a DeferredReports does the work at once.
absl::StatusOr<Deferred<ParityReport>> StartCompareBits(Engine& engine, const Tensor& subject,
                                                        const Tensor& reference,
                                                        const Cancellation* cancellation);
absl::StatusOr<Deferred<ErrorReport>> StartMeasureError(Engine& engine, const Tensor& subject,
                                                        const Tensor& reference,
                                                        const Cancellation* cancellation);
absl::StatusOr<Deferred<BoundCheck>> StartCheckBound(Engine& engine, const GemmDesc& desc,
                                                     const Tensor& subject, const Tensor& exact,
                                                     const Cancellation* cancellation);
absl::StatusOr<StartedGemm> StartGemm(Engine& engine, const GemmDesc& desc,
                                      const Cancellation* cancellation);

/// One that is there already.
template <typename Report>
Deferred<Report> Ready(Report report) {
  return [report = std::move(report)]() mutable -> absl::StatusOr<Report> {
    return std::move(report);
  };
}

}  // namespace quantgate
