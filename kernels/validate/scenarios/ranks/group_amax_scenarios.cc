// Maxima over groups of ranks: whose tensors share a scale.
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/oracles/quantize_checks.h"
#include "kernels/validate/scenarios/ranks/virtual_ranks.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr int64_t kColumns = 32;
/// Rows that a Hadamard transform of columns takes together.
constexpr int64_t kBlockRows = 16;
constexpr float kOutlier = -300.0f;

/// Quantizes a rank's tensor under the maxima of its group, or under its own if `group` is empty.
/// The result is on the host.
absl::StatusOr<QuantizedTensor> QuantizeInGroup(ScenarioContext& context, Rank& rank,
                                                const std::string& group, const Tensor& source) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kInput);
  constexpr Usages kBoth{true, true};
  QuantizeArguments arguments;
  QG_ASSIGN_OR_RETURN(const Tensor on_device, rank.engine().ToDevice(source, rank.cancellation()));
  if (!group.empty()) {
    QG_ASSIGN_OR_RETURN(ProcessGroup * members, rank.FindGroup(group));
    const GatherContext gather{rank.engine(), *members, rank.faults(), rank.cancellation()};
    QG_RETURN_IF_ERROR(ReduceAmaxes(gather, on_device, quantizer, kBoth, arguments));
  }
  QG_ASSIGN_OR_RETURN(
      const QuantizedTensor quantized,
      rank.engine().Quantize(on_device, quantizer, kBoth, arguments, rank.cancellation()));
  return CopiesOnHost(rank.engine(), quantized);
}

/// What the tensor must become: maxima over the tensors of all members by plain loops.
absl::StatusOr<QuantizedTensor> ExpectedInGroup(ScenarioContext& context, const Tensor& source,
                                                const std::vector<Tensor>& of_group) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kInput);
  QuantizeArguments arguments;
  QG_RETURN_IF_ERROR(ExpectedGroupAmaxes(of_group, quantizer, arguments));
  return ExpectedQuantization(source, quantizer, {true, true}, arguments);
}

std::vector<Tensor> TensorsOfGroup(const std::vector<Tensor>& sources,
                                   const std::vector<int>& members) {
  std::vector<Tensor> tensors;
  for (const int member : members) tensors.push_back(sources[member]);
  return tensors;
}

/// Quantizes sources[rank] on each rank under the maxima of its group.
absl::Status CheckGroupAmax(ScenarioContext& context, const std::string& kind,
                            const std::vector<Tensor>& sources, const std::string& name) {
  const int size = static_cast<int>(sources.size());
  QG_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, MakeVirtualRanks(context, size));
  std::vector<QuantizedTensor> results(sources.size());
  const bool is_done = RunBodies(context, name, *world, [&](Rank& rank) -> absl::Status {
    QG_ASSIGN_OR_RETURN(results[rank.index()],
                        QuantizeInGroup(context, rank, kind, sources[rank.index()]));
    return absl::OkStatus();
  });
  if (!is_done) return absl::OkStatus();
  const std::vector<std::vector<int>> groups = GroupOfEachRank(size, kind);
  for (size_t rank = 0; rank < results.size(); ++rank) {
    QG_ASSIGN_OR_RETURN(
        const QuantizedTensor expected,
        ExpectedInGroup(context, sources[rank], TensorsOfGroup(sources, groups[rank])));
    QG_RETURN_IF_ERROR(ExpectSameQuantization(
        context, absl::StrCat(name, ", rank ", rank, " of ", size), results[rank], expected));
  }
  return absl::OkStatus();
}

/// Each rank's tensor, rank 1 without rows, the last element of the last rank an outlier.
absl::StatusOr<std::vector<Tensor>> RankTensors(ScenarioContext& context, int size, uint64_t seed) {
  std::vector<Tensor> tensors;
  for (int rank = 0; rank < size; ++rank) {
    const int64_t rows = size > 2 && rank == 1 ? 0 : kBlockRows * (1 + rank % 2);
    QG_ASSIGN_OR_RETURN(
        Tensor tensor,
        context.Generate(Distribution::kNormal, seed + static_cast<uint64_t>(rank), DType::kBF16,
                         {rows, kColumns}, static_cast<float>(1 << rank % 4)));
    tensors.push_back(std::move(tensor));
  }
  SetValue(tensors.back(), tensors.back().element_count() - 1, kOutlier);
  return tensors;
}

absl::Status CheckMaximum(ScenarioContext& context, const std::string& kind) {
  for (const int size : {1, 2, 3, 4, 8}) {
    QG_ASSIGN_OR_RETURN(const std::vector<Tensor> tensors, RankTensors(context, size, 90));
    QG_RETURN_IF_ERROR(CheckGroupAmax(context, kind, tensors, "amax over " + kind));
  }
  return absl::OkStatus();
}

absl::Status CheckOverNeighbours(ScenarioContext& context) {
  return CheckMaximum(context, kNeighbours);
}
absl::Status CheckOverOtherGroup(ScenarioContext& context) {
  return CheckMaximum(context, kHalfApart);
}

// ---- Edge values

struct EdgeCase {
  const char* name;
  float values[2];  ///< Values of two elements of rank 3; its other elements are zero.
};

absl::Status CheckEdges(ScenarioContext& context) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr EdgeCase kCases[] = {
      {"zero", {0.0f, 0.0f}},           {"minus zero", {-0.0f, -0.0f}},
      {"infinity", {-kInf, 1.0f}},      {"NaN and a number", {kNan, -3.0f}},
      {"NaN alone", {kNan, kNan}},      {"subnormal", {0x1p-133f, 0.0f}},
      {"below epsilon", {0.01f, 0.0f}}, {"negative", {-7.0f, 5.0f}},
  };
  for (const EdgeCase& edge : kCases) {
    // Rank 0 has zeros alone, rank 1 minus zeros, rank 2 nothing.
    std::vector<Tensor> tensors;
    for (const int64_t rows : {kBlockRows, kBlockRows, int64_t{0}, kBlockRows}) {
      QG_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(DType::kBF16, {rows, kColumns}));
      for (int64_t i = 0; i < tensor.element_count(); ++i) {
        SetValue(tensor, i, tensors.size() == 1 ? -0.0f : 0.0f);
      }
      tensors.push_back(std::move(tensor));
    }
    SetValue(tensors[3], 5, edge.values[0]);
    SetValue(tensors[3], 3 * kColumns, edge.values[1]);
    QG_RETURN_IF_ERROR(CheckGroupAmax(context, kHalfApart, tensors, edge.name));
  }
  return absl::OkStatus();
}

// ---- Two groups, and none

/// One quantization of tensor number `tensor` under the maxima of `group`, or under its own if the
/// name is empty.
struct Pass {
  int tensor = 0;
  const char* group = "";
};

absl::Status CheckInterleaved(ScenarioContext& context) {
  constexpr int kSize = 4;
  std::vector<std::vector<Tensor>> tensors(3);
  for (size_t i = 0; i < tensors.size(); ++i) {
    QG_ASSIGN_OR_RETURN(tensors[i], RankTensors(context, kSize, 200 + 10 * i));
  }
  // Forward of the first under one group, of the second under another, of the third under none;
  // then backward of all, in two orders.
  const std::vector<Pass> forward = {{0, kNeighbours}, {1, kHalfApart}, {2, ""}};
  std::vector<Pass> passes = forward;
  passes.insert(passes.end(), forward.begin(), forward.end());
  passes.insert(passes.end(), forward.rbegin(), forward.rend());
  QG_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, MakeVirtualRanks(context, kSize));
  std::vector<std::vector<QuantizedTensor>> results(kSize);
  RunBodies(context, "interleaved groups", *world, [&](Rank& rank) -> absl::Status {
    for (const Pass& pass : passes) {
      QG_ASSIGN_OR_RETURN(
          results[rank.index()].emplace_back(),
          QuantizeInGroup(context, rank, pass.group, tensors[pass.tensor][rank.index()]));
    }
    return absl::OkStatus();
  });
  for (int rank = 0; rank < kSize; ++rank) {
    for (size_t i = 0; i < results[rank].size(); ++i) {
      const Pass& pass = passes[i];
      context.SetStep(static_cast<int64_t>(i));
      const std::vector<Tensor>& sources = tensors[pass.tensor];
      const bool is_alone = std::string_view(pass.group).empty();
      const std::vector<int> members =
          is_alone ? std::vector<int>{rank} : GroupOfEachRank(kSize, pass.group)[rank];
      QG_ASSIGN_OR_RETURN(
          const QuantizedTensor expected,
          ExpectedInGroup(context, sources[rank], TensorsOfGroup(sources, members)));
      QG_RETURN_IF_ERROR(ExpectSameQuantization(
          context, absl::StrCat("rank ", rank, " ", pass.group), results[rank][i], expected));
    }
  }
  return absl::OkStatus();
}

}  // namespace

ScenarioGroup GroupAmaxScenarios() {
  const std::vector<std::string> recipes = {"fp8_current", "nvfp4", "nvfp4:disable_rht=true"};
  ScenarioGroup group;
  group.scenarios = {
      {.name = "group-amax-is-maximum",
       .invariant = "Ranks of a group quantize with the maximum over all of them (D02).",
       .criterion = "Codes, scales and amaxes of both directions bit-equal to a recomputation "
                    "with a maximum by plain loops: 1 to 8 ranks, one without rows, an outlier "
                    "on the last.",
       .faults = {kFaultAmaxNotReduced, kFaultAmaxOverWorld, kFaultRankZeroAmax},
       .recipes = recipes,
       .run = &CheckOverNeighbours},
      {.name = "group-amax-of-edge-values",
       .invariant = "Zeros, NaN, infinities, subnormals and empty ranks enter a group's amax as "
                    "they enter a tensor's (D03).",
       .criterion = "As group-amax-is-maximum; NaN ignored, 0 of nothing.",
       .faults = {kFaultAmaxNotReduced, kFaultRankZeroAmax, kFaultEmptyRankSkips},
       .recipes = {"fp8_current", "fp8_current:power_2_scales=true",
                   "fp8_current:amax_epsilon=0.125", "nvfp4:disable_rht=true"},
       .run = &CheckEdges},
      {.name = "group-amax-over-named-group",
       .invariant = "The amax is that of the group that a call names, whichever groups there are "
                    "(D40).",
       .criterion = "As group-amax-is-maximum, over groups across the first ones.",
       .faults = {kFaultGroupSwapped, kFaultAmaxOverWorld},
       .recipes = recipes,
       .run = &CheckOverOtherGroup},
      {.name = "interleaved-groups-keep-apart",
       .invariant = "Each pass quantizes in its own group, whatever groups came in between, and "
                    "alone after a group (D18).",
       .criterion = "As group-amax-is-maximum: two groups and none, forward and backward in both "
                    "orders.",
       .faults = {kFaultGroupSwapped, kFaultAmaxOverWorld},
       .recipes = recipes,
       .run = &CheckInterleaved},
  };
  group.faults = {
      InCommunication(kFaultAmaxNotReduced, "Takes the rank's own amax for the group's."),
      InCommunication(kFaultAmaxOverWorld, "Takes the maximum over all ranks of the world."),
      InCommunication(kFaultRankZeroAmax,
                      "Takes the amax of the group's first rank for the group's."),
      InCommunication(kFaultGroupSwapped,
                      "Makes the calls on a group on another group of the rank."),
  };
  return group;
}

}  // namespace quantgate
