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

struct CallResult {
  absl::StatusOr<Tensor> tensor;
  std::string expected;  ///< Its bytes.
};

CallResult MakeCall(ProcessGroup& group, const ProgramCall& call, size_t index) {
  const bool is_uneven = call.kind == 0 || call.kind == 4;
  const std::vector<Tensor> sources = SourcesOf(group, index, call.rows, is_uneven);
  const Tensor& own = sources[group.rank()];
  switch (call.kind) {
    case 0:
      return {group.AllGather(own), BytesOf(sources)};
    case 1:
      return {group.AllReduce(own, {}), ExpectedSum(sources)};
    case 2:  // Every sum is exact.
      return {group.AllReduce(own, {ReductionKind::kUbP2p}), ExpectedSum(sources)};
    case 3:
      return {group.Broadcast(own, group.size() - 1), BytesOf(sources.back())};
    default:
      return {AroundTheRing(group, own),
              BytesOf(sources[(group.rank() + group.size() - 1) % group.size()])};
  }
}

/// A rank that ends before a call of its program, as if it had been killed.
struct Death {
  int rank = -1;  ///< Nobody.
  size_t call = 0;
};

absl::Status RunProgram(Ranks& ranks, const Program& program, Death death = {}) {
  for (const auto& [name, members] : program.groups) {
    if (absl::Status status = ranks.world().AddGroups(name, members); !status.ok()) return status;
  }
  return ranks.world().Run(
      [&](Rank& rank) -> absl::Status {
        for (size_t i = 0; i < program.calls.size(); ++i) {
          if (rank.index() == death.rank && i == death.call) return absl::InternalError("killed");
          const ProgramCall& call = program.calls[i];
          const CallResult result = MakeCall(rank.group(call.group), call, i);
          if (!result.tensor.ok()) return result.tensor.status();
          EXPECT_EQ(BytesOf(*result.tensor), result.expected)
              << "kind " << call.kind << " on " << call.group;
        }
        return absl::OkStatus();
      },
      nullptr);
}

TEST(Schedules, NoneOfAThousandStops) {
  static_assert(kSchedules / kNoisePeriod >= 100, "at least 100 of them have delays");
  for (int seed = 1; seed <= kSchedules; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(static_cast<uint32_t>(seed));
    const Program program = RandomProgram(random);
    WorldOptions options;
    if (seed % kNoisePeriod == 0) options.noise.seed = static_cast<uint64_t>(seed);
    Ranks ranks(program.size, std::move(options));
    const absl::Status status = RunProgram(ranks, program);
    ASSERT_TRUE(status.ok()) << status;
  }
}

// Whatever the others are in the middle of: they end too, the run says who died, and the same
// engines do the whole program after.
TEST(Schedules, ARankThatDiesEndsItsRunAlone) {
  constexpr int kDeaths = 200;
  for (int seed = 1; seed <= kDeaths; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(static_cast<uint32_t>(seed));
    const Program program = RandomProgram(random);
    const Death death{static_cast<int>(random() % static_cast<uint32_t>(program.size)),
                      random() % program.calls.size()};
    WorldOptions options;
    if (seed % kNoisePeriod == 0) options.noise.seed = static_cast<uint64_t>(seed);
    Ranks ranks(program.size, std::move(options));
    EXPECT_EQ(RunProgram(ranks, program, death),
              absl::InternalError("rank " + std::to_string(death.rank) + ": killed"));
    Ranks again(std::move(ranks), {});
    const absl::Status status = RunProgram(again, program);
    ASSERT_TRUE(status.ok()) << status;
  }
}

}  // namespace
}  // namespace quantgate
