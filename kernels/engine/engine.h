// Engine: one virtual call for each operation of the list kernels/engine/operations.inc. Every
// engine gives the same bits for every operation; engines differ in where the tensors live and in
// speed. Thread-safe: calls from several threads do not disturb each other.
//
// Tensors that an engine gives live in its memory space. It takes tensors of that space and of the
// host's; the latter are copied at each call, so bring a tensor that is used more than once with
// ToDevice. An operation does not wait for its work unless its result is a value on the host
// (Read..., Summarize, the comparisons, ToHost).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/compare/error_report.h"
#include "kernels/compare/parity_report.h"
#include "kernels/gemm/bound/error_bound.h"
#include "kernels/gemm/cublaslt/cublaslt_algorithm.h"
#include "kernels/gemm/cublaslt/hardware_check.h"
#include "kernels/gemm/gemm.h"
#include "kernels/ops/activation/activation.h"
#include "kernels/ops/attention/attention.h"
#include "kernels/ops/elementwise/elementwise.h"
#include "kernels/ops/norm/norm.h"
#include "kernels/ops/optimizer/optimizer.h"
#include "kernels/ops/reduction/ordered_reduction.h"
#include "kernels/ops/rows/row_moves.h"
#include "kernels/quantize/fragment.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/quantize/recipe/delayed_scaling.h"
#include "kernels/quantize/scale_layout.h"
#include "kernels/tensor/fingerprint.h"
#include "kernels/tensor/generate/generate.h"

namespace quantgate {

struct DeviceDescription {
  std::string id;            ///< "cpu", "cuda:0".
  std::string name;          ///< "AMD EPYC 9B45, 2 CPUs".
  std::string architecture;  ///< "x86-64 avx512", "sm_90".
  std::string driver;        ///< "580.159.04"; empty on the CPU.
  // CUDA devices only.
  std::string cuda;          ///< Runtime, and newest that the driver takes: "13.0 (driver 13.0)".
  std::string cublaslt;      ///< "13.1.0".
  std::string nccl;          ///< "2.28.9"; empty where the host has none.
  int multiprocessors = 0;   ///< SMs.
  int sm_clock_mhz = 0;      ///< Read at the time of the call.
  int memory_clock_mhz = 0;  ///< Likewise.
  int64_t memory_bytes = 0;  ///< The device's memory.
};

/// Memory of an engine's device, for metrics. Zero on the CPU.
struct DeviceMemory {
  int64_t bytes_in_use = 0;
  int64_t bytes_in_use_max = 0;
  int64_t bytes_total = 0;
};

/// Measures how long a piece of work takes on an engine's device, from StartStopwatch to Stop.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  virtual absl::Status Stop() = 0;
  /// Seconds between the start and Stop; waits for the work where it is still under way.
  virtual absl::StatusOr<double> Seconds() = 0;
};

/// A point in an engine's work, after everything that was asked of it before. May outlive the
/// engine.
class Moment {
 public:
  virtual ~Moment() = default;
};

/// The time at which an engine's work came to a point, known once it has.
class TimePoint {
 public:
  virtual ~TimePoint() = default;
  /// Seconds since `earlier`, a time point of the same device; waits for both.
  virtual absl::StatusOr<double> SecondsSince(const TimePoint& earlier) const = 0;
};

/// A result that an engine has begun to compute. Calling this, at most once, waits for the result.
/// The engine must outlive it.
template <typename Report>
using Deferred = absl::AnyInvocable<absl::StatusOr<Report>() &&>;

/// A Deferred whose result is there already.
template <typename Report>
Deferred<Report> Ready(Report report) {
  return [report = std::move(report)]() mutable -> absl::StatusOr<Report> {
    return std::move(report);
  };
}
/// The same for a result that may be an error.
template <typename Report>
absl::StatusOr<Deferred<Report>> Ready(absl::StatusOr<Report> report) {
  if (!report.ok()) return report.status();
  return Ready<Report>(*std::move(report));
}

/// A GEMM that was begun; its note may need a wait.
struct StartedGemm {
  GemmResult result;  ///< Without its note.
  Deferred<std::string> note;
};

/// A StartedGemm whose result is there already, or the error of `result`.
absl::StatusOr<StartedGemm> ReadyGemm(absl::StatusOr<GemmResult> result);

/// Where a device has no room for the kernels of all lanes, those of urgent lanes begin first.
enum class LanePriority { kNormal, kUrgent };

class Engine {
 public:
  virtual ~Engine() = default;

  /// Waits for the tensor that StartToHost was given and writes all its bytes to `bytes`.
  using HostRead = std::function<absl::Status(std::span<std::byte> bytes)>;

#define QG_ENGINE_OPERATION(result, Name, parameters, arguments) virtual result Name parameters = 0
#include "kernels/engine/operations.inc"

  // Each calls the operation Start... of its name and waits for the result.
  absl::StatusOr<GemmResult> Gemm(const GemmDesc& desc, const Cancellation* cancellation);
  absl::StatusOr<ParityReport> CompareBits(const Tensor& subject, const Tensor& reference,
                                           const Cancellation* cancellation);
  absl::StatusOr<ErrorReport> MeasureError(const Tensor& subject, const Tensor& reference,
                                           const Cancellation* cancellation);
  absl::StatusOr<BoundCheck> CheckBound(const GemmDesc& desc, const Tensor& subject,
                                        const Tensor& exact, const Cancellation* cancellation);
  /// Waits once for all tensors.
  absl::StatusOr<std::vector<Fingerprint>> FingerprintsOf(std::span<const Tensor> tensors,
                                                          const Cancellation* cancellation);
  absl::StatusOr<Fingerprint> FingerprintOf(const Tensor& tensor, const Cancellation* cancellation);
};

/// Zeros in the engine's memory, made there: nothing is uploaded.
absl::StatusOr<Tensor> Zeros(Engine& engine, const Shape& shape, const Cancellation* cancellation,
                             DType dtype = DType::kF32);

// For the engines themselves.

/// What StartToHost gives for a tensor in host memory.
Engine::HostRead ReadOfHostTensor(const Tensor& tensor);
/// INVALID_ARGUMENT where Engine::Copy must refuse: `source` does not fit into `to` at byte
/// `offset`, or one of them is absent.
absl::Status CheckCopy(const Tensor& source, const Tensor& to, int64_t offset);
/// INVALID_ARGUMENT where an Engine::HostRead must refuse: `bytes` is not as long as the tensor.
absl::Status CheckRead(const Tensor& tensor, std::span<const std::byte> bytes);
/// INVALID_ARGUMENT: what Engine::WaitFor gives for a moment of another kind of engine.
absl::Status OtherEngineKindError();

struct CpuEngineOptions {
  Isa isa = BestIsa();
  int threads = AvailableCpus();
};

std::unique_ptr<Engine> MakeCpuEngine(const CpuEngineOptions& options);

}  // namespace quantgate
