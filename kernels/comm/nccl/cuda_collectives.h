// What the CUDA module offers of collectives (kernels/engine/cuda_module.h): NCCL is loaded there.
#pragma once

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/comm/group/transport.h"

namespace quantgate {

struct CudaCollectives {
  /// MakeNcclTransport and CheckNccl of kernels/comm/nccl/nccl_transport.h; UNIMPLEMENTED from a
  /// module that was built without NCCL's header.
  absl::StatusOr<std::unique_ptr<Transport>> (*make_nccl_transport)(
      std::span<Engine* const> engines, absl::Duration deadline, CommunicatorCache* communicators);
  absl::Status (*check_nccl)();
};

}  // namespace quantgate
