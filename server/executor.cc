#include "server/executor.h"

#include <utility>

namespace quantgate {

Executor::Executor(int threads) {
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

void Executor::Run(Task task, const void* owner) {
  {
    const std::lock_guard lock(mutex_);
    const auto waiting = owner == nullptr ? further_.end() : further_.find(owner);
    if (waiting != further_.end()) {
      waiting->second.push_back(std::move(task));
    } else {
      tasks_.push_back({std::move(task), owner});
      if (owner != nullptr) further_.try_emplace(owner);
    }
  }
  has_work_.notify_one();
}

void Executor::RunWhenIdle(Task task) {
  {
    const std::lock_guard lock(mutex_);
    idle_tasks_.push_back(std::move(task));
  }
  has_work_.notify_one();
}

Executor::Task Executor::Next() {
  std::unique_lock lock(mutex_);
  has_work_.wait(lock, [this] { return stopping_ || !tasks_.empty() || !idle_tasks_.empty(); });
  if (tasks_.empty() && idle_tasks_.empty()) return nullptr;
  if (tasks_.empty()) {
    Task task = std::move(idle_tasks_.front());
    idle_tasks_.pop_front();
    return task;
  }
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

void Executor::Work() {
  while (Task task = Next()) std::move(task)();
}

}  // namespace quantgate
