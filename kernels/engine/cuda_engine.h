// CudaEngine: the operations of Engine on one GPU, with the bits of the CPU engine. Lives in the
// module that kernels/engine/cuda_module.h loads; GPU tests link it directly.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine/deferred_reports.h"
#include "kernels/engine/engine.h"
#include "kernels/gemm/gemm_cublaslt.h"
#include "kernels/tensor/cuda_device.h"
#include "kernels/tensor/cuda_events.h"
#include "kernels/tensor/started_report.h"

namespace quantgate {

class CudaEngine final : public Engine, public DeferredReports {
 public:
  /// FAILED_PRECONDITION as CudaDevice::Open.
  static absl::StatusOr<std::unique_ptr<CudaEngine>> Open(
      int ordinal, LanePriority priority = LanePriority::kNormal);
  ~CudaEngine() override;

  DeviceDescription Describe() const override;
  DeviceMemory Memory() const override;
  absl::Status Health() const override;
  absl::Status CheckArithmetic(const Arithmetic& arithmetic) const override;

  absl::StatusOr<Tensor> ToDevice(const Tensor& tensor, const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> ToHost(const Tensor& tensor, const Cancellation* cancellation) override;
  absl::StatusOr<HostRead> StartToHost(const Tensor& tensor) override;
  absl::StatusOr<Tensor> Allocate(DType dtype, Shape shape) override;
  absl::Status Write(std::span<const std::byte> bytes, const Tensor& to, int64_t offset) override;
  std::unique_ptr<Stopwatch> StartStopwatch() override;
  absl::StatusOr<std::shared_ptr<const Moment>> MarkMoment() override;
  absl::Status WaitFor(const Moment& moment) override;
  absl::Status Copy(const Tensor& source, const Tensor& to, int64_t offset) override;
  absl::StatusOr<Tensor> Import(const Tensor& tensor) override;
  absl::StatusOr<std::shared_ptr<const TimePoint>> MarkTime() override;
  absl::StatusOr<std::unique_ptr<Engine>> OpenLane(LanePriority priority) override;

  absl::StatusOr<Tensor> Generate(const GeneratorSpec& spec,
                                  const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> Cast(const Tensor& source, DType out,
                              const Cancellation* cancellation) override;
  absl::StatusOr<QuantizedTensor> Quantize(const Tensor& source, const Quantizer& quantizer,
                                           Usages usages, const QuantizeArguments& arguments,
                                           const Cancellation* cancellation) override;
  absl::StatusOr<TensorAmaxes> MeasureAmax(const Tensor& source, const Quantizer& quantizer,
                                           Usages usages,
                                           const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> MeasureFragment(const TensorFragment& fragment, const QuantizerSpec& spec,
                                         Usage usage, const Cancellation* cancellation) override;
  absl::StatusOr<QuantizedFragment> QuantizeFragment(const TensorFragment& fragment,
                                                     const QuantizerSpec& spec, Usage usage,
                                                     const FragmentAmaxes& amaxes,
                                                     const Tensor& scale,
                                                     const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> Dequantize(const QuantizedTensor& quantized, Usage usage, DType out,
                                    const Cancellation* cancellation) override;
  absl::Status UpdateUsages(QuantizedTensor& quantized, Usages usages,
                            const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> ConvertScales(const Tensor& scales, const ScaleArray& array,
                                       ScaleLayout from, ScaleLayout to) override;
  absl::StatusOr<DelayedScalingState> NoteCast(const DelayedScalingState& state,
                                               const Tensor& amax) override;
  absl::StatusOr<DelayedScalingState> NoteCalibration(const DelayedScalingState& state,
                                                      const Tensor& amax) override;
  absl::StatusOr<DelayedScalingState> UpdateScale(const DelayedScalingState& state,
                                                  const DelayedScalingOptions& options,
                                                  float max_finite) override;
  absl::Status StartSummary(QuantizedTensor& quantized) override;
  absl::StatusOr<std::vector<QuantizationSummary>> Summarize(
      std::span<const QuantizedTensor> quantized) override;
  absl::StatusOr<GemmResult> Gemm(const GemmDesc& desc, const Cancellation* cancellation) override;
  absl::StatusOr<std::vector<CublasLtAlgorithm>> Algorithms(
      const GemmDesc& desc, const Cancellation* cancellation) override;
  absl::StatusOr<HardwareCheck> CheckHardware(HardwareCheckSize size,
                                              const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> ColumnSums(const Tensor& source, DType out,
                                    const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> ActivationForward(const Tensor& h, const ActivationOptions& options,
                                           DType out, const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> ActivationBackward(const Tensor& dy, const Tensor& h,
                                            const ActivationOptions& options, DType out,
                                            const Cancellation* cancellation) override;

  absl::StatusOr<NormForwardResult> NormForward(const NormForwardDesc& desc,
                                                const Cancellation* cancellation) override;
  absl::StatusOr<NormGradients> NormBackward(const NormBackwardDesc& desc,
                                             const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> Add(const Tensor& a, const Tensor& b, DType out,
                             const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> Scale(const Tensor& x, float factor, DType out,
                               const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> ConcatenateRows(std::span<const Tensor> parts,
                                         const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> ConcatenateColumns(std::span<const Tensor> parts,
                                            const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> Slice(const Tensor& source, int dim, int64_t begin, int64_t count,
                               const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> GatherRows(const Tensor& source, std::span<const int64_t> rows,
                                    const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> ScaleRows(const Tensor& source, const Tensor& factors,
                                   const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> SumRows(const RowSums& sums, const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> OrderedSum(std::span<const Tensor> parts_in_order,
                                    SumAccumulation accumulation, DType out,
                                    const Cancellation* cancellation) override;
  absl::Status OrderedSumTo(std::span<const Tensor> parts_in_order, SumAccumulation accumulation,
                            const Tensor& to, const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> Maximum(std::span<const Tensor> parts,
                                 const Cancellation* cancellation) override;
  absl::StatusOr<AdamResult> AdamStep(const AdamDesc& desc,
                                      const Cancellation* cancellation) override;
  absl::StatusOr<SgdResult> SgdStep(const SgdDesc& desc, const Cancellation* cancellation) override;
  absl::StatusOr<SplitTensor> SplitMaster(const Tensor& master,
                                          const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> JoinMaster(const SplitTensor& split,
                                    const Cancellation* cancellation) override;

  absl::StatusOr<std::vector<Tensor>> StartFingerprints(std::span<const Tensor> tensors,
                                                        const Cancellation* cancellation) override;
  absl::StatusOr<std::vector<Fingerprint>> ReadFingerprints(
      std::span<const Tensor> started) override;
  absl::StatusOr<ParityReport> CompareBits(const Tensor& subject, const Tensor& reference,
                                           const Cancellation* cancellation) override;
  absl::StatusOr<ErrorReport> MeasureError(const Tensor& subject, const Tensor& reference,
                                           const Cancellation* cancellation) override;
  absl::StatusOr<NearerReport> MeasureNearer(const Tensor& subject, const Tensor& reference,
                                             const Tensor& truth,
                                             const Cancellation* cancellation) override;
  absl::StatusOr<BoundCheck> CheckBound(const GemmDesc& desc, const Tensor& subject,
                                        const Tensor& exact,
                                        const Cancellation* cancellation) override;

  absl::StatusOr<Deferred<ParityReport>> StartCompareBits(
      const Tensor& subject, const Tensor& reference, const Cancellation* cancellation) override;
  absl::StatusOr<Deferred<ErrorReport>> StartMeasureError(
      const Tensor& subject, const Tensor& reference, const Cancellation* cancellation) override;
  absl::StatusOr<Deferred<BoundCheck>> StartCheckBound(const GemmDesc& desc, const Tensor& subject,
                                                       const Tensor& exact,
                                                       const Cancellation* cancellation) override;
  absl::StatusOr<StartedGemm> StartGemm(const GemmDesc& desc,
                                        const Cancellation* cancellation) override;

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
  absl::Status MoveToDevice(std::initializer_list<Tensor*> tensors,
                            const Cancellation* cancellation);
  /// The parts in device memory.
  absl::StatusOr<std::vector<Tensor>> OnDevice(std::span<const Tensor> parts,
                                               const Cancellation* cancellation);
  /// What waits for a report that was begun on a turn.
  template <typename Report>
  absl::StatusOr<Deferred<Report>> ReadLater(absl::StatusOr<StartedReport<Report>> started);
  /// Of tensors on the device.
  absl::StatusOr<GemmResult> GemmOnTurn(GemmDesc desc, const Cancellation* cancellation);
  absl::Status CopyOnTurn(const Tensor& source, const Tensor& to, int64_t offset);
  absl::StatusOr<GemmDesc> OnDevice(const GemmDesc& desc, const Cancellation* cancellation);
  absl::StatusOr<QuantizedTensor> OnDevice(const QuantizedTensor& quantized,
                                           const Cancellation* cancellation);
  absl::StatusOr<DelayedScalingState> OnDevice(const DelayedScalingState& state);

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
