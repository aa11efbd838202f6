// CudaEngine: the operations of Engine on one GPU, with the bits of the CPU engine. Lives in the
// module that kernels/engine/cuda_module.h loads; GPU tests link it directly.
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
#include "kernels/tensor/started_report.h"

namespace quantgate {

class CudaEngine final : public Engine {
 public:
  /// FAILED_PRECONDITION as CudaDevice::Open.
  static absl::StatusOr<std::unique_ptr<CudaEngine>> Open(
      int ordinal, LanePriority priority = LanePriority::kNormal);
  ~CudaEngine() override;

#define QG_ENGINE_OPERATION(result, Name, parameters, arguments) result Name parameters override
#include "kernels/engine/operations.inc"

  /// Nobody else puts work on the device's stream while this is held; for collectives, which put
  /// theirs on the streams of several engines at once.
  std::unique_lock<std::mutex> HoldStream() {
    std::unique_lock lock(mutex_);
    ++work_count_;
    return lock;
  }

  /// For collectives, the self-check and tests of faults.
  CudaDevice& device() { return *device_; }
  CublasLt& cublaslt() { return *cublaslt_; }

 private:
  CudaEngine(std::unique_ptr<CudaDevice> device, std::unique_ptr<CublasLt> cublaslt)
      : device_(std::move(device)), cublaslt_(std::move(cublaslt)) {}

  /// Serves one call: nobody else puts work on the stream meanwhile.
  class Turn;
  class CudaStopwatch;
  /// The time at which the stream is through with what is on it. Each event costs the device a
  /// microsecond or two, so one serves as the end of a stage, the beginning of the stage that
  /// follows without a pause and the mark of the first one's results.
  absl::StatusOr<PooledCudaEvent> MarkStage();
  /// Brings the tensors of an argument of an operation to device memory.
  template <typename Argument>
  absl::Status MoveToDevice(Argument& argument, const Cancellation* cancellation);
  /// A copy of an argument with its tensors there.
  template <typename Argument>
  absl::StatusOr<Argument> OnDevice(Argument argument, const Cancellation* cancellation);
  /// What waits for a report that was begun on a turn.
  template <typename Report>
  absl::StatusOr<Deferred<Report>> ReadLater(absl::StatusOr<StartedReport<Report>> started);
  /// Of tensors on the device.
  absl::StatusOr<GemmResult> GemmOnTurn(GemmDesc desc, const Cancellation* cancellation);
  absl::Status CopyOnTurn(const Tensor& source, const Tensor& to, int64_t offset);

  std::mutex mutex_;
  const std::unique_ptr<CudaDevice> device_;
  const std::unique_ptr<CublasLt> cublaslt_;
  CudaEventPool events_;
  CudaEventPool timed_events_{cudaEventDefault};  ///< Of stopwatches.
  int64_t work_count_ = 0;                        ///< Calls that may have put work on the stream.
  PooledCudaEvent last_mark_;                     ///< Of MarkStage,
  int64_t work_at_last_mark_ = 0;
  std::chrono::steady_clock::time_point last_mark_at_;  ///< by the host's clock.
  PendingReads pending_;                                ///< Of other engines' tensors.
};

}  // namespace quantgate
