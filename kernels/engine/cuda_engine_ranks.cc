// The operations of the CUDA engine by which the ranks of a parallel run exchange tensors: moments,
// copies from other engines, times and lanes.
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/cuda_status.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/cuda_turn.h"
#include "kernels/engine/engine.h"

namespace quantgate {
namespace {

class CudaMoment final : public Moment {
 public:
  explicit CudaMoment(PooledCudaEvent event) : event_(std::move(event)) {}
  cudaEvent_t event() const { return event_.get(); }

 private:
  const PooledCudaEvent event_;
};

class CudaTimePoint final : public TimePoint {
 public:
  /// The device is current.
  static absl::StatusOr<std::shared_ptr<const TimePoint>> Record(const CudaDevice& device) {
    cudaEvent_t event = nullptr;
    QG_CUDA_RETURN_IF_ERROR(cudaEventCreate(&event));
    auto point = std::make_shared<CudaTimePoint>(event);
    QG_CUDA_RETURN_IF_ERROR(cudaEventRecord(event, device.stream()));
    return point;
  }
  explicit CudaTimePoint(cudaEvent_t event) : event_(event) {}
  ~CudaTimePoint() override { (void)QG_CUDA_STATUS(cudaEventDestroy(event_)); }

  absl::StatusOr<double> SecondsSince(const TimePoint& earlier) const override {
    const auto* cuda = dynamic_cast<const CudaTimePoint*>(&earlier);
    if (cuda == nullptr) return OtherEngineKindError();
    float milliseconds = 0;
    QG_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(cuda->event_));
    QG_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(event_));
    QG_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&milliseconds, cuda->event_, event_));
    return milliseconds * 1e-3;
  }

 private:
  const cudaEvent_t event_;
};

absl::StatusOr<int> OrdinalOf(const Tensor& tensor) {
  cudaPointerAttributes attributes = {};
  QG_CUDA_RETURN_IF_ERROR(cudaPointerGetAttributes(&attributes, tensor.data()));
  if (attributes.type == cudaMemoryTypeDevice) return attributes.device;
  return Refuse("copy.source", TensorText(tensor), "must lie in memory of a device");
}

}  // namespace

absl::StatusOr<Engine::HostRead> CudaEngine::StartToHost(const Tensor& tensor) {
  if (!tensor.has_value() || tensor.space() == MemorySpace::kHost) return ReadOfHostTensor(tensor);
  QG_ASSIGN_OR_RETURN(PooledCudaEvent made, MarkStage());
  return [this, tensor, made = std::move(made)](std::span<std::byte> bytes) -> absl::Status {
    QG_RETURN_IF_ERROR(CheckRead(tensor, bytes));
    QG_TAKE_READING_TURN();
    return device_->ReadAfter(made.get(), tensor, bytes);
  };
}

absl::StatusOr<std::shared_ptr<const Moment>> CudaEngine::MarkMoment() {
  QG_TAKE_TURN(nullptr);
  QG_ASSIGN_OR_RETURN(PooledCudaEvent event, events_.Record(*device_));
  return std::make_shared<const CudaMoment>(std::move(event));
}

absl::Status CudaEngine::Finish() {
  PooledCudaEvent asked;
  {
    QG_TAKE_TURN(nullptr);
    QG_ASSIGN_OR_RETURN(asked, events_.Record(*device_));
  }
  // Without the turn, so that other threads' calls go on meanwhile.
  QG_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(asked.get()));
  QG_TAKE_READING_TURN();
  pending_.DropRead();
  return absl::OkStatus();
}

absl::Status CudaEngine::WaitFor(const Moment& moment) {
  QG_TAKE_TURN(nullptr);
  const auto* cuda = dynamic_cast<const CudaMoment*>(&moment);
  if (cuda == nullptr) return OtherEngineKindError();
  return QG_CUDA_STATUS(cudaStreamWaitEvent(device_->stream(), cuda->event(), 0));
}

absl::Status CudaEngine::CopyOnTurn(const Tensor& source, const Tensor& to, int64_t offset) {
  QG_RETURN_IF_ERROR(CheckCopy(source, to, offset));
  pending_.DropRead();
  if (source.byte_size() == 0) return absl::OkStatus();
  if (source.space() == MemorySpace::kHost) {
    return device_->WriteStaged(source.bytes(), to, offset);
  }
  QG_ASSIGN_OR_RETURN(const int from, OrdinalOf(source));
  QG_ASSIGN_OR_RETURN(const bool is_direct, device_->ReachMemoryOf(from));
  Tensor target = to;
  std::byte* const at = target.data() + offset;
  const size_t bytes = source.byte_size();
  const cudaStream_t stream = device_->stream();
  if (is_direct) {
    // Both are in this device's address space, so its copy engine copies. Between two devices that
    // takes peer access between their contexts.
    QG_CUDA_RETURN_IF_ERROR(
        cudaMemcpyAsync(at, source.data(), bytes, cudaMemcpyDeviceToDevice, stream));
  } else {
    QG_CUDA_RETURN_IF_ERROR(
        cudaMemcpyPeerAsync(at, device_->facts().ordinal, source.data(), from, bytes, stream));
  }
  auto read = events_.Record(*device_);
  if (!read.ok()) {
    // Without an event nothing tells when `source` has been read, so wait for it.
    (void)device_->Synchronize();
    return std::move(read).status();
  }
  pending_.Add(source, *std::move(read));
  return absl::OkStatus();
}

absl::Status CudaEngine::Copy(const Tensor& source, const Tensor& to, int64_t offset) {
  QG_TAKE_TURN(nullptr);
  return CopyOnTurn(source, to, offset);
}

absl::StatusOr<Tensor> CudaEngine::Import(const Tensor& tensor) {
  QG_TAKE_TURN(nullptr);
  if (!tensor.has_value() || tensor.space() == MemorySpace::kHost) {
    return device_->ToDevice(tensor);
  }
  QG_ASSIGN_OR_RETURN(Tensor imported, device_->Allocate(tensor.dtype(), tensor.shape()));
  QG_RETURN_IF_ERROR(CopyOnTurn(tensor, imported, 0));
  return imported;
}

absl::StatusOr<std::shared_ptr<const TimePoint>> CudaEngine::MarkTime() {
  QG_TAKE_TURN(nullptr);
  return CudaTimePoint::Record(*device_);
}

absl::StatusOr<std::unique_ptr<Engine>> CudaEngine::OpenLane(LanePriority priority) {
  return Open(device_->facts().ordinal, priority);
}

}  // namespace quantgate
