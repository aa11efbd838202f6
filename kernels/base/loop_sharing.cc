#include "kernels/base/loop_sharing.h"

#include "kernels/base/execution.h"

namespace quantgate {
namespace {

/// The LoopSharing of which the calling thread is a member, or null.
thread_local LoopSharing* sharing_of_thread = nullptr;

}  // namespace

LoopSharing::LoopSharing(int cpus, int threads_each, int members)
    : cpus_(cpus), threads_each_(threads_each), working_(members) {}

LoopSharing::~LoopSharing() {
  {
    const std::scoped_lock lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

int LoopSharing::helpers() {
  const std::scoped_lock lock(mutex_);
  return static_cast<int>(threads_.size());
}

void LoopSharing::AddWorking(int members) {
  const std::scoped_lock lock(mutex_);
  working_ += members;
  WakeOne();
}

LoopSharing::Member::Member(LoopSharing& sharing) { sharing_of_thread = &sharing; }

LoopSharing::Member::~Member() {
  sharing_of_thread->AddWorking(-1);
  sharing_of_thread = nullptr;
}

LoopSharing::Wait::Wait() : sharing_(sharing_of_thread) {
  if (sharing_ != nullptr) sharing_->AddWorking(-1);
}

LoopSharing::Wait::~Wait() {
  if (sharing_ != nullptr) sharing_->AddWorking(1);
}

LoopSharing::OpenLoop::OpenLoop(WorkFeed& feed, absl::FunctionRef<void(WorkFeed&)> worker)
    : sharing_(sharing_of_thread) {
  // The last piece is for the owner of the loop.
  if (sharing_ == nullptr || feed.left() <= 1) return;
  loop_.emplace(Loop{feed, worker});
  const std::scoped_lock lock(sharing_->mutex_);
  sharing_->loops_.push_back(&*loop_);
  sharing_->WakeOne();
}

LoopSharing::OpenLoop::~OpenLoop() {
  if (!loop_.has_value()) return;
  std::unique_lock lock(sharing_->mutex_);
  std::erase(sharing_->loops_, &*loop_);
  sharing_->left_.wait(lock, [this] { return loop_->helpers == 0; });
}

void LoopSharing::Help() {
  std::unique_lock lock(mutex_);
  while (true) {
    Loop* loop = nullptr;
    changed_.wait(lock, [&] { return is_ending_ || (loop = LoopToHelp()) != nullptr; });
    if (is_ending_) return;
    ++helping_;
    ++loop->helpers;
    WakeOne();
    lock.unlock();
    {
      const ScopedIeeeEnvironment ieee;
      loop->worker(loop->feed);
    }
    lock.lock();
    --helping_;
    loop->is_over = true;
    if (--loop->helpers == 0) left_.notify_all();
  }
}

LoopSharing::Loop* LoopSharing::LoopToHelp() const {
  if (helping_ >= cpus_ - working_ * threads_each_) return nullptr;
  Loop* longest = nullptr;
  int64_t most = 0;
  for (Loop* loop : loops_) {
    const int64_t left = loop->is_over ? 0 : loop->feed.left();
    if (left <= most) continue;
    longest = loop;
    most = left;
  }
  return longest;
}

void LoopSharing::WakeOne() {
  if (LoopToHelp() == nullptr) return;
  if (helping_ < static_cast<int>(threads_.size())) return changed_.notify_one();
  threads_.emplace_back([this] { Help(); });
}

}  // namespace quantgate
