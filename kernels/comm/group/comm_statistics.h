// CommStatistics: what the collective calls of all worlds of a process did, for whoever exports
// numbers. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/comm/group/call_signature.h"
#include "kernels/comm/group/transport.h"

namespace quantgate {

/// Why a run of a world's ranks failed.
enum class CommFailure {
  kMismatch,   ///< Ranks disagreed on a call or on a value, or could never meet.
  kDeadline,   ///< A rank did not come in time, or the caller's time was over.
  kCancelled,  ///< By the caller.
  kTransport,  ///< Any other error of a collective call.
  kRank,       ///< A rank's own error, which aborted the others.
};
inline constexpr int kCommFailures = 5;
std::string_view CommFailureName(CommFailure failure);  ///< "mismatch", "deadline", ...
/// `is_group_error`: a group gave the error.
CommFailure CommFailureOf(const absl::Status& status, bool is_group_error);

/// What becomes of a communicator (kernels/comm/nccl/communicator_cache.h).
enum class CommunicatorEvent {
  kMade,
  kLeased,  ///< By a group, from one that has ended.
  kClosed,  ///< In order: too many are idle, or the process ends.
  kAborted,
};
inline constexpr int kCommunicatorEvents = 4;
std::string_view CommunicatorEventName(CommunicatorEvent event);  ///< "made", "leased", ...

class CommStatistics {
 public:
  /// Of one backend.
  struct Totals {
    struct Calls {
      int64_t count = 0;        ///< Of whole groups.
      int64_t bytes = 0;        ///< What all members brought.
      double wait_seconds = 0;  ///< Of all members, until the last of them had come.
    };
    std::array<Calls, kCallKinds> calls = {};  ///< By CallKind.
    int64_t runs = 0;                          ///< Of a world's ranks, failed ones too.
    std::array<int64_t, kCommFailures> failures = {};
    int64_t stuck_ranks = 0;  ///< That did not return from their engine after their run failed.
  };

  /// A member's part of a call; `is_first` of one member of each group.
  void RecordCall(CollectiveBackend backend, CallKind kind, bool is_first, int64_t bytes,
                  absl::Duration waited);
  /// `is_group_error`: what failed was a collective call.
  void RecordRun(CollectiveBackend backend, const absl::Status& status, bool is_group_error);
  void RecordStuckRanks(CollectiveBackend backend, int count);
  void RecordCommunicators(CommunicatorEvent event, int count);

  Totals Read(CollectiveBackend backend) const;
  /// Communicators by event.
  std::array<int64_t, kCommunicatorEvents> ReadCommunicators() const;

 private:
  Totals& Of(CollectiveBackend backend) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return totals_[static_cast<size_t>(backend)];
  }

  mutable std::mutex mutex_;
  std::array<Totals, 2> totals_ ABSL_GUARDED_BY(mutex_);
  std::array<int64_t, kCommunicatorEvents> communicators_ ABSL_GUARDED_BY(mutex_) = {};
};

}  // namespace quantgate
