// In place of nccl_collectives.cc where NCCL's header was not found.
#include "kernels/base/refusal.h"
#include "kernels/comm/nccl/cuda_collectives.h"
#include "kernels/engine/cuda_entry.h"

namespace quantgate {
namespace {

absl::Status BuiltWithout() {
  return StatusOf({.code = absl::StatusCode::kUnimplemented,
                   .field = "backend",
                   .value = "nccl",
                   .rule = "this build's CUDA module was built without nccl.h"});
}

absl::StatusOr<std::unique_ptr<Transport>> RefuseTransport(std::span<Engine* const>, absl::Duration,
                                                           CommunicatorCache*) {
  return BuiltWithout();
}

}  // namespace

const CudaCollectives* Collectives() {
  static constexpr CudaCollectives kCollectives = {&RefuseTransport, &BuiltWithout};
  return &kCollectives;
}

}  // namespace quantgate
