// The fast form of the error kernel, for the pairs of types that are compared most.
#pragma once

#include "kernels/compare/compare_kernels_cuda.h"

namespace quantgate {

/// For parameters that TunedSegmentsTake, with cut.range.
cudaError_t LaunchTunedSegments(const ErrorParameters& parameters, cudaStream_t stream);

}  // namespace quantgate
