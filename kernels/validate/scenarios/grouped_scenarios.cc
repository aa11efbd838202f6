// A grouped_linear whose experts' weights are divided over ranks: each expert on each rank is a
// linear layer of its own, and what is divided by contraction is summed once.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/experts/grouped_run.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/ranks/parallel_subject.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr int64_t kGroupedColumns = 128;
/// Rows of each expert in the whole batch; one expert has none.
constexpr int64_t kExpertRows[] = {32, 96, 0, 64};

std::string ExpertWeight(size_t expert) { return absl::StrCat("weight.", expert); }

absl::StatusOr<LayerRequest> MakeGrouped(ScenarioContext& context, ParallelMode mode) {
  LayerRequest request;
  request.layer.kind = LayerKind::kGroupedLinear;
  request.layer.parallel_mode = mode;
  int64_t rows = 0;
  for (size_t expert = 0; expert < std::size(kExpertRows); ++expert) {
    request.layer.m_splits.push_back(kExpertRows[expert]);
    rows += kExpertRows[expert];
    QG_ASSIGN_OR_RETURN(request.parameters[ExpertWeight(expert)],
                        context.Generate(Distribution::kNormal, 610 + expert, DType::kBF16,
                                         {kGroupedColumns, kGroupedColumns}));
  }
  QG_ASSIGN_OR_RETURN(request.x, context.Generate(Distribution::kLogNormalOutliers, 600,
                                                  DType::kBF16, {rows, kGroupedColumns}));
  QG_ASSIGN_OR_RETURN(request.grad_output, context.Generate(Distribution::kNormal, 601,
                                                            DType::kBF16, {rows, kGroupedColumns}));
  return request;
}

/// The linear layer of one expert on its own rows, before ranks divide its weight.
absl::StatusOr<LayerRequest> ExpertAlone(const LayerRequest& whole, size_t expert) {
  LayerRequest linear;
  linear.layer.parallel_mode = whole.layer.parallel_mode;
  int64_t first = 0;
  for (size_t before = 0; before < expert; ++before) first += kExpertRows[before];
  QG_ASSIGN_OR_RETURN(linear.x, TakeRows(whole.x, first, kExpertRows[expert]));
  QG_ASSIGN_OR_RETURN(linear.grad_output, TakeRows(whole.grad_output, first, kExpertRows[expert]));
  linear.parameters["weight"] = whole.parameters.at(ExpertWeight(expert));
  return linear;
}

/// Outputs of one rank by name.
using OutputsOfRank = std::map<std::string, Tensor>;

/// The expected outputs of every rank. Each expert's shards run as linear layers on the reference
/// engine; the rows of the experts are joined, and what the ranks compute in part (y or dx) is
/// summed by hand.
absl::StatusOr<std::vector<OutputsOfRank>> OutputsInOne(ScenarioContext& context,
                                                        const LayerRequest& whole, int size,
                                                        bool sequence_parallel) {
  std::vector<std::vector<Tensor>> y(static_cast<size_t>(size)), dx(y.size());
  std::vector<OutputsOfRank> outputs(y.size());
  for (size_t expert = 0; expert < std::size(kExpertRows); ++expert) {
    QG_ASSIGN_OR_RETURN(const LayerRequest linear, ExpertAlone(whole, expert));
    QG_ASSIGN_OR_RETURN(const std::vector<StepTensors> shards, ShardsAlone(context, linear, size));
    for (size_t rank = 0; rank < shards.size(); ++rank) {
      y[rank].push_back(shards[rank].y);
      dx[rank].push_back(shards[rank].dx);
      outputs[rank][absl::StrCat("dw.", expert)] = shards[rank].dw;
    }
  }
  const auto join = [&](const std::vector<Tensor>& parts) {
    return context.reference().ConcatenateRows(parts, context.cancellation());
  };
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    QG_ASSIGN_OR_RETURN(outputs[rank]["y"], join(y[rank]));
    QG_ASSIGN_OR_RETURN(outputs[rank]["dx"], join(dx[rank]));
  }
  const char* const summed = whole.layer.parallel_mode == ParallelMode::kRow ? "y" : "dx";
  std::vector<Tensor> partials;
  for (const OutputsOfRank& rank : outputs) partials.push_back(rank.at(summed));
  QG_ASSIGN_OR_RETURN(const Tensor sum, SumInOrder(partials));
  for (int rank = 0; rank < size; ++rank) {
    Tensor& mine = outputs[static_cast<size_t>(rank)][summed];
    mine = sum;
    if (!sequence_parallel) continue;
    QG_ASSIGN_OR_RETURN(mine, RowPart(sum, rank, size));
  }
  return outputs;
}

absl::StatusOr<LayerRequest> InMemoryOf(Rank& rank, const LayerRequest& whole) {
  LayerRequest request = whole;
  std::vector<Tensor*> tensors = {&request.x, &request.grad_output};
  for (auto& [name, tensor] : request.parameters) tensors.push_back(&tensor);
  for (Tensor* tensor : tensors) {
    QG_ASSIGN_OR_RETURN(*tensor, rank.engine().ToDevice(*tensor, rank.cancellation()));
  }
  return request;
}

absl::StatusOr<OutputsOfRank> GroupedStepOfRank(ScenarioContext& context, Rank& rank,
                                                const LayerRequest& whole, bool sequence_parallel) {
  QG_ASSIGN_OR_RETURN(const LayerRequest request, InMemoryOf(rank, whole));
  ParallelStep parallel{.tp = &rank.group(kWorldGroup), .sequence_parallel = sequence_parallel};
  QG_ASSIGN_OR_RETURN(const GroupedStep step,
                      RunGrouped(rank.engine(), request, std::move(parallel), context.recipe(),
                                 Arithmetic(), rank.cancellation()));
  OutputsOfRank outputs;
  for (const NamedTensor& output : step.result.outputs) {
    QG_ASSIGN_OR_RETURN(outputs[output.name],
                        rank.engine().ToHost(output.tensor, rank.cancellation()));
  }
  return outputs;
}

absl::Status CheckOnRanks(ScenarioContext& context, ParallelMode mode, int size,
                          bool sequence_parallel) {
  QG_ASSIGN_OR_RETURN(const LayerRequest whole, MakeGrouped(context, mode));
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, size));
  std::vector<OutputsOfRank> subjects(static_cast<size_t>(size));
  const bool is_done = RunBodies(context, "step", *world, [&](Rank& rank) -> absl::Status {
    QG_ASSIGN_OR_RETURN(subjects[static_cast<size_t>(rank.index())],
                        GroupedStepOfRank(context, rank, whole, sequence_parallel));
    return absl::OkStatus();
  });
  if (!is_done) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const std::vector<OutputsOfRank> expected,
                      OutputsInOne(context, whole, size, sequence_parallel));
  for (int rank = 0; rank < size; ++rank) {
    const OutputsOfRank& mine = subjects[static_cast<size_t>(rank)];
    for (const auto& [name, tensor] : expected[static_cast<size_t>(rank)]) {
      const std::string where = ModeText(mode, sequence_parallel, rank);
      const auto found = mine.find(name);
      QG_RETURN_IF_ERROR(context.ExpectSameBits(
          absl::StrCat(where, " ", name), found == mine.end() ? Tensor() : found->second, tensor));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGrouped(ScenarioContext& context) {
  for (const ParallelMode mode : kParallelModes) {
    for (const int size : {2, 4}) {
      for (const bool sequence_parallel : {false, true}) {
        QG_RETURN_IF_ERROR(CheckOnRanks(context, mode, size, sequence_parallel));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

ScenarioGroup GroupedScenarios() {
  ScenarioGroup group;
  group.faults = {
      InCode(kFaultExpertAmaxOverRanks,
             "Quantizes an expert's x and grad_output under the largest amax of the ranks, as if "
             "codes were joined."),
      InCode(kFaultExpertPartialLeft,
             "Takes each rank's partial product for the sum over the ranks."),
  };
  group.scenarios = {
      {.name = "divided-experts-are-linear-layers",
       .invariant =
           "A rank of a divided grouped_linear computes for each expert what that expert's "
           "shard does as a linear layer of its own, with all of the expert's rows and no "
           "other's; what its contraction divides is summed in rank order.",
       .criterion = "y, dx and each dw bit-equal to linear layers on the reference engine and sums "
                    "in fp32 by hand; column- and row-parallel, sequence-parallel and not, 2 and 4 "
                    "ranks, with uneven counts and an expert without rows.",
       .faults = {kFaultExpertAmaxOverRanks, kFaultExpertPartialLeft, kFaultReduceScatterOwner,
                  kFaultChunkOrder},
       .recipes = {"bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8",
                   "nvfp4:disable_stochastic_rounding=true"},
       .run = &CheckGrouped},
  };
  return group;
}

}  // namespace quantgate
