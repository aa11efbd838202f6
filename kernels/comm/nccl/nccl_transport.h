// Collectives by NCCL, for ranks that have a GPU each. Gathered bytes and maxima are those of the
// local transport; NCCL's own sums are used only as a subject under test (reduction profile
// "nccl"). The CUDA module (kernels/engine/cuda_module.h) implements this, since NCCL is loaded
// there.
#pragma once

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/comm/group/transport.h"

namespace quantgate {

/// `engines` by rank: CUDA engines, each on a device of its own, that outlive the transport.
/// `deadline` limits every wait for other ranks, on the host and on the devices.
/// FAILED_PRECONDITION for other engines or without NCCL, and where the environment demands NVLink
/// multicast. `communicators` keeps communicators for later groups and must outlive the transport;
/// null: a group's communicators end with the transport.
absl::StatusOr<std::unique_ptr<Transport>> MakeNcclTransport(
    std::span<Engine* const> engines, absl::Duration deadline,
    CommunicatorCache* communicators = nullptr);
/// Whether NCCL can be used on this host: FAILED_PRECONDITION as MakeNcclTransport.
absl::Status CheckNccl();

/// What the CUDA module offers of collectives: the two functions above, or, from a module that was
/// built without NCCL's header, functions that give UNIMPLEMENTED.
struct CudaCollectives {
  absl::StatusOr<std::unique_ptr<Transport>> (*make_nccl_transport)(
      std::span<Engine* const> engines, absl::Duration deadline, CommunicatorCache* communicators);
  absl::Status (*check_nccl)();
};

}  // namespace quantgate
