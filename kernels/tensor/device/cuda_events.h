// Events of one device, made once and used again: points on a stream that other streams wait for.
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

/// An event that goes back to its pool with its last owner, who may be any thread.
using PooledCudaEvent = std::shared_ptr<CUevent_st>;

/// Thread-safe. Events may outlive the pool.
class CudaEventPool {
 public:
  /// `flags` of cudaEventCreateWithFlags: without cudaEventDisableTiming, time between two of them
  /// can be told.
  explicit CudaEventPool(unsigned flags = cudaEventDisableTiming) : flags_(flags) {}
  /// A point on the device's stream: after all that is on it. The device is current.
  absl::StatusOr<PooledCudaEvent> Record(const CudaDevice& device);

 private:
  /// Events that nobody has; the last owner of the pool and of all events destroys them.
  struct Free {
    std::mutex mutex;
    std::vector<cudaEvent_t> events;
    ~Free();
  };
  const unsigned flags_;
  const std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

/// Tensors that a stream has yet to read, kept alive until it has. Not thread-safe.
class PendingReads {
 public:
  /// `read` is recorded after the reading.
  void Add(Tensor tensor, PooledCudaEvent read) {
    reads_.emplace_back(std::move(tensor), std::move(read));
  }
  /// Drops what has been read, in the order of the stream.
  void DropRead();
  size_t size() const { return reads_.size(); }

 private:
  std::deque<std::pair<Tensor, PooledCudaEvent>> reads_;
};

}  // namespace quantgate
