#include "kernels/engine/cuda_engine.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/cuda_status.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/compare/compare_cuda.h"
#include "kernels/engine/cuda_turn.h"
#include "kernels/engine/device_readings.h"
#include "kernels/gemm/cublaslt/hardware_check_cuda.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/ops/ops_cuda.h"
#include "kernels/quantize/cuda/quantize_cuda.h"
#include "kernels/tensor/device/tensor_cuda.h"

namespace quantgate {
namespace {

/// 13000 -> "13.0".
std::string CudaVersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

/// Stages follow each other without a pause where the host takes at most this long between them,
/// which is about the time of a launch.
constexpr std::chrono::microseconds kBetweenStages{50};

/// Copies of arguments, whose tensors MoveToDevice can replace; a span of tensors becomes a vector.
template <typename Argument>
Argument CopyOf(const Argument& argument) {
  return argument;
}
std::vector<Tensor> CopyOf(const std::span<const Tensor>& tensors) {
  return {tensors.begin(), tensors.end()};
}
template <typename... Arguments>
auto CopiesOf(const Arguments&... arguments) {
  return std::tuple(CopyOf(arguments)...);
}

bool IsAhead(const PooledCudaEvent& mark) {
  const cudaError_t error = cudaEventQuery(mark.get());
  if (error == cudaSuccess) return false;
  cudaGetLastError();
  return error == cudaErrorNotReady;
}

}  // namespace

/// Two events on the stream around the work. May outlive the engine, but must be stopped before.
class CudaEngine::CudaStopwatch final : public Stopwatch {
 public:
  explicit CudaStopwatch(CudaEngine& engine) : engine_(engine) { status_ = Mark(begin_); }

  absl::Status Stop() override {
    if (status_.ok()) status_ = Mark(end_);
    return status_;
  }

  absl::StatusOr<double> Seconds() override {
    QG_RETURN_IF_ERROR(status_);
    float milliseconds = 0;
    QG_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(end_.get()));
    QG_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return milliseconds * 1e-3;
  }

 private:
  absl::Status Mark(PooledCudaEvent& event) {
    QG_ASSIGN_OR_RETURN(event, engine_.MarkStage());
    return absl::OkStatus();
  }

  CudaEngine& engine_;
  PooledCudaEvent begin_, end_;
  absl::Status status_;
};

absl::StatusOr<PooledCudaEvent> CudaEngine::MarkStage() {
  const std::lock_guard<std::mutex> lock(mutex_);
  QG_RETURN_IF_ERROR(device_->MakeCurrent());
  const auto now = std::chrono::steady_clock::now();
  const bool is_same_point = last_mark_ != nullptr && work_at_last_mark_ == work_count_;
  if (is_same_point && (now - last_mark_at_ < kBetweenStages || IsAhead(last_mark_))) {
    return last_mark_;
  }
  QG_ASSIGN_OR_RETURN(last_mark_, timed_events_.Record(*device_));
  work_at_last_mark_ = work_count_;
  last_mark_at_ = now;
  device_->NoteReads(last_mark_);
  QG_RETURN_IF_ERROR(device_->PlaceMark(last_mark_));
  return last_mark_;
}

absl::StatusOr<std::unique_ptr<CudaEngine>> CudaEngine::Open(int ordinal, LanePriority priority) {
  QG_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device,
                      CudaDevice::Open(ordinal, priority == LanePriority::kUrgent));
  QG_ASSIGN_OR_RETURN(std::unique_ptr<CublasLt> cublaslt, CublasLt::Create(*device));
  return std::unique_ptr<CudaEngine>(new CudaEngine(std::move(device), std::move(cublaslt)));
}

CudaEngine::~CudaEngine() {
  // Tensors of other engines that the stream still reads must not be dropped before.
  (void)device_->Synchronize();
}

DeviceDescription CudaEngine::Describe() const {
  const CudaDeviceFacts& facts = device_->facts();
  const DeviceReadings readings = ReadDevice(facts.pci_bus_id);
  DeviceDescription description;
  description.id = absl::StrCat("cuda:", facts.ordinal);
  description.name = facts.name;
  description.architecture = absl::StrCat("sm_", facts.major, facts.minor);
  description.driver = readings.driver;
  description.cuda = absl::StrCat(CudaVersionText(facts.runtime_version), " (driver ",
                                  CudaVersionText(facts.driver_version), ")");
  description.cublaslt = cublaslt_->version();
  description.nccl = NcclVersion();
  description.multiprocessors = facts.multiprocessors;
  description.sm_clock_mhz = readings.sm_clock_mhz;
  description.memory_clock_mhz = readings.memory_clock_mhz;
  description.memory_bytes = facts.memory_bytes;
  return description;
}

DeviceMemory CudaEngine::Memory() const {
  return {device_->bytes_in_use(), device_->bytes_in_use_max(), device_->facts().memory_bytes};
}

absl::Status CudaEngine::Health() const { return CudaHealth(); }

bool CudaEngine::RunsAhead() const { return true; }

uintptr_t CudaEngine::StreamHandle() const {
  return reinterpret_cast<uintptr_t>(device_->stream());
}

absl::Status CudaEngine::CheckArithmetic(const Arithmetic&) const { return absl::OkStatus(); }

template <typename Argument>
absl::Status CudaEngine::MoveToDevice(Argument& argument, const Cancellation* cancellation) {
  if constexpr (std::is_same_v<Argument, Tensor>) {
    QG_ASSIGN_OR_RETURN(argument, device_->ToDevice(argument, cancellation));
  } else if constexpr (std::is_same_v<Argument, std::vector<Tensor>>) {
    for (Tensor& tensor : argument) QG_RETURN_IF_ERROR(MoveToDevice(tensor, cancellation));
  } else if constexpr (requires { TensorsOf(argument); }) {
    for (Tensor* tensor : TensorsOf(argument)) {
      QG_RETURN_IF_ERROR(MoveToDevice(*tensor, cancellation));
    }
  } else {
    // A type that holds a tensor is not trivially copyable, since a tensor owns its memory.
    static_assert(std::is_trivially_copyable_v<Argument>, "give the argument a TensorsOf");
  }
  return absl::OkStatus();
}

template <typename Argument>
absl::StatusOr<Argument> CudaEngine::OnDevice(Argument argument, const Cancellation* cancellation) {
  QG_RETURN_IF_ERROR(MoveToDevice(argument, cancellation));
  return argument;
}

// The operations that are QG_ENGINE_KERNEL: the engine takes its turn, brings the arguments to
// device memory in their order and calls the kernel, whose declaration says what it computes.
#define QG_ENGINE_OPERATION(result, Name, parameters, arguments)
#define QG_ENGINE_KERNEL(result, Name, parameters, arguments)                                      \
  result CudaEngine::Name parameters {                                                             \
    QG_TAKE_TURN(cancellation);                                                                    \
    std::tuple moved = CopiesOf(QG_ENGINE_UNWRAP arguments);                                       \
    absl::Status status;                                                                           \
    std::apply(                                                                                    \
        [&](auto&... argument) { ((status = MoveToDevice(argument, cancellation)).ok() && ...); }, \
        moved);                                                                                    \
    QG_RETURN_IF_ERROR(status);                                                                    \
    return std::apply([&](const auto&... argument) { return Name##Cuda(*device_, argument...); },  \
                      moved);                                                                      \
  }
#include "kernels/engine/operations.inc"

absl::StatusOr<Tensor> CudaEngine::ToDevice(const Tensor& tensor,
                                            const Cancellation* cancellation) {
  if (!tensor.has_value() || tensor.space() == MemorySpace::kDevice) {
    if (cancellation != nullptr) QG_RETURN_IF_ERROR(cancellation->Check());
    return tensor;
  }
  QG_TAKE_TURN(cancellation);
  return device_->ToDevice(tensor, cancellation);
}

absl::StatusOr<Tensor> CudaEngine::ToHost(const Tensor& tensor, const Cancellation* cancellation) {
  if (!tensor.has_value() || tensor.space() == MemorySpace::kHost) return tensor;
  QG_TAKE_TURN(cancellation);
  return device_->ToHost(tensor, cancellation);
}

absl::StatusOr<Tensor> CudaEngine::Allocate(DType dtype, Shape shape) {
  QG_TAKE_TURN(nullptr);
  return device_->Allocate(dtype, std::move(shape));
}

absl::Status CudaEngine::Write(std::span<const std::byte> bytes, const Tensor& to, int64_t offset) {
  QG_TAKE_TURN(nullptr);
  return device_->WriteStaged(bytes, to, offset);
}

std::unique_ptr<Stopwatch> CudaEngine::StartStopwatch() {
  return std::make_unique<CudaStopwatch>(*this);
}

absl::StatusOr<Tensor> CudaEngine::Generate(const GeneratorSpec& spec,
                                            const Cancellation* cancellation) {
  QG_TAKE_TURN(cancellation);
  return GenerateCuda(*device_, spec);
}

absl::StatusOr<Tensor> CudaEngine::Cast(const Tensor& source, DType out,
                                        const Cancellation* cancellation) {
  QG_TAKE_TURN(cancellation);
  QG_ASSIGN_OR_RETURN(const Tensor moved, device_->ToDevice(source, cancellation));
  return CastTensorCuda(*device_, moved, out);
}

absl::StatusOr<QuantizedTensor> CudaEngine::Quantize(const Tensor& source,
                                                     const Quantizer& quantizer, Usages usages,
                                                     const QuantizeArguments& arguments,
                                                     const Cancellation* cancellation) {
  QG_TAKE_TURN(cancellation);
  QG_ASSIGN_OR_RETURN(const Tensor moved, device_->ToDevice(source, cancellation));
  // QuantizeCuda checks and copies a scale that is in host memory.
  return QuantizeCuda(*device_, moved, quantizer, usages, arguments);
}

absl::Status CudaEngine::UpdateUsages(QuantizedTensor& quantized, Usages usages,
                                      const Cancellation* cancellation) {
  QG_TAKE_TURN(cancellation);
  QG_ASSIGN_OR_RETURN(QuantizedTensor moved, OnDevice(quantized, cancellation));
  QG_RETURN_IF_ERROR(UpdateUsagesCuda(*device_, moved, usages));
  quantized = std::move(moved);
  return absl::OkStatus();
}

absl::StatusOr<Tensor> CudaEngine::ConvertScales(const Tensor& scales, const ScaleArray& array,
                                                 ScaleLayout from, ScaleLayout to) {
  QG_TAKE_TURN(nullptr);
  QG_ASSIGN_OR_RETURN(const Tensor moved, device_->ToDevice(scales));
  return ConvertScalesCuda(*device_, moved, array, from, to);
}

absl::StatusOr<DelayedScalingState> CudaEngine::NoteCast(const DelayedScalingState& state,
                                                         const Tensor& amax) {
  QG_TAKE_TURN(nullptr);
  QG_ASSIGN_OR_RETURN(const DelayedScalingState moved, OnDevice(state, nullptr));
  QG_ASSIGN_OR_RETURN(const Tensor moved_amax, device_->ToDevice(amax));
  return WithCastCuda(*device_, moved, moved_amax);
}

absl::StatusOr<DelayedScalingState> CudaEngine::NoteCalibration(const DelayedScalingState& state,
                                                                const Tensor& amax) {
  QG_TAKE_TURN(nullptr);
  QG_ASSIGN_OR_RETURN(const DelayedScalingState moved, OnDevice(state, nullptr));
  QG_ASSIGN_OR_RETURN(const Tensor moved_amax, device_->ToDevice(amax));
  return WithCalibrationCuda(*device_, moved, moved_amax);
}

absl::StatusOr<DelayedScalingState> CudaEngine::UpdateScale(const DelayedScalingState& state,
                                                            const DelayedScalingOptions& options,
                                                            float max_finite) {
  QG_TAKE_TURN(nullptr);
  QG_ASSIGN_OR_RETURN(const DelayedScalingState moved, OnDevice(state, nullptr));
  return WithUpdateCuda(*device_, moved, options, max_finite);
}

absl::Status CudaEngine::StartSummary(QuantizedTensor& quantized) {
  if (!NeedsSummary(quantized)) return absl::OkStatus();
  QG_TAKE_TURN(nullptr);
  return StartSummaryCuda(*device_, quantized);
}

absl::StatusOr<std::vector<QuantizationSummary>> CudaEngine::Summarize(
    std::span<const QuantizedTensor> quantized) {
  const bool gathers =
      std::any_of(quantized.begin(), quantized.end(), [](const QuantizedTensor& one) {
        return NeedsSummary(one) && !one.device_summary.has_value();
      });
  const Turn turn(*this, nullptr, gathers ? Turn::Kind::kWorks : Turn::Kind::kReads);
  QG_RETURN_IF_ERROR(turn.status());
  return SummarizeCuda(*device_, quantized);
}

absl::StatusOr<GemmResult> CudaEngine::GemmOnTurn(GemmDesc moved,
                                                  const Cancellation* cancellation) {
  if (moved.arithmetic.family == ArithmeticFamily::kAuto) {
    // The hardware runs what it supports, and the model that the CPU engine would take runs the
    // rest; the result says which one ran.
    GemmDesc on_hardware = moved;
    on_hardware.arithmetic.family = ArithmeticFamily::kCublasLt;
    if (cublaslt_->Check(on_hardware).ok()) return cublaslt_->Gemm(on_hardware, cancellation);
    return GemmCuda(*device_, moved, cancellation);
  }
  if (moved.arithmetic.family == ArithmeticFamily::kCublasLt) {
    return cublaslt_->Gemm(moved, cancellation);
  }
  return GemmCuda(*device_, moved, cancellation);
}

absl::StatusOr<std::vector<CublasLtAlgorithm>> CudaEngine::Algorithms(
    const GemmDesc& desc, const Cancellation* cancellation) {
  QG_TAKE_TURN(cancellation);
  QG_ASSIGN_OR_RETURN(const GemmDesc moved, OnDevice(desc, cancellation));
  return cublaslt_->Algorithms(moved);
}

absl::StatusOr<HardwareCheck> CudaEngine::CheckHardware(HardwareCheckSize size,
                                                        const Cancellation* cancellation) {
  QG_TAKE_TURN(cancellation);
  const auto model = [&](const GemmDesc& desc) { return GemmCuda(*device_, desc, cancellation); };
  return quantgate::CheckHardware(CudaSides(*device_, *cublaslt_, model, cancellation),
                                  HardwareCases(size), cancellation);
}

absl::StatusOr<Tensor> CudaEngine::ColumnSums(const Tensor& source, DType out,
                                              const Cancellation* cancellation) {
  QG_TAKE_TURN(cancellation);
  QG_ASSIGN_OR_RETURN(const Tensor moved, device_->ToDevice(source, cancellation));
  return ColumnSumsCuda(*device_, moved, out);
}

absl::StatusOr<std::vector<Tensor>> CudaEngine::StartFingerprints(
    std::span<const Tensor> tensors, const Cancellation* cancellation) {
  QG_TAKE_TURN(cancellation);
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> moved, OnDevice(CopyOf(tensors), cancellation));
  return FingerprintsCuda(*device_, moved);
}

absl::StatusOr<std::vector<Fingerprint>> CudaEngine::ReadFingerprints(
    std::span<const Tensor> started) {
  QG_TAKE_READING_TURN();
  static_assert(sizeof(Fingerprint) == 16);  // high and low, as the kernels write them.
  std::vector<Fingerprint> fingerprints(started.size());
  std::vector<CudaDevice::Result> results;
  for (size_t i = 0; i < started.size(); ++i) {
    results.push_back({started[i].data(), &fingerprints[i], sizeof(Fingerprint)});
  }
  QG_RETURN_IF_ERROR(device_->ReadResults(results));
  return fingerprints;
}

absl::StatusOr<NearerReport> CudaEngine::MeasureNearer(const Tensor& subject,
                                                       const Tensor& reference, const Tensor& truth,
                                                       const Cancellation* cancellation) {
  QG_TAKE_TURN(cancellation);
  QG_ASSIGN_OR_RETURN(const Tensor moved_subject, device_->ToDevice(subject, cancellation));
  QG_ASSIGN_OR_RETURN(const Tensor moved_reference, device_->ToDevice(reference, cancellation));
  QG_ASSIGN_OR_RETURN(const Tensor moved_truth, device_->ToDevice(truth, cancellation));
  return MeasureNearerCuda(*device_, moved_subject, moved_reference, moved_truth);
}

template <typename Report>
absl::StatusOr<Deferred<Report>> CudaEngine::ReadLater(
    absl::StatusOr<StartedReport<Report>> started) {
  QG_RETURN_IF_ERROR(started.status());
  return Deferred<Report>(
      [this, read = std::move(started->results),
       finish = std::move(started->finish)]() mutable -> absl::StatusOr<Report> {
        {
          QG_TAKE_READING_TURN();
          QG_RETURN_IF_ERROR(device_->FinishRead(read));
        }
        return std::move(finish)(read.bytes.get());
      });
}

absl::StatusOr<Deferred<ParityReport>> CudaEngine::StartCompareBits(
    const Tensor& subject, const Tensor& reference, const Cancellation* cancellation) {
  QG_TAKE_TURN(cancellation);
  QG_ASSIGN_OR_RETURN(const Tensor moved_subject, device_->ToDevice(subject, cancellation));
  QG_ASSIGN_OR_RETURN(const Tensor moved_reference, device_->ToDevice(reference, cancellation));
  return ReadLater(StartCompareBitsCuda(*device_, moved_subject, moved_reference));
}

absl::StatusOr<Deferred<ErrorReport>> CudaEngine::StartMeasureError(
    const Tensor& subject, const Tensor& reference, const Cancellation* cancellation) {
  QG_TAKE_TURN(cancellation);
  QG_ASSIGN_OR_RETURN(const Tensor moved_subject, device_->ToDevice(subject, cancellation));
  QG_ASSIGN_OR_RETURN(const Tensor moved_reference, device_->ToDevice(reference, cancellation));
  return ReadLater(StartMeasureErrorCuda(*device_, moved_subject, moved_reference));
}

absl::StatusOr<Deferred<BoundCheck>> CudaEngine::StartCheckBound(const GemmDesc& desc,
                                                                 const Tensor& subject,
                                                                 const Tensor& exact,
                                                                 const Cancellation* cancellation) {
  QG_TAKE_TURN(cancellation);
  QG_ASSIGN_OR_RETURN(const GemmDesc moved, OnDevice(desc, cancellation));
  QG_ASSIGN_OR_RETURN(const Tensor moved_subject, device_->ToDevice(subject, cancellation));
  QG_ASSIGN_OR_RETURN(const Tensor moved_exact, device_->ToDevice(exact, cancellation));
  // Reading a report that was begun before need not wait for these products.
  if (device_->has_reads_to_note()) {
    QG_ASSIGN_OR_RETURN(PooledCudaEvent begun, timed_events_.Record(*device_));
    device_->NoteReads(std::move(begun));
  }
  return ReadLater(StartCheckBoundCuda(*device_, moved, moved_subject, moved_exact, cancellation));
}

absl::StatusOr<StartedGemm> CudaEngine::StartGemm(const GemmDesc& desc,
                                                  const Cancellation* cancellation) {
  QG_TAKE_TURN(cancellation);
  QG_ASSIGN_OR_RETURN(GemmDesc moved, OnDevice(desc, cancellation));
  if (moved.arithmetic.family == ArithmeticFamily::kExact) {
    QG_ASSIGN_OR_RETURN(StartedExactGemm started,
                        StartExactGemmCuda(*device_, moved, cancellation));
    QG_ASSIGN_OR_RETURN(Deferred<std::string> note,
                        ReadLater<std::string>(std::move(started.note)));
    return StartedGemm{std::move(started.result), std::move(note)};
  }
  return ReadyGemm(GemmOnTurn(std::move(moved), cancellation));
}

}  // namespace quantgate
