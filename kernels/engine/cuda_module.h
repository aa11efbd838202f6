// The CUDA engine as a module that is loaded at run time: a build with CUDA runs on hosts without a
// driver, and nothing loads cuBLASLt for nothing.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"

namespace quantgate {

/// Whether this build has a CUDA engine at all.
bool IsBuiltWithCuda();

/// Devices that the driver shows. UNIMPLEMENTED from a build without CUDA, FAILED_PRECONDITION
/// without a driver, without a device or without the module or a library that it needs; the message
/// names what is missing.
absl::StatusOr<int> CountCudaDevices();

/// The engine of one device; errors as CountCudaDevices, and FAILED_PRECONDITION for a device that
/// is not there or of an architecture without kernels in this build.
absl::StatusOr<std::unique_ptr<Engine>> MakeCudaEngine(int ordinal);

/// Collectives between CUDA engines (kernels/comm/nccl/cuda_collectives.h); errors as
/// CountCudaDevices.
struct CudaCollectives;
absl::StatusOr<const CudaCollectives*> FindCudaCollectives();

/// Why arithmetic cublaslt does not run on the CPU engine: UNIMPLEMENTED or FAILED_PRECONDITION.
absl::Status CublasLtOnCpu(const Arithmetic& arithmetic);

}  // namespace quantgate
