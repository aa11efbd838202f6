// An engine that hands every operation to another one. Tests and scenarios override what they want
// to watch or to disturb.
#pragma once

#include "kernels/engine/engine.h"

namespace quantgate {

class ForwardingEngine : public Engine {
 public:
  explicit ForwardingEngine(Engine& engine) : engine_(engine) {}
  Engine& forwarded() { return engine_; }

  DeviceDescription Describe() const override { return engine_.Describe(); }
  DeviceMemory Memory() const override { return engine_.Memory(); }
  absl::Status Health() const override { return engine_.Health(); }
  absl::Status CheckArithmetic(const Arithmetic& arithmetic) const override {
    return engine_.CheckArithmetic(arithmetic);
  }
  absl::StatusOr<Tensor> ToDevice(const Tensor& tensor, const Cancellation* cancellation) override {
    const Operation operation(*this, "to device");
    return engine_.ToDevice(tensor, cancellation);
  }
  absl::StatusOr<Tensor> ToHost(const Tensor& tensor, const Cancellation* cancellation) override {
    const Operation operation(*this, "to host");
    return engine_.ToHost(tensor, cancellation);
  }
  absl::StatusOr<HostRead> StartToHost(const Tensor& tensor) override {
    const Operation operation(*this, "start to host");
    return engine_.StartToHost(tensor);
  }
  absl::StatusOr<Tensor> Allocate(DType dtype, Shape shape) override {
    const Operation operation(*this, "allocate");
    return engine_.Allocate(dtype, std::move(shape));
  }
  absl::Status Write(std::span<const std::byte> bytes, const Tensor& to, int64_t offset) override {
    const Operation operation(*this, "write");
    return engine_.Write(bytes, to, offset);
  }
  std::unique_ptr<Stopwatch> StartStopwatch() override { return engine_.StartStopwatch(); }
  absl::StatusOr<std::shared_ptr<const Moment>> MarkMoment() override {
    const Operation operation(*this, "mark moment");
    return engine_.MarkMoment();
  }
  absl::Status WaitFor(const Moment& moment) override {
    const Operation operation(*this, "wait for moment");
    return engine_.WaitFor(moment);
  }
  absl::Status Copy(const Tensor& source, const Tensor& to, int64_t offset) override {
    const Operation operation(*this, "copy");
    return engine_.Copy(source, to, offset);
  }
  absl::StatusOr<Tensor> Import(const Tensor& tensor) override {
    const Operation operation(*this, "import");
    return engine_.Import(tensor);
  }
  absl::StatusOr<std::shared_ptr<const TimePoint>> MarkTime() override {
    const Operation operation(*this, "mark time");
    return engine_.MarkTime();
  }
  absl::StatusOr<std::unique_ptr<Engine>> OpenLane(LanePriority priority) override {
    const Operation operation(*this, "open lane");
    return engine_.OpenLane(priority);
  }
  absl::StatusOr<Tensor> Generate(const GeneratorSpec& spec,
                                  const Cancellation* cancellation) override {
    const Operation operation(*this, "generate");
    return engine_.Generate(spec, cancellation);
  }
  absl::StatusOr<Tensor> Cast(const Tensor& source, DType out,
                              const Cancellation* cancellation) override {
    const Operation operation(*this, "cast");
    return engine_.Cast(source, out, cancellation);
  }
  absl::StatusOr<QuantizedTensor> Quantize(const Tensor& source, const Quantizer& quantizer,
                                           Usages usages, const QuantizeArguments& arguments,
                                           const Cancellation* cancellation) override {
    const Operation operation(*this, "quantize");
    return engine_.Quantize(source, quantizer, usages, arguments, cancellation);
  }
  absl::StatusOr<TensorAmaxes> MeasureAmax(const Tensor& source, const Quantizer& quantizer,
                                           Usages usages,
                                           const Cancellation* cancellation) override {
    const Operation operation(*this, "measure amax");
    return engine_.MeasureAmax(source, quantizer, usages, cancellation);
  }
  absl::StatusOr<Tensor> MeasureFragment(const TensorFragment& fragment, const QuantizerSpec& spec,
                                         Usage usage, const Cancellation* cancellation) override {
    const Operation operation(*this, "measure fragment");
    return engine_.MeasureFragment(fragment, spec, usage, cancellation);
  }
  absl::StatusOr<QuantizedFragment> QuantizeFragment(const TensorFragment& fragment,
                                                     const QuantizerSpec& spec, Usage usage,
                                                     const FragmentAmaxes& amaxes,
                                                     const Tensor& scale,
                                                     const Cancellation* cancellation) override {
    const Operation operation(*this, "quantize fragment");
    return engine_.QuantizeFragment(fragment, spec, usage, amaxes, scale, cancellation);
  }
  absl::StatusOr<Tensor> Dequantize(const QuantizedTensor& quantized, Usage usage, DType out,
                                    const Cancellation* cancellation) override {
    const Operation operation(*this, "dequantize");
    return engine_.Dequantize(quantized, usage, out, cancellation);
  }
  absl::Status UpdateUsages(QuantizedTensor& quantized, Usages usages,
                            const Cancellation* cancellation) override {
    const Operation operation(*this, "update usages");
    return engine_.UpdateUsages(quantized, usages, cancellation);
  }
  absl::StatusOr<Tensor> ConvertScales(const Tensor& scales, const ScaleArray& array,
                                       ScaleLayout from, ScaleLayout to) override {
    const Operation operation(*this, "convert scales");
    return engine_.ConvertScales(scales, array, from, to);
  }
  absl::StatusOr<DelayedScalingState> NoteCast(const DelayedScalingState& state,
                                               const Tensor& amax) override {
    const Operation operation(*this, "note cast");
    return engine_.NoteCast(state, amax);
  }
  absl::StatusOr<DelayedScalingState> NoteCalibration(const DelayedScalingState& state,
                                                      const Tensor& amax) override {
    const Operation operation(*this, "note calibration");
    return engine_.NoteCalibration(state, amax);
  }
  absl::StatusOr<DelayedScalingState> UpdateScale(const DelayedScalingState& state,
                                                  const DelayedScalingOptions& options,
                                                  float max_finite) override {
    const Operation operation(*this, "update scale");
    return engine_.UpdateScale(state, options, max_finite);
  }
  absl::Status StartSummary(QuantizedTensor& quantized) override {
    const Operation operation(*this, "start summary");
    return engine_.StartSummary(quantized);
  }
  absl::StatusOr<std::vector<QuantizationSummary>> Summarize(
      std::span<const QuantizedTensor> quantized) override {
    const Operation operation(*this, "summarize");
    return engine_.Summarize(quantized);
  }
  absl::StatusOr<GemmResult> Gemm(const GemmDesc& desc, const Cancellation* cancellation) override {
    const Operation operation(*this, "gemm");
    return engine_.Gemm(desc, cancellation);
  }
  absl::StatusOr<std::vector<CublasLtAlgorithm>> Algorithms(
      const GemmDesc& desc, const Cancellation* cancellation) override {
    const Operation operation(*this, "algorithms");
    return engine_.Algorithms(desc, cancellation);
  }
  absl::StatusOr<HardwareCheck> CheckHardware(HardwareCheckSize size,
                                              const Cancellation* cancellation) override {
    const Operation operation(*this, "check hardware");
    return engine_.CheckHardware(size, cancellation);
  }
  absl::StatusOr<Tensor> ColumnSums(const Tensor& source, DType out,
                                    const Cancellation* cancellation) override {
    const Operation operation(*this, "column sums");
    return engine_.ColumnSums(source, out, cancellation);
  }
  absl::StatusOr<Tensor> ActivationForward(const Tensor& h, const ActivationOptions& options,
                                           DType out, const Cancellation* cancellation) override {
    const Operation operation(*this, "activation forward");
    return engine_.ActivationForward(h, options, out, cancellation);
  }
  absl::StatusOr<Tensor> ActivationBackward(const Tensor& dy, const Tensor& h,
                                            const ActivationOptions& options, DType out,
                                            const Cancellation* cancellation) override {
    const Operation operation(*this, "activation backward");
    return engine_.ActivationBackward(dy, h, options, out, cancellation);
  }
  absl::StatusOr<NormForwardResult> NormForward(const NormForwardDesc& desc,
                                                const Cancellation* cancellation) override {
    const Operation operation(*this, "norm forward");
    return engine_.NormForward(desc, cancellation);
  }
  absl::StatusOr<NormGradients> NormBackward(const NormBackwardDesc& desc,
                                             const Cancellation* cancellation) override {
    const Operation operation(*this, "norm backward");
    return engine_.NormBackward(desc, cancellation);
  }
  absl::StatusOr<Tensor> Add(const Tensor& a, const Tensor& b, DType out,
                             const Cancellation* cancellation) override {
    const Operation operation(*this, "add");
    return engine_.Add(a, b, out, cancellation);
  }
  absl::StatusOr<Tensor> Scale(const Tensor& x, float factor, DType out,
                               const Cancellation* cancellation) override {
    const Operation operation(*this, "scale");
    return engine_.Scale(x, factor, out, cancellation);
  }
  absl::StatusOr<Tensor> ConcatenateRows(std::span<const Tensor> parts,
                                         const Cancellation* cancellation) override {
    const Operation operation(*this, "concatenate rows");
    return engine_.ConcatenateRows(parts, cancellation);
  }
  absl::StatusOr<Tensor> ConcatenateColumns(std::span<const Tensor> parts,
                                            const Cancellation* cancellation) override {
    const Operation operation(*this, "concatenate columns");
    return engine_.ConcatenateColumns(parts, cancellation);
  }
  absl::StatusOr<Tensor> Slice(const Tensor& source, int dim, int64_t begin, int64_t count,
                               const Cancellation* cancellation) override {
    const Operation operation(*this, "slice");
    return engine_.Slice(source, dim, begin, count, cancellation);
  }
  absl::StatusOr<Tensor> GatherRows(const Tensor& source, std::span<const int64_t> rows,
                                    const Cancellation* cancellation) override {
    const Operation operation(*this, "gather rows");
    return engine_.GatherRows(source, rows, cancellation);
  }
  absl::StatusOr<Tensor> ScaleRows(const Tensor& source, const Tensor& factors,
                                   const Cancellation* cancellation) override {
    const Operation operation(*this, "scale rows");
    return engine_.ScaleRows(source, factors, cancellation);
  }
  absl::StatusOr<Tensor> SumRows(const RowSums& sums, const Cancellation* cancellation) override {
    const Operation operation(*this, "sum rows");
    return engine_.SumRows(sums, cancellation);
  }
  absl::StatusOr<Tensor> OrderedSum(std::span<const Tensor> parts_in_order,
                                    SumAccumulation accumulation, DType out,
                                    const Cancellation* cancellation) override {
    const Operation operation(*this, "ordered sum");
    return engine_.OrderedSum(parts_in_order, accumulation, out, cancellation);
  }
  absl::Status OrderedSumTo(std::span<const Tensor> parts_in_order, SumAccumulation accumulation,
                            const Tensor& to, const Cancellation* cancellation) override {
    const Operation operation(*this, "ordered sum");
    return engine_.OrderedSumTo(parts_in_order, accumulation, to, cancellation);
  }
  absl::StatusOr<Tensor> Maximum(std::span<const Tensor> parts,
                                 const Cancellation* cancellation) override {
    const Operation operation(*this, "maximum");
    return engine_.Maximum(parts, cancellation);
  }
  absl::StatusOr<AdamResult> AdamStep(const AdamDesc& desc,
                                      const Cancellation* cancellation) override {
    const Operation operation(*this, "adam step");
    return engine_.AdamStep(desc, cancellation);
  }
  absl::StatusOr<SgdResult> SgdStep(const SgdDesc& desc,
                                    const Cancellation* cancellation) override {
    const Operation operation(*this, "sgd step");
    return engine_.SgdStep(desc, cancellation);
  }
  absl::StatusOr<SplitTensor> SplitMaster(const Tensor& master,
                                          const Cancellation* cancellation) override {
    const Operation operation(*this, "split master");
    return engine_.SplitMaster(master, cancellation);
  }
  absl::StatusOr<Tensor> JoinMaster(const SplitTensor& split,
                                    const Cancellation* cancellation) override {
    const Operation operation(*this, "join master");
    return engine_.JoinMaster(split, cancellation);
  }
  absl::StatusOr<std::vector<Tensor>> StartFingerprints(std::span<const Tensor> tensors,
                                                        const Cancellation* cancellation) override {
    const Operation operation(*this, "fingerprint");
    return engine_.StartFingerprints(tensors, cancellation);
  }
  absl::StatusOr<std::vector<Fingerprint>> ReadFingerprints(
      std::span<const Tensor> started) override {
    const Operation operation(*this, "read fingerprints");
    return engine_.ReadFingerprints(started);
  }
  absl::StatusOr<ParityReport> CompareBits(const Tensor& subject, const Tensor& reference,
                                           const Cancellation* cancellation) override {
    const Operation operation(*this, "compare bits");
    return engine_.CompareBits(subject, reference, cancellation);
  }
  absl::StatusOr<ErrorReport> MeasureError(const Tensor& subject, const Tensor& reference,
                                           const Cancellation* cancellation) override {
    const Operation operation(*this, "measure error");
    return engine_.MeasureError(subject, reference, cancellation);
  }
  absl::StatusOr<NearerReport> MeasureNearer(const Tensor& subject, const Tensor& reference,
                                             const Tensor& truth,
                                             const Cancellation* cancellation) override {
    const Operation operation(*this, "measure nearer");
    return engine_.MeasureNearer(subject, reference, truth, cancellation);
  }
  absl::StatusOr<BoundCheck> CheckBound(const GemmDesc& desc, const Tensor& subject,
                                        const Tensor& exact,
                                        const Cancellation* cancellation) override {
    const Operation operation(*this, "check bound");
    return engine_.CheckBound(desc, subject, exact, cancellation);
  }

 protected:
  /// Called before each operation.
  virtual void OnOperation(const std::string& name) {}
  /// Called after it.
  virtual void AfterOperation(const std::string& name) {}

 private:
  /// One operation under way.
  class Operation {
   public:
    Operation(ForwardingEngine& engine, std::string name)
        : engine_(engine), name_(std::move(name)) {
      engine_.OnOperation(name_);
    }
    ~Operation() { engine_.AfterOperation(name_); }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

   private:
    ForwardingEngine& engine_;
    const std::string name_;
  };

  Engine& engine_;
};

}  // namespace quantgate
