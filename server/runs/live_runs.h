// LiveRuns: the runs of this process that have not ended, their latest events, who waits for the
// next one, and the ends that are still to be stored. Thread-safe.
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
#include "kernels/base/cancellation.h"
#include "server/limits.h"

namespace quantgate {

class LiveRuns {
 public:
  /// `event_bytes_max`: of the latest events of a run, which stay in memory.
  explicit LiveRuns(size_t event_bytes_max = kLiveEventBytesMax)
      : event_bytes_max_(event_bytes_max) {}

  // What changes them is noexcept, as memory_guard.h says.

  void Begin(const std::string& run_id, std::shared_ptr<Cancellation> cancellation) noexcept;
  enum class Position { kBeforeOthers, kLast };
  /// Event `sequence` may be told: wakes everybody who waits. Of those before it, what is not
  /// stored yet is less than event_bytes_max, and so in memory.
  void Publish(const std::string& run_id, int64_t sequence,
               std::shared_ptr<const std::string> event,
               Position position = Position::kBeforeOthers) noexcept;
  /// The latest events of a run that is live, for who follows it: there behind its end too, the
  /// latest kEndedEventBytesMax of all such runs. Null for another one.
  struct Live;
  std::shared_ptr<const Live> Hold(const std::string& run_id) const;
  std::shared_ptr<const std::string> EventOf(const Live& live, int64_t sequence) const;
  /// No more events: wakes everybody who waits.
  void End(const std::string& run_id) noexcept;

  /// The run has ended, and its end could not be stored, as `why` says. It stays live until `store`
  /// has ended it, which StoreOwed calls; meanwhile there is nothing to wait for, and its events
  /// are what is stored of them.
  void Owe(const std::string& run_id, absl::Status why,
           std::function<absl::Status()> store) noexcept;
  /// Why the end of a live run is not stored; OK where it has none yet.
  absl::Status WhyOwed(const std::string& run_id) const;
  /// Tries to store the ends that are owed, the oldest first, and no more of them once the disk is
  /// full. By one thread at a time.
  void StoreOwed();
  int owed() const;

  bool IsLive(const std::string& run_id) const;
  /// Whether the run is live and has not got to that event.
  bool IsToCome(const std::string& run_id, int64_t sequence) const;
  /// Of the last event that was told of a live run; 0 for another one.
  int64_t LastSequence(const std::string& run_id) const;
  /// A device has begun with it.
  void SetRunning(const std::string& run_id);
  /// Those that devices are at, and those whose end is owed, with WhyOwed.
  std::map<std::string, absl::Status> Running() const;
  /// Null for a run that is not live.
  std::shared_ptr<Cancellation> CancellationOf(const std::string& run_id) const;

  /// For which event somebody is woken: the publisher has nothing else to do after the last one.
  using Wake = std::function<void(Position)>;
  /// Calls `wake` once, when event `sequence` may be told, or the run ends or owes its end. 0, and
  /// no call, when it is so already; otherwise a token for StopWaiting. `wake` runs on the
  /// publisher's thread and must not block.
  int64_t Wait(const std::string& run_id, int64_t sequence, Wake wake) noexcept;
  /// True when the call will not come.
  bool StopWaiting(const std::string& run_id, int64_t token);

 private:
  const size_t event_bytes_max_;
  void DropEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable std::mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Live>> runs_ ABSL_GUARDED_BY(mutex_);
  int64_t last_token_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<std::string> owed_ ABSL_GUARDED_BY(mutex_);  ///< In the order of their ends.
  /// Those that have ended and are still held, the latest last.
  std::deque<std::weak_ptr<Live>> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
