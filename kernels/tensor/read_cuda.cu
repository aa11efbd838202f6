// Copies results to host memory by a kernel: between kernels, a copy of a few bytes by the copy
// engine takes some ten microseconds more.
#include <algorithm>

#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256;
constexpr int kWordsPerBlock = 4 * kThreads;

__global__ void CopyToHost(const uint32_t* from, uint32_t* to, int words, int bytes) {
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < words; i += gridDim.x * kThreads) {
    to[i] = from[i];
  }
  if (blockIdx.x > 0) return;
  const auto* from_bytes = reinterpret_cast<const uint8_t*>(from);
  auto* to_bytes = reinterpret_cast<uint8_t*>(to);
  for (int i = 4 * words + threadIdx.x; i < bytes; i += kThreads) to_bytes[i] = from_bytes[i];
}

}  // namespace

cudaError_t LaunchCopyToHost(const void* from, void* to, int bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const int words = bytes / 4;
  const int blocks = std::max((words + kWordsPerBlock - 1) / kWordsPerBlock, 1);
  CopyToHost<<<blocks, kThreads, 0, stream>>>(static_cast<const uint32_t*>(from),
                                              static_cast<uint32_t*>(to), words, bytes);
  return cudaGetLastError();
}

}  // namespace quantgate
