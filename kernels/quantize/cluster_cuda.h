// Blocks of threads that run side by side and read each other's shared memory (PTX ISA, clusters).
// Included by .cu files only.
#pragma once

#include <cstdint>

namespace quantgate {

/// What the blocks of the cluster have written to their shared memory is seen behind WaitForCluster
/// by all whose blocks have announced it too. By every thread.
__device__ inline void AnnounceToCluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
/// The same of what was read, whose values have been used.
__device__ inline void AnnounceReads() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void WaitForCluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// The number at the place in another block's shared memory that `own` is in this one's.
__device__ inline float ReadOfBlock(const float* own, uint32_t block) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(own));
  float value;
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %1, %2; ld.shared::cluster.f32 %0, "
      "[there]; }"
      : "=f"(value)
      : "r"(address), "r"(block)
      : "memory");
  return value;
}

}  // namespace quantgate
