// The communicators of a group of devices, one for each member in the group's order: how they come
// about and end, and the pool that keeps those of groups that have ended.
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/comm/nccl_library.h"
#include "kernels/comm/transport.h"
#include "kernels/engine/cuda_engine.h"

namespace quantgate {

using NcclCommunicators = std::vector<ncclComm_t>;

/// How long communicators may take to come about or to end: one thread asks for all of them, so
/// that no rank's deadline is about it.
inline constexpr absl::Duration kCommunicatorDeadline = absl::Seconds(60);

/// Opens one on each engine's device. What has come about stays in `communicators` on an error too.
/// One call at a time in the process.
absl::Status OpenCommunicators(const NcclLibrary& library, std::span<CudaEngine* const> engines,
                               NcclCommunicators& communicators);
/// Waits until each has done what `call` asked of it. What NCCL says of it, or DEADLINE_EXCEEDED
/// naming the call.
absl::Status AwaitCommunicators(const NcclLibrary& library,
                                std::span<const ncclComm_t> communicators, absl::Duration deadline,
                                std::string_view call);
/// Ends communicators of which nothing is under way.
void CloseCommunicators(const NcclLibrary& library, std::span<const ncclComm_t> communicators);
/// Ends them whatever is under way.
void AbortCommunicators(const NcclLibrary& library, std::span<const ncclComm_t> communicators);

/// MakeNcclPool's. Communicators belong to devices and not to streams: a later group of other
/// engines on the same devices takes them.
class NcclCommunicatorPool final : public CommunicatorPool {
 public:
  explicit NcclCommunicatorPool(const NcclLibrary& library) : library_(library) {}
  /// Closes what it has.
  ~NcclCommunicatorPool() override;

  /// Those of an ended group of these devices, in this order; none where there are none.
  NcclCommunicators Take(const std::vector<int>& devices);
  /// Of which nothing has failed and nothing is under way.
  void Keep(const std::vector<int>& devices, NcclCommunicators communicators);

 private:
  const NcclLibrary& library_;
  std::mutex mutex_;
  std::multimap<std::vector<int>, NcclCommunicators> kept_;
};

}  // namespace quantgate
