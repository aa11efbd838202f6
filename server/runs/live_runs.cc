#include "server/runs/live_runs.h"

#include <utility>

namespace quantgate {

/// All members are guarded by mutex_.
struct LiveRuns::Live {
  std::shared_ptr<Cancellation> cancellation;
  bool is_running = false;
  int64_t last_sequence = 0;
  /// The latest events: at most event_bytes_max_ bytes together, or a single event.
  std::deque<std::shared_ptr<const std::string>> events;
  size_t event_bytes = 0;
  absl::flat_hash_map<int64_t, Wake> waiting;
  absl::Status why_owed;
  std::function<absl::Status()> store_end;
};

void LiveRuns::Begin(const std::string& run_id,
                     std::shared_ptr<Cancellation> cancellation) noexcept {
  const std::lock_guard lock(mutex_);
  auto live = std::make_shared<Live>();
  live->cancellation = std::move(cancellation);
  runs_[run_id] = std::move(live);
}

void LiveRuns::Publish(const std::string& run_id, int64_t sequence,
                       std::shared_ptr<const std::string> event, Position position) noexcept {
  absl::flat_hash_map<int64_t, Wake> woken;
  {
    const std::lock_guard lock(mutex_);
    const auto it = runs_.find(run_id);
    if (it == runs_.end()) return;
    Live& live = *it->second;
    live.last_sequence = sequence;
    live.event_bytes += event->size();
    live.events.push_back(std::move(event));
    while (live.event_bytes > event_bytes_max_ && live.events.size() > 1) {
      live.event_bytes -= live.events.front()->size();
      live.events.pop_front();
    }
    woken.swap(live.waiting);
  }
  for (auto& [token, wake] : woken) wake(position);
}

std::shared_ptr<const LiveRuns::Live> LiveRuns::Hold(const std::string& run_id) const {
  const std::lock_guard lock(mutex_);
  const auto it = runs_.find(run_id);
  return it == runs_.end() ? nullptr : it->second;
}

std::shared_ptr<const std::string> LiveRuns::EventOf(const Live& live, int64_t sequence) const {
  const std::lock_guard lock(mutex_);
  const auto count = static_cast<int64_t>(live.events.size());
  const int64_t index = sequence - (live.last_sequence - count + 1);
  return index < 0 || index >= count ? nullptr : live.events[static_cast<size_t>(index)];
}

void LiveRuns::End(const std::string& run_id) noexcept {
  absl::flat_hash_map<int64_t, Wake> woken;
  {
    const std::lock_guard lock(mutex_);
    const auto it = runs_.find(run_id);
    if (it == runs_.end()) return;
    woken.swap(it->second->waiting);
    if (!it->second->why_owed.ok()) std::erase(owed_, run_id);
    ended_.push_back(it->second);
    runs_.erase(it);
    DropEnded();
  }
  for (auto& [token, wake] : woken) wake(Position::kLast);
}

void LiveRuns::Owe(const std::string& run_id, absl::Status why,
                   std::function<absl::Status()> store) noexcept {
  absl::flat_hash_map<int64_t, Wake> woken;
  {
    const std::lock_guard lock(mutex_);
    const auto it = runs_.find(run_id);
    if (it == runs_.end()) return;
    Live& live = *it->second;
    live.why_owed = std::move(why);
    live.store_end = std::move(store);
    // Frees the events, since many runs may owe their ends while the disk is full.
    live.events.clear();
    live.event_bytes = 0;
    owed_.push_back(run_id);
    woken.swap(live.waiting);
  }
  for (auto& [token, wake] : woken) wake(Position::kBeforeOthers);
}

absl::Status LiveRuns::WhyOwed(const std::string& run_id) const {
  const std::lock_guard lock(mutex_);
  const auto it = runs_.find(run_id);
  return it == runs_.end() ? absl::OkStatus() : it->second->why_owed;
}

void LiveRuns::StoreOwed() {
  std::deque<std::string> owed;
  {
    const std::lock_guard lock(mutex_);
    owed = owed_;
  }
  for (const std::string& run_id : owed) {
    std::function<absl::Status()> store;
    {
      const std::lock_guard lock(mutex_);
      const auto it = runs_.find(run_id);
      if (it != runs_.end()) store = it->second->store_end;
    }
    if (store && absl::IsResourceExhausted(store())) return;
  }
}

int LiveRuns::owed() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(owed_.size());
}

void LiveRuns::DropEnded() {
  std::erase_if(ended_, [](const std::weak_ptr<Live>& live) { return live.expired(); });
  size_t bytes = 0;
  for (auto at = ended_.rbegin(); at != ended_.rend(); ++at) {
    const std::shared_ptr<Live> live = at->lock();
    if (live == nullptr) continue;
    bytes += live->event_bytes;
    if (bytes <= kEndedEventBytesMax) continue;
    bytes -= std::exchange(live->event_bytes, 0);
    live->events.clear();
  }
}

bool LiveRuns::IsLive(const std::string& run_id) const {
  const std::lock_guard lock(mutex_);
  return runs_.contains(run_id);
}

bool LiveRuns::IsToCome(const std::string& run_id, int64_t sequence) const {
  const std::lock_guard lock(mutex_);
  const auto it = runs_.find(run_id);
  return it != runs_.end() && it->second->last_sequence < sequence && it->second->why_owed.ok();
}

int64_t LiveRuns::LastSequence(const std::string& run_id) const {
  const std::lock_guard lock(mutex_);
  const auto it = runs_.find(run_id);
  return it == runs_.end() ? 0 : it->second->last_sequence;
}

void LiveRuns::SetRunning(const std::string& run_id) {
  const std::lock_guard lock(mutex_);
  const auto it = runs_.find(run_id);
  if (it != runs_.end()) it->second->is_running = true;
}

std::map<std::string, absl::Status> LiveRuns::Running() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, absl::Status> running;
  for (const auto& [run_id, live] : runs_) {
    if (live->is_running || !live->why_owed.ok()) running[run_id] = live->why_owed;
  }
  return running;
}

std::shared_ptr<Cancellation> LiveRuns::CancellationOf(const std::string& run_id) const {
  const std::lock_guard lock(mutex_);
  const auto it = runs_.find(run_id);
  return it == runs_.end() ? nullptr : it->second->cancellation;
}

int64_t LiveRuns::Wait(const std::string& run_id, int64_t sequence, Wake wake) noexcept {
  const std::lock_guard lock(mutex_);
  const auto it = runs_.find(run_id);
  if (it == runs_.end()) return 0;
  if (it->second->last_sequence >= sequence || !it->second->why_owed.ok()) return 0;
  it->second->waiting[++last_token_] = std::move(wake);
  return last_token_;
}

bool LiveRuns::StopWaiting(const std::string& run_id, int64_t token) {
  const std::lock_guard lock(mutex_);
  const auto it = runs_.find(run_id);
  return it != runs_.end() && it->second->waiting.erase(token) > 0;
}

}  // namespace quantgate
