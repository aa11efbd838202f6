#include "server/device/device_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "kernels/base/steady_time.h"
#include "server/errors.h"
#include "server/executor.h"

namespace quantgate {
namespace QG_TEST_FILE {

std::shared_ptr<Cancellation> Forever() { return std::make_shared<Cancellation>(); }

/// A job that runs until it is told to go on.
struct Gate {
  std::latch started{1}, open{1}, done{1};  // Visible to ThreadSanitizer.
  absl::Status admission;

  DeviceQueue::Job Job() {
    return [this](absl::Status status) {
      admission = status;
      started.count_down();
      if (status.ok()) open.wait();
      done.count_down();
    };
  }
};

TEST(DeviceQueueTest, RunsInOrderOfArrival) {
  DeviceQueue queue({"runs", 1, 100});
  std::vector<int> order;
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(queue
                    .Submit(Forever(),
                            [&order, i](absl::Status status) {
                              EXPECT_TRUE(status.ok());
                              order.push_back(i);
                            })
                    .ok());
  }
  EXPECT_TRUE(queue.WaitIdle(absl::InfiniteFuture()));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(order[i], i);
}

// Whose cancellation it was decides what a job is told.
TEST(DeviceQueueTest, SaysThatTheServerEndedAJob) {
  DeviceQueue queue({"runs", 2, 10});
  Gate running, cancelled, waiting;
  const auto of_running = Forever(), of_cancelled = Forever();
  ASSERT_TRUE(queue.Submit(of_running, running.Job()).ok());
  ASSERT_TRUE(queue.Submit(of_cancelled, cancelled.Job()).ok());
  running.started.wait();
  cancelled.started.wait();
  ASSERT_TRUE(queue.Submit(Forever(), waiting.Job()).ok());
  queue.Cancel(of_cancelled);
  EXPECT_TRUE(absl::IsCancelled(queue.Reported(*of_running, absl::CancelledError("text"))));
  queue.Drain();
  queue.CancelAll();
  waiting.done.wait();
  EXPECT_TRUE(absl::IsUnavailable(waiting.admission)) << waiting.admission;
  const absl::Status ended = queue.Reported(*of_running, of_running->Check());
  EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
  EXPECT_EQ(ended.message(), "the server is shutting down");
  EXPECT_TRUE(absl::IsCancelled(queue.Reported(*of_cancelled, of_cancelled->Check())));
  // What ended otherwise, ended so.
  EXPECT_TRUE(queue.Reported(*of_running, absl::OkStatus()).ok());
  EXPECT_TRUE(absl::IsInternal(queue.Reported(*of_running, absl::InternalError("text"))));
  running.open.count_down();
  cancelled.open.count_down();
}

TEST(DeviceQueueTest, RunsWhatItWasToldToExpect) {
  DeviceQueue queue({"runs", 2, 10});
  for (int i = 0; i < 20; ++i) {
    queue.Expect();
    if (i % 3 > 0) {
      while (queue.is_expecting()) std::this_thread::yield();
    }
    if (i % 4 == 0) continue;  // It did not come.
    Gate gate;
    ASSERT_TRUE(queue.Submit(Forever(), gate.Job()).ok());
    gate.started.wait();
    EXPECT_TRUE(gate.admission.ok());
    queue.Expect();  // While one runs.
    gate.open.count_down();
    EXPECT_TRUE(queue.WaitIdle(absl::InfiniteFuture()));
  }
  queue.Drain();
  queue.Expect();
  EXPECT_TRUE(queue.WaitIdle(absl::InfiniteFuture()));
}

TEST(DeviceQueueTest, IsBoundedAndSaysHowManyAreAhead) {
  Gate running, first, second, third;
  DeviceQueue queue({"runs", 1, 2});
  EXPECT_EQ(queue.Submit(Forever(), running.Job()).value(), 0);
  running.started.wait();
  EXPECT_EQ(queue.Submit(Forever(), first.Job()).value(), 1);
  EXPECT_EQ(queue.Submit(Forever(), second.Job()).value(), 2);
  const absl::Status refused = queue.Submit(Forever(), third.Job()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(error::DetailOf(refused).reason, "queue_full");
  EXPECT_TRUE(error::DetailOf(refused).retry_after.has_value());
  EXPECT_EQ(queue.depth(), 2);
  EXPECT_EQ(queue.running(), 1);
  EXPECT_GE(queue.oldest_age(), absl::ZeroDuration());
  for (Gate* gate : {&running, &first, &second}) gate->open.count_down();
  EXPECT_TRUE(queue.WaitIdle(absl::InfiniteFuture()));
  EXPECT_FALSE(third.started.try_wait());
}

TEST(DeviceQueueTest, CancelledWhileWaitingLeavesAtOnce) {
  Gate running, waiting;  // Outlive the queue, whose last jobs end when it is destroyed.
  DeviceQueue queue({"runs", 1, 10});
  ASSERT_TRUE(queue.Submit(Forever(), running.Job()).ok());
  running.started.wait();
  const auto cancellation = Forever();
  ASSERT_TRUE(queue.Submit(cancellation, waiting.Job()).ok());
  queue.Cancel(cancellation);
  waiting.done.wait();  // The first job still runs.
  EXPECT_TRUE(absl::IsCancelled(waiting.admission));
  EXPECT_EQ(queue.depth(), 0);
  running.open.count_down();
}

TEST(DeviceQueueTest, DeadlinesPassWhileWaiting) {
  Gate running, late, later;
  DeviceQueue queue({"runs", 1, 10});
  ASSERT_TRUE(queue.Submit(Forever(), running.Job()).ok());
  running.started.wait();
  const absl::Time now = SteadyNow();
  ASSERT_TRUE(queue.Submit(std::make_shared<Cancellation>(now + absl::Hours(1)), later.Job()).ok());
  // An earlier deadline than the one the queue already waits for.
  ASSERT_TRUE(
      queue.Submit(std::make_shared<Cancellation>(now + absl::Milliseconds(20)), late.Job()).ok());
  late.done.wait();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.admission));
  EXPECT_GE(SteadyNow(), now + absl::Milliseconds(20));
  EXPECT_EQ(queue.depth(), 1);
  running.open.count_down();
  later.open.count_down();
}

TEST(DeviceQueueTest, DrainingRefusesAndFinishes) {
  Gate running, waiting;
  DeviceQueue queue({"runs", 1, 10});
  ASSERT_TRUE(queue.Submit(Forever(), running.Job()).ok());
  ASSERT_TRUE(queue.Submit(Forever(), waiting.Job()).ok());
  running.started.wait();
  queue.Drain();
  EXPECT_TRUE(absl::IsUnavailable(queue.Submit(Forever(), [](absl::Status) {}).status()));
  EXPECT_FALSE(queue.WaitIdle(SteadyNow()));
  running.open.count_down();
  waiting.open.count_down();
  EXPECT_TRUE(queue.WaitIdle(absl::InfiniteFuture()));
  EXPECT_TRUE(waiting.admission.ok());
}

TEST(DeviceQueueTest, DestructionCancelsWhatRunsAndWaits) {
  absl::Status waiting;
  const auto running = Forever();
  std::latch started{1};
  {
    DeviceQueue queue({"runs", 1, 10});
    ASSERT_TRUE(queue
                    .Submit(running,
                            [&](absl::Status) {
                              started.count_down();
                              while (running->Check().ok()) {
                              }
                            })
                    .ok());
    started.wait();
    ASSERT_TRUE(queue.Submit(Forever(), [&](absl::Status status) { waiting = status; }).ok());
  }
  EXPECT_TRUE(absl::IsUnavailable(waiting)) << waiting;  // The server ends.
}

TEST(DeviceQueueTest, EveryJobIsCalledOnceUnderContention) {
  std::atomic<int> calls{0};
  std::atomic<int> accepted{0};
  {
    DeviceQueue queue({"runs", 3, 16});
    std::vector<std::thread> clients;
    for (int client = 0; client < 4; ++client) {
      clients.emplace_back([&, client] {
        for (int i = 0; i < 500; ++i) {
          const auto cancellation = std::make_shared<Cancellation>(
              i % 7 == 0 ? SteadyNow() + absl::Microseconds(50) : absl::InfiniteFuture());
          if (queue.Submit(cancellation, [&](absl::Status) { ++calls; }).ok()) ++accepted;
          if ((i + client) % 5 == 0) queue.Cancel(cancellation);
        }
      });
    }
    for (std::thread& client : clients) client.join();
  }
  EXPECT_EQ(calls, accepted);
  EXPECT_GT(accepted, 0);
}

TEST(ExecutorTest, RunsEverythingBeforeItEnds) {
  std::atomic<int> calls{0};
  {
    Executor executor(3);
    for (int i = 0; i < 1000; ++i) executor.Run([&] { ++calls; });
  }
  EXPECT_EQ(calls, 1000);
}

TEST(ExecutorTest, RunsWhatWaitsForIdlenessBehindAllElse) {
  std::vector<int> order;
  {
    Executor executor(1);
    absl::Notification all_are_there;
    executor.Run([&] { all_are_there.WaitForNotification(); });
    executor.RunWhenIdle([&] {
      order.push_back(3);
      executor.Run([&] { order.push_back(4); });
    });
    executor.RunWhenIdle([&] { order.push_back(5); });
    executor.Run([&] { order.push_back(1); });
    executor.Run([&] { order.push_back(2); });
    all_are_there.Notify();
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4, 5}));
}

// Thousands of one owner hold up no other.
TEST(ExecutorTest, OwnersTakeTurns) {
  std::vector<std::string> order;
  {
    absl::Notification all_are_there;
    Executor executor(1);
    executor.Run([&] { all_are_there.WaitForNotification(); });
    const auto note = [&](const char* name) { return [&order, name] { order.push_back(name); }; };
    const int many = 0, few = 0;
    for (const char* name : {"a1", "a2", "a3", "a4"}) executor.Run(note(name), &many);
    executor.Run(note("b1"), &few);
    executor.Run(note("c"));
    executor.Run(note("b2"), &few);
    executor.Run(note("d"));
    all_are_there.Notify();
  }
  EXPECT_EQ(order, (std::vector<std::string>{"a1", "b1", "c", "d", "a2", "b2", "a3", "a4"}));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
