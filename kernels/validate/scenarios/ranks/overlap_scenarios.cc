// Communication beside GEMMs (docs/ranks.md): the results of virtual ranks, compared with GEMMs of
// the whole and with sums by hand.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/overlap/overlap.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"
#include "kernels/validate/scenarios/ranks/virtual_ranks.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr int64_t kWidth = 128;      // Columns of x, both sides of weights; mxfp8 needs 128.
constexpr int64_t kShardRows = 128;  // Rows of each rank's x; likewise.

absl::StatusOr<GemmOperand> Quantized(ScenarioContext& context, const Tensor& source,
                                      TensorRole role) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(role);
  QG_ASSIGN_OR_RETURN(
      const QuantizedTensor codes,
      context.reference().Quantize(source, quantizer, {true, false}, {}, context.cancellation()));
  return OperandOf(*codes.rowwise);
}

/// x of all ranks, quantized as a whole, and each rank's weight.
struct Layer {
  static absl::StatusOr<Layer> Make(ScenarioContext& context, int size, uint64_t seed) {
    Layer layer;
    QG_ASSIGN_OR_RETURN(const Tensor x, context.Generate(Distribution::kNormal, seed, DType::kBF16,
                                                         {kShardRows * size, kWidth}));
    QG_ASSIGN_OR_RETURN(layer.x, Quantized(context, x, TensorRole::kInput));
    for (int rank = 0; rank < size; ++rank) {
      QG_ASSIGN_OR_RETURN(
          const Tensor weight,
          context.Generate(Distribution::kNormal, seed + 1 + rank, DType::kBF16, {kWidth, kWidth}));
      QG_ASSIGN_OR_RETURN(layer.weights.emplace_back(),
                          Quantized(context, weight, TensorRole::kWeight));
    }
    return layer;
  }

  /// The rank's GEMM over the rows of all ranks.
  GemmDesc Whole(ScenarioContext& context, int rank) const {
    GemmDesc gemm;
    gemm.a = x;
    gemm.b = weights[static_cast<size_t>(rank)];
    gemm.out_dtype = DType::kBF16;
    gemm.use_split_accumulator =
        IsFp8(x.data.dtype()) && context.recipe().UsesSplitAccumulator(GemmRole::kFprop);
    return gemm;
  }
  /// The rank's GEMM over its own rows.
  absl::StatusOr<GemmDesc> Shard(ScenarioContext& context, int rank) const {
    GemmDesc gemm = Whole(context, rank);
    const int64_t begin = rank * kShardRows;
    QG_ASSIGN_OR_RETURN(gemm.a.data, x.data.RowRange(begin, kShardRows));
    if (x.scaling == ScaleMode::kMx32) {
      QG_ASSIGN_OR_RETURN(gemm.a.scale_inv, x.scale_inv.RowRange(begin, kShardRows));
    }
    return gemm;
  }
  absl::StatusOr<Tensor> Expected(ScenarioContext& context, int rank) const {
    QG_ASSIGN_OR_RETURN(const GemmResult result,
                        context.reference().Gemm(Whole(context, rank), context.cancellation()));
    return result.d;
  }

  GemmOperand x;
  std::vector<GemmOperand> weights;
};

absl::StatusOr<GatheredGemm> GatherAndMultiply(ScenarioContext& context, VirtualOverlap& end,
                                               const Layer& layer, int rank,
                                               const std::string& owner, bool aggregate = false) {
  QG_ASSIGN_OR_RETURN(GemmDesc gemm, layer.Shard(context, rank));
  return end.overlap->AllGatherGemm({.name = {owner, "fc1_fprop", context.recipe().name()},
                                     .gemm = std::move(gemm),
                                     .aggregate = aggregate});
}

// ---- D12

absl::Status CheckRing(ScenarioContext& context, int size, bool aggregate) {
  QG_ASSIGN_OR_RETURN(const Layer earlier, Layer::Make(context, size, 500));
  QG_ASSIGN_OR_RETURN(const Layer layer, Layer::Make(context, size, 1));
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, size));
  const std::vector<TensorsOfRank> results =
      RunRanks(context, "ring", *world, [&](Rank& rank) -> absl::StatusOr<TensorsOfRank> {
        QG_ASSIGN_OR_RETURN(const auto end, VirtualOverlap::Open(rank));
        // Fills the buffer with another layer's operand first.
        QG_ASSIGN_OR_RETURN(
            GatheredGemm before,
            GatherAndMultiply(context, *end, earlier, rank.index(), "layer0", aggregate));
        QG_RETURN_IF_ERROR(before.gathered.Release());
        QG_ASSIGN_OR_RETURN(
            const GatheredGemm result,
            GatherAndMultiply(context, *end, layer, rank.index(), "layer1", aggregate));
        QG_ASSIGN_OR_RETURN(TensorsOfRank tensors, result.gathered.Read());
        tensors.insert(tensors.begin(), result.gemm.d);
        return tensors;
      });
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const std::string name =
        absl::StrCat(aggregate ? "aggregate, " : "", "rank ", rank, " of ", size, " ");
    QG_ASSIGN_OR_RETURN(const Tensor expected, layer.Expected(context, static_cast<int>(rank)));
    QG_RETURN_IF_ERROR(context.ExpectSameBits(name + "y", results[rank][0], expected));
    QG_RETURN_IF_ERROR(context.ExpectSameBits(name + "gathered x", results[rank][1], layer.x.data));
    if (layer.x.scaling != ScaleMode::kMx32) continue;
    QG_RETURN_IF_ERROR(
        context.ExpectSameBits(name + "gathered scale_inv", results[rank][2], layer.x.scale_inv));
  }
  return absl::OkStatus();
}

absl::Status CheckRings(ScenarioContext& context) {
  for (const int size : {2, 3, 4}) QG_RETURN_IF_ERROR(CheckRing(context, size, false));
  for (const int size : {2, 4}) QG_RETURN_IF_ERROR(CheckRing(context, size, true));
  return absl::OkStatus();
}

// ---- D13, D14: partials are f32 results of a GEMM by the identity, and orders of summing them
// differ.

absl::StatusOr<GemmDesc> PartialGemm(ScenarioContext& context, int rank, int64_t rows,
                                     int64_t columns) {
  GemmDesc gemm;
  QG_ASSIGN_OR_RETURN(gemm.arithmetic, Arithmetic::Parse("fp32"));
  QG_ASSIGN_OR_RETURN(gemm.a.data, context.Generate(Distribution::kNormal, 900 + rank, DType::kF32,
                                                    {rows, columns}));
  QG_ASSIGN_OR_RETURN(gemm.b.data, Tensor::Allocate(DType::kF32, {columns, columns}));
  for (int64_t i = 0; i < columns * columns; ++i) {
    gemm.b.data.as<float>()[i] = i / columns == i % columns ? 1.0f : 0.0f;
  }
  return gemm;
}

/// p_owner + p_(owner-1) + ... in fp32 for the rows of rank `owner`; p_r are the rows that rank r
/// computed.
absl::StatusOr<Tensor> SumDownwards(const std::vector<GemmDesc>& gemms, int owner, int64_t rows) {
  const int size = static_cast<int>(gemms.size());
  const int64_t columns = gemms[0].a.data.columns();
  QG_ASSIGN_OR_RETURN(Tensor sum, Tensor::Allocate(DType::kF32, {rows, columns}));
  for (int64_t i = 0; i < rows * columns; ++i) {
    const auto part = [&](int rank) {
      return gemms[rank].a.data.as<float>()[owner * rows * columns + i];
    };
    float total = part(owner);
    for (int back = 1; back < size; ++back) total = total + part((owner - back + size) % size);
    sum.as<float>()[i] = total;
  }
  return sum;
}

absl::Status CheckReduceScatter(ScenarioContext& context, OverlapMethod method, int size,
                                int64_t columns, int splits) {
  constexpr int64_t kRows = 16;
  std::vector<GemmDesc> gemms;
  for (int rank = 0; rank < size; ++rank) {
    QG_ASSIGN_OR_RETURN(gemms.emplace_back(), PartialGemm(context, rank, kRows * size, columns));
  }
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, size));
  const std::vector<TensorsOfRank> results =
      RunRanks(context, "reduce-scatter", *world, [&](Rank& rank) -> absl::StatusOr<TensorsOfRank> {
        QG_ASSIGN_OR_RETURN(const auto end, VirtualOverlap::Open(rank));
        QG_ASSIGN_OR_RETURN(const ScatteredGemm result,
                            end->overlap->ReduceScatterGemm(
                                {.name = {"layer0", "proj_fprop", "f32"},
                                 .gemm = gemms[static_cast<size_t>(rank.index())],
                                 .rows = std::vector<int64_t>(static_cast<size_t>(size), kRows),
                                 .method = method,
                                 .splits = splits}));
        return TensorsOfRank{result.y};
      });
  for (size_t rank = 0; rank < results.size(); ++rank) {
    QG_ASSIGN_OR_RETURN(const Tensor expected, SumDownwards(gemms, static_cast<int>(rank), kRows));
    QG_RETURN_IF_ERROR(context.ExpectSameBits(absl::StrCat("y of rank ", rank, " of ", size),
                                              results[rank][0], expected));
  }
  return absl::OkStatus();
}

absl::Status CheckPointToPoint(ScenarioContext& context) {
  for (const int size : {2, 3, 4, 8}) {
    QG_RETURN_IF_ERROR(CheckReduceScatter(context, OverlapMethod::kRingExchange, size, 24, 1));
  }
  return absl::OkStatus();
}

absl::Status CheckPipeline(ScenarioContext& context) {
  for (const int splits : {1, 2, 4}) {
    QG_RETURN_IF_ERROR(CheckReduceScatter(context, OverlapMethod::kPipeline, 4, 24, splits));
  }
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, 2));
  const std::vector<absl::Status> statuses =
      StatusOfEachRank(context, *world, [&](Rank& rank) -> absl::Status {
        QG_ASSIGN_OR_RETURN(const auto end, VirtualOverlap::Open(rank));
        QG_ASSIGN_OR_RETURN(GemmDesc gemm, PartialGemm(context, rank.index(), 8, 18));
        return end->overlap
            ->ReduceScatterGemm({.name = {"layer0", "proj_fprop", "f32"},
                                 .gemm = std::move(gemm),
                                 .rows = {4, 4},
                                 .method = OverlapMethod::kPipeline,
                                 .splits = 4})
            .status();
      });
  for (const absl::Status& status : statuses) {
    context.ExpectCode("18 columns in 4 splits", status, absl::StatusCode::kInvalidArgument);
  }
  return absl::OkStatus();
}

// ---- D15, D16

/// Makes both bulk calls, and returns the gathered x, the GEMM beside the gather, the GEMM beside
/// the sum, and the sum.
absl::StatusOr<TensorsOfRank> BulkCalls(ScenarioContext& context, Rank& rank, const Layer& layer,
                                        const std::vector<GemmDesc>& partials) {
  QG_ASSIGN_OR_RETURN(const auto end, VirtualOverlap::Open(rank));
  QG_ASSIGN_OR_RETURN(const GemmDesc shard, layer.Shard(context, rank.index()));
  QG_ASSIGN_OR_RETURN(const GatheredGemm gathered,
                      end->overlap->BulkAllGather({.name = {"layer0", "fc1_dgrad", "bulk"},
                                                   .gemm = layer.Whole(context, rank.index()),
                                                   .shard = {shard.a.data}}));
  QG_ASSIGN_OR_RETURN(TensorsOfRank tensors, gathered.gathered.Read());
  tensors.push_back(gathered.gemm.d);
  const size_t size = partials.size();
  QG_ASSIGN_OR_RETURN(const ScatteredGemm scattered,
                      end->overlap->BulkReduceScatter(
                          {.name = {"layer0", "fc1_wgrad", "bulk"},
                           .gemm = layer.Whole(context, rank.index()),
                           .partial = partials[static_cast<size_t>(rank.index())].a.data,
                           .rows = std::vector<int64_t>(
                               size, partials[0].a.data.shape()[0] / static_cast<int64_t>(size)),
                           .profile = {ReductionKind::kUbP2p}}));
  tensors.push_back(scattered.gemm.d);
  tensors.push_back(scattered.y);
  return tensors;
}

absl::Status CheckBulkCalls(ScenarioContext& context, int size, uint64_t noise) {
  constexpr int64_t kRows = 16;
  QG_ASSIGN_OR_RETURN(const Layer layer, Layer::Make(context, size, 40));
  std::vector<GemmDesc> partials;
  for (int rank = 0; rank < size; ++rank) {
    QG_ASSIGN_OR_RETURN(partials.emplace_back(), PartialGemm(context, rank, kRows * size, 24));
  }
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, size, {.noise = {noise}}));
  const std::vector<TensorsOfRank> results =
      RunRanks(context, "bulk", *world, [&](Rank& rank) -> absl::StatusOr<TensorsOfRank> {
        return BulkCalls(context, rank, layer, partials);
      });
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const int index = static_cast<int>(rank);
    QG_ASSIGN_OR_RETURN(const Tensor y, layer.Expected(context, index));
    QG_ASSIGN_OR_RETURN(const Tensor sum, SumDownwards(partials, index, kRows));
    QG_RETURN_IF_ERROR(context.ExpectSameBits("gathered x", results[rank][0], layer.x.data));
    QG_RETURN_IF_ERROR(context.ExpectSameBits("GEMM beside the gather", results[rank][1], y));
    QG_RETURN_IF_ERROR(context.ExpectSameBits("GEMM beside the sum", results[rank][2], y));
    QG_RETURN_IF_ERROR(context.ExpectSameBits("sum", results[rank][3], sum));
  }
  return absl::OkStatus();
}

absl::Status CheckBulk(ScenarioContext& context) {
  for (const int size : {2, 4}) QG_RETURN_IF_ERROR(CheckBulkCalls(context, size, 0));
  return absl::OkStatus();
}

/// One small reduce-scatter and one small ring, under the schedule noise of `seed`.
absl::Status CheckSchedule(ScenarioContext& context, uint64_t seed) {
  constexpr int kSize = 4;
  constexpr int64_t kRows = 4;
  std::vector<GemmDesc> gemms;
  for (int rank = 0; rank < kSize; ++rank) {
    QG_ASSIGN_OR_RETURN(gemms.emplace_back(), PartialGemm(context, rank, kRows * kSize, 16));
  }
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, kSize, {.noise = {seed}}));
  const std::vector<TensorsOfRank> results =
      RunRanks(context, "schedule", *world, [&](Rank& rank) -> absl::StatusOr<TensorsOfRank> {
        QG_ASSIGN_OR_RETURN(const auto end, VirtualOverlap::Open(rank));
        const GemmDesc& gemm = gemms[static_cast<size_t>(rank.index())];
        QG_ASSIGN_OR_RETURN(const ScatteredGemm sum, end->overlap->ReduceScatterGemm(
                                                         {.name = {"layer0", "b", "f32"},
                                                          .gemm = gemm,
                                                          .rows = {kRows, kRows, kRows, kRows}}));
        GemmDesc again = gemm;
        again.a.data = sum.y;
        QG_ASSIGN_OR_RETURN(const GatheredGemm whole,
                            end->overlap->AllGatherGemm(
                                {.name = {"layer0", "b", "f32"}, .gemm = std::move(again)}));
        return TensorsOfRank{whole.gemm.d};
      });
  for (const TensorsOfRank& result : results) {
    for (int owner = 0; owner < kSize; ++owner) {
      QG_ASSIGN_OR_RETURN(const Tensor expected, SumDownwards(gemms, owner, kRows));
      QG_ASSIGN_OR_RETURN(const Tensor rows, result[0].RowRange(owner * kRows, kRows));
      QG_RETURN_IF_ERROR(context.ExpectSameBits("gathered sum", rows, expected));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSchedules(ScenarioContext& context) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    context.SetStep(static_cast<int64_t>(seed));
    QG_RETURN_IF_ERROR(CheckSchedule(context, seed));
  }
  return absl::OkStatus();
}

// ---- D20, D22

absl::Status CheckReuse(ScenarioContext& context) {
  constexpr int kSize = 4, kLayers = 3;
  std::vector<Layer> layers;
  for (int i = 0; i < kLayers; ++i) {
    QG_ASSIGN_OR_RETURN(layers.emplace_back(),
                        Layer::Make(context, kSize, 100 * static_cast<uint64_t>(i + 1)));
  }
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, kSize));
  // Runs all forwards and then all backwards; a backward gathers again what its forward kept.
  const std::vector<TensorsOfRank> results =
      RunRanks(context, "layers", *world, [&](Rank& rank) -> absl::StatusOr<TensorsOfRank> {
        QG_ASSIGN_OR_RETURN(const auto end, VirtualOverlap::Open(rank));
        TensorsOfRank kept;
        for (int i = 0; i < kLayers; ++i) {
          QG_ASSIGN_OR_RETURN(
              GatheredGemm forward,
              GatherAndMultiply(context, *end, layers[i], rank.index(), absl::StrCat("layer", i)));
          kept.push_back(forward.local[0]);
          QG_RETURN_IF_ERROR(forward.gathered.Release());
        }
        TensorsOfRank tensors(kLayers);
        for (int i = kLayers - 1; i >= 0; --i) {
          QG_ASSIGN_OR_RETURN(const Tensor own,
                              rank.engine().Slice(kept[i], 0, 0, kShardRows, rank.cancellation()));
          QG_ASSIGN_OR_RETURN(
              GatheredGemm backward,
              end->overlap->BulkAllGather(
                  {.name = {absl::StrCat("layer", i), "fc1_fprop", context.recipe().name()},
                   .gemm = layers[i].Whole(context, rank.index()),
                   .shard = {own}}));
          QG_ASSIGN_OR_RETURN(const std::vector<Tensor> gathered, backward.gathered.Read());
          // Copied out, since the next layer gathers into the same memory.
          QG_ASSIGN_OR_RETURN(tensors[i], rank.engine().Slice(gathered[0], 0, 0, kShardRows * kSize,
                                                              rank.cancellation()));
          QG_RETURN_IF_ERROR(backward.gathered.Release());
        }
        return tensors;
      });
  for (size_t rank = 0; rank < results.size(); ++rank) {
    for (int i = 0; i < kLayers; ++i) {
      QG_RETURN_IF_ERROR(
          context.ExpectSameBits(absl::StrCat("x of layer ", i, " in backward of rank ", rank),
                                 results[rank][i], layers[i].x.data));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStaleView(ScenarioContext& context) {
  constexpr int kSize = 2;
  QG_ASSIGN_OR_RETURN(const Layer layer, Layer::Make(context, kSize, 7));
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, kSize));
  const std::vector<absl::Status> statuses =
      StatusOfEachRank(context, *world, [&](Rank& rank) -> absl::Status {
        QG_ASSIGN_OR_RETURN(const auto end, VirtualOverlap::Open(rank));
        QG_ASSIGN_OR_RETURN(GatheredGemm first,
                            GatherAndMultiply(context, *end, layer, rank.index(), "layer0"));
        const BufferView kept = first.gathered;
        QG_RETURN_IF_ERROR(first.gathered.Release());
        QG_ASSIGN_OR_RETURN(const GatheredGemm second,
                            GatherAndMultiply(context, *end, layer, rank.index(), "layer1"));
        return kept.Read().status();
      });
  for (const absl::Status& status : statuses) {
    context.ExpectCode("reading a view of an earlier layer", status,
                       absl::StatusCode::kFailedPrecondition);
    const bool names_both = status.message().find("layer0") != std::string::npos &&
                            status.message().find("layer1") != std::string::npos;
    context.Expect(names_both, "the refusal names both owners", std::string(status.message()),
                   "layer0 and layer1");
  }
  return absl::OkStatus();
}

EngineAlterations OthersReversed() {
  EngineAlterations alterations;
  alterations.sum = [](std::vector<Tensor>& parts, SumAccumulation&) {
    std::reverse(parts.begin() + 1, parts.end());
  };
  return alterations;
}

}  // namespace

ScenarioGroup OverlapScenarios() {
  const std::vector<std::string> recipes = {"bf16", "fp8_current", "mxfp8"};
  ScenarioGroup group;
  group.scenarios = {
      {.name = "ring-all-gather-gemm-equals-gather-then-gemm",
       .invariant = "A GEMM that gathers its operand in a ring has the bits of the whole GEMM "
                    "(D12).",
       .criterion = "y and the gathered operand bit-equal, 2 to 4 ranks, single and aggregate.",
       .faults = {kFaultScalesLeftBehind, kFaultCopyNotAwaited, kFaultChunkOrder},
       .recipes = recipes,
       .run = &CheckRings},
      {.name = "reduce-scatter-gemm-sums-downwards",
       .invariant = "A GEMM that scatters its sums point to point adds r, r - 1, ... in fp32 with "
                    "one rounding (D13).",
       .criterion = "y bit-equal to sums by hand, 2 to 8 ranks.",
       .faults = {"rs-order-reversed"},
       .recipes = {"bf16"},
       .run = &CheckPointToPoint},
      {.name = "pipelined-reduce-scatter-keeps-every-column",
       .invariant = "Splitting the columns changes no bit, and splits that do not divide them are "
                    "refused (D14).",
       .criterion = "y bit-equal to sums by hand for 1, 2 and 4 splits; INVALID_ARGUMENT for 4 "
                    "splits of 18 columns.",
       .faults = {kFaultPipelineTail},
       .recipes = {"bf16"},
       .run = &CheckPipeline},
      {.name = "bulk-communication-leaves-the-gemm-alone",
       .invariant = "A GEMM and the gather or sum beside it give what each gives alone (D15).",
       .criterion = "Both GEMMs, gathered x and sums bit-equal, 2 and 4 ranks.",
       .faults = {"rs-order-reversed"},
       .recipes = recipes,
       .run = &CheckBulk},
      {.name = "overlap-does-not-depend-on-timing",
       .invariant = "Overlapped calls give the same bits under every schedule (D16).",
       .criterion = "100 schedules with random delays of every task, bit-equal to sums by hand.",
       .faults = {kFaultCopyNotAwaited},
       .recipes = {"bf16"},
       .run = &CheckSchedules},
      {.name = "saved-operands-outlive-shared-buffers",
       .invariant = "What forward keeps for backward is not what later layers gather into (D20).",
       .criterion = "x of three layers that share a buffer, gathered again after all forwards, "
                    "bit-equal.",
       .bug_classes = {3},
       .faults = {kFaultSlotKept},
       .recipes = recipes,
       .run = &CheckReuse},
      {.name = "stale-views-of-shared-buffers-are-refused",
       .invariant = "A view of a shared buffer that a later layer has filled is an error (D22).",
       .criterion = "FAILED_PRECONDITION naming both layers.",
       .bug_classes = {3},
       .faults = {kFaultStaleViewRead},
       .recipes = {"mxfp8"},
       .run = &CheckStaleView},
  };
  group.faults = {
      InCommunication(
          kFaultScalesLeftBehind,
          "Passes codes on in a ring without their scales; the receiver takes its own."),
      InCommunication(kFaultCopyNotAwaited, "Multiplies a chunk before it has come."),
      {"rs-order-reversed", "After its own part an owner sums the others' from the other end.", 0,
       &OthersReversed},
      InCommunication(kFaultPipelineTail,
                      "Takes splits as wide as the quotient and drops the columns that remain."),
      InCommunication(kFaultSlotKept, "Keeps a slot of the shared buffer for backward.", 3),
      InCommunication(kFaultStaleViewRead, "Reads a view of a shared buffer whatever its epoch.",
                      3),
  };
  return group;
}

}  // namespace quantgate
