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

void Executor::Run(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
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
  std::deque<Task>& tasks = tasks_.empty() ? idle_tasks_ : tasks_;
  if (tasks.empty()) return nullptr;
  Task task = std::move(tasks.front());
  tasks.pop_front();
  return task;
}

void Executor::Work() {
  while (Task task = Next()) std::move(task)();
}

}  // namespace quantgate
