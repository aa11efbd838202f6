// Collectives by NCCL, for ranks on a GPU each. Bytes and maxima arrive as the local transport's;
// sums are asked of it as a subject under test alone (reduction profile "nccl").
#pragma once

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/comm/group/transport.h"

namespace quantgate {

/// `engines` by rank: CUDA engines, each on a device of its own, that outlive the transport.
/// `deadline` is that of every wait for other ranks, on the host and on the devices.
/// FAILED_PRECONDITION for other engines or without NCCL, and where the environment demands NVLink
/// multicast. `communicators` outlives it; null: those of its groups end with it.
absl::StatusOr<std::unique_ptr<Transport>> MakeNcclTransport(
    std::span<Engine* const> engines, absl::Duration deadline,
    CommunicatorCache* communicators = nullptr);
/// FAILED_PRECONDITION as MakeNcclTransport.
absl::Status CheckNccl();

}  // namespace quantgate
