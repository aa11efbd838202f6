#include "server/runs/live_runs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/limits.h"

namespace quantgate {
namespace QG_TEST_FILE {

std::shared_ptr<const std::string> Event(std::string bytes) {
  return std::make_shared<const std::string>(std::move(bytes));
}

TEST(LiveRunsTest, WakesOnceForTheEventThatIsWaitedFor) {
  LiveRuns runs;
  EXPECT_EQ(runs.Wait("a", 1, [](LiveRuns::Position) {}), 0);  // Not live.
  runs.Begin("a", nullptr);
  int wakes = 0;
  EXPECT_NE(runs.Wait("a", 1, [&](LiveRuns::Position) { ++wakes; }), 0);
  runs.Publish("b", 1, Event(""));
  EXPECT_EQ(wakes, 0);
  runs.Publish("a", 1, Event(""));
  runs.Publish("a", 2, Event(""));
  EXPECT_EQ(wakes, 1);
  EXPECT_EQ(runs.Wait("a", 2, [&](LiveRuns::Position) { ++wakes; }), 0);  // It is there.
  EXPECT_NE(runs.Wait("a", 3, [&](LiveRuns::Position) { ++wakes; }), 0);
  runs.End("a");
  EXPECT_EQ(wakes, 2);
  EXPECT_FALSE(runs.IsLive("a"));
}

TEST(LiveRunsTest, SaysWhatIsToComeAndWhichEventIsTheLast) {
  LiveRuns runs;
  runs.Begin("a", nullptr);
  EXPECT_TRUE(runs.IsToCome("a", 1));
  EXPECT_FALSE(runs.IsToCome("b", 1));
  std::vector<LiveRuns::Position> positions;
  const auto wake = [&](LiveRuns::Position position) { positions.push_back(position); };
  runs.Wait("a", 1, wake);
  runs.Publish("a", 1, Event(""));
  EXPECT_FALSE(runs.IsToCome("a", 1));
  EXPECT_TRUE(runs.IsToCome("a", 2));
  runs.Wait("a", 2, wake);
  runs.Publish("a", 2, Event(""), LiveRuns::Position::kLast);
  EXPECT_EQ(positions, (std::vector{LiveRuns::Position::kBeforeOthers, LiveRuns::Position::kLast}));
  runs.End("a");
  EXPECT_FALSE(runs.IsToCome("a", 3));
}

TEST(LiveRunsTest, AWaitEndsByItsWakeOrByStopping) {
  LiveRuns runs;
  runs.Begin("a", nullptr);
  int wakes = 0;
  const int64_t token = runs.Wait("a", 1, [&](LiveRuns::Position) { ++wakes; });
  EXPECT_TRUE(runs.StopWaiting("a", token));
  EXPECT_FALSE(runs.StopWaiting("a", token));
  runs.Publish("a", 1, Event(""));
  EXPECT_EQ(wakes, 0);
  const int64_t second = runs.Wait("a", 2, [&](LiveRuns::Position) { ++wakes; });
  runs.End("a");
  EXPECT_FALSE(runs.StopWaiting("a", second));
  EXPECT_EQ(wakes, 1);
}

TEST(LiveRunsTest, SaysWhichRunsDevicesAreAt) {
  LiveRuns runs;
  runs.Begin("a", nullptr);
  runs.Begin("b", nullptr);
  EXPECT_TRUE(runs.Running().empty());
  runs.SetRunning("b");
  runs.SetRunning("c");  // Not live.
  EXPECT_EQ(runs.Running(), (std::map<std::string, absl::Status>{{"b", absl::OkStatus()}}));
  runs.End("b");
  EXPECT_TRUE(runs.Running().empty());
}

TEST(LiveRunsTest, HasTheLatestEvents) {
  LiveRuns runs;
  EXPECT_EQ(runs.Hold("a"), nullptr);
  runs.Begin("a", nullptr);
  const std::shared_ptr<const LiveRuns::Live> held = runs.Hold("a");
  ASSERT_NE(held, nullptr);
  const auto text = [&](int64_t sequence) {
    const auto event = runs.EventOf(*held, sequence);
    return event == nullptr ? "none" : event->substr(0, 10);
  };
  EXPECT_EQ(text(1), "none");
  runs.Publish("a", 1, Event("first"));
  runs.Publish("a", 2, Event("second"));
  EXPECT_EQ(text(0), "none");
  EXPECT_EQ(text(1), "first");
  EXPECT_EQ(text(2), "second");
  EXPECT_EQ(text(3), "none");
  const auto second = runs.EventOf(*held, 2);
  // One that fills the memory alone is kept until the next one.
  runs.Publish("a", 3, Event(std::string(kLiveEventBytesMax + 1, 'x')));
  EXPECT_EQ(text(2), "none");
  EXPECT_EQ(text(3), "xxxxxxxxxx");
  runs.Publish("a", 4, Event("fourth"));
  EXPECT_EQ(text(3), "none");
  runs.Publish("a", 5, Event("fifth"), LiveRuns::Position::kLast);
  runs.End("a");
  EXPECT_EQ(runs.Hold("a"), nullptr);
  // Who follows it still has them.
  EXPECT_EQ(text(4), "fourth");
  EXPECT_EQ(text(5), "fifth");
  EXPECT_EQ(*second, "second");
}

TEST(LiveRunsTest, KeepsAsManyBytesOfEventsAsItIsTold) {
  LiveRuns runs(10);
  runs.Begin("a", nullptr);
  for (const int64_t sequence : {1, 2, 3}) runs.Publish("a", sequence, Event("12345"));
  EXPECT_EQ(runs.EventOf(*runs.Hold("a"), 1), nullptr);
  EXPECT_NE(runs.EventOf(*runs.Hold("a"), 2), nullptr);
  EXPECT_FALSE(runs.IsToCome("a", 1));
  EXPECT_EQ(runs.Wait("a", 1, [](LiveRuns::Position) {}), 0);
}

TEST(LiveRunsTest, EveryWaitEndsExactlyOnceUnderContention) {
  LiveRuns runs;
  runs.Begin("a", nullptr);
  std::atomic<int> ended{0}, waits{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int64_t sequence = 1; sequence <= 300; ++sequence) {
        const int64_t token = runs.Wait("a", sequence, [&](LiveRuns::Position) { ++ended; });
        if (token == 0) continue;
        ++waits;
        if (sequence % 3 == 0 && runs.StopWaiting("a", token)) ++ended;
      }
    });
  }
  for (int64_t sequence = 1; sequence <= 300; ++sequence) runs.Publish("a", sequence, Event(""));
  for (std::thread& thread : threads) thread.join();
  runs.End("a");
  EXPECT_EQ(ended, waits);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
