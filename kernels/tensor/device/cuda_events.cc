#include "kernels/tensor/device/cuda_events.h"

#include "kernels/base/cuda_status.h"

namespace quantgate {

CudaEventPool::Free::~Free() {
  for (const cudaEvent_t event : events) (void)QG_CUDA_STATUS(cudaEventDestroy(event));
}

absl::StatusOr<PooledCudaEvent> CudaEventPool::Record(const CudaDevice& device) {
  cudaEvent_t event = nullptr;
  {
    const std::lock_guard<std::mutex> lock(free_->mutex);
    if (!free_->events.empty()) {
      event = free_->events.back();
      free_->events.pop_back();
    }
  }
  if (event == nullptr) {
    QG_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event, flags_));
  }
  // Who waits for it holds what was recorded when the wait was put on a stream: it may be used
  // again as soon as nobody has it.
  PooledCudaEvent pooled(event, [free = free_](cudaEvent_t returned) {
    const std::lock_guard<std::mutex> lock(free->mutex);
    free->events.push_back(returned);
  });
  QG_CUDA_RETURN_IF_ERROR(cudaEventRecord(event, device.stream()));
  return pooled;
}

void PendingReads::DropRead() {
  while (!reads_.empty()) {
    const cudaError_t done = cudaEventQuery(reads_.front().second.get());
    // Neither kind of error is for this caller: a sticky one meets the next call.
    if (done != cudaSuccess) {
      if (done != cudaErrorNotReady) (void)QG_CUDA_STATUS(done);
      cudaGetLastError();
      return;
    }
    reads_.pop_front();
  }
}

}  // namespace quantgate
