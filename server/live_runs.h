// LiveRuns: the runs of this process that have not ended, their latest events, and who waits for
// the next one. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "kernels/base/cancellation.h"
#include "server/limits.h"

namespace quantgate {

class LiveRuns {
 public:
  /// `event_bytes_max`: of the latest events of a run, which stay in memory.
  explicit LiveRuns(size_t event_bytes_max = kLiveEventBytesMax)
      : event_bytes_max_(event_bytes_max) {}

  void Begin(const std::string& run_id, std::shared_ptr<Cancellation> cancellation);
  enum class Position { kBeforeOthers, kLast };
  /// Event `sequence` may be told: wakes everybody who waits. Of those before it, what is not
  /// stored yet is less than event_bytes_max, and so in memory.
  void Published(const std::string& run_id, int64_t sequence,
                 std::shared_ptr<const std::string> event,
                 Position position = Position::kBeforeOthers);
  /// The latest events of a run that is live, for who follows it: there behind its end too, the
  /// latest kEndedEventBytesMax of all such runs. Null for another one.
  struct Live;
  std::shared_ptr<const Live> Hold(const std::string& run_id) const;
  std::shared_ptr<const std::string> EventOf(const Live& live, int64_t sequence) const;
  /// No more events: wakes everybody who waits.
  void End(const std::string& run_id);

  bool IsLive(const std::string& run_id) const;
  /// Whether the run is live and has not got to that event.
  bool IsToCome(const std::string& run_id, int64_t sequence) const;
  /// A device has begun with it.
  void SetRunning(const std::string& run_id);
  /// Those that devices are at.
  std::set<std::string> Running() const;
  /// Null for a run that is not live.
  std::shared_ptr<Cancellation> CancellationOf(const std::string& run_id) const;

  /// For which event somebody is woken: the publisher has nothing else to do after the last one.
  using Wake = std::function<void(Position)>;
  /// Calls `wake` once, when event `sequence` may be told or the run ends. 0, and no call, when
  /// either is so already; otherwise a token for StopWaiting. `wake` runs on the publisher's thread
  /// and must not block.
  int64_t Wait(const std::string& run_id, int64_t sequence, Wake wake);
  /// True when the call will not come.
  bool StopWaiting(const std::string& run_id, int64_t token);

 private:
  const size_t event_bytes_max_;
  void DropEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable std::mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Live>> runs_ ABSL_GUARDED_BY(mutex_);
  int64_t last_token_ ABSL_GUARDED_BY(mutex_) = 0;
  /// Those that have ended and are still held, the latest last.
  std::deque<std::weak_ptr<Live>> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
