// What several overlapped calls do to each other and what they say of themselves: shared buffers,
// schedules, timelines and members that disagree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/comm/overlap/overlap_values.h"
#include "tests/comm/sum_reference.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kSize = 4, kLayers = 3;

GemmDesc GemmOf(int rank, int layer) {
  return MakeGemm(Payload::kMxfp8, 128, 128, 128, 100 * layer + rank);
}

std::string LayerName(int layer) { return "layer" + std::to_string(layer); }

absl::StatusOr<GatheredGemm> Forward(OverlapRank& end, const GemmDesc& gemm, int layer) {
  return end.overlap->AllGatherGemm(
      {.name = {LayerName(layer), "fc1_fprop", "mxfp8"}, .gemm = gemm});
}

/// All layers forward into one buffer, then all backward, which gathers what was kept again. Counts
/// the tensors that came back changed.
absl::StatusOr<int> ForwardsThenBackwards(Rank& rank) {
  OverlapRank end(rank);
  int changed = 0;
  std::vector<std::vector<Tensor>> kept;
  std::vector<std::string> saved, gathered;
  for (int layer = 0; layer < kLayers; ++layer) {
    auto forward = Forward(end, GemmOf(rank.index(), layer), layer);
    if (!forward.ok()) return forward.status();
    kept.push_back(forward->local);
    saved.push_back(BytesOf(forward->local));
    gathered.push_back(BytesOf(*forward->gathered.Read()));
    const absl::Status released = forward->gathered.Release();
    if (!released.ok()) return released;
  }
  for (int layer = kLayers - 1; layer >= 0; --layer) {
    if (BytesOf(kept[layer]) != saved[layer]) ++changed;
    GemmDesc again = GemmOf(rank.index(), layer);
    again.a.data = kept[layer][0];
    again.a.scale_inv = kept[layer][1];
    auto backward = Forward(end, again, layer);
    if (!backward.ok()) return backward.status();
    if (BytesOf(*backward->gathered.Read()) != gathered[layer]) ++changed;
    const absl::Status released = backward->gathered.Release();
    if (!released.ok()) return released;
  }
  return changed;
}

TEST(OverlapReuse, WhatIsKeptOutlivesTheNextLayers) {
  Ranks ranks(kSize);
  const absl::Status status = ranks.world().Run(
      [&](Rank& rank) -> absl::Status {
        const auto changed = ForwardsThenBackwards(rank);
        EXPECT_EQ(changed.value_or(0), 0);
        return changed.status();
      },
      nullptr);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(OverlapReuse, AViewOfAnEarlierLayerIsStale) {
  Ranks ranks(kSize);
  ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
    OverlapRank end(rank);
    auto first = Forward(end, GemmOf(rank.index(), 0), 0);
    const BufferView kept = first->gathered;
    EXPECT_TRUE(first->gathered.Release().ok());
    auto second = Forward(end, GemmOf(rank.index(), 1), 1);
    const absl::Status stale = kept.Read().status();
    EXPECT_EQ(stale.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(stale.message(),
                AllOf(HasSubstr("fc1_fprop (mxfp8)"), HasSubstr("layer0"), HasSubstr("epoch 1"),
                      HasSubstr("epoch 2"), HasSubstr("layer1")));
    return second->gemm.d;
  });
}

TEST(OverlapReuse, ABufferThatIsNotReleasedIsNotTaken) {
  Ranks ranks(2);
  const std::vector<absl::Status> statuses = ranks.StatusOfEach([&](Rank& rank) -> absl::Status {
    OverlapRank end(rank);
    auto first = Forward(end, GemmOf(rank.index(), 0), 0);
    if (!first.ok()) return first.status();
    return Forward(end, GemmOf(rank.index(), 1), 1).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("layer1 cannot fill it"), HasSubstr("READABLE"),
                                        HasSubstr("filled by layer0")));
  }
}

// -- Schedules ------------------------------------------------------------------------------------

/// Every kind of call once; the bytes of all that comes of them.
absl::StatusOr<std::string> EveryCall(Rank& rank) {
  OverlapRank end(rank);
  std::string bytes;
  const int seed = rank.index();
  for (const bool aggregate : {false, true}) {
    auto gathered = end.overlap->AllGatherGemm({.name = {"a", "b", "m"},
                                                .gemm = MakeGemm(Payload::kFp8, 3, 16, 32, seed),
                                                .aggregate = aggregate});
    if (!gathered.ok()) return gathered.status();
    bytes += BytesOf(gathered->gemm.d) + BytesOf(*gathered->gathered.Read());
    const absl::Status released = gathered->gathered.Release();
    if (!released.ok()) return released;
  }
  const GemmDesc partial = MakeGemm(Payload::kBf16, 12, 16, 32, seed);
  for (const OverlapMethod method : {OverlapMethod::kRingExchange, OverlapMethod::kPipeline}) {
    auto scattered = end.overlap->ReduceScatterGemm({.name = {"a", "b", "m"},
                                                     .gemm = partial,
                                                     .rows = {3, 3, 3, 3},
                                                     .method = method,
                                                     .pieces = 2});
    if (!scattered.ok()) return scattered.status();
    bytes += BytesOf(scattered->y);
  }
  auto gathered =
      end.overlap->BulkAllGather({.name = {"a", "b", "m"},
                                  .gemm = partial,
                                  .shard = {MakeGemm(Payload::kBf16, 3, 8, 8, seed).a.data}});
  if (!gathered.ok()) return gathered.status();
  bytes += BytesOf(gathered->gemm.d) + BytesOf(*gathered->gathered.Read());
  const absl::Status released = gathered->gathered.Release();
  if (!released.ok()) return released;
  auto scattered = end.overlap->BulkReduceScatter({.name = {"a", "b", "m"},
                                                   .gemm = partial,
                                                   .partial = GemmCpu(partial, {})->d,
                                                   .rows = {3, 3, 3, 3}});
  if (!scattered.ok()) return scattered.status();
  return bytes + BytesOf(scattered->gemm.d) + BytesOf(scattered->y);
}

std::vector<std::string> EveryCallOfEach(WorldOptions options) {
  Ranks ranks(kSize, std::move(options));
  std::vector<std::string> bytes(kSize);
  const absl::Status status = ranks.world().Run(
      [&](Rank& rank) -> absl::Status {
        auto result = EveryCall(rank);
        if (result.ok()) bytes[rank.index()] = *result;
        return result.status();
      },
      nullptr);
  EXPECT_TRUE(status.ok()) << status;
  return bytes;
}

TEST(OverlapSchedules, ResultsDoNotDependOnThem) {
  const std::vector<std::string> expected = EveryCallOfEach({});
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    WorldOptions options;
    options.noise.seed = seed;
    ASSERT_EQ(EveryCallOfEach(std::move(options)), expected) << "seed " << seed;
  }
}

// -- Timelines ------------------------------------------------------------------------------------

std::map<std::string, TaskRecord> ByName(const OverlapTimeline& timeline) {
  std::map<std::string, TaskRecord> records;
  for (const TaskRecord& task : timeline.tasks) {
    EXPECT_TRUE(records.emplace(task.name, task).second) << task.name << " is there twice";
    EXPECT_LE(0, task.begin_s);
    EXPECT_LE(task.begin_s, task.end_s);
  }
  return records;
}

/// Tasks of one thread do not run at the same time.
void ExpectOneAtATime(const OverlapTimeline& timeline, bool communication) {
  double last_s = 0;
  for (const TaskRecord& task : timeline.tasks) {
    if (IsCommunication(task.resource) != communication) continue;
    EXPECT_GE(task.begin_s, last_s) << task.name;
    last_s = task.end_s;
  }
}

TEST(OverlapTimelines, EveryChunkIsMultipliedOnceAfterItHasCome) {
  Ranks ranks(kSize);
  ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
    OverlapRank end(rank);
    auto result = Forward(end, GemmOf(rank.index(), 0), 0);
    if (!result.ok()) return result.status();
    const auto records = ByName(result->timeline);
    EXPECT_EQ(records.size(), 2u * kSize);  // GEMMs, copies, and the rank's own rows to their slot.
    const int below = (rank.index() + kSize - 1) % kSize;
    for (int owner = 0; owner < kSize; ++owner) {
      const TaskRecord& gemm = records.at("gemm rows of " + std::to_string(owner));
      if (owner == rank.index()) continue;
      const TaskRecord& copy =
          records.at("copy rows of " + std::to_string(owner) + " from " + std::to_string(below));
      EXPECT_GE(gemm.begin_s, copy.end_s) << owner;
    }
    ExpectOneAtATime(result->timeline, false);
    ExpectOneAtATime(result->timeline, true);
    const OverlapFigures figures = FiguresOf(result->timeline);
    EXPECT_GT(figures.compute_s, 0);
    EXPECT_GE(figures.total_s, figures.compute_s);
    EXPECT_GE(figures.efficiency(), 1);
    return result->gemm.d;
  });
}

TEST(OverlapTimelines, AreKeptWhereTheyAreAskedForAlone) {
  Ranks ranks(2);
  ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
    OverlapRank end(rank, {});
    const GemmDesc gemm = MakeGemm(Payload::kBf16, 4, 16, 32, rank.index());
    for (const OverlapMethod method : {OverlapMethod::kRingExchange, OverlapMethod::kNone}) {
      auto gathered =
          end.overlap->AllGatherGemm({.name = {"a", "b", "m"}, .gemm = gemm, .method = method});
      if (!gathered.ok()) return gathered.status();
      EXPECT_TRUE(gathered->timeline.tasks.empty());
      EXPECT_TRUE(gathered->gathered.Release().ok());
      auto scattered = end.overlap->ReduceScatterGemm(
          {.name = {"a", "b", "m"}, .gemm = gemm, .rows = {2, 2}, .method = method});
      if (!scattered.ok()) return scattered.status();
      EXPECT_TRUE(scattered->timeline.tasks.empty());
    }
    return gemm.a.data;
  });
}

TEST(OverlapTimelines, AreKeptByAllOrNobody) {
  Ranks ranks(2);
  const std::vector<absl::Status> statuses = ranks.StatusOfEach([&](Rank& rank) -> absl::Status {
    OverlapRank end(rank, {.keeps_timelines = rank.index() == 1});
    return Forward(end, GemmOf(rank.index(), 0), 0).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("timed"));
  }
}

TEST(OverlapTimelines, SumsComeAfterEveryPart) {
  Ranks ranks(kSize);
  ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
    OverlapRank end(rank);
    auto result =
        end.overlap->ReduceScatterGemm({.name = {"a", "b", "m"},
                                        .gemm = MakeGemm(Payload::kBf16, 12, 16, 32, rank.index()),
                                        .rows = {3, 3, 3, 3}});
    if (!result.ok()) return result.status();
    const auto records = ByName(result->timeline);
    EXPECT_EQ(records.size(), 2u * kSize);  // GEMMs, copies from the others, and the sum.
    const TaskRecord& sum = records.at("sum rows");
    for (const auto& [name, record] : records) {
      if (name != "sum rows") {
        EXPECT_GE(sum.begin_s, record.end_s) << name;
      }
    }
    return result->y;
  });
}

TEST(OverlapTimelines, WithoutOverlapAllCommunicationIsExposed) {
  Ranks ranks(2);
  ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
    OverlapRank end(rank);
    auto result = end.overlap->AllGatherGemm(
        {.name = {"a", "b", "m"}, .gemm = GemmOf(rank.index(), 0), .method = OverlapMethod::kNone});
    if (!result.ok()) return result.status();
    const OverlapFigures figures = FiguresOf(result->timeline);
    EXPECT_EQ(figures.exposed_s, figures.communication_s);
    return result->gemm.d;
  });
}

// -- Refusals and disagreement --------------------------------------------------------------------

template <typename Call>
absl::Status Refusal(const Call& call) {
  Ranks ranks(2);
  absl::Status first;
  const std::vector<absl::Status> statuses = ranks.StatusOfEach([&](Rank& rank) -> absl::Status {
    OverlapRank end(rank);
    if constexpr (std::is_same_v<Call, AllGatherGemmCall>) {
      return end.overlap->AllGatherGemm(call).status();
    } else if constexpr (std::is_same_v<Call, ReduceScatterGemmCall>) {
      return end.overlap->ReduceScatterGemm(call).status();
    } else {
      return end.overlap->BulkReduceScatter(call).status();
    }
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
  return statuses[0];
}

TEST(OverlapRefusals, NameFieldValueAndRule) {
  AllGatherGemmCall gather{.name = {"a", "b", "m"}, .gemm = MakeGemm(Payload::kBf16, 3, 16, 32, 1)};
  const auto refused = [&](auto change) {
    AllGatherGemmCall call = gather;
    change(call);
    return std::string(Refusal(call).message());
  };
  EXPECT_THAT(refused([](auto& call) { call.method = OverlapMethod::kPipeline; }),
              HasSubstr("method is pipeline"));
  EXPECT_THAT(refused([](auto& call) { call.pieces = 0; }), HasSubstr("pieces is 0"));
  EXPECT_THAT(refused([](auto& call) {
                call.aggregate = true;
                call.pieces = 2;
              }),
              HasSubstr("overlap.pieces is 2"));
  EXPECT_THAT(refused([](auto& call) {
                call.gemm.c = *Tensor::Allocate(DType::kBF16, {3, 16});
                call.gemm.beta = 1;
              }),
              HasSubstr("gemm.c is bf16[3x16]"));
  EXPECT_THAT(refused([](auto& call) { call.gemm.out_dtype = DType::kF8E4M3; }),
              HasSubstr("gemm.out_dtype is f8_e4m3"));
  EXPECT_THAT(refused([](auto& call) {
                call.gemm = MakeGemm(Payload::kBf16, 16, 16, 16, 1);
                call.gemm.layout = GemmLayout::kNT;
              }),
              HasSubstr("gemm.layout is nt"));
  EXPECT_THAT(refused([](auto& call) { call.beside = {Tensor()}; }), HasSubstr("beside is absent"));
  EXPECT_THAT(refused([](auto& call) { call.gemm = MakeGemm(Payload::kMxfp8, 128, 128, 96, 1); }),
              AllOf(HasSubstr("gemm.a is f8_e4m3[128x96]"), HasSubstr("multiples of 128")));
  EXPECT_THAT(refused([](auto& call) {
                call.gemm = MakeGemm(Payload::kFp8, 4, 16, 32, 1);
                call.gemm.a.scaling = ScaleMode::kOuter;
                call.gemm.a.scale_inv = *Tensor::Allocate(DType::kF32, {4});
                call.gemm.b.scaling = ScaleMode::kOuter;
                call.gemm.b.scale_inv = *Tensor::Allocate(DType::kF32, {16});
              }),
              HasSubstr("with outer scales"));

  ReduceScatterGemmCall reduce{
      .name = {"a", "b", "m"}, .gemm = MakeGemm(Payload::kBf16, 8, 18, 32, 1), .rows = {4, 4}};
  const auto reduce_refused = [&](auto change) {
    ReduceScatterGemmCall call = reduce;
    change(call);
    return std::string(Refusal(call).message());
  };
  EXPECT_THAT(reduce_refused([](auto& call) { call.method = OverlapMethod::kPipeline; }),
              AllOf(HasSubstr("splits is 4"), HasSubstr("must divide the 18 columns")));
  EXPECT_THAT(reduce_refused([](auto& call) { call.method = OverlapMethod::kBulk; }),
              HasSubstr("method is bulk"));
  EXPECT_THAT(reduce_refused([](auto& call) {
                call.rows = {4, 3};
              }),
              AllOf(HasSubstr("rows is 4, 3"), HasSubstr("8 together")));
  EXPECT_THAT(reduce_refused([](auto& call) { call.profile = {ReductionKind::kRankAscFp32}; }),
              HasSubstr("profile is rank_asc_fp32"));
  EXPECT_THAT(
      reduce_refused([](auto& call) { call.gemm.bias = *Tensor::Allocate(DType::kBF16, {18}); }),
      HasSubstr("gemm.bias is bf16[18]"));
  BulkReduceScatterCall bulk{.name = {"a", "b", "m"},
                             .gemm = MakeGemm(Payload::kBf16, 8, 18, 32, 1),
                             .partial = *Tensor::Allocate(DType::kU8, {8, 2}),
                             .rows = {4, 4}};
  EXPECT_THAT(Refusal(bulk).message(), HasSubstr("partial is u8[8x2]"));
  bulk.partial = *Tensor::Allocate(DType::kBF16, {8, 2});
  bulk.profile = {ReductionKind::kNccl};
  EXPECT_THAT(Refusal(bulk).message(), HasSubstr("profile is nccl"));
  EXPECT_THAT(reduce_refused([](auto& call) {
                call.method = OverlapMethod::kPipeline;
                call.splits = 2;
                call.profile = {ReductionKind::kNccl};
              }),
              HasSubstr("profile is nccl"));
}

TEST(OverlapDisagreement, IsEveryMembersError) {
  for (const bool aggregate : {false, true}) {
    Ranks ranks(2);
    const std::vector<absl::Status> statuses = ranks.StatusOfEach([&](Rank& rank) -> absl::Status {
      OverlapRank end(rank);
      AllGatherGemmCall call{.name = {"a", "b", "m"},
                             .gemm = MakeGemm(Payload::kBf16, 3, 16, 32, rank.index()),
                             .aggregate = aggregate};
      if (rank.index() == 1) call.aggregate = !aggregate;
      return end.overlap->AllGatherGemm(call).status();
    });
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(status.message(), HasSubstr("ring_exchange all-gather gemm bf16[*x32]"));
    }
  }
}

TEST(OverlapDisagreement, ScalesOfAGatheredTensorMustBeTheSame) {
  Ranks ranks(2);
  const std::vector<absl::Status> statuses = ranks.StatusOfEach([&](Rank& rank) -> absl::Status {
    OverlapRank end(rank);
    AllGatherGemmCall call{.name = {"fc1", "b", "m"},
                           .gemm = MakeGemm(Payload::kFp8, 3, 16, 32, rank.index())};
    call.gemm.a.scale_inv = *Tensor::FromScalar(rank.index() == 0 ? 0.5f : 0.25f);
    return end.overlap->AllGatherGemm(call).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), HasSubstr("fc1 scale_inv"));
  }
}

/// A GEMM that fails on one rank in the middle of the ring: the others do not wait for it.
/// Of the call, or where the others were through with it before, of the next one.
TEST(OverlapDisagreement, AFailingTaskIsEveryMembersError) {
  Ranks ranks(4);
  const std::vector<absl::Status> statuses = ranks.StatusOfEach([&](Rank& rank) -> absl::Status {
    OverlapRank end(rank);
    AllGatherGemmCall call{.name = {"fc1", "b", "m"},
                           .gemm = MakeGemm(Payload::kBf16, 3, 16, 32, rank.index())};
    // Known to CheckGemm, not to the CPU.
    if (rank.index() == 2) call.gemm.arithmetic = *Arithmetic::Parse("cublaslt");
    const absl::Status status = end.overlap->AllGatherGemm(call).status();
    return status.ok() ? end.group.Barrier() : status;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("rank 2, gemm rows of 2"));
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
