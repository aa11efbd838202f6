// The packed steps of kernels/quantize/cuda/packed_casts_cuda.h beside the definition, on the
// device.
#pragma once

#include <cuda_runtime_api.h>

namespace quantgate {

/// Each adds the number of differences over all inputs to *differences, in device memory.
cudaError_t LaunchCompareE4M3(unsigned long long* differences, cudaStream_t stream);
cudaError_t LaunchCompareE5M2(unsigned long long* differences, cudaStream_t stream);
cudaError_t LaunchCompareSixteenBits(unsigned long long* differences, cudaStream_t stream);
cudaError_t LaunchCompareMaxima(unsigned long long* differences, cudaStream_t stream);

}  // namespace quantgate
