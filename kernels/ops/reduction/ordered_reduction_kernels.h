// The kernels behind ordered_reduction_cuda.h. Launchers return what cudaGetLastError says of the
// launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops/float_lanes_cuda.h"

namespace quantgate {

/// As many parts as one launch takes after the first one.
inline constexpr int kReductionPartsMax = 32;

struct ReductionParameters {
  FloatsIn first;
  const void* parts[kReductionPartsMax] = {};      ///< The rest, in order,
  NumberEncoding encoding = NumberEncoding::kF32;  ///< of this encoding.
  int part_count = 0;
  NumberEncoding rounded = NumberEncoding::kF32;  ///< Of partial sums.
  FloatsOut to;
  int64_t count = 0;
};

/// The ordered sum; wide accesses where all addresses are aligned for them.
cudaError_t LaunchOrderedSum(const ReductionParameters& parameters, cudaStream_t stream);
/// The maximum of f32 parts; `rounded` is not read.
cudaError_t LaunchMaximum(const ReductionParameters& parameters, cudaStream_t stream);

}  // namespace quantgate
