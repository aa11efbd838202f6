// Errors of a tensor against a reference: the plain kernel, for any two types.
#include "kernels/compare/error_found.h"

namespace quantgate {
namespace {

__global__ void __launch_bounds__(kSegmentThreads)
    MeasureSegments(const __grid_constant__ ErrorParameters parameters) {
  __shared__ float tables[2][256];
  FoundErrors found;
  PrepareFinish(parameters);
  MeasureBlock(parameters, tables, [&](double s, double r, int64_t position, int64_t) {
    return MeasureElement(s, r, parameters.range, position, found);
  });
  StoreFound(found, parameters.slices + blockIdx.y * parameters.cut.slices + blockIdx.x);
}

}  // namespace

cudaError_t LaunchMeasureSegments(const ErrorParameters& parameters, ComparePath path,
                                  cudaStream_t stream) {
  const int blocks = parameters.cut.rows * parameters.cut.columns;
  if (blocks == 0) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  if (path == ComparePath::kTuned && LaunchTunedSegments(parameters, stream, error)) return error;
  const dim3 grid(static_cast<unsigned>(parameters.cut.slices), static_cast<unsigned>(blocks));
  MeasureSegments<<<grid, kSegmentThreads, 0, stream>>>(parameters);
  return cudaGetLastError();
}

}  // namespace quantgate
