// Ranks of scenarios on GPUs of their own: they hold, catch their faults and see what virtual ranks
// see.
#include "kernels/validate/scenarios/ranks/rank_places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <string>

#include "kernels/comm/group/world.h"
#include "kernels/comm/nccl/communicator_cache.h"
#include "kernels/engine/cuda_module.h"
#include "kernels/validate/scenarios/run_scenarios.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// Calls, sums, groups, ranks that fail or do not come, layers, overlap, experts, faults around the
/// engine.
const std::vector<std::string> kNames = {"group-amax-over-named-group",
                                         "gathered-shards-stand-in-rank-order",
                                         "ranks-that-differ-are-told",
                                         "two-ranks-sum-alike",
                                         "scattered-sums-join-to-all-reduce",
                                         "shards-round-without-bias",
                                         "experts-on-ranks-equal-experts-on-one",
                                         "ring-all-gather-gemm-equals-gather-then-gemm",
                                         "a-step-keeps-its-group",
                                         "row-parallel-bias-once"};

std::map<std::string, std::string> DigestsOn(Engine& engine, CollectiveBackend backend) {
  CommunicatorCache communicators;
  const auto places = RankPlaces::Create(backend, engine, &communicators);
  EXPECT_TRUE(places.ok()) << places.status();
  const int gpus = *CountCudaDevices();
  std::map<std::string, std::string> digests;
  const absl::Status status = RunScenarios(
      engine, BuiltInScenarios(), *FindScenarios(BuiltInScenarios(), kNames), true, nullptr,
      {[&](const ScenarioResult& result) {
         EXPECT_EQ(result.outcome, ScenarioOutcome::kPassed)
             << result.scenario << ": " << result.message
             << (result.differences.empty() ? "" : result.differences[0].tensor);
         EXPECT_FALSE(result.rank_placements.empty()) << result.scenario;
         for (const auto& [placement, sizes] : result.rank_placements) {
           for (const int size : sizes) {
             const bool has_gpus = backend == CollectiveBackend::kNccl && size >= 2 && size <= gpus;
             EXPECT_EQ(placement.backend,
                       has_gpus ? CollectiveBackend::kNccl : CollectiveBackend::kLocal)
                 << result.scenario << ", " << size << " ranks";
             EXPECT_EQ(placement.transport.starts_with("nccl "), has_gpus) << placement.transport;
           }
         }
         std::cerr << result.scenario << ": " << result.seconds << " s\n";
         digests[result.scenario] = result.digest.Hex();
       },
       [](const FaultResult& result) {
         EXPECT_EQ(result.outcome, FaultOutcome::kCaught)
             << result.scenario << ", " << result.fault << ": " << result.message;
       }},
      places->get());
  EXPECT_TRUE(status.ok()) << status;
  return digests;
}

TEST(RankPlacesCuda, GpusOfTheirOwnSeeWhatVirtualRanksSee) {
  const auto engine = MakeCudaEngine(0);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto on_one = DigestsOn(**engine, CollectiveBackend::kLocal);
  EXPECT_EQ(on_one.size(), kNames.size());
  EXPECT_EQ(DigestsOn(**engine, CollectiveBackend::kNccl), on_one);
}

// A world whose ranks fail leaves communicators that the next one can use.
TEST(RankPlacesCuda, WorldsLeaveTheirCommunicatorsToLaterOnes) {
  const int ranks = std::min(*CountCudaDevices(), kWorldSizeMax);
  ASSERT_GE(ranks, 2);
  const auto engine = MakeCudaEngine(0);
  CommunicatorCache communicators;
  const auto places = RankPlaces::Create(CollectiveBackend::kNccl, **engine, &communicators);
  ASSERT_TRUE(places.ok()) << places.status();
  std::vector<Engine*> engines;
  for (int rank = 0; rank < ranks; ++rank) engines.push_back(&(*places)->gpu(rank));
  for (int round = 0; round < 6; ++round) {
    const auto world = World::Create({.engines = engines,
                                      .backend = CollectiveBackend::kNccl,
                                      .communicators = (*places)->communicators()});
    ASSERT_TRUE(world.ok()) << world.status();
    std::vector<float> maxima(static_cast<size_t>(ranks), 0.0f);
    const auto body = [&](Rank& rank) -> absl::Status {
      if (round % 2 == 1 && rank.index() == 1) return absl::InternalError("gone");
      const Tensor own = *Tensor::FromScalar(static_cast<float>(10 * round + rank.index()));
      const auto reduced = rank.group(kWorldGroup).AllReduceMax(own);
      if (!reduced.ok()) return reduced.status();
      const auto on_host = rank.engine().ToHost(*reduced, nullptr);
      if (!on_host.ok()) return on_host.status();
      maxima[static_cast<size_t>(rank.index())] = *on_host->as<float>();
      return absl::OkStatus();
    };
    const absl::Status status = (*world)->Run(body, nullptr);
    EXPECT_EQ(status.ok(), round % 2 == 0) << status;
    if (round % 2 == 1) continue;
    for (const float maximum : maxima) {
      EXPECT_EQ(maximum, static_cast<float>(10 * round + ranks - 1)) << round;
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
