// The communicators of a group of devices, one for each member in the group's order: how they come
// about and end.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/comm/nccl/communicator_cache.h"
#include "kernels/comm/nccl/nccl_library.h"
#include "kernels/engine/cuda_engine.h"

namespace quantgate {

/// Held over everything that NCCL is asked for several devices in turn, but aborts: one call after
/// the other in the process. A device that waits for what has reached only some of the others, and
/// a host that waits for that device before the others are asked, would wait for ever.
std::mutex& NcclMutex();

/// They belong to devices and not to streams, keep no user's memory between calls, and count calls
/// in step as long as every call is asked of all members: when nothing is under way, later engines
/// on the same devices find them as the first did.
class NcclCommunicators final : public CommunicatorSet {
 public:
  /// One on each engine's device. One thread asks for all of them, so that no rank's deadline is
  /// about it: DEADLINE_EXCEEDED after a time of its own.
  static absl::StatusOr<std::unique_ptr<CommunicatorSet>> Open(
      const NcclLibrary& library, std::span<CudaEngine* const> engines);
  ~NcclCommunicators() override { Abort(); }

  ncclComm_t at(size_t place) const { return communicators_[place]; }
  /// Waits until each has done what `call` asked of it on the host. What NCCL says of it, or
  /// DEADLINE_EXCEEDED naming the call.
  absl::Status Await(absl::Duration deadline, std::string_view call) const;

  int size() const override { return static_cast<int>(communicators_.size()); }
  absl::Status Check() const override;
  void Close() override;
  void Abort() override;

 private:
  explicit NcclCommunicators(const NcclLibrary& library) : library_(library) {}
  absl::Status OpenAll(std::span<CudaEngine* const> engines);

  const NcclLibrary& library_;
  std::vector<ncclComm_t> communicators_;  // By place; none when they have ended.
};

}  // namespace quantgate
