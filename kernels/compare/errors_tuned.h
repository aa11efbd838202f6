// The fast form of the error kernel, for the pairs of types that are compared most.
#pragma once

#include "kernels/compare/compare_kernels_cuda.h"

namespace quantgate {

/// False, without a launch, where the types, the widths of the blocks or the addresses do not fit;
/// else `error` says what became of the launch.
bool LaunchTunedSegments(const ErrorParameters& parameters, cudaStream_t stream,
                         cudaError_t& error);

}  // namespace quantgate
