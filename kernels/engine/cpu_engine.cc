#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/cuda_module.h"
#include "kernels/engine/engine.h"
#include "kernels/tensor/column_sums.h"
#include "kernels/tensor/convert.h"

namespace quantgate {
namespace {

// The processor's marketing name; Linux only, as is the rest of the CPU engine.
std::string ReadProcessorName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line)) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "x86-64 processor";
}

const std::string& ProcessorName() {
  static const std::string& name = *new std::string(ReadProcessorName());
  return name;
}

class CpuStopwatch final : public Stopwatch {
 public:
  absl::Status Stop() override {
    seconds_ = std::chrono::steady_clock::now() - begin_;
    return absl::OkStatus();
  }
  absl::StatusOr<double> Seconds() override { return seconds_.count(); }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::duration<double> seconds_{};
};

/// What is asked of a CPU engine is done when the call returns: nothing is left to wait for.
class CpuMoment final : public Moment {};

class CpuTimePoint final : public TimePoint {
 public:
  absl::StatusOr<double> SecondsSince(const TimePoint& earlier) const override {
    const auto* cpu = dynamic_cast<const CpuTimePoint*>(&earlier);
    if (cpu == nullptr) return OtherEngineKindError();
    return std::chrono::duration<double>(time_ - cpu->time_).count();
  }

 private:
  const std::chrono::steady_clock::time_point time_ = std::chrono::steady_clock::now();
};

constexpr int64_t kCopyGrainBytes = 1 << 20;

class CpuEngine final : public Engine {
 public:
  explicit CpuEngine(const CpuEngineOptions& options) : options_(options) {}

  DeviceDescription Describe() const override {
    DeviceDescription description;
    description.id = "cpu";
    description.name = absl::StrCat(ProcessorName(), ", ", options_.threads, " threads");
    description.architecture = absl::StrCat("x86-64 ", std::string(IsaName(options_.isa)));
    return description;
  }
  DeviceMemory Memory() const override { return {}; }
  absl::Status Health() const override { return absl::OkStatus(); }
  bool RunsAhead() const override { return false; }

  absl::Status CheckArithmetic(const Arithmetic& arithmetic) const override {
    if (arithmetic.family != ArithmeticFamily::kCublasLt) return absl::OkStatus();
    return CublasLtOnCpuError(arithmetic);
  }

  uintptr_t StreamHandle() const override { return 0; }
  absl::Status Finish() override { return absl::OkStatus(); }

  absl::StatusOr<Tensor> ToDevice(const Tensor& tensor, const Cancellation*) override {
    return tensor;
  }
  absl::StatusOr<Tensor> ToHost(const Tensor& tensor, const Cancellation*) override {
    return tensor;
  }
  absl::StatusOr<HostRead> StartToHost(const Tensor& tensor) override {
    return ReadOfHostTensor(tensor);
  }
  absl::StatusOr<Tensor> Allocate(DType dtype, Shape shape) override {
    return Tensor::Allocate(dtype, std::move(shape));
  }
  absl::Status Write(std::span<const std::byte> bytes, const Tensor& to, int64_t offset) override {
    Tensor target = to;
    std::memcpy(target.data() + offset, bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  std::unique_ptr<Stopwatch> StartStopwatch() override { return std::make_unique<CpuStopwatch>(); }

  absl::StatusOr<std::shared_ptr<const Moment>> MarkMoment() override {
    return std::make_shared<const CpuMoment>();
  }
  absl::Status WaitFor(const Moment& moment) override {
    if (dynamic_cast<const CpuMoment*>(&moment) != nullptr) return absl::OkStatus();
    return OtherEngineKindError();
  }
  absl::Status Copy(const Tensor& source, const Tensor& to, int64_t offset) override {
    QG_RETURN_IF_ERROR(CheckCopy(source, to, offset));
    if (source.byte_size() == 0) return absl::OkStatus();
    Tensor target = to;
    ParallelFor(Context(nullptr), static_cast<int64_t>(source.byte_size()), kCopyGrainBytes,
                [&](int64_t begin, int64_t end) {
                  std::memcpy(target.data() + offset + begin, source.data() + begin,
                              static_cast<size_t>(end - begin));
                });
    return absl::OkStatus();
  }
  absl::StatusOr<Tensor> Import(const Tensor& tensor) override { return tensor; }
  absl::StatusOr<std::shared_ptr<const TimePoint>> MarkTime() override {
    return std::make_shared<const CpuTimePoint>();
  }
  absl::StatusOr<std::unique_ptr<Engine>> OpenLane(LanePriority) override {
    return MakeCpuEngine(options_);
  }

  absl::StatusOr<Tensor> Generate(const GeneratorSpec& spec,
                                  const Cancellation* cancellation) override {
    return quantgate::Generate(spec, Context(cancellation));
  }

  absl::StatusOr<Tensor> Cast(const Tensor& source, DType out,
                              const Cancellation* cancellation) override {
    return CastTensor(source, out, Context(cancellation));
  }

  absl::StatusOr<QuantizedTensor> Quantize(const Tensor& source, const Quantizer& quantizer,
                                           Usages usages, const QuantizeArguments& arguments,
                                           const Cancellation* cancellation) override {
    return QuantizeCpu(source, quantizer, usages, arguments, Context(cancellation));
  }

  absl::Status UpdateUsages(QuantizedTensor& quantized, Usages usages,
                            const Cancellation* cancellation) override {
    return UpdateUsagesCpu(quantized, usages, Context(cancellation));
  }

  absl::StatusOr<Tensor> ConvertScales(const Tensor& scales, const ScaleArray& array,
                                       ScaleLayout from, ScaleLayout to) override {
    return quantgate::ConvertScales(scales, array, from, to);
  }

  absl::StatusOr<DelayedScalingState> NoteCast(const DelayedScalingState& state,
                                               const Tensor& amax) override {
    return WithCast(state, *amax.as<float>());
  }
  absl::StatusOr<DelayedScalingState> NoteCalibration(const DelayedScalingState& state,
                                                      const Tensor& amax) override {
    return WithCalibration(state, *amax.as<float>());
  }
  absl::StatusOr<DelayedScalingState> UpdateScale(const DelayedScalingState& state,
                                                  const DelayedScalingOptions& options,
                                                  float max_finite) override {
    return WithUpdate(state, options, max_finite);
  }

  absl::Status StartSummary(QuantizedTensor&) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<QuantizationSummary>> Summarize(
      std::span<const QuantizedTensor> quantized) override {
    std::vector<QuantizationSummary> summaries;
    for (const QuantizedTensor& one : quantized) summaries.push_back(SummarizeCpu(one));
    return summaries;
  }

  absl::StatusOr<StartedGemm> StartGemm(const GemmDesc& desc,
                                        const Cancellation* cancellation) override {
    QG_RETURN_IF_ERROR(CheckArithmetic(desc.arithmetic));
    return ReadyGemm(GemmCpu(desc, Context(cancellation)));
  }

  absl::StatusOr<std::vector<CublasLtAlgorithm>> Algorithms(const GemmDesc& desc,
                                                            const Cancellation*) override {
    return CublasLtOnCpuError(desc.arithmetic);
  }
  absl::StatusOr<HardwareCheck> CheckHardware(HardwareCheckSize, const Cancellation*) override {
    return CublasLtOnCpuError(Arithmetic{ArithmeticFamily::kCublasLt});
  }

  absl::StatusOr<Tensor> ColumnSums(const Tensor& source, DType out,
                                    const Cancellation* cancellation) override {
    return quantgate::ColumnSums(source, out, Context(cancellation));
  }

  absl::StatusOr<std::vector<Tensor>> StartFingerprints(std::span<const Tensor> tensors,
                                                        const Cancellation* cancellation) override {
    const ExecutionContext context = Context(cancellation);
    std::vector<Tensor> started;
    for (const Tensor& tensor : tensors) {
      const Fingerprint fingerprint = quantgate::FingerprintOf(tensor, context);
      // A cancelled sum is partial and must not be taken for an identity.
      if (absl::Status status = context.CheckCancelled(); !status.ok()) return status;
      const uint64_t words[] = {fingerprint.high, fingerprint.low};
      QG_ASSIGN_OR_RETURN(started.emplace_back(),
                          Tensor::FromBytes(DType::kI64, {2}, std::as_bytes(std::span(words))));
    }
    return started;
  }

  absl::StatusOr<std::vector<Fingerprint>> ReadFingerprints(
      std::span<const Tensor> started) override {
    std::vector<Fingerprint> fingerprints;
    for (const Tensor& words : started) {
      fingerprints.push_back({words.as<uint64_t>()[0], words.as<uint64_t>()[1]});
    }
    return fingerprints;
  }

  absl::StatusOr<Deferred<ParityReport>> StartCompareBits(
      const Tensor& subject, const Tensor& reference, const Cancellation* cancellation) override {
    return Ready(quantgate::CompareBits(subject, reference, Context(cancellation)));
  }

  absl::StatusOr<Deferred<ErrorReport>> StartMeasureError(
      const Tensor& subject, const Tensor& reference, const Cancellation* cancellation) override {
    return Ready(quantgate::MeasureError(subject, reference, Context(cancellation)));
  }

  absl::StatusOr<NearerReport> MeasureNearer(const Tensor& subject, const Tensor& reference,
                                             const Tensor& truth,
                                             const Cancellation* cancellation) override {
    return quantgate::MeasureNearer(subject, reference, truth, Context(cancellation));
  }

  absl::StatusOr<Deferred<BoundCheck>> StartCheckBound(const GemmDesc& desc, const Tensor& subject,
                                                       const Tensor& exact,
                                                       const Cancellation* cancellation) override {
    return Ready(quantgate::CheckBound(desc, subject, exact, Context(cancellation)));
  }

#define QG_ENGINE_OPERATION(result, Name, parameters, arguments)  // Above.
#define QG_ENGINE_KERNEL(result, Name, parameters, arguments)            \
  result Name parameters override {                                      \
    return Name##Cpu(QG_ENGINE_UNWRAP arguments, Context(cancellation)); \
  }
#include "kernels/engine/operations.inc"

 private:
  ExecutionContext Context(const Cancellation* cancellation) const {
    return {options_.isa, options_.threads, cancellation};
  }

  const CpuEngineOptions options_;
};

}  // namespace

std::unique_ptr<Engine> MakeCpuEngine(const CpuEngineOptions& options) {
  return std::make_unique<CpuEngine>(options);
}

}  // namespace quantgate
