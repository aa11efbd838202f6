// Engine: one virtual call per operation. Every engine gives the same bits for every operation;
// what differs is where the tensors live and how fast it is. Thread-safe: calls from several
// threads do not disturb each other.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/compare/error_report.h"
#include "kernels/compare/parity_report.h"
#include "kernels/gemm/error_bound.h"
#include "kernels/gemm/gemm.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/fingerprint.h"
#include "kernels/tensor/generate.h"

namespace quantgate {

struct DeviceDescription {
  std::string id;            ///< "cpu", "cuda:0".
  std::string name;          ///< "AMD EPYC 9B45, 2 CPUs".
  std::string architecture;  ///< "x86-64 avx512", "sm_90".
  std::string driver;        ///< Empty on the CPU.
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual DeviceDescription Describe() const = 0;

  virtual absl::StatusOr<Tensor> Generate(const GeneratorSpec& spec,
                                          const Cancellation* cancellation) = 0;
  /// RNE to `out`; widening is exact.
  virtual absl::StatusOr<Tensor> Cast(const Tensor& source, DType out,
                                      const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<QuantizedTensor> Quantize(const Tensor& source, const Quantizer& quantizer,
                                                   Usages usages,
                                                   const QuantizeArguments& arguments,
                                                   const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Tensor> Dequantize(const QuantizedTensor& quantized, Usage usage,
                                            DType out, const Cancellation* cancellation) = 0;
  virtual absl::Status UpdateUsages(QuantizedTensor& quantized, Usages usages,
                                    const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<GemmResult> Gemm(const GemmDesc& desc,
                                          const Cancellation* cancellation) = 0;
  /// Bias gradient: pairwise fp32 sum over rows, one RNE to `out` (docs/definitions.md section 1).
  /// [M][N] -> [N].
  virtual absl::StatusOr<Tensor> ColumnSums(const Tensor& source, DType out,
                                            const Cancellation* cancellation) = 0;

  virtual absl::StatusOr<Fingerprint> FingerprintOf(const Tensor& tensor,
                                                    const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<ParityReport> CompareBits(const Tensor& subject, const Tensor& reference,
                                                   const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<ErrorReport> MeasureError(const Tensor& subject, const Tensor& reference,
                                                   const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<NearerReport> MeasureNearer(const Tensor& subject, const Tensor& reference,
                                                     const Tensor& truth,
                                                     const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<BoundCheck> CheckBound(const GemmDesc& desc, const Tensor& subject,
                                                const Tensor& exact,
                                                const Cancellation* cancellation) = 0;
};

struct CpuEngineOptions {
  Isa isa = BestIsa();
  int threads = AvailableCpus();
};

std::unique_ptr<Engine> MakeCpuEngine(const CpuEngineOptions& options);

}  // namespace quantgate
