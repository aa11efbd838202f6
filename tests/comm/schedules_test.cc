// Programs of random collective calls over random groups, under random delays: none stops and none
// gives other bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/comm/ranks.h"
#include "tests/comm/sum_reference.h"

namespace quantgate {
namespace {

constexpr int kSchedules = 1000;
constexpr int kCalls = 8;
/// Every so many schedules have delays, which cost time.
constexpr int kNoisePeriod = 5;

struct ProgramCall {
  int kind = 0;
  std::string group;
  int64_t rows = 0;  ///< Of the first member; the others' follow from it.
};

struct Program {
  int size = 1;
  std::vector<std::pair<std::string, std::vector<std::vector<int>>>> groups;
  std::vector<ProgramCall> calls;  ///< In the one global order.
};

Program RandomProgram(std::mt19937& random) {
  Program program;
  program.size = kWorldSizes[random() % std::size(kWorldSizes)];
  for (const char* name : {"a", "b"}) {
    std::vector<int> ranks(program.size);
    for (int rank = 0; rank < program.size; ++rank) ranks[rank] = rank;
    std::shuffle(ranks.begin(), ranks.end(), random);
    std::vector<std::vector<int>> groups(1);
    for (const int rank : ranks) {
      if (!groups.back().empty() && random() % 3 == 0) groups.emplace_back();
      groups.back().push_back(rank);
    }
    program.groups.emplace_back(name, groups);
  }
  const char* const kNames[] = {"world", "a", "b"};
  for (int i = 0; i < kCalls; ++i) {
    program.calls.push_back(
        {static_cast<int>(random() % 5), kNames[random() % 3], static_cast<int64_t>(random() % 4)});
  }
  return program;
}

Tensor Source(int rank, size_t call, int64_t rows) {
  return SmallIntegers(rank + 8 * static_cast<int>(call), DType::kBF16, {rows, 3});
}

std::vector<Tensor> SourcesOf(const ProcessGroup& group, size_t call, int64_t rows, bool uneven) {
  std::vector<Tensor> sources;
  for (int place = 0; place < group.size(); ++place) {
    sources.push_back(Source(group.members()[place], call, uneven ? (rows + place) % 4 : rows));
  }
  return sources;
}

std::string ExpectedSum(const std::vector<Tensor>& sources) {
  std::vector<int64_t> rows_of_owners(sources.size());
  rows_of_owners[0] = sources[0].shape()[0];
  return SumByHand(sources, "rank_asc_fp32", rows_of_owners);
}

/// Sends around the ring of the group and gives what came from the one before.
absl::StatusOr<Tensor> AroundTheRing(ProcessGroup& group, const Tensor& own) {
  const int size = group.size();
  const absl::Status sent = group.Send(own, (group.rank() + 1) % size, 1);
  if (!sent.ok()) return sent;
  return group.Receive((group.rank() + size - 1) % size, 1);
}

void ExpectCall(ProcessGroup& group, const ProgramCall& call, size_t index) {
  const bool is_uneven = call.kind == 0 || call.kind == 4;
  const std::vector<Tensor> sources = SourcesOf(group, index, call.rows, is_uneven);
  const Tensor& own = sources[group.rank()];
  absl::StatusOr<Tensor> result;
  std::string expected;
  switch (call.kind) {
    case 0:
      result = group.AllGather(own);
      expected = BytesOf(sources);
      break;
    case 1:
      result = group.AllReduce(own, {});
      expected = ExpectedSum(sources);
      break;
    case 2:
      result = group.AllReduce(own, {ReductionKind::kUbP2p});
      expected = ExpectedSum(sources);  // Every sum is exact.
      break;
    case 3:
      result = group.Broadcast(own, group.size() - 1);
      expected = BytesOf(sources.back());
      break;
    default:
      result = AroundTheRing(group, own);
      expected = BytesOf(sources[(group.rank() + group.size() - 1) % group.size()]);
  }
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(BytesOf(*result), expected) << "kind " << call.kind << " on " << call.group;
}

TEST(Schedules, NoneOfAThousandStops) {
  for (int seed = 1; seed <= kSchedules; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(static_cast<uint32_t>(seed));
    const Program program = RandomProgram(random);
    WorldOptions options;
    if (seed % kNoisePeriod == 0) options.noise.seed = static_cast<uint64_t>(seed);
    Ranks ranks(program.size, std::move(options));
    for (const auto& [name, members] : program.groups) {
      ASSERT_TRUE(ranks.world().AddGroups(name, members).ok());
    }
    const absl::Status status = ranks.world().Run(
        [&](Rank& rank) {
          for (size_t i = 0; i < program.calls.size(); ++i) {
            ExpectCall(rank.group(program.calls[i].group), program.calls[i], i);
          }
          return absl::OkStatus();
        },
        nullptr);
    ASSERT_TRUE(status.ok()) << status;
  }
}

}  // namespace
}  // namespace quantgate
