// The CUDA engine as a module that is loaded at run time, so that a build with CUDA runs on hosts
// without a driver and cuBLASLt is loaded only where the engine is used.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"

namespace quantgate {

/// Whether this build has a CUDA engine.
bool IsBuiltWithCuda();

/// The number of devices that the driver shows. UNIMPLEMENTED from a build without CUDA;
/// FAILED_PRECONDITION without a driver, a device, the module or a library that the module needs,
/// naming what is missing.
absl::StatusOr<int> CountCudaDevices();

/// The engine of one device. Errors as CountCudaDevices, and FAILED_PRECONDITION for a device that
/// does not exist or whose architecture has no kernels in this build.
absl::StatusOr<std::unique_ptr<Engine>> MakeCudaEngine(int ordinal);

struct CudaCollectives;  // kernels/comm/nccl/nccl_transport.h

/// Collectives between CUDA engines; errors as CountCudaDevices.
absl::StatusOr<const CudaCollectives*> FindCudaCollectives();

/// The error of arithmetic cublaslt on the CPU engine: UNIMPLEMENTED from a build without CUDA,
/// else FAILED_PRECONDITION.
absl::Status CublasLtOnCpuError(const Arithmetic& arithmetic);

// What the module offers to the program that loads it: its one symbol is the function
//   extern "C" const CudaEntry* quantgate_cuda_entry();
inline constexpr char kCudaEntryName[] = "quantgate_cuda_entry";

struct CudaEntry {
  int (*count_devices)();
  absl::StatusOr<std::unique_ptr<Engine>> (*make_engine)(int ordinal);
  const CudaCollectives* (*collectives)();
};

/// Defined in the module only, by the one of nccl_transport.cc and no_nccl_collectives.cc
/// (kernels/comm/nccl) that it is built with.
const CudaCollectives* ModuleCollectives();

}  // namespace quantgate
