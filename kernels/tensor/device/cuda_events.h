// Reusable events of one device: points on a stream that other streams wait for.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor/device/cuda_device.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// An event that returns to its pool when the last owner, on any thread, drops it.
using PooledCudaEvent = std::shared_ptr<CUevent_st>;

/// Thread-safe. Events may outlive the pool.
class CudaEventPool {
 public:
  /// `flags` are those of cudaEventCreateWithFlags. Without cudaEventDisableTiming the time between
  /// two events can be measured.
  explicit CudaEventPool(unsigned flags = cudaEventDisableTiming) : flags_(flags) {}
  /// Records an event after everything on the device's stream. The device must be current.
  absl::StatusOr<PooledCudaEvent> Record(const CudaDevice& device);

 private:
  /// Events that have no owner. They are destroyed when the pool and all its events are gone.
  struct Free {
    std::mutex mutex;
    std::vector<cudaEvent_t> events;
    ~Free();
  };
  const unsigned flags_;
  const std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

/// Keeps tensors alive until a stream has read them. Not thread-safe.
class PendingReads {
 public:
  /// `read` was recorded after the operation that reads `tensor`.
  void Add(Tensor tensor, PooledCudaEvent read) {
    reads_.emplace_back(std::move(tensor), std::move(read));
  }
  /// Drops the tensors that have been read, in the order of the stream.
  void DropRead();
  size_t size() const { return reads_.size(); }

 private:
  std::deque<std::pair<Tensor, PooledCudaEvent>> reads_;
};

}  // namespace quantgate
