#include "tests/comm/random_programs.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/comm/ranks.h"
#include "tests/comm/sum_reference.h"

namespace quantgate {
namespace {

constexpr int kCalls = 8;

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

/// What the last of the group's members has.
absl::StatusOr<Tensor> OfTheLast(ProcessGroup& group, const Tensor& own) {
  const absl::StatusOr<std::vector<Tensor>> parts = group.AllGatherParts(own);
  if (!parts.ok()) return parts.status();
  return parts->back();
}

/// What the member before this one sends to all.
absl::StatusOr<Tensor> OfTheOneBefore(ProcessGroup& group, const Tensor& own) {
  const int size = group.size();
  const absl::StatusOr<std::vector<Tensor>> received =
      group.AllToAll(std::vector<Tensor>(static_cast<size_t>(size), own));
  if (!received.ok()) return received.status();
  return (*received)[static_cast<size_t>((group.rank() + size - 1) % size)];
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
      return {OfTheLast(group, own), BytesOf(sources.back())};
    default:
      return {OfTheOneBefore(group, own),
              BytesOf(sources[(group.rank() + group.size() - 1) % group.size()])};
  }
}

}  // namespace

RandomProgram RandomProgram::Draw(int size, std::mt19937& random) {
  RandomProgram program;
  for (const char* name : {"a", "b"}) {
    std::vector<int> ranks(size);
    for (int rank = 0; rank < size; ++rank) ranks[rank] = rank;
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

absl::Status RunProgram(World& world, const RandomProgram& program, Death death) {
  for (const auto& [name, members] : program.groups) {
    if (absl::Status status = world.AddGroups(name, members); !status.ok()) return status;
  }
  return world.Run(
      [&](Rank& rank) -> absl::Status {
        for (size_t i = 0; i < program.calls.size(); ++i) {
          if (rank.index() == death.rank && i == death.call) return absl::InternalError("killed");
          const ProgramCall& call = program.calls[i];
          const CallResult result = MakeCall(rank.group(call.group), call, i);
          if (!result.tensor.ok()) return result.tensor.status();
          const absl::StatusOr<Tensor> on_host = rank.engine().ToHost(*result.tensor, nullptr);
          if (!on_host.ok()) return on_host.status();
          EXPECT_EQ(BytesOf(*on_host), result.expected)
              << "kind " << call.kind << " on " << call.group;
        }
        return absl::OkStatus();
      },
      nullptr);
}

}  // namespace quantgate
