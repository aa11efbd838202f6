// Runs of task graphs as they are on a GPU, where each rank's thread puts its tasks on queues:
// every task comes after what it depends on, and a failure of one rank ends the run of all. On
// threads as on queues, a wait for a rank that does not come is over with the deadline.
#include "kernels/comm/overlap/overlap_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int kRanks = 4;

/// Notes which tasks have been put on which engine.
class Log {
 public:
  void Note(int task, Engine& engine) {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(task);
    engines_.push_back(&engine);
  }
  /// Where a task is among those noted.
  size_t PlaceOf(int task) const {
    return static_cast<size_t>(std::find(tasks_.begin(), tasks_.end(), task) - tasks_.begin());
  }
  const std::vector<int>& tasks() const { return tasks_; }
  Engine* engine_of(int task) const { return engines_[PlaceOf(task)]; }

 private:
  std::mutex mutex_;
  std::vector<int> tasks_;
  std::vector<Engine*> engines_;
};

/// Queues that do at once what is put on them.
struct Queues {
  Queues() {
    for (int rank = 0; rank < kRanks; ++rank) {
      OverlapLanes& mine = lanes.emplace_back();
      for (Engine*& lane : mine) {
        engines.push_back(MakeCpuEngine({.threads = 1}));
        lane = engines.back().get();
      }
    }
  }
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<OverlapLanes> lanes;
};

/// Tasks of any rank on any queue, after any earlier ones of any rank.
TaskGraph RandomGraph(uint64_t seed, Log& log) {
  std::mt19937_64 random(seed);
  TaskGraph graph(kRanks);
  for (int task = 0; task < 80; ++task) {
    const int rank = static_cast<int>(random() % kRanks);
    const int other = static_cast<int>(random() % kRanks);
    std::vector<int> after;
    for (int i = 0; i < 3 && task > 0; ++i) {
      after.push_back(static_cast<int>(random() % static_cast<uint64_t>(task)));
    }
    const auto resource = static_cast<OverlapResource>(random() % 3);
    const bool is_beside = resource == OverlapResource::kCompute && random() % 2 == 0;
    EXPECT_TRUE(graph
                    .Add({absl::StrCat("task ", task), rank, resource, other == rank ? -1 : other,
                          std::move(after),
                          [&log, task](Engine& engine) {
                            log.Note(task, engine);
                            return absl::OkStatus();
                          },
                          is_beside})
                    .ok());
  }
  return graph;
}

/// The status of each rank.
std::vector<absl::Status> RunAll(OverlapRun& run) {
  std::vector<absl::Status> statuses(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = run.RunRank(rank, nullptr); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

TEST(QueuedRun, PutsEachTaskAfterWhatItDependsOn) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Log log;
    Queues queues;
    const TaskGraph graph = RandomGraph(seed, log);
    OverlapRun run(graph, queues.lanes, {.queues_work = true, .noise = {.seed = seed}});
    for (const absl::Status& status : RunAll(run)) EXPECT_TRUE(status.ok()) << status;
    ASSERT_EQ(log.tasks().size(), graph.tasks().size());
    for (size_t i = 0; i < graph.tasks().size(); ++i) {
      const OverlapTask& task = graph.tasks()[i];
      for (const int earlier : task.after) {
        EXPECT_LT(log.PlaceOf(earlier), log.PlaceOf(static_cast<int>(i))) << seed;
      }
      EXPECT_EQ(log.engine_of(static_cast<int>(i)),
                queues.lanes[task.rank][static_cast<size_t>(task.queue())]);
    }
  }
}

/// Tasks of one queue are put there in the order of the graph.
TEST(QueuedRun, KeepsTheOrderOfEachQueue) {
  Log log;
  Queues queues;
  const TaskGraph graph = RandomGraph(7, log);
  OverlapRun run(graph, queues.lanes, {.queues_work = true, .noise = {.seed = 7}});
  for (const absl::Status& status : RunAll(run)) EXPECT_TRUE(status.ok()) << status;
  for (int rank = 0; rank < kRanks; ++rank) {
    size_t last = 0;
    for (const int task : graph.TasksOf(rank)) {
      EXPECT_GE(log.PlaceOf(task), last);
      last = log.PlaceOf(task);
    }
  }
}

/// A rank's GEMMs before its first copy, then the call, then the rest.
TEST(QueuedRun, CallsBeforeTheFirstCopy) {
  Queues queues;
  Log log;
  TaskGraph graph(kRanks);
  const auto add = [&](int rank, OverlapResource resource) {
    const int task = static_cast<int>(graph.tasks().size());
    ASSERT_TRUE(graph
                    .Add({absl::StrCat("task ", task),
                          rank,
                          resource,
                          -1,
                          {},
                          [&log, task](Engine& engine) {
                            log.Note(task, engine);
                            return absl::OkStatus();
                          }})
                    .ok());
  };
  for (int rank = 0; rank < kRanks; ++rank) {
    add(rank, OverlapResource::kCompute);
    add(rank, OverlapResource::kReceive);
    add(rank, OverlapResource::kCompute);
  }
  OverlapRunOptions options{.queues_work = true};
  for (int rank = 0; rank < kRanks; ++rank) {
    options.before_copies.push_back([&, rank](const absl::Status& so_far) {
      log.Note(100 + rank, *queues.lanes[rank][0]);
      return so_far;
    });
  }
  OverlapRun run(graph, queues.lanes, options);
  for (const absl::Status& status : RunAll(run)) EXPECT_TRUE(status.ok()) << status;
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_LT(log.PlaceOf(3 * rank), log.PlaceOf(100 + rank));
    EXPECT_LT(log.PlaceOf(100 + rank), log.PlaceOf(3 * rank + 1));
    EXPECT_LT(log.PlaceOf(3 * rank + 1), log.PlaceOf(3 * rank + 2));
  }
}

/// Whoever fails, all ranks get that failure, and each of them is asked once before its copies.
TEST(QueuedRun, EndsForAllWhereOneFails) {
  for (int failing = 0; failing < kRanks; ++failing) {
    Queues queues;
    TaskGraph graph(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      const absl::Status status =
          rank == failing ? absl::ResourceExhaustedError("full") : absl::OkStatus();
      ASSERT_TRUE(graph
                      .Add({"gemm",
                            rank,
                            OverlapResource::kCompute,
                            -1,
                            {},
                            [status](Engine&) { return status; }})
                      .ok());
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_TRUE(graph
                      .Add({"copy",
                            rank,
                            OverlapResource::kReceive,
                            (rank + 1) % kRanks,
                            {(rank + 1) % kRanks},
                            [](Engine&) { return absl::OkStatus(); }})
                      .ok());
    }
    std::vector<int> asked(kRanks);
    std::vector<int> was_told(kRanks);
    OverlapRunOptions options{.queues_work = true};
    for (int rank = 0; rank < kRanks; ++rank) {
      options.before_copies.push_back([&, rank](const absl::Status& so_far) {
        ++asked[rank];
        if (rank == failing) was_told[rank] = !so_far.ok();
        return so_far;
      });
    }
    OverlapRun run(graph, queues.lanes, options);
    for (const absl::Status& status : RunAll(run)) {
      EXPECT_EQ(status.message(), absl::StrCat("rank ", failing, ", gemm: full"));
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    }
    EXPECT_EQ(asked, std::vector<int>(kRanks, 1));
    EXPECT_TRUE(was_told[failing]);
  }
}

/// Adds a task that depends on `after`, and gives its index.
int AddTask(TaskGraph& graph, std::string name, int rank, OverlapResource resource,
            std::vector<int> after, std::function<absl::Status()> work) {
  return *graph.Add({std::move(name), rank, resource, -1, std::move(after),
                     [work = std::move(work)](Engine&) { return work(); }});
}

absl::Status Nothing() { return absl::OkStatus(); }

constexpr absl::Duration kDeadline = absl::Milliseconds(50);

/// Ranks 2 and 3 wait for 1, rank 0 for 2, and rank 1 is stuck until they have ended.
TEST(LateRank, IsNamedAsTheOneThatHoldsTheOthersUp) {
  for (const bool queues_work : {false, true}) {
    Queues queues;
    TaskGraph graph(kRanks);
    std::latch others_have_ended(kRanks - 1);
    const auto wait = [&] {
      others_have_ended.wait();
      return absl::OkStatus();
    };
    const int first = AddTask(graph, "gemm a", 1, OverlapResource::kCompute, {}, wait);
    const int second = AddTask(graph, "gemm b", 1, OverlapResource::kCompute, {}, Nothing);
    const int copy = AddTask(graph, "copy", 2, OverlapResource::kReceive, {second}, Nothing);
    AddTask(graph, "sum", 0, OverlapResource::kReduce, {copy}, Nothing);
    AddTask(graph, "copy", 3, OverlapResource::kReceive, {first}, Nothing);
    OverlapRun run(graph, queues.lanes, {.queues_work = queues_work, .deadline = kDeadline});
    std::vector<absl::Status> statuses(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        statuses[rank] = run.RunRank(rank, nullptr);
        if (rank != 1) others_have_ended.count_down();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status, statuses[0]);
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_THAT(std::string(status.message()),
                  testing::HasSubstr("rank 1 did not come to the end of gemm a within 50ms"));
    }
  }
}

/// Ranks `here` of a run whose tasks depend on nothing of the others.
std::vector<absl::Status> StatusOfSome(const TaskGraph& graph, const std::vector<int>& here,
                                       bool queues_work) {
  Queues queues;
  OverlapRun run(graph, queues.lanes, {.queues_work = queues_work, .deadline = kDeadline});
  std::vector<absl::Status> statuses(here.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < here.size(); ++i) {
    threads.emplace_back([&, i] { statuses[i] = run.RunRank(here[i], nullptr); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

/// A peer's memory is read once the peer has come.
TEST(LateRank, IsAPeerThatDoesNotCome) {
  for (const bool queues_work : {false, true}) {
    TaskGraph graph(kRanks);
    ASSERT_TRUE(
        graph.Add({"copy", 0, OverlapResource::kReceive, 3, {}, [](Engine&) { return Nothing(); }})
            .ok());
    EXPECT_EQ(StatusOfSome(graph, {0}, queues_work)[0],
              absl::DeadlineExceededError("rank 0, copy: rank 3 did not come within 50ms"));
  }
}

/// On queues a rank stays until all have put their tasks there, but no longer than the deadline.
TEST(LateRank, IsOneThatDoesNotPutItsTasksOnQueues) {
  TaskGraph graph(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    AddTask(graph, "gemm", rank, OverlapResource::kCompute, {}, Nothing);
  }
  for (const absl::Status& status : StatusOfSome(graph, {0, 1, 3}, true)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("rank 2 did not come within 50ms"));
  }
}

/// Nor where one fails and another does not come: the failure is everybody's.
TEST(LateRank, DoesNotHideAFailure) {
  TaskGraph graph(kRanks);
  AddTask(graph, "gemm", 0, OverlapResource::kCompute, {},
          [] { return absl::ResourceExhaustedError("full"); });
  for (const absl::Status& status : StatusOfSome(graph, {0, 1, 3}, true)) {
    EXPECT_EQ(status, absl::ResourceExhaustedError("rank 0, gemm: full"));
  }
}

/// A deadline, or several, one after the other: some other run's is over.
void LetDeadlinesPass(int count) {
  for (int i = 0; i < count; ++i) {
    TaskGraph never(kRanks);
    const int task = AddTask(never, "never", 1, OverlapResource::kCompute, {}, Nothing);
    AddTask(never, "copy", 0, OverlapResource::kReceive, {task}, Nothing);
    EXPECT_FALSE(StatusOfSome(never, {0}, false)[0].ok());
  }
}

/// A rank that has something to do does not wait for others, however long that takes.
TEST(Deadline, IsNotCountedWhileTheRankComputes) {
  Queues queues;
  TaskGraph graph(kRanks);
  std::latch other_is_done(1);
  const int gemm = AddTask(graph, "gemm", 1, OverlapResource::kCompute, {}, [] {
    LetDeadlinesPass(3);
    return absl::OkStatus();
  });
  const auto other_goes_on = [&] {
    if (!other_is_done.try_wait()) other_is_done.count_down();
    return absl::OkStatus();
  };
  AddTask(graph, "gemm after it", 1, OverlapResource::kCompute, {gemm}, other_goes_on);
  AddTask(graph, "long gemm", 0, OverlapResource::kCompute, {}, [&] {
    other_is_done.wait();
    return absl::OkStatus();
  });
  AddTask(graph, "copy", 0, OverlapResource::kReceive, {gemm}, Nothing);
  OverlapRun run(graph, queues.lanes, {.deadline = kDeadline});
  std::vector<absl::Status> statuses(2);
  std::thread other([&] {
    statuses[1] = run.RunRank(1, nullptr);
    EXPECT_TRUE(other_goes_on().ok());  // Where it has not come so far.
  });
  statuses[0] = run.RunRank(0, nullptr);
  other.join();
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

/// Others may still read a rank's memory when its own tasks are done.
TEST(Run, ReturnsWhenNobodyUsesTheRanksMemory) {
  for (const bool queues_work : {false, true}) {
    Queues queues;
    TaskGraph graph(2);
    std::atomic<bool> has_returned = false;
    AddTask(graph, "gemm", 0, OverlapResource::kCompute, {}, Nothing);
    ASSERT_TRUE(graph
                    .Add({"copy",
                          1,
                          OverlapResource::kReceive,
                          /*peer=*/0,
                          {},
                          [&](Engine&) {
                            LetDeadlinesPass(1);
                            EXPECT_FALSE(has_returned) << "on queues: " << queues_work;
                            return absl::OkStatus();
                          }})
                    .ok());
    OverlapRun run(graph, {queues.lanes[0], queues.lanes[1]}, {.queues_work = queues_work});
    std::thread other([&] { EXPECT_TRUE(run.RunRank(1, nullptr).ok()); });
    EXPECT_TRUE(run.RunRank(0, nullptr).ok());
    has_returned = true;
    other.join();
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
