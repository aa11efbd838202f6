#include "server/executor.h"

#include <algorithm>
#include <utility>

namespace quantgate {

void Executor::Line::Add(Task task, const void* owner) {
  const auto waiting = owner == nullptr ? further_.end() : further_.find(owner);
  if (waiting != further_.end()) {
    waiting->second.push_back(std::move(task));
  } else {
    tasks_.push_back({std::move(task), owner});
    if (owner != nullptr) further_.try_emplace(owner);
  }
}

Executor::Task Executor::Line::Take() {
  Waiting next = std::move(tasks_.front());
  tasks_.pop_front();
  if (next.owner == nullptr) return std::move(next.task);
  const auto further = further_.find(next.owner);
  if (further->second.empty()) {
    further_.erase(further);
  } else {
    tasks_.push_back({std::move(further->second.front()), next.owner});
    further->second.pop_front();
  }
  return std::move(next.task);
}

Executor::Executor(int threads) : running_behind_max_(std::max(1, threads / 4)) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

Executor::~Executor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Executor::Run(Task task, const void* owner) noexcept {
  {
    const std::lock_guard lock(mutex_);
    line_.Add(std::move(task), owner);
  }
  has_work_.notify_one();
}

void Executor::RunBehind(Task task, const void* owner) noexcept {
  {
    const std::lock_guard lock(mutex_);
    behind_.Add(std::move(task), owner);
  }
  has_work_.notify_one();
}

void Executor::RunWhenIdle(Task task) noexcept {
  {
    const std::lock_guard lock(mutex_);
    idle_tasks_.push_back(std::move(task));
  }
  has_work_.notify_one();
}

bool Executor::MayTakeBehind() const {
  return !behind_.empty() && running_behind_ < running_behind_max_;
}

Executor::Task Executor::Next(bool& is_behind) {
  std::unique_lock lock(mutex_);
  if (std::exchange(is_behind, false)) --running_behind_;
  has_work_.wait(lock, [this] {
    return stopping_ || !line_.empty() || MayTakeBehind() || !idle_tasks_.empty();
  });
  if (MayTakeBehind() && (line_.empty() || !was_behind_last_)) {
    ++running_behind_;
    was_behind_last_ = is_behind = true;
    return behind_.Take();
  }
  was_behind_last_ = false;
  if (!line_.empty()) return line_.Take();
  if (idle_tasks_.empty()) return nullptr;
  Task task = std::move(idle_tasks_.front());
  idle_tasks_.pop_front();
  return task;
}

void Executor::Work() {
  bool is_behind = false;
  while (Task task = Next(is_behind)) std::move(task)();
}

}  // namespace quantgate
