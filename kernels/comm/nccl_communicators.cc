#include "kernels/comm/nccl_communicators.h"

#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"

namespace quantgate {

absl::Status OpenCommunicators(const NcclLibrary& library, std::span<CudaEngine* const> engines,
                               NcclCommunicators& communicators) {
  const NcclFunctions& nccl = library.call();
  ncclUniqueId id;
  QG_RETURN_IF_ERROR(library.StatusOf(nccl.GetUniqueId(&id), "ncclGetUniqueId"));
  communicators.resize(engines.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // So that a deadline can end a wait.
  const int size = static_cast<int>(engines.size());
  absl::Status status = library.StatusOf(nccl.GroupStart(), "ncclGroupStart");
  for (int place = 0; place < size && status.ok(); ++place) {
    status = engines[place]->device().MakeCurrent();
    if (!status.ok()) break;
    const ncclResult_t result =
        nccl.CommInitRankConfig(&communicators[place], size, id, place, &config);
    if (result != ncclInProgress) status = library.StatusOf(result, "ncclCommInitRankConfig");
  }
  const ncclResult_t end = nccl.GroupEnd();
  QG_RETURN_IF_ERROR(status);
  if (end != ncclInProgress) {
    QG_RETURN_IF_ERROR(library.StatusOf(end, "ncclCommInitRankConfig"));
  }
  return AwaitCommunicators(library, communicators, kCommunicatorDeadline,
                            "ncclCommInitRankConfig");
}

absl::Status AwaitCommunicators(const NcclLibrary& library,
                                std::span<const ncclComm_t> communicators, absl::Duration deadline,
                                std::string_view call) {
  const absl::Time until = absl::Now() + deadline;
  for (const ncclComm_t communicator : communicators) {
    ncclResult_t state = ncclInProgress;
    while (true) {
      QG_RETURN_IF_ERROR(library.StatusOf(library.call().CommGetAsyncError(communicator, &state),
                                          "ncclCommGetAsyncError"));
      if (state != ncclInProgress) break;
      if (absl::Now() > until) {
        return absl::DeadlineExceededError(absl::StrCat(std::string(call), " was not done within ",
                                                        absl::FormatDuration(deadline)));
      }
      std::this_thread::yield();
    }
    QG_RETURN_IF_ERROR(library.StatusOf(state, call));
  }
  return absl::OkStatus();
}

void CloseCommunicators(const NcclLibrary& library, std::span<const ncclComm_t> communicators) {
  for (const ncclComm_t communicator : communicators) {
    (void)library.call().CommFinalize(communicator);
  }
  if (!AwaitCommunicators(library, communicators, kCommunicatorDeadline, "ncclCommFinalize").ok()) {
    return AbortCommunicators(library, communicators);
  }
  for (const ncclComm_t communicator : communicators) {
    (void)library.call().CommDestroy(communicator);
  }
}

void AbortCommunicators(const NcclLibrary& library, std::span<const ncclComm_t> communicators) {
  for (const ncclComm_t communicator : communicators) {
    if (communicator != nullptr) (void)library.call().CommAbort(communicator);
  }
}

NcclCommunicatorPool::~NcclCommunicatorPool() {
  for (const auto& [devices, communicators] : kept_) CloseCommunicators(library_, communicators);
}

NcclCommunicators NcclCommunicatorPool::Take(const std::vector<int>& devices) {
  const std::scoped_lock lock(mutex_);
  const auto found = kept_.find(devices);
  if (found == kept_.end()) return {};
  NcclCommunicators communicators = std::move(found->second);
  kept_.erase(found);
  return communicators;
}

void NcclCommunicatorPool::Keep(const std::vector<int>& devices, NcclCommunicators communicators) {
  const std::scoped_lock lock(mutex_);
  kept_.emplace(devices, std::move(communicators));
}

}  // namespace quantgate
