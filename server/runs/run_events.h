// RunEvents: the events of one run in their order. The device's thread makes them; an executor with
// one thread publishes them to those who follow the run and stores them a moment later, several at
// a time, so that no device waits for a disk. Called by one thread at a time, except Created.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/execution.h"
#include "quantgate/v1/engine_service.pb.h"
#include "server/executor.h"
#include "server/runs/live_runs.h"
#include "server/store/run_store.h"

namespace quantgate {

class RunEvents : public std::enable_shared_from_this<RunEvents> {
 public:
  /// For a run whose first event is published. The run is cancelled when an event cannot be stored:
  /// to go on would be useless.
  RunEvents(RunStore& store, Executor& storing, LiveRuns& live, std::string run_id,
            std::shared_ptr<Cancellation> cancellation);

  /// Says that the run and its first event are stored, or why they are not; then nothing else of
  /// the run is stored. Called once, by another thread.
  void Created(absl::Status status);
  /// Waits for Created and returns the status that it was given.
  absl::Status AwaitCreated();

  /// Gives the event the next sequence number and hands it to the storing thread; waits while
  /// kLiveEventBytesMax bytes of events are waiting for that thread. Fails where an earlier event
  /// could not be stored. A crash of this process may lose the latest events, but fails the run
  /// anyway.
  absl::Status Publish(v1::RunEvent& event);

  /// Calls `body` once all events are published, with the reason where one could not be stored.
  /// `body` runs on this thread or on the storing one; this function returns after it.
  void WhenPublished(absl::FunctionRef<void(const absl::Status& kept)> body);

  /// Within WhenPublished: the number that the run's last event gets.
  int64_t next_sequence() const { return last_sequence_ + 1; }
  /// Within WhenPublished: stores the events that are not stored yet, the last event and the state
  /// that the run ends with. When that fails, those events are given up, and a further call stores,
  /// in their places, events that say so, before its own last event.
  absl::Status StoreEnd(std::shared_ptr<const std::string> event, RunState state,
                        const absl::Status& status);
  /// Within WhenPublished, once: publishes the last event, which StoreEnd has stored: nobody hears
  /// of an end that a crash of this process could take back. Null for a run that the database does
  /// not have: its streams end without a last event.
  void PublishEnd(std::shared_ptr<const std::string> event);
  /// In place of PublishEnd where StoreEnd failed with `why`: storing the end is tried again for as
  /// long as this process lives.
  void OweEnd(std::shared_ptr<const std::string> event, RunState state, const absl::Status& status,
              const absl::Status& why);
  /// The time that storing took, over all events.
  absl::Duration storing_time() const;

 private:
  using Bytes = std::shared_ptr<const std::string>;
  /// Publishes an event and prepares it for storing. Runs on the storing thread.
  void Take(const Bytes& event, int64_t sequence);
  void StoreLater() ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_mutex_);
  void StoreAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_mutex_);
  void KeepFailure(const absl::Status& status);
  absl::Status Failure() const;
  /// An event that stands for one that could not be stored.
  absl::StatusOr<RunStore::Event> LostEvent(int64_t sequence);

  RunStore& store_;
  Executor& storing_;
  LiveRuns& live_;
  const std::string run_id_;
  const std::shared_ptr<Cancellation> cancellation_;
  int64_t last_sequence_ = 1;

  mutable std::mutex store_mutex_;  ///< Locked before mutex_.
  int64_t stored_last_ ABSL_GUARDED_BY(store_mutex_) = 1;
  /// Events after stored_last_, which are not stored yet.
  std::vector<RunStore::Event> unstored_ ABSL_GUARDED_BY(store_mutex_);
  size_t unstored_bytes_ ABSL_GUARDED_BY(store_mutex_) = 0;
  /// Whether a task that StoreLater has queued is still to run.
  bool stores_later_ ABSL_GUARDED_BY(store_mutex_) = false;
  absl::Duration storing_time_ ABSL_GUARDED_BY(store_mutex_);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<absl::Status> created_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;  ///< Events handed over and not taken yet.
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  ///< The first failure to store an event.
};

}  // namespace quantgate
