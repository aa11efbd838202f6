#include "tests/comm/overlap/overlap_troubles.h"

#include <gtest/gtest.h>

#include <memory>

#include "kernels/base/status_macros.h"
#include "tests/comm/overlap/overlap_values.h"
#include "tests/comm/troubled_engine.h"

namespace quantgate {
namespace {

using Outputs = absl::StatusOr<std::vector<Tensor>>;

constexpr int64_t kRows = 3, kWidth = 16;
const OverlapName kName = {"layer0", "buffer", "bf16"};

GemmDesc RowsGemm(int rank) { return MakeGemm(Payload::kBf16, kRows, kWidth, kWidth, rank); }
GemmDesc WholeGemm(int rank) {
  return MakeGemm(Payload::kBf16, kRows * kOverlapRanks, kWidth, kWidth, rank);
}
std::vector<int64_t> RowsOfOwners() { return std::vector<int64_t>(kOverlapRanks, kRows); }

Outputs OutputsOf(absl::StatusOr<GatheredGemm> result) {
  QG_RETURN_IF_ERROR(result.status());
  QG_ASSIGN_OR_RETURN(std::vector<Tensor> outputs, result->gathered.Read());
  outputs.push_back(result->gemm.d);
  return outputs;
}
Outputs OutputsOf(absl::StatusOr<ScatteredGemm> result) {
  QG_RETURN_IF_ERROR(result.status());
  return std::vector<Tensor>{result->y};
}

constexpr OverlapCallCase kCases[] = {
    {"Ring",
     [](Overlap& overlap, int rank) {
       return OutputsOf(overlap.AllGatherGemm({.name = kName, .gemm = RowsGemm(rank)}));
     }},
    {"RingInPieces",
     [](Overlap& overlap, int rank) {
       return OutputsOf(
           overlap.AllGatherGemm({.name = kName, .gemm = RowsGemm(rank), .pieces = 2}));
     }},
    {"Aggregate",
     [](Overlap& overlap, int rank) {
       return OutputsOf(
           overlap.AllGatherGemm({.name = kName, .gemm = RowsGemm(rank), .aggregate = true}));
     }},
    {"External",
     [](Overlap& overlap, int rank) {
       return OutputsOf(
           overlap.AllGatherGemm({.name = kName,
                                  .gemm = RowsGemm(rank),
                                  .beside = {MarkedTensor(rank, DType::kU8, {2, 8})}}));
     }},
    {"PointToPoint",
     [](Overlap& overlap, int rank) {
       return OutputsOf(overlap.ReduceScatterGemm(
           {.name = kName, .gemm = WholeGemm(rank), .rows = RowsOfOwners()}));
     }},
    {"Pipelined",
     [](Overlap& overlap, int rank) {
       return OutputsOf(overlap.ReduceScatterGemm({.name = kName,
                                                   .gemm = WholeGemm(rank),
                                                   .rows = RowsOfOwners(),
                                                   .method = OverlapMethod::kPipeline,
                                                   .profile = {}}));
     }},
    {"BulkAllGather",
     [](Overlap& overlap, int rank) {
       return OutputsOf(overlap.BulkAllGather({.name = kName,
                                               .gemm = WholeGemm(rank),
                                               .shard = {MarkedTensor(rank, DType::kU8, {2, 8})}}));
     }},
    {"BulkReduceScatter",
     [](Overlap& overlap, int rank) {
       return OutputsOf(overlap.BulkReduceScatter(
           {.name = kName,
            .gemm = WholeGemm(rank),
            .partial = MakeOperand(Payload::kBf16, kRows * kOverlapRanks, kWidth, 7 + rank).data,
            .rows = RowsOfOwners()}));
     }},
};

}  // namespace

std::span<const OverlapCallCase> OverlapCallCases() { return kCases; }

absl::Status OverlapTrouble::Before() {
  if (operations++ != at) return absl::OkStatus();
  if (!is_stuck) return absl::UnavailableError("killed in the middle of a call");
  others_have_ended.wait();
  return absl::OkStatus();
}

WorldOptions OptionsWith(OverlapTrouble& trouble, absl::Duration deadline) {
  return {.deadline = deadline,
          .wrap_engine = [&trouble](Engine& engine, int rank) -> std::unique_ptr<Engine> {
            return std::make_unique<TroubledEngine>(engine, [&trouble, rank](bool) {
              return rank == kTroubledRank ? trouble.Before() : absl::OkStatus();
            });
          }};
}

absl::Status CallThenMeet(const OverlapCallCase& one, Rank& rank, OverlapTrouble& trouble,
                          std::vector<Tensor>* outputs) {
  const auto ask = [&] {
    return rank.index() == kTroubledRank ? trouble.Before() : absl::OkStatus();
  };
  OverlapRank end(rank);
  if (absl::Status status = ask(); !status.ok()) return end.group.Fail(status);
  QG_ASSIGN_OR_RETURN(std::vector<Tensor> given, one.call(*end.overlap, rank.index()));
  for (Tensor& tensor : given) {
    QG_ASSIGN_OR_RETURN(tensor, rank.engine().ToHost(tensor, nullptr));
  }
  if (outputs != nullptr) *outputs = std::move(given);
  if (absl::Status status = ask(); !status.ok()) return end.group.Fail(status);
  return end.group.Barrier();
}

std::vector<absl::Status> RunTroubled(const OverlapCallCase& one, World& world,
                                      OverlapTrouble& trouble, const Cancellation* cancellation) {
  std::vector<absl::Status> statuses(kOverlapRanks);
  world
      .Run(
          [&](Rank& rank) {
            statuses[rank.index()] = CallThenMeet(one, rank, trouble, nullptr);
            if (rank.index() != kTroubledRank) trouble.others_have_ended.count_down();
            return absl::OkStatus();
          },
          cancellation)
      .IgnoreError();
  return statuses;
}

std::string OverlapOutputs(const OverlapCallCase& one, World& world, OverlapTrouble& trouble) {
  std::vector<std::vector<Tensor>> outputs(kOverlapRanks);
  const absl::Status status = world.Run(
      [&](Rank& rank) { return CallThenMeet(one, rank, trouble, &outputs[rank.index()]); },
      nullptr);
  EXPECT_TRUE(status.ok()) << status;
  std::string bytes;
  for (const std::vector<Tensor>& of_rank : outputs) bytes += BytesOf(of_rank);
  return bytes;
}

}  // namespace quantgate
