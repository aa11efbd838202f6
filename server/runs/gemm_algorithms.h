// Every algorithm that cuBLASLt's heuristic returns for one GEMM, held against the first of them
// and against the arithmetic that models it.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "quantgate/v1/engine_service.pb.h"

namespace quantgate {

/// A GEMM and how long it took by the engine's own clock.
struct TimedGemm {
  GemmResult result;
  double seconds = 0;
};
absl::StatusOr<TimedGemm> RunTimedGemm(Engine& engine, const GemmDesc& desc,
                                       const Cancellation& cancellation);

/// Appends one result per algorithm to `response`; none for m = 0, which no algorithm computes.
/// desc.arithmetic is cublaslt, and `first` what it gave.
absl::Status CompareAlgorithms(Engine& engine, const GemmDesc& desc, const TimedGemm& first,
                               const Cancellation& cancellation, v1::GemmResponse& response);

}  // namespace quantgate
