// CudaEngine: the operations of Engine on one GPU, with the bits of the CPU engine. It is part of
// the module that kernels/engine/cuda_module.h loads; GPU tests link it directly.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "kernels/gemm/cublaslt/gemm_cublaslt.h"
#include "kernels/tensor/device/cuda_device.h"
#include "kernels/tensor/device/cuda_events.h"

namespace quantgate {

class CudaEngine final : public Engine {
 public:
  /// Errors as CudaDevice::Open, which gives FAILED_PRECONDITION for a device that cannot be used.
  static absl::StatusOr<std::unique_ptr<CudaEngine>> Open(
      int ordinal, LanePriority priority = LanePriority::kNormal);
  ~CudaEngine() override;

#define QG_ENGINE_OPERATION(result, Name, parameters, arguments) result Name parameters override
#include "kernels/engine/operations.inc"

  /// While the result is held, nobody else puts work on the engine's stream: for collectives, which
  /// put work on the streams of several engines at once.
  std::unique_lock<std::mutex> HoldStream() {
    std::unique_lock lock(mutex_);
    ++work_count_;
    return lock;
  }

  /// For collectives, the hardware check and tests of faults.
  CudaDevice& device() { return *device_; }
  CublasLt& cublaslt() { return *cublaslt_; }

 private:
  CudaEngine(std::unique_ptr<CudaDevice> device, std::unique_ptr<CublasLt> cublaslt)
      : device_(std::move(device)), cublaslt_(std::move(cublaslt)) {}

  class Turn;  // cuda_turn.h: a call's exclusive use of the stream.
  class CudaStopwatch;
  /// An event at which the stream has done everything that is on it now. Each event costs the
  /// device a microsecond or two, so one event serves as the end of a stage, as the beginning of
  /// the stage that follows without a pause, and as the mark of the first stage's results.
  absl::StatusOr<PooledCudaEvent> MarkStage();
  /// Replaces the tensors in an argument of an operation by tensors in device memory.
  template <typename Argument>
  absl::Status MoveToDevice(Argument& argument, const Cancellation* cancellation);
  /// A copy of an argument with its tensors in device memory.
  template <typename Argument>
  absl::StatusOr<Argument> OnDevice(Argument argument, const Cancellation* cancellation);
  /// The Deferred that waits for a report which was begun during a turn.
  template <typename Report>
  absl::StatusOr<Deferred<Report>> ReadLater(absl::StatusOr<StartedReport<Report>> started);
  // The operations without their Turn; tensors of `desc` are in device memory.
  absl::StatusOr<GemmResult> GemmOnTurn(GemmDesc desc, const Cancellation* cancellation);
  absl::Status CopyOnTurn(const Tensor& source, const Tensor& to, int64_t offset);

  std::mutex mutex_;
  const std::unique_ptr<CudaDevice> device_;
  const std::unique_ptr<CublasLt> cublaslt_;
  CudaEventPool events_;
  CudaEventPool timed_events_{cudaEventDefault};  ///< Events that record the time.
  int64_t work_count_ = 0;                        ///< Calls that may have put work on the stream.
  PooledCudaEvent last_mark_;                     ///< The last event of MarkStage,
  int64_t work_at_last_mark_ = 0;                 ///< the work_count_ at that time,
  std::chrono::steady_clock::time_point last_mark_at_;  ///< and the time by the host's clock.
  PendingReads pending_;                                ///< Tensors of other engines to be read.
};

}  // namespace quantgate
