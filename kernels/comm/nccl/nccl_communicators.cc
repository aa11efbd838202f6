#include "kernels/comm/nccl/nccl_communicators.h"

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"

namespace quantgate {
namespace {

/// Limits the opening and the closing of communicators.
constexpr absl::Duration kCommunicatorDeadline = absl::Seconds(60);

}  // namespace

std::mutex& NcclMutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

absl::StatusOr<std::unique_ptr<CommunicatorSet>> NcclCommunicators::Open(
    const NcclLibrary& library, std::span<CudaEngine* const> engines) {
  std::unique_ptr<NcclCommunicators> opened(new NcclCommunicators(library));
  const std::scoped_lock turn(NcclMutex());
  QG_RETURN_IF_ERROR(opened->OpenAll(engines));
  return opened;
}

absl::Status NcclCommunicators::OpenAll(std::span<CudaEngine* const> engines) {
  const NcclFunctions& nccl = library_.call();
  ncclUniqueId id;
  QG_RETURN_IF_ERROR(library_.StatusOf(nccl.GetUniqueId(&id), "ncclGetUniqueId"));
  communicators_.resize(engines.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // So that Await can give up after a deadline.
  absl::Status status = library_.StatusOf(nccl.GroupStart(), "ncclGroupStart");
  for (int place = 0; place < size() && status.ok(); ++place) {
    status = engines[place]->device().MakeCurrent();
    if (!status.ok()) break;
    const ncclResult_t result =
        nccl.CommInitRankConfig(&communicators_[place], size(), id, place, &config);
    if (result != ncclInProgress) status = library_.StatusOf(result, "ncclCommInitRankConfig");
  }
  const ncclResult_t end = nccl.GroupEnd();
  QG_RETURN_IF_ERROR(status);
  if (end != ncclInProgress) {
    QG_RETURN_IF_ERROR(library_.StatusOf(end, "ncclCommInitRankConfig"));
  }
  return Await(kCommunicatorDeadline, "ncclCommInitRankConfig");
}

absl::Status NcclCommunicators::Await(absl::Duration deadline, std::string_view call) const {
  const absl::Time until = SteadyNow() + deadline;
  for (const ncclComm_t communicator : communicators_) {
    ncclResult_t state = ncclInProgress;
    while (true) {
      QG_RETURN_IF_ERROR(library_.StatusOf(library_.call().CommGetAsyncError(communicator, &state),
                                           "ncclCommGetAsyncError"));
      if (state != ncclInProgress) break;
      if (SteadyNow() > until) {
        return absl::DeadlineExceededError(absl::StrCat(std::string(call), " was not done within ",
                                                        absl::FormatDuration(deadline)));
      }
      std::this_thread::yield();
    }
    QG_RETURN_IF_ERROR(library_.StatusOf(state, call));
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicators::Check() const {
  if (communicators_.empty()) return absl::FailedPreconditionError("communicators have ended");
  for (const ncclComm_t communicator : communicators_) {
    ncclResult_t state = ncclSuccess;
    QG_RETURN_IF_ERROR(library_.StatusOf(library_.call().CommGetAsyncError(communicator, &state),
                                         "ncclCommGetAsyncError"));
    QG_RETURN_IF_ERROR(library_.StatusOf(state, "a collective call"));
  }
  return absl::OkStatus();
}

void NcclCommunicators::Close() {
  const std::scoped_lock turn(NcclMutex());
  for (const ncclComm_t communicator : communicators_) {
    (void)library_.call().CommFinalize(communicator);
  }
  if (!Await(kCommunicatorDeadline, "ncclCommFinalize").ok()) return Abort();
  for (const ncclComm_t communicator : communicators_) {
    (void)library_.call().CommDestroy(communicator);
  }
  communicators_.clear();
}

void NcclCommunicators::Abort() {
  for (const ncclComm_t communicator : communicators_) {
    if (communicator != nullptr) (void)library_.call().CommAbort(communicator);
  }
  communicators_.clear();
}

}  // namespace quantgate
