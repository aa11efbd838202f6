// CommStatistics: counts of the collective calls of all worlds of a process, for the metrics that a
// server exports. Thread-safe.
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

/// Why a run of a world's ranks (World::Run) failed.
enum class CommFailure {
  kMismatch,   ///< Ranks disagreed on a call or on a value, or could never meet.
  kDeadline,   ///< A rank did not come in time, or the caller's deadline passed.
  kCancelled,  ///< The caller cancelled the run.
  kTransport,  ///< Any other error of a collective call.
  kRank,       ///< A rank's own error, which aborted the others.
};
inline constexpr int kCommFailures = 5;
std::string_view CommFailureName(CommFailure failure);  ///< "mismatch", "deadline", ...
/// The kind of a run's error. `is_group_error`: a collective call gave it (IsGroupError), not a
/// rank.
CommFailure CommFailureOf(const absl::Status& status, bool is_group_error);

/// Events in the life of a communicator (kernels/comm/nccl/communicator_cache.h).
enum class CommunicatorEvent {
  kMade,
  kLeased,  ///< A group took it over from a group that had ended.
  kClosed,  ///< Ended with nothing under way: too many were idle, or the process ends.
  kAborted,
};
inline constexpr int kCommunicatorEvents = 4;
std::string_view CommunicatorEventName(CommunicatorEvent event);  ///< "made", "leased", ...

class CommStatistics {
 public:
  /// The counts of one backend.
  struct Totals {
    struct Calls {
      int64_t count = 0;        ///< Calls; a call of a whole group counts once.
      int64_t bytes = 0;        ///< Bytes that the members brought, added up.
      double wait_seconds = 0;  ///< Time that members waited for the last one, added up.
    };
    std::array<Calls, kCallKinds> calls = {};  ///< By CallKind.
    int64_t runs = 0;                          ///< Runs of worlds, failed ones too.
    std::array<int64_t, kCommFailures> failures = {};
    int64_t stuck_ranks = 0;  ///< Ranks that did not return from their engine after a failure.
  };

  /// Called by each member of a call; `is_first` is true for one member, which counts the call.
  void RecordCall(CollectiveBackend backend, CallKind kind, bool is_first, int64_t bytes,
                  absl::Duration waited);
  /// Called at the end of a run; `is_group_error` as in CommFailureOf.
  void RecordRun(CollectiveBackend backend, const absl::Status& status, bool is_group_error);
  void RecordStuckRanks(CollectiveBackend backend, int count);
  void RecordCommunicators(CommunicatorEvent event, int count);

  Totals Read(CollectiveBackend backend) const;
  /// How many communicators each event happened to, by CommunicatorEvent.
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
