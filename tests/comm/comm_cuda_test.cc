// Collective calls of ranks on GPUs: bytes where they belong, and the sums of CPU ranks, whatever
// moves the bytes.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <vector>

#include "kernels/engine/cuda_module.h"
#include "tests/comm/cuda_worlds.h"
#include "tests/comm/ranks.h"
#include "tests/comm/sum_reference.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// Even, uneven beginning with none, none.
std::vector<std::vector<int64_t>> RowsOfRanks(int size) {
  std::vector<std::vector<int64_t>> cases(3);
  for (int rank = 0; rank < size; ++rank) {
    cases[0].push_back(37);
    cases[1].push_back(rank * 3);
    cases[2].push_back(0);
  }
  return cases;
}

TEST(CudaRanks, GatherShards) {
  for (const CudaWorldCase& world : CudaWorldCases()) {
    CudaRanks ranks(world);
    for (const DType dtype : {DType::kBF16, DType::kF8E4M3, DType::kI64}) {
      for (const std::vector<int64_t>& rows : RowsOfRanks(world.size)) {
        std::vector<Tensor> shards;
        for (int rank = 0; rank < world.size; ++rank) {
          shards.push_back(MarkedTensor(rank, dtype, {rows[rank], 5, 3}));
        }
        const auto wholes = ranks.TensorOfEach(
            [&](Rank& rank) { return rank.group("world").AllGather(shards[rank.index()]); });
        for (const Tensor& whole : wholes) {
          EXPECT_EQ(BytesOf(whole), BytesOf(shards)) << CaseText(world);
        }
        const auto joined = ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
          const auto parts = rank.group("world").AllGatherParts(shards[rank.index()]);
          if (!parts.ok()) return parts.status();
          return rank.engine().ConcatenateRows(*parts, nullptr);
        });
        for (const Tensor& whole : joined) {
          EXPECT_EQ(BytesOf(whole), BytesOf(shards)) << CaseText(world);
        }
      }
    }
  }
}

TEST(CudaRanks, HandPartsToTheirOwners) {
  const auto part = [](int from, int to) {
    return MarkedTensor(from * 8 + to, DType::kF8E5M2, {(from + 2 * to) % 5, 7});
  };
  for (const CudaWorldCase& world : CudaWorldCases()) {
    CudaRanks ranks(world);
    const auto received = ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
      std::vector<Tensor> parts;
      for (int to = 0; to < world.size; ++to) parts.push_back(part(rank.index(), to));
      const auto mine = rank.group("world").AllToAll(parts);
      if (!mine.ok()) return mine.status();
      return rank.engine().ConcatenateRows(*mine, nullptr);
    });
    for (int to = 0; to < world.size; ++to) {
      std::vector<Tensor> expected;
      for (int from = 0; from < world.size; ++from) expected.push_back(part(from, to));
      EXPECT_EQ(BytesOf(received[to]), BytesOf(expected)) << CaseText(world);
    }
  }
}

/// By column: the rank; NaN but for the last; NaN; an infinity; zeros of both signs; the least
/// subnormal.
TEST(CudaRanks, TakeMaximaAsFmaxf) {
  const float nan = std::bit_cast<float>(0xFFC01234u);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const CudaWorldCase& world : CudaWorldCases()) {
    CudaRanks ranks(world);
    const int last = world.size - 1;
    const auto maxima = ranks.TensorOfEach([&](Rank& rank) {
      const bool is_last = rank.index() == last;
      const float values[] = {static_cast<float>(rank.index()), is_last ? -0.5f : nan,  nan,
                              is_last ? infinity : -3.0f,       is_last ? 0.0f : -0.0f, -0.0f,
                              is_last ? 0x1p-149f : -1.0f};
      return rank.group("world").AllReduceMax(
          *Tensor::FromBytes(DType::kF32, {7}, std::as_bytes(std::span(values))));
    });
    const float expected[] = {static_cast<float>(last),
                              -0.5f,
                              std::bit_cast<float>(0x7FFFFFFFu),
                              infinity,
                              0.0f,
                              -0.0f,
                              0x1p-149f};
    for (const Tensor& tensor : maxima) {
      EXPECT_EQ(std::memcmp(tensor.data(), expected, sizeof(expected)), 0) << CaseText(world);
    }
  }
}

/// Ordered sums are the same on any rank of any device, by whatever moves the parts.
TEST(CudaRanks, SumInTheOrderOfTheProfile) {
  for (const CudaWorldCase& world : CudaWorldCases()) {
    CudaRanks ranks(world);
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      std::vector<Tensor> partials;
      std::vector<int64_t> rows;
      for (int rank = 0; rank < world.size; ++rank) {
        partials.push_back(OrderSensitive(rank, dtype, {37, 129}));
        rows.push_back(37 / world.size + (rank < 37 % world.size ? 1 : 0));
      }
      for (const ReductionProfile& profile : OrderedProfiles()) {
        const std::string name = ReductionProfileName(profile);
        const std::string expected = SumByHand(partials, name, rows);
        const auto sums = ranks.TensorOfEach([&](Rank& rank) {
          return rank.group("world").AllReduce(partials[rank.index()], profile);
        });
        for (const Tensor& sum : sums) {
          EXPECT_EQ(BytesOf(sum), expected) << CaseText(world) << " " << name;
        }
        const auto blocks = ranks.TensorOfEach([&](Rank& rank) {
          return rank.group("world").ReduceScatter(partials[rank.index()], rows, profile);
        });
        EXPECT_EQ(BytesOf(blocks), expected) << CaseText(world) << " " << name;
      }
    }
  }
}

TEST(CudaRanks, GroupsOverTheSameDevices) {
  for (const CudaWorldCase& world : CudaWorldCases()) {
    if (world.size != 4) continue;
    CudaRanks ranks(world, {.noise = {.seed = 11}});
    ASSERT_TRUE(ranks.world().AddGroups("tp", {{1, 0}, {2, 3}}).ok());
    ASSERT_TRUE(ranks.world().AddGroups("dp", {{0, 2}, {3, 1}}).ok());
    const auto shard = [](int rank, int round) {
      return MarkedTensor(rank * 100 + round, DType::kU8, {rank + 1, 1021});
    };
    constexpr int kRounds = 40;
    std::vector<std::vector<std::string>> tp(4), dp(4);
    ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
      for (int round = 0; round < kRounds; ++round) {
        for (auto& [group, all] : {std::pair("tp", &tp), std::pair("dp", &dp)}) {
          const auto whole = rank.group(group).AllGather(shard(rank.index(), round));
          if (!whole.ok()) return whole.status();
          (*all)[rank.index()].push_back(BytesOf(*rank.engine().ToHost(*whole, nullptr)));
        }
      }
      return shard(rank.index(), 0);
    });
    const std::vector<std::vector<int>> tp_of = {{1, 0}, {1, 0}, {2, 3}, {2, 3}};
    const std::vector<std::vector<int>> dp_of = {{0, 2}, {3, 1}, {0, 2}, {3, 1}};
    for (int rank = 0; rank < 4; ++rank) {
      for (int round = 0; round < kRounds; ++round) {
        const auto expected = [&](const std::vector<int>& members) {
          return BytesOf({shard(members[0], round), shard(members[1], round)});
        };
        EXPECT_EQ(tp[rank][round], expected(tp_of[rank])) << CaseText(world) << " " << round;
        EXPECT_EQ(dp[rank][round], expected(dp_of[rank])) << CaseText(world) << " " << round;
      }
    }
  }
}

// ---- NCCL's worlds

TEST(NcclWorld, SaysItsVersionAndEnvironment) {
  for (const CudaWorldCase& world : CudaWorldCases(CollectiveBackend::kNccl)) {
    CudaRanks ranks(world);
    const std::string name = ranks.world().transport().name();
    EXPECT_TRUE(name.starts_with("nccl 2.")) << name;
    EXPECT_NE(name.find("NCCL_NVLS_ENABLE=0"), std::string::npos) << name;
    std::cerr << CaseText(world) << ": " << name << "\n";
  }
}

TEST(NcclWorld, NeedsADeviceForEachRank) {
  auto first = MakeCudaEngine(0), second = MakeCudaEngine(0);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  const auto cpu = MakeCpuEngine({.threads = 1});
  const auto create = [](std::vector<Engine*> engines) {
    return World::Create({.engines = std::move(engines), .backend = CollectiveBackend::kNccl})
        .status();
  };
  const absl::Status shared = create({first->get(), second->get()});
  EXPECT_EQ(shared.code(), absl::StatusCode::kFailedPrecondition) << shared;
  EXPECT_NE(shared.message().find("ranks 0 and 1 are both on cuda:0"), std::string::npos) << shared;
  const absl::Status mixed = create({first->get(), cpu.get()});
  EXPECT_EQ(mixed.code(), absl::StatusCode::kFailedPrecondition) << mixed;
  EXPECT_NE(mixed.message().find("rank 1 is on cpu"), std::string::npos) << mixed;
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
