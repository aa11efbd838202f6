#include "server/runs/run_events.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "server/errors.h"
#include "server/limits.h"

namespace quantgate {
namespace {

/// Events are stored as soon as so many, or so many bytes of them, wait to be stored.
constexpr size_t kUnstoredEventsMax = 50;
constexpr size_t kUnstoredBytesMax = kLiveEventBytesMax / 4;

}  // namespace

RunEvents::RunEvents(RunStore& store, Executor& storing, LiveRuns& live, std::string run_id,
                     std::shared_ptr<Cancellation> cancellation)
    : store_(store),
      storing_(storing),
      live_(live),
      run_id_(std::move(run_id)),
      cancellation_(std::move(cancellation)) {}

void RunEvents::Created(absl::Status status) {
  const std::lock_guard lock(mutex_);
  created_ = std::move(status);
  changed_.notify_all();
}

absl::Status RunEvents::AwaitCreated() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return created_.has_value(); });
  return *created_;
}

absl::Status RunEvents::Failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void RunEvents::KeepFailure(const absl::Status& status) {
  if (status.ok()) return;
  cancellation_->Cancel();
  const std::lock_guard lock(mutex_);
  failure_.Update(status);
}

absl::Duration RunEvents::storing_time() const {
  const std::lock_guard lock(store_mutex_);
  return storing_time_;
}

absl::Status RunEvents::Publish(v1::RunEvent& event) {
  event.set_run_id(run_id_);
  event.set_sequence(next_sequence());
  Bytes bytes = std::make_shared<const std::string>(event.SerializeAsString());
  const size_t size = bytes->size();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [&] { return waiting_ == 0 || waiting_bytes_ + size <= kLiveEventBytesMax; });
    if (!failure_.ok()) return failure_;
    ++waiting_;
    waiting_bytes_ += size;
  }
  storing_.Run([self = shared_from_this(), bytes = std::move(bytes), sequence = ++last_sequence_] {
    self->Take(bytes, sequence);
  });
  return absl::OkStatus();
}

void RunEvents::Take(const Bytes& event, int64_t sequence) {
  const size_t size = event->size();
  {
    const std::lock_guard lock(store_mutex_);
    // Ensures that all events which are not stored are still among the latest ones in LiveRuns.
    if (unstored_bytes_ + size > kLiveEventBytesMax) StoreAll();
    live_.Publish(run_id_, sequence, event);
    const absl::Time start = SteadyNow();
    absl::StatusOr<RunStore::Event> prepared = store_.Prepare(run_id_, event);
    storing_time_ += SteadyNow() - start;
    KeepFailure(prepared.status());
    if (Failure().ok()) {
      unstored_.push_back(*std::move(prepared));
      unstored_bytes_ += size;
      StoreLater();
    }
  }
  const std::lock_guard lock(mutex_);
  --waiting_;
  waiting_bytes_ -= size;
  changed_.notify_all();
}

void RunEvents::StoreLater() {
  if (unstored_.size() >= kUnstoredEventsMax || unstored_bytes_ >= kUnstoredBytesMax) {
    return StoreAll();
  }
  if (std::exchange(stores_later_, true)) return;
  // Waits for more events: a transaction takes longer than storing the events in it, and the last
  // events of a short run follow each other closely.
  storing_.RunWhenIdle([self = shared_from_this()] {
    const std::lock_guard lock(self->store_mutex_);
    self->stores_later_ = false;
    self->StoreAll();
  });
}

void RunEvents::StoreAll() {
  if (unstored_.empty()) return;
  absl::Status stored = AwaitCreated();
  const absl::Time start = SteadyNow();
  const int64_t last = stored_last_ + static_cast<int64_t>(unstored_.size());
  if (stored.ok()) stored = store_.AppendEvents(run_id_, last, unstored_);
  if (stored.ok()) stored_last_ = last;
  storing_time_ += SteadyNow() - start;
  unstored_.clear();
  unstored_bytes_ = 0;
  KeepFailure(stored);
}

void RunEvents::WhenPublished(absl::FunctionRef<void(const absl::Status& kept)> body) {
  bool are_told;
  {
    const std::lock_guard lock(mutex_);
    are_told = waiting_ == 0;
  }
  // Calls `body` here where it can, since waking another thread takes a while.
  if (are_told) return body(Failure());
  bool is_done = false;
  storing_.Run([&] {
    body(Failure());
    const std::lock_guard lock(mutex_);
    is_done = true;
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_done; });
}

absl::Status RunEvents::StoreEnd(Bytes event, RunState state, const absl::Status& status) {
  const std::lock_guard lock(store_mutex_);
  QG_RETURN_IF_ERROR(AwaitCreated());
  std::vector<RunStore::Event> before = std::exchange(unstored_, {});
  int64_t sequence = stored_last_ + static_cast<int64_t>(before.size());
  while (++sequence < next_sequence()) {
    QG_ASSIGN_OR_RETURN(before.emplace_back(), LostEvent(sequence));
  }
  return store_.Finish(run_id_, next_sequence(), std::move(event), state, status,
                       std::move(before));
}

absl::StatusOr<RunStore::Event> RunEvents::LostEvent(int64_t sequence) {
  v1::RunEvent event;
  event.set_run_id(run_id_);
  event.set_sequence(sequence);
  event.mutable_progress()->set_what("the event with this number could not be stored");
  return store_.Prepare(run_id_, std::make_shared<const std::string>(event.SerializeAsString()));
}

void RunEvents::PublishEnd(Bytes event) {
  if (event != nullptr) {
    live_.Publish(run_id_, next_sequence(), std::move(event), LiveRuns::Position::kLast);
  }
  live_.End(run_id_);
}

void RunEvents::OweEnd(Bytes event, RunState state, const absl::Status& status,
                       const absl::Status& why) {
  if (!AwaitCreated().ok() || absl::IsNotFound(why)) return PublishEnd(nullptr);
  live_.Owe(run_id_, error::EndNotStored(run_id_, why),
            [self = shared_from_this(), event = std::move(event), state, status] {
              const absl::Status stored = self->StoreEnd(event, state, status);
              const bool is_gone = absl::IsNotFound(stored);
              if (stored.ok() || is_gone) self->PublishEnd(is_gone ? nullptr : event);
              return stored;
            });
}

}  // namespace quantgate
