// The kernels behind ordered_reduction_cuda.cc. Launchers return what cudaGetLastError says of the
// launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops/float_lanes_cuda.h"

namespace quantgate {

/// One launch takes at most this many parts after the first.
inline constexpr int kReductionPartsMax = 32;

struct ReductionParameters {
  FloatsIn first;
  const void* parts[kReductionPartsMax] = {};      ///< The parts after the first, in order.
  NumberEncoding encoding = NumberEncoding::kF32;  ///< The encoding of `parts`.
  int part_count = 0;
  NumberEncoding rounded = NumberEncoding::kF32;  ///< What partial sums are rounded to.
  FloatsOut to;
  int64_t count = 0;
};

/// The ordered sum, with wide accesses if all addresses are aligned for them.
cudaError_t LaunchOrderedSum(const ReductionParameters& parameters, cudaStream_t stream);
/// The maximum of f32 parts; ignores `rounded`.
cudaError_t LaunchMaximum(const ReductionParameters& parameters, cudaStream_t stream);

}  // namespace quantgate
