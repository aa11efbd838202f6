// ModuleCollectives in place of that of nccl_transport.cc, where NCCL's header was not found.
#include "kernels/base/refusal.h"
#include "kernels/comm/nccl/nccl_transport.h"
#include "kernels/engine/cuda_module.h"

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

const CudaCollectives* ModuleCollectives() {
  static constexpr CudaCollectives kCollectives = {&RefuseTransport, &BuiltWithout};
  return &kCollectives;
}

}  // namespace quantgate
