// Engine: one virtual call per operation. Every engine gives the same bits for every operation;
// what differs is where the tensors live and how fast it is. Thread-safe: calls from several
// threads do not disturb each other.
//
// Tensors that an engine gives live in its memory space. It takes tensors of that space and of the
// host's; the latter are copied first, so bring what is used more than once with ToDevice. Nothing
// is waited for between operations: what needs a value on the host (Read..., Summarize, the
// comparisons, ToHost) says so by giving one.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/compare/error_report.h"
#include "kernels/compare/parity_report.h"
#include "kernels/gemm/cublaslt_algorithm.h"
#include "kernels/gemm/error_bound.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/hardware_check.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/ordered_reduction.h"
#include "kernels/ops/row_moves.h"
#include "kernels/quantize/delayed_scaling.h"
#include "kernels/quantize/fragment.h"
#include "kernels/quantize/quantization_summary.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/quantize/scale_layout.h"
#include "kernels/tensor/fingerprint.h"
#include "kernels/tensor/generate.h"

namespace quantgate {

struct DeviceDescription {
  std::string id;            ///< "cpu", "cuda:0".
  std::string name;          ///< "AMD EPYC 9B45, 2 CPUs".
  std::string architecture;  ///< "x86-64 avx512", "sm_90".
  std::string driver;        ///< "580.159.04"; empty on the CPU.
  // CUDA devices only.
  std::string cuda;         ///< Of the runtime, and what the driver supports: "13.0 (driver 13.0)".
  std::string cublaslt;     ///< "13.1.0".
  std::string nccl;         ///< "2.28.9"; empty where the host has none.
  int multiprocessors = 0;  ///< SMs.
  int sm_clock_mhz = 0;     ///< As read at the time of asking.
  int memory_clock_mhz = 0;  ///< Likewise.
  int64_t memory_bytes = 0;  ///< Of the device.
};

/// Memory of an engine's device, for metrics. Zero on the CPU.
struct DeviceMemory {
  int64_t bytes_in_use = 0;
  int64_t bytes_in_use_max = 0;
  int64_t bytes_total = 0;
};

/// How long a piece of work takes on an engine's device. Stops when it is told to and not when it
/// is read.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  virtual absl::Status Stop() = 0;
  /// Between the start and Stop; waits for the work where it is still under way.
  virtual absl::StatusOr<double> Seconds() = 0;
};

/// A point in an engine's work: everything that was asked of it before. May outlive the engine.
class Moment {
 public:
  virtual ~Moment() = default;
};

/// When an engine's work came to a point; read after the work.
class TimePoint {
 public:
  virtual ~TimePoint() = default;
  /// From one of the same device; waits for both.
  virtual absl::StatusOr<double> SecondsSince(const TimePoint& earlier) const = 0;
};

/// Whose kernels begin first where a device has no room for all: those of urgent lanes.
enum class LanePriority { kNormal, kUrgent };

class Engine {
 public:
  virtual ~Engine() = default;

  virtual DeviceDescription Describe() const = 0;
  virtual DeviceMemory Memory() const = 0;
  /// OK while the device can be trusted; after that the process must not answer for any bit.
  virtual absl::Status Health() const = 0;
  /// Whether this engine runs the arithmetic: UNIMPLEMENTED where this build cannot, and
  /// FAILED_PRECONDITION where the device that it needs is not this engine's.
  virtual absl::Status CheckArithmetic(const Arithmetic& arithmetic) const = 0;

  /// The tensor in the engine's memory space, itself where it is there; no value for none.
  virtual absl::StatusOr<Tensor> ToDevice(const Tensor& tensor,
                                          const Cancellation* cancellation) = 0;
  /// The tensor in host memory, itself where it is there; no value for none.
  virtual absl::StatusOr<Tensor> ToHost(const Tensor& tensor, const Cancellation* cancellation) = 0;
  /// A tensor that nothing writes any more, to be read to the host: the call that is given back
  /// writes all its bytes (INVALID_ARGUMENT for other than as many), waits for what has been asked
  /// of the engine so far, and not for what is asked afterwards. It holds the tensor; the engine
  /// outlives it. For large tensors ToHost is faster.
  using HostRead = std::function<absl::Status(std::span<std::byte> bytes)>;
  virtual absl::StatusOr<HostRead> StartToHost(const Tensor& tensor) = 0;
  /// A tensor of the engine's memory, not initialised.
  virtual absl::StatusOr<Tensor> Allocate(DType dtype, Shape shape) = 0;
  /// `bytes` to byte `offset` of a tensor of the engine's memory; they are read before this
  /// returns.
  virtual absl::Status Write(std::span<const std::byte> bytes, const Tensor& to,
                             int64_t offset) = 0;
  virtual std::unique_ptr<Stopwatch> StartStopwatch() = 0;

  // Engines of one kind in one process, as the ranks of a parallel run have them. A tensor of
  // another engine is read by Copy and Import alone, and only after a moment of its engine at which
  // it was there.
  virtual absl::StatusOr<std::shared_ptr<const Moment>> MarkMoment() = 0;
  /// What is asked of this engine from now on comes after `moment`; the host does not wait.
  /// INVALID_ARGUMENT for a moment of another kind of engine.
  virtual absl::Status WaitFor(const Moment& moment) = 0;
  /// The bytes of `source` to byte `offset` of `to`, a tensor of this engine that nobody else reads
  /// yet. `source` may be another engine's: on CUDA of the same device or of another one. It is
  /// kept alive until it has been read. INVALID_ARGUMENT where it does not fit.
  virtual absl::Status Copy(const Tensor& source, const Tensor& to, int64_t offset) = 0;
  /// A tensor of another engine in memory that this engine's operations read: itself on the CPU, a
  /// copy on CUDA.
  virtual absl::StatusOr<Tensor> Import(const Tensor& tensor) = 0;
  /// The time at which this engine's work comes to this point.
  virtual absl::StatusOr<std::shared_ptr<const TimePoint>> MarkTime() = 0;
  /// An engine of the same device whose work runs beside this one's: a queue for copies and sums,
  /// or for GEMMs whose kernels begin where those of another queue leave room.
  /// Each takes the other's tensors, after a moment at which they are there. Memory is given anew
  /// in the order of the work of the engine that gave it, so that one waits for the other engine
  /// before a tensor which the other uses is dropped.
  virtual absl::StatusOr<std::unique_ptr<Engine>> OpenLane(LanePriority priority) = 0;

  virtual absl::StatusOr<Tensor> Generate(const GeneratorSpec& spec,
                                          const Cancellation* cancellation) = 0;
  /// RNE to `out`; widening is exact.
  virtual absl::StatusOr<Tensor> Cast(const Tensor& source, DType out,
                                      const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<QuantizedTensor> Quantize(const Tensor& source, const Quantizer& quantizer,
                                                   Usages usages,
                                                   const QuantizeArguments& arguments,
                                                   const Cancellation* cancellation) = 0;
  /// What Quantize would find as the tensor's own maxima (kernels/quantize/quantizer.h).
  virtual absl::StatusOr<TensorAmaxes> MeasureAmax(const Tensor& source, const Quantizer& quantizer,
                                                   Usages usages,
                                                   const Cancellation* cancellation) = 0;
  /// A tensor of which ranks have fragments (kernels/quantize/fragment.h).
  virtual absl::StatusOr<Tensor> MeasureFragment(const TensorFragment& fragment,
                                                 const QuantizerSpec& spec, Usage usage,
                                                 const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<QuantizedFragment> QuantizeFragment(const TensorFragment& fragment,
                                                             const QuantizerSpec& spec, Usage usage,
                                                             const FragmentAmaxes& amaxes,
                                                             const Tensor& scale,
                                                             const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Tensor> Dequantize(const QuantizedTensor& quantized, Usage usage,
                                            DType out, const Cancellation* cancellation) = 0;
  virtual absl::Status UpdateUsages(QuantizedTensor& quantized, Usages usages,
                                    const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Tensor> ConvertScales(const Tensor& scales, const ScaleArray& array,
                                               ScaleLayout from, ScaleLayout to) = 0;
  /// WithCast, WithCalibration and WithUpdate of kernels/quantize/delayed_scaling.h; `amax` is
  /// f32 [1].
  virtual absl::StatusOr<DelayedScalingState> NoteCast(const DelayedScalingState& state,
                                                       const Tensor& amax) = 0;
  virtual absl::StatusOr<DelayedScalingState> NoteCalibration(const DelayedScalingState& state,
                                                              const Tensor& amax) = 0;
  virtual absl::StatusOr<DelayedScalingState> UpdateScale(const DelayedScalingState& state,
                                                          const DelayedScalingOptions& options,
                                                          float max_finite) = 0;
  /// Begins what Summarize will say of it, which then need not wait for what comes after.
  virtual absl::Status StartSummary(QuantizedTensor& quantized) = 0;
  /// What reports say of each; one wait for all of them.
  virtual absl::StatusOr<std::vector<QuantizationSummary>> Summarize(
      std::span<const QuantizedTensor> quantized) = 0;
  virtual absl::StatusOr<GemmResult> Gemm(const GemmDesc& desc,
                                          const Cancellation* cancellation) = 0;
  /// The algorithms that arithmetic cublaslt of a desc chooses from, in the order of its heuristic;
  /// errors as CheckArithmetic and CheckCublasLtGemm.
  virtual absl::StatusOr<std::vector<CublasLtAlgorithm>> Algorithms(
      const GemmDesc& desc, const Cancellation* cancellation) = 0;
  /// cuBLASLt against its model (kernels/gemm/hardware_check.h); errors as CheckArithmetic.
  virtual absl::StatusOr<HardwareCheck> CheckHardware(HardwareCheckSize size,
                                                      const Cancellation* cancellation) = 0;
  /// Bias gradient: pairwise fp32 sum over rows, one RNE to `out` (docs/definitions.md section 1).
  /// [M][N] -> [N].
  virtual absl::StatusOr<Tensor> ColumnSums(const Tensor& source, DType out,
                                            const Cancellation* cancellation) = 0;
  /// h [..., F] or, gated, [..., 2 F] to [..., F] of `out` (kernels/ops/activation.h).
  virtual absl::StatusOr<Tensor> ActivationForward(const Tensor& h,
                                                   const ActivationOptions& options, DType out,
                                                   const Cancellation* cancellation) = 0;
  /// dy [..., F] to dh of h's shape, of `out`.
  virtual absl::StatusOr<Tensor> ActivationBackward(const Tensor& dy, const Tensor& h,
                                                    const ActivationOptions& options, DType out,
                                                    const Cancellation* cancellation) = 0;

  /// The other operations of kernels/ops, where stands what each computes and refuses.
  virtual absl::StatusOr<NormForwardResult> NormForward(const NormForwardDesc& desc,
                                                        const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<NormGradients> NormBackward(const NormBackwardDesc& desc,
                                                     const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Tensor> Add(const Tensor& a, const Tensor& b, DType out,
                                     const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Tensor> Scale(const Tensor& x, float factor, DType out,
                                       const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Tensor> ConcatenateRows(std::span<const Tensor> parts,
                                                 const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Tensor> ConcatenateColumns(std::span<const Tensor> parts,
                                                    const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Tensor> Slice(const Tensor& source, int dim, int64_t begin, int64_t count,
                                       const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Tensor> GatherRows(const Tensor& source, std::span<const int64_t> rows,
                                            const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Tensor> ScaleRows(const Tensor& source, const Tensor& factors,
                                           const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Tensor> SumRows(const RowSums& sums, const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Tensor> OrderedSum(std::span<const Tensor> parts_in_order,
                                            SumAccumulation accumulation, DType out,
                                            const Cancellation* cancellation) = 0;
  /// To `to`, memory of this engine that nobody else reads or writes meanwhile.
  virtual absl::Status OrderedSumTo(std::span<const Tensor> parts_in_order,
                                    SumAccumulation accumulation, const Tensor& to,
                                    const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Tensor> Maximum(std::span<const Tensor> parts,
                                         const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<AdamResult> AdamStep(const AdamDesc& desc,
                                              const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<SgdResult> SgdStep(const SgdDesc& desc,
                                            const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<SplitTensor> SplitMaster(const Tensor& master,
                                                  const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<Tensor> JoinMaster(const SplitTensor& split,
                                            const Cancellation* cancellation) = 0;

  /// Of each tensor i64 [2]: Fingerprint::high and ::low, for ReadFingerprints.
  virtual absl::StatusOr<std::vector<Tensor>> StartFingerprints(
      std::span<const Tensor> tensors, const Cancellation* cancellation) = 0;
  /// One wait for all of them, and not for what came after they were started.
  virtual absl::StatusOr<std::vector<Fingerprint>> ReadFingerprints(
      std::span<const Tensor> started) = 0;
  /// Both: one wait for all.
  absl::StatusOr<std::vector<Fingerprint>> FingerprintsOf(std::span<const Tensor> tensors,
                                                          const Cancellation* cancellation);
  absl::StatusOr<Fingerprint> FingerprintOf(const Tensor& tensor, const Cancellation* cancellation);
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

/// The read of a tensor that the host has.
Engine::HostRead ReadOfHostTensor(const Tensor& tensor);

struct CpuEngineOptions {
  Isa isa = BestIsa();
  int threads = AvailableCpus();
};

std::unique_ptr<Engine> MakeCpuEngine(const CpuEngineOptions& options);

}  // namespace quantgate
