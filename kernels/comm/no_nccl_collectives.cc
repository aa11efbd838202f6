// In place of nccl_collectives.cc where NCCL's header was not found.
#include "kernels/comm/cuda_collectives.h"
#include "kernels/engine/cuda_entry.h"

namespace quantgate {
namespace {

absl::StatusOr<std::unique_ptr<Transport>> RefuseNccl(std::span<Engine* const>, absl::Duration) {
  return absl::UnimplementedError(
      "collective backend nccl: this build's CUDA module was built without nccl.h");
}

}  // namespace

const CudaCollectives* Collectives() {
  static constexpr CudaCollectives kCollectives = {&RefuseNccl};
  return &kCollectives;
}

}  // namespace quantgate
