#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/engine/engine.h"
#include "kernels/tensor/column_sums.h"
#include "kernels/tensor/convert.h"

namespace quantgate {
namespace {

// The processor's marketing name; Linux only, as is the rest of the CPU engine.
std::string ProcessorName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line)) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "x86-64 processor";
}

class CpuEngine final : public Engine {
 public:
  explicit CpuEngine(const CpuEngineOptions& options) : options_(options) {}

  DeviceDescription Describe() const override {
    return {"cpu", absl::StrCat(ProcessorName(), ", ", options_.threads, " threads"),
            absl::StrCat("x86-64 ", std::string(IsaName(options_.isa))), ""};
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

  absl::StatusOr<Tensor> Dequantize(const QuantizedTensor& quantized, Usage usage, DType out,
                                    const Cancellation* cancellation) override {
    return DequantizeCpu(quantized, usage, out, Context(cancellation));
  }

  absl::Status UpdateUsages(QuantizedTensor& quantized, Usages usages,
                            const Cancellation* cancellation) override {
    return UpdateUsagesCpu(quantized, usages, Context(cancellation));
  }

  absl::StatusOr<GemmResult> Gemm(const GemmDesc& desc, const Cancellation* cancellation) override {
    return GemmCpu(desc, Context(cancellation));
  }

  absl::StatusOr<Tensor> ColumnSums(const Tensor& source, DType out,
                                    const Cancellation* cancellation) override {
    return quantgate::ColumnSums(source, out, Context(cancellation));
  }

  absl::StatusOr<Fingerprint> FingerprintOf(const Tensor& tensor,
                                            const Cancellation* cancellation) override {
    const ExecutionContext context = Context(cancellation);
    const Fingerprint fingerprint = quantgate::FingerprintOf(tensor, context);
    // A cancelled sum is partial and must not be taken for an identity.
    if (absl::Status status = context.CheckCancelled(); !status.ok()) return status;
    return fingerprint;
  }

  absl::StatusOr<ParityReport> CompareBits(const Tensor& subject, const Tensor& reference,
                                           const Cancellation* cancellation) override {
    return quantgate::CompareBits(subject, reference, Context(cancellation));
  }

  absl::StatusOr<ErrorReport> MeasureError(const Tensor& subject, const Tensor& reference,
                                           const Cancellation* cancellation) override {
    return quantgate::MeasureError(subject, reference, Context(cancellation));
  }

  absl::StatusOr<NearerReport> MeasureNearer(const Tensor& subject, const Tensor& reference,
                                             const Tensor& truth,
                                             const Cancellation* cancellation) override {
    return quantgate::MeasureNearer(subject, reference, truth, Context(cancellation));
  }

  absl::StatusOr<BoundCheck> CheckBound(const GemmDesc& desc, const Tensor& subject,
                                        const Tensor& exact,
                                        const Cancellation* cancellation) override {
    return quantgate::CheckBound(desc, subject, exact, Context(cancellation));
  }

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
