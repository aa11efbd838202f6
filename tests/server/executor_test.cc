#include "server/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <thread>

namespace quantgate {
namespace QG_TEST_FILE {

/// What one thread has done, in order: tasks that all wait before the first one begins.
class InOrder {
 public:
  InOrder() {
    executor_->Run([this] {
      is_held_.count_down();
      begins_.wait();
    });
    is_held_.wait();
  }
  void Run(char name, const void* owner) {
    executor_->Run([this, name] { done_ += name; }, owner);
  }
  void RunBehind(char name, const void* owner) {
    executor_->RunBehind([this, name] { done_ += name; }, owner);
  }
  std::string Done() {
    begins_.count_down();
    executor_ = nullptr;
    return done_;
  }

 private:
  std::latch is_held_{1}, begins_{1};
  std::string done_;
  std::unique_ptr<Executor> executor_ = std::make_unique<Executor>(1);
};

TEST(ExecutorTest, OwnersTakeTurns) {
  InOrder tasks;
  const int one = 0, other = 0;
  for (const char name : {'a', 'b', 'c'}) tasks.Run(name, &one);
  for (const char name : {'x', 'y'}) tasks.Run(name, &other);
  EXPECT_EQ(tasks.Done(), "axbyc");
}

TEST(ExecutorTest, WhatIsBehindTakesEveryOtherTurnAtMost) {
  InOrder tasks;
  const int reads = 0, one = 0, other = 0;
  for (const char name : {'1', '2', '3', '4'}) tasks.RunBehind(name, &one);
  for (const char name : {'7', '8'}) tasks.RunBehind(name, &other);
  for (const char name : {'a', 'b', 'c'}) tasks.Run(name, &reads);
  EXPECT_EQ(tasks.Done(), "1a7b2c834");
}

// Streams by the thousand that begin leave the other threads to those that go on.
TEST(ExecutorTest, OneThreadInFourTakesWhatIsBehind) {
  constexpr int kThreads = 8;
  constexpr int kBehind = 100;
  std::atomic<int> running{0}, most{0};
  std::latch others_are_done(kThreads - kThreads / 4);
  {
    Executor executor(kThreads);
    for (int i = 0; i < kBehind; ++i) {
      executor.RunBehind(
          [&] {
            const int now = ++running;
            for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
            }
            // Too many of them would leave no thread to the others.
            while (!others_are_done.try_wait() && most <= kThreads / 4) std::this_thread::yield();
            --running;
          },
          nullptr);
    }
    for (int i = 0; i < kThreads - kThreads / 4; ++i) {
      executor.Run([&] { others_are_done.count_down(); });
    }
  }
  EXPECT_LE(most, kThreads / 4);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
