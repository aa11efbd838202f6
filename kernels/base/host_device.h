// Marks functions that the CPU engine and the CUDA kernels share.
#pragma once

#if defined(__CUDACC__)
#define QG_HOST_DEVICE __host__ __device__
#else
#define QG_HOST_DEVICE
#endif
