// What is counted of collective calls and of runs that fail.
#include "kernels/comm/group/comm_statistics.h"

#include <gtest/gtest.h>

#include "tests/comm/ranks.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr auto kLocal = CollectiveBackend::kLocal;

int64_t FailuresOf(const CommStatistics& statistics, CommFailure failure) {
  return statistics.Read(kLocal).failures[static_cast<size_t>(failure)];
}

TEST(CommStatistics, CountsACallOncePerGroupAndTheBytesOfAll) {
  CommStatistics statistics;
  WorldOptions options;
  options.statistics = &statistics;
  Ranks ranks(4, std::move(options));
  ASSERT_TRUE(ranks.world().AddGroups("tp", {{0, 1}, {2, 3}}).ok());
  ranks.TensorOfEach([](Rank& rank) {
    return rank.group("tp").AllGather(MarkedTensor(rank.index(), DType::kU8, {rank.index(), 5}));
  });
  ranks.TensorOfEach([](Rank& rank) {
    return rank.group(kWorldGroup).AllReduceMax(MarkedTensor(rank.index(), DType::kF32, {3}));
  });
  const CommStatistics::Totals totals = statistics.Read(kLocal);
  const auto& gathers = totals.calls[static_cast<size_t>(CallKind::kAllGather)];
  EXPECT_EQ(gathers.count, 2);
  EXPECT_EQ(gathers.bytes, (0 + 1 + 2 + 3) * 5);
  EXPECT_GT(gathers.wait_seconds, 0);
  const auto& maxima = totals.calls[static_cast<size_t>(CallKind::kAllReduceMax)];
  EXPECT_EQ(maxima.count, 1);
  EXPECT_EQ(maxima.bytes, 4 * 12);
  EXPECT_EQ(totals.runs, 2);
  for (const int64_t failures : totals.failures) EXPECT_EQ(failures, 0);
  EXPECT_EQ(statistics.Read(CollectiveBackend::kNccl).runs, 0);
}

TEST(CommStatistics, SaysWhyRunsFailed) {
  CommStatistics statistics;
  const auto run = [&](const std::function<absl::Status(Rank&)>& body,
                       const Cancellation* cancellation = nullptr) {
    WorldOptions options;
    options.statistics = &statistics;
    Ranks ranks(2, std::move(options));
    EXPECT_FALSE(ranks.world().Run(body, cancellation).ok());
  };
  const auto barrier = [](Rank& rank) { return rank.group(kWorldGroup).Barrier(); };
  run([&](Rank& rank) {
    if (rank.index() == 0) return barrier(rank);
    return rank.group(kWorldGroup).AllReduceMax(MarkedTensor(1, DType::kF32, {3})).status();
  });
  EXPECT_EQ(FailuresOf(statistics, CommFailure::kMismatch), 1);
  run([&](Rank& rank) {
    return rank.index() == 0 ? barrier(rank) : absl::FailedPreconditionError("not now");
  });
  EXPECT_EQ(FailuresOf(statistics, CommFailure::kRank), 1);
  Cancellation cancellation;
  cancellation.Cancel();
  run([&](Rank& rank) { return rank.cancellation()->Check(); }, &cancellation);
  EXPECT_EQ(FailuresOf(statistics, CommFailure::kCancelled), 1);
  EXPECT_EQ(FailuresOf(statistics, CommFailure::kDeadline), 0);
  EXPECT_EQ(statistics.Read(kLocal).runs, 3);
}

TEST(CommStatistics, CountsCommunicatorsByEvent) {
  CommStatistics statistics;
  statistics.RecordCommunicators(CommunicatorEvent::kMade, 4);
  statistics.RecordCommunicators(CommunicatorEvent::kLeased, 2);
  statistics.RecordCommunicators(CommunicatorEvent::kLeased, 3);
  statistics.RecordCommunicators(CommunicatorEvent::kAborted, 1);
  EXPECT_EQ(statistics.ReadCommunicators(), (std::array<int64_t, 4>{4, 5, 0, 1}));
  EXPECT_EQ(CommunicatorEventName(CommunicatorEvent::kMade), "made");
  EXPECT_EQ(CommunicatorEventName(CommunicatorEvent::kAborted), "aborted");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
