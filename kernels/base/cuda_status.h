// CUDA's error codes as absl::Status. Every call of the runtime or the driver goes through
// QG_CUDA_RETURN_IF_ERROR, so that a failure names the call and its place.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "kernels/base/status_macros.h"

namespace quantgate {

/// Whether `error` makes the CUDA context unusable: every later call of the process would fail or,
/// worse, answer from memory that a faulting kernel wrote.
bool IsStickyCudaError(cudaError_t error);

/// OK for cudaSuccess. RESOURCE_EXHAUSTED when memory ran out (the error is cleared, so that the
/// next call is unharmed), FAILED_PRECONDITION for a missing device or driver, DATA_LOSS for a
/// sticky error, INTERNAL for others. The message names `call` and `file`:`line`.
absl::Status CudaStatus(cudaError_t error, const char* call, const char* file, int line);

/// The first sticky error that any thread of this process has seen, or OK. A process that has seen
/// one cannot vouch for a bit any more.
absl::Status CudaHealth();

}  // namespace quantgate

#define QG_CUDA_STATUS(call) ::quantgate::CudaStatus((call), #call, __FILE__, __LINE__)
#define QG_CUDA_RETURN_IF_ERROR(call) QG_RETURN_IF_ERROR(QG_CUDA_STATUS(call))
