// What the CUDA module offers to the program that loads it.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"

namespace quantgate {

struct CudaCollectives;  // kernels/comm/nccl/cuda_collectives.h

struct CudaEntry {
  int (*count_devices)();
  absl::StatusOr<std::unique_ptr<Engine>> (*make_engine)(int ordinal);
  const CudaCollectives* (*collectives)();
};

/// Of the module: what is built of kernels/comm.
const CudaCollectives* Collectives();

/// extern "C" const CudaEntry* quantgate_cuda_entry();
inline constexpr char kCudaEntryName[] = "quantgate_cuda_entry";

}  // namespace quantgate
