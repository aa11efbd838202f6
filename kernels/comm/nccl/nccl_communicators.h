// The NCCL communicators of a group of devices, one for each member in the group's order: how they
// are opened and ended.
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

/// Held during every NCCL call that is issued for several devices in turn, except for aborts, so
/// that the process issues one such call after the other. Otherwise a device could wait for a call
/// that has reached only some of the others, while the host waits for that device before it asks
/// the others: for ever.
std::mutex& NcclMutex();

/// Communicators belong to devices and not to streams, keep no user memory between calls, and count
/// calls in step as long as every call is asked of all members. So, when nothing is under way,
/// later engines on the same devices can use them as the first did.
class NcclCommunicators final : public CommunicatorSet {
 public:
  /// Opens a communicator on each engine's device. One thread opens all of them, so the deadline is
  /// not that of a rank but a fixed one: DEADLINE_EXCEEDED.
  static absl::StatusOr<std::unique_ptr<CommunicatorSet>> Open(
      const NcclLibrary& library, std::span<CudaEngine* const> engines);
  ~NcclCommunicators() override { Abort(); }

  ncclComm_t at(size_t place) const { return communicators_[place]; }
  /// Waits until each communicator has done the host's part of `call`. Gives NCCL's error, or
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
  std::vector<ncclComm_t> communicators_;  // By place in the group; empty once they have ended.
};

}  // namespace quantgate
