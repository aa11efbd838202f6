// Virtual ranks of scenarios: an engine each, with the fault that is around the one looked at.
#include "kernels/validate/scenarios/ranks/virtual_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/validate/scenarios/faults/faulty_engine.h"
#include "kernels/validate/scenarios/ranks/rank_places.h"

namespace quantgate {
namespace QG_TEST_FILE {

Engine& Looked() {
  static Engine& engine = *MakeCpuEngine({}).release();
  return engine;
}

/// Casts to nothing but zeros.
EngineAlterations ZeroCasts() {
  return {.cast = [](Engine&, const Tensor& source, DType out,
                     const Cancellation*) -> absl::StatusOr<Tensor> {
    QG_ASSIGN_OR_RETURN(Tensor zeros, Tensor::Allocate(out, source.shape()));
    std::fill_n(zeros.data(), zeros.byte_size(), std::byte{0});
    return zeros;
  }};
}

ScenarioContext ContextOn(Engine& engine) {
  static const SeededFaults& none = *new SeededFaults;
  return ScenarioContext({engine, Looked(), none}, *Recipe::Parse("bf16"));
}

TEST(VirtualRanks, HaveAnEngineEachAndKeepIt) {
  ScenarioContext context = ContextOn(Looked());
  const std::vector<Engine*> three = *context.RankEngines(3);
  const std::vector<Engine*> five = *context.RankEngines(5);
  EXPECT_EQ(std::set<Engine*>(five.begin(), five.end()).size(), 5u);
  EXPECT_EQ(std::vector<Engine*>(five.begin(), five.begin() + 3), three);
  EXPECT_EQ(std::count(five.begin(), five.end(), &Looked()), 0);
  const auto world = MakeVirtualRanks(context, 4);
  ASSERT_TRUE(world.ok());
  EXPECT_TRUE(RunBodies(context, "engines", **world, [&](Rank& rank) {
    EXPECT_EQ(&rank.engine(), five[static_cast<size_t>(rank.index())]);
    return absl::OkStatus();
  }));
}

TEST(VirtualRanks, HaveTheFaultThatIsAroundTheEngine) {
  FaultyEngine faulty(Looked(), ZeroCasts());
  ScenarioContext context = ContextOn(faulty);
  const Tensor one = *Tensor::FromScalar(1.0f);
  int ranks = 0;
  const bool is_done = RunOnRanks(context, 2, "casts", [&](const GatherContext& rank) {
    const absl::StatusOr<Tensor> cast = rank.engine.Cast(one, DType::kBF16, nullptr);
    EXPECT_EQ(*cast->as<uint16_t>(), 0);
    if (rank.group.rank() == 0) ranks = rank.group.size();
    return cast.status();
  });
  EXPECT_TRUE(is_done);
  EXPECT_EQ(ranks, 2);
  EXPECT_EQ(*Looked().Cast(one, DType::kBF16, nullptr)->as<uint16_t>(), 0x3F80);
}

TEST(VirtualRanks, FaultsGoAroundAnyEngineOfARank) {
  FaultyEngine faulty(Looked(), ZeroCasts());
  const auto gpu = MakeCpuEngine({Isa::kScalar, 1});  // In the place of another device's engine.
  const auto cast = [&](Engine& model) {
    const std::unique_ptr<Engine> of_rank = FaultyEngine::AroundAs(model, *gpu);
    const Tensor one = *Tensor::FromScalar(1.0f);
    return *of_rank->Cast(one, DType::kBF16, nullptr)->as<uint16_t>();
  };
  EXPECT_EQ(cast(faulty), 0);
  EXPECT_EQ(cast(Looked()), 0x3F80);
}

TEST(VirtualRanks, SayHowTheyWerePlaced) {
  ScenarioContext context = ContextOn(Looked());
  EXPECT_TRUE(context.rank_placements().empty());
  for (const int size : {4, 1, 4}) EXPECT_TRUE(MakeVirtualRanks(context, size).ok());
  const RankPlacements expected = {{{CollectiveBackend::kLocal, "local"}, {1, 4}}};
  EXPECT_EQ(context.rank_placements(), expected);
  RankPlacements together = {{{CollectiveBackend::kLocal, "local"}, {2}},
                             {{CollectiveBackend::kNccl, "nccl 2.28.9"}, {4}}};
  AddPlacements(context.rank_placements(), together);
  EXPECT_EQ(together, (RankPlacements{{{CollectiveBackend::kLocal, "local"}, {1, 2, 4}},
                                      {{CollectiveBackend::kNccl, "nccl 2.28.9"}, {4}}}));
}

TEST(VirtualRanks, GpusOfTheirOwnNeedGpus) {
  const auto local = RankPlaces::Create(CollectiveBackend::kLocal, Looked());
  ASSERT_TRUE(local.ok()) << local.status();
  for (const int ranks : {1, 2, 4, 8}) {
    EXPECT_EQ((*local)->BackendOf(ranks), CollectiveBackend::kLocal);
  }
  EXPECT_EQ((*local)->communicators(), nullptr);
  EXPECT_TRUE((*local)->DescribeGpus().empty());
  const absl::Status refused = RankPlaces::Create(CollectiveBackend::kNccl, Looked()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      refused.message(),
      "parallel_backend is nccl: it needs a GPU for each of the 2 ranks, and the run is on the "
      "CPU");
}

TEST(VirtualRanks, WhatOneRefusesIsADifference) {
  ScenarioContext context = ContextOn(Looked());
  const bool is_done = RunOnRanks(context, 2, "refusal", [](const GatherContext& rank) {
    return rank.group.rank() == 1 ? absl::InternalError("no") : absl::OkStatus();
  });
  EXPECT_FALSE(is_done);
  ASSERT_EQ(context.difference_count(), 1);
  EXPECT_EQ(context.differences()[0].tensor, "refusal status");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
