#include "server/rpc/run_events.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "server/limits.h"

namespace quantgate {
namespace {

/// Events that wait to be stored are not more than so many, nor larger together.
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
    // What is not stored is among the latest live ones.
    if (unstored_bytes_ + size > kLiveEventBytesMax) StoreAll();
    live_.Published(run_id_, sequence, event);
    const absl::Time start = SteadyNow();
    absl::StatusOr<RunStore::Event> prepared = store_.Prepare(run_id_, event);
    storing_time_ += SteadyNow() - start;
    KeepFailure(prepared.status());
    if (Failure().ok()) {
      unstored_.push_back(*std::move(prepared));
      unstored_last_ = sequence;
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
  // A transaction takes longer than what is in it, and a short run's last events come close behind
  // each other.
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
  if (stored.ok()) {
    stored = store_.AppendEvents(run_id_, unstored_last_, unstored_);
  }
  storing_time_ += SteadyNow() - start;
  unstored_.clear();
  unstored_bytes_ = 0;
  KeepFailure(stored);
}

void RunEvents::WhenTold(absl::FunctionRef<void(const absl::Status& kept)> body) {
  bool are_told;
  {
    const std::lock_guard lock(mutex_);
    are_told = waiting_ == 0;
  }
  // To wake another thread takes a while.
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
  return store_.Finish(run_id_, next_sequence(), std::move(event), state, status,
                       std::exchange(unstored_, {}));
}

void RunEvents::TellEnd(Bytes event) {
  if (event != nullptr) {
    live_.Published(run_id_, next_sequence(), std::move(event), LiveRuns::Position::kLast);
  }
  live_.End(run_id_);
}

}  // namespace quantgate
