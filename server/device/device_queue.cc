#include "server/device/device_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/base/steady_time.h"
#include "server/errors.h"

namespace quantgate {
namespace {

/// How long an idle worker stays awake for a job that is expected.
constexpr std::chrono::microseconds kMoment{500};

/// The longest single wait: a longer one would overflow the count of nanoseconds.
constexpr absl::Duration kWaitMax = absl::Hours(24);

/// Waits for a notification or the deadline; false when the deadline came first.
bool WaitUntil(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
               absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) {
    condition.wait(lock);
    return true;
  }
  const absl::Duration left = std::min(deadline - SteadyNow(), kWaitMax);
  return condition.wait_for(lock, absl::ToChronoNanoseconds(left)) == std::cv_status::no_timeout ||
         SteadyNow() < deadline;
}

}  // namespace

DeviceQueue::DeviceQueue(Options options) : options_(std::move(options)) {
  for (int i = 0; i < options_.workers; ++i) workers_.emplace_back([this] { Work(); });
  reaper_ = std::thread([this] { Reap(); });
}

DeviceQueue::~DeviceQueue() {
  Drain();
  CancelAll();
  WaitIdle(absl::InfiniteFuture());
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  has_work_.notify_all();
  must_reap_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  reaper_.join();
}

absl::StatusOr<int> DeviceQueue::Submit(std::shared_ptr<Cancellation> cancellation, Job job) {
  int ahead = 0;
  bool must_reap = false;
  {
    const std::lock_guard lock(mutex_);
    if (draining_) return error::Draining();
    if (static_cast<int>(waiting_.size()) >= options_.capacity) {
      return error::QueueFull(options_.name, options_.capacity);
    }
    ahead = static_cast<int>(waiting_.size()) + active_;
    // The reaper may be asleep until a later deadline than this one.
    if (cancellation->deadline() < EarliestDeadline()) reap_ = true;
    must_reap = reap_;
    waiting_.push_back({std::move(cancellation), std::move(job), SteadyNow()});
    has_waiting_ = true;
  }
  // Notifies without the lock, so that a woken thread finds it free.
  has_work_.notify_one();
  if (must_reap) must_reap_.notify_one();
  return ahead;
}

void DeviceQueue::Expect() {
  {
    const std::lock_guard lock(mutex_);
    if (!IsIdle()) return;
    expects_ = true;
  }
  has_work_.notify_one();
}

bool DeviceQueue::is_expecting() const {
  const std::lock_guard lock(mutex_);
  return expects_;
}

void DeviceQueue::LookOut() const {
  const auto until = std::chrono::steady_clock::now() + kMoment;
  while (!has_waiting_ && std::chrono::steady_clock::now() < until) std::this_thread::yield();
}

void DeviceQueue::Cancel(const std::shared_ptr<Cancellation>& cancellation) {
  cancellation->Cancel();
  const std::lock_guard lock(mutex_);
  reap_ = true;
  must_reap_.notify_one();
}

void DeviceQueue::Drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

bool DeviceQueue::WaitIdle(absl::Time deadline) {
  std::unique_lock lock(mutex_);
  while (!IsIdle()) {
    if (!WaitUntil(is_idle_, lock, deadline)) return IsIdle();
  }
  return true;
}

void DeviceQueue::CancelAll() {
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : waiting_) CancelOnce(entry.cancellation);
  for (const auto& cancellation : running_) CancelOnce(cancellation);
  reap_ = true;
  must_reap_.notify_one();
}

void DeviceQueue::CancelOnce(const std::shared_ptr<Cancellation>& cancellation) {
  if (!cancellation->Check().ok()) return;
  ended_.push_back(cancellation);
  cancellation->Cancel();
}

absl::Status DeviceQueue::Reported(const Cancellation& cancellation, absl::Status status) const {
  if (!absl::IsCancelled(status)) return status;
  const std::lock_guard lock(mutex_);
  const bool is_ended = std::any_of(ended_.begin(), ended_.end(), [&](const auto& ended) {
    return ended.get() == &cancellation;
  });
  return is_ended ? error::Draining() : status;
}

int DeviceQueue::depth() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(waiting_.size());
}

int DeviceQueue::running() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(running_.size());
}

absl::Duration DeviceQueue::oldest_age() const {
  const std::lock_guard lock(mutex_);
  return waiting_.empty() ? absl::ZeroDuration() : SteadyNow() - waiting_.front().enqueued;
}

void DeviceQueue::Work() {
  while (true) {
    Entry entry;
    {
      std::unique_lock lock(mutex_);
      has_work_.wait(lock, [this] { return stopping_ || expects_ || !waiting_.empty(); });
      if (std::exchange(expects_, false) && waiting_.empty() && !stopping_) {
        lock.unlock();
        LookOut();
        continue;
      }
      if (waiting_.empty()) return;
      entry = std::move(waiting_.front());
      waiting_.pop_front();
      has_waiting_ = !waiting_.empty();
      ++active_;
      running_.push_back(entry.cancellation);
    }
    std::move(entry.job)(Reported(*entry.cancellation, entry.cancellation->Check()));
    entry.job = nullptr;  // What the job holds is released before the queue counts as idle.
    const std::lock_guard lock(mutex_);
    running_.erase(std::find(running_.begin(), running_.end(), entry.cancellation));
    --active_;
    if (IsIdle()) is_idle_.notify_all();
  }
}

absl::Time DeviceQueue::EarliestDeadline() const {
  absl::Time earliest = absl::InfiniteFuture();
  for (const Entry& entry : waiting_) {
    earliest = std::min(earliest, entry.cancellation->deadline());
  }
  return earliest;
}

std::vector<DeviceQueue::Entry> DeviceQueue::TakeDropped() {
  std::vector<Entry> dropped;
  std::deque<Entry> kept;
  for (Entry& entry : waiting_) {
    const bool stays = entry.cancellation->Check().ok();
    if (stays) {
      kept.push_back(std::move(entry));
    } else {
      dropped.push_back(std::move(entry));
    }
  }
  waiting_ = std::move(kept);
  has_waiting_ = !waiting_.empty();
  active_ += static_cast<int>(dropped.size());
  return dropped;
}

// Wakes for every cancellation and for the earliest deadline among those that wait.
void DeviceQueue::Reap() {
  while (true) {
    std::vector<Entry> dropped;
    {
      std::unique_lock lock(mutex_);
      while (!stopping_ && !reap_) {
        if (!WaitUntil(must_reap_, lock, EarliestDeadline())) break;
      }
      if (stopping_) return;
      reap_ = false;
      dropped = TakeDropped();
    }
    for (Entry& entry : dropped) {
      std::move(entry.job)(Reported(*entry.cancellation, entry.cancellation->Check()));
      entry.job = nullptr;
      const std::lock_guard lock(mutex_);
      --active_;
      if (IsIdle()) is_idle_.notify_all();
    }
  }
}

}  // namespace quantgate
