#include "server/live_runs.h"

#include <utility>

namespace quantgate {

void LiveRuns::Begin(const std::string& run_id, std::shared_ptr<Cancellation> cancellation) {
  const std::lock_guard lock(mutex_);
  runs_[run_id].cancellation = std::move(cancellation);
}

void LiveRuns::Published(const std::string& run_id, int64_t sequence) {
  absl::flat_hash_map<int64_t, std::function<void()>> woken;
  {
    const std::lock_guard lock(mutex_);
    const auto it = runs_.find(run_id);
    if (it == runs_.end()) return;
    it->second.last_sequence = sequence;
    woken.swap(it->second.waiting);
  }
  for (auto& [token, wake] : woken) wake();
}

void LiveRuns::End(const std::string& run_id) {
  absl::flat_hash_map<int64_t, std::function<void()>> woken;
  {
    const std::lock_guard lock(mutex_);
    const auto it = runs_.find(run_id);
    if (it == runs_.end()) return;
    woken.swap(it->second.waiting);
    runs_.erase(it);
  }
  for (auto& [token, wake] : woken) wake();
}

bool LiveRuns::IsLive(const std::string& run_id) const {
  const std::lock_guard lock(mutex_);
  return runs_.contains(run_id);
}

std::shared_ptr<Cancellation> LiveRuns::CancellationOf(const std::string& run_id) const {
  const std::lock_guard lock(mutex_);
  const auto it = runs_.find(run_id);
  return it == runs_.end() ? nullptr : it->second.cancellation;
}

int64_t LiveRuns::Wait(const std::string& run_id, int64_t sequence, std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  const auto it = runs_.find(run_id);
  if (it == runs_.end() || it->second.last_sequence >= sequence) return 0;
  it->second.waiting[++last_token_] = std::move(wake);
  return last_token_;
}

bool LiveRuns::StopWaiting(const std::string& run_id, int64_t token) {
  const std::lock_guard lock(mutex_);
  const auto it = runs_.find(run_id);
  return it != runs_.end() && it->second.waiting.erase(token) > 0;
}

}  // namespace quantgate
