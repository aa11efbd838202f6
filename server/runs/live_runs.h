// LiveRuns: the runs of this process that have not ended, with their latest events, the callers
// that wait for the next event, and the ends that could not be stored yet. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "kernels/base/execution.h"
#include "server/limits.h"

namespace quantgate {

class LiveRuns {
 public:
  /// `event_bytes_max`: bytes of a run's latest events that stay in memory.
  explicit LiveRuns(size_t event_bytes_max = kLiveEventBytesMax)
      : event_bytes_max_(event_bytes_max) {}

  // Functions that change the maps are noexcept, for the reason in memory_guard.h.

  void Begin(const std::string& run_id, std::shared_ptr<Cancellation> cancellation) noexcept;
  enum class Position { kBeforeOthers, kLast };
  /// Publishes event `sequence` and wakes everybody who waits for it. The caller sees to it that
  /// earlier events which are not stored yet are less than event_bytes_max, and so still in memory.
  void Publish(const std::string& run_id, int64_t sequence,
               std::shared_ptr<const std::string> event,
               Position position = Position::kBeforeOthers) noexcept;
  /// Keeps the latest events of a live run readable for a client that follows it, also after the
  /// run's end: of all ended runs together, the latest kEndedEventBytesMax bytes of events stay.
  /// Null for a run that is not live.
  struct Live;
  std::shared_ptr<const Live> Hold(const std::string& run_id) const;
  std::shared_ptr<const std::string> EventOf(const Live& live, int64_t sequence) const;
  /// Ends the run: no events follow, and everybody who waits is woken.
  void End(const std::string& run_id) noexcept;

  /// Records that the run has ended, and that its end could not be stored for the reason `why`. The
  /// run stays live until `store`, which StoreOwed calls, has stored the end. Meanwhile nobody
  /// waits for its events, and only stored events can be read.
  void Owe(const std::string& run_id, absl::Status why,
           std::function<absl::Status()> store) noexcept;
  /// Why the end of a live run is not stored; OK where the run has not ended yet.
  absl::Status WhyOwed(const std::string& run_id) const;
  /// Tries to store the owed ends, the oldest first, until the disk is full. Called by one thread
  /// at a time.
  void StoreOwed();
  int owed() const;

  bool IsLive(const std::string& run_id) const;
  /// Whether the run is live and has not published that event yet.
  bool IsToCome(const std::string& run_id, int64_t sequence) const;
  /// The number of the last event that was published of a live run; 0 for another run.
  int64_t LastSequence(const std::string& run_id) const;
  /// Notes that a device has begun with the run.
  void SetRunning(const std::string& run_id);
  /// The runs that devices have begun with, and those whose end is owed, each with WhyOwed.
  std::map<std::string, absl::Status> Running() const;
  /// Null for a run that is not live.
  std::shared_ptr<Cancellation> CancellationOf(const std::string& run_id) const;

  /// Called with the position of the event that it is woken for. After kLast, the publisher's
  /// thread has nothing else to do.
  using Wake = std::function<void(Position)>;
  /// Calls `wake` once, when event `sequence` is published, or the run ends or owes its end.
  /// Returns a token for StopWaiting. Returns 0 and does not call `wake` where one of these has
  /// happened already. `wake` runs on the publisher's thread and must not block.
  int64_t Wait(const std::string& run_id, int64_t sequence, Wake wake) noexcept;
  /// Returns true if `wake` will not be called any more.
  bool StopWaiting(const std::string& run_id, int64_t token);

 private:
  const size_t event_bytes_max_;
  void DropEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable std::mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Live>> runs_ ABSL_GUARDED_BY(mutex_);
  int64_t last_token_ ABSL_GUARDED_BY(mutex_) = 0;
  /// The runs whose ends are owed, in the order of these ends.
  std::deque<std::string> owed_ ABSL_GUARDED_BY(mutex_);
  /// Runs that have ended and are still held, the latest last.
  std::deque<std::weak_ptr<Live>> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
