// An engine that calls a function before each GEMM, copy and sum on any of its queues, which can
// make it fail or wait: for ranks that fail or hang in the middle of an overlapped call.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/engine/forwarding_engine.h"

namespace quantgate {

class TroubledEngine final : public ForwardingEngine {
 public:
  /// Called before an operation, with whether it is on a lane or on the engine itself. An error
  /// becomes the result of the operation.
  using Before = std::function<absl::Status(bool is_beside)>;

  TroubledEngine(Engine& engine, Before before)
      : ForwardingEngine(engine), before_(std::move(before)) {}

  absl::StatusOr<StartedGemm> StartGemm(const GemmDesc& desc,
                                        const Cancellation* cancellation) override {
    QG_RETURN_IF_ERROR(before_(lane_ != nullptr));
    return forwarded().StartGemm(desc, cancellation);
  }
  absl::Status Copy(const Tensor& source, const Tensor& to, int64_t offset) override {
    QG_RETURN_IF_ERROR(before_(lane_ != nullptr));
    return forwarded().Copy(source, to, offset);
  }
  absl::StatusOr<Tensor> OrderedSum(std::span<const Tensor> parts, SumAccumulation accumulation,
                                    DType out, const Cancellation* cancellation) override {
    QG_RETURN_IF_ERROR(before_(lane_ != nullptr));
    return forwarded().OrderedSum(parts, accumulation, out, cancellation);
  }
  absl::Status OrderedSumTo(std::span<const Tensor> parts, SumAccumulation accumulation,
                            const Tensor& to, const Cancellation* cancellation) override {
    QG_RETURN_IF_ERROR(before_(lane_ != nullptr));
    return forwarded().OrderedSumTo(parts, accumulation, to, cancellation);
  }
  absl::StatusOr<std::unique_ptr<Engine>> OpenLane(LanePriority priority) override {
    QG_ASSIGN_OR_RETURN(std::unique_ptr<Engine> lane, forwarded().OpenLane(priority));
    auto troubled = std::make_unique<TroubledEngine>(*lane, before_);
    troubled->lane_ = std::move(lane);
    return troubled;
  }

 private:
  const Before before_;
  std::unique_ptr<Engine> lane_;  // The forwarded lane, where this engine is one.
};

}  // namespace quantgate
