// Layers divided over ranks: what their operands are, what is summed, and which group a step has.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/tensor/convert.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"
#include "kernels/validate/scenarios/ranks/parallel_subject.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

// ---- Steps (D05, D06, D07, D11, D27)

absl::Status CheckSteps(ScenarioContext& context, ParallelMode mode, int size, int64_t rows) {
  QG_ASSIGN_OR_RETURN(const LayerRequest whole, MakeParallelLinear(context, mode, rows, 20));
  for (const bool sequence_parallel : {false, true}) {
    QG_ASSIGN_OR_RETURN(const std::vector<StepTensors> subjects,
                        StepOnRanks(context, whole, size, sequence_parallel));
    QG_RETURN_IF_ERROR(ExpectStepsOfRanks(context, subjects, whole, sequence_parallel));
  }
  return absl::OkStatus();
}

absl::Status CheckParallelSteps(ScenarioContext& context) {
  for (const ParallelMode mode : kParallelModes) {
    QG_RETURN_IF_ERROR(CheckSteps(context, mode, 2, 256));
    QG_RETURN_IF_ERROR(CheckSteps(context, mode, 4, 128));
  }
  return absl::OkStatus();
}

absl::Status CheckUnalignedSteps(ScenarioContext& context) {
  for (const ParallelMode mode : kParallelModes) {
    QG_RETURN_IF_ERROR(CheckSteps(context, mode, 4, 32));
  }
  return absl::OkStatus();
}

/// Where ranks divide neither contraction nor block, outputs have the bits of one rank: y and dw of
/// a column-parallel layer, dx and dw of a row-parallel one.
absl::Status CheckAgainstOneRank(ScenarioContext& context, ParallelMode mode, int size) {
  Engine& reference = context.reference();
  // Every rank must have whole blocks.
  const int64_t columns = context.recipe().name() == "fp8_block" ? 128 * size : 128;
  QG_ASSIGN_OR_RETURN(const LayerRequest whole,
                      MakeParallelLinear(context, mode, 128 * size, 30, columns));
  LayerRequest alone = whole;
  alone.layer.parallel_mode = ParallelMode::kNone;
  QG_ASSIGN_OR_RETURN(const LayerResult one, RunLayer(reference, alone, context.recipe(),
                                                      Arithmetic(), context.cancellation()));
  const bool is_row = mode == ParallelMode::kRow;
  const ShardRule divided = is_row ? InputColumns(whole.layer) : OutputColumns(whole.layer);
  for (const bool sequence_parallel : {false, true}) {
    QG_ASSIGN_OR_RETURN(const std::vector<StepTensors> subjects,
                        StepOnRanks(context, whole, size, sequence_parallel));
    for (size_t i = 0; i < subjects.size(); ++i) {
      const int rank = static_cast<int>(i);
      const std::string where = ModeText(mode, sequence_parallel, rank);
      for (const NamedTensor& output : one.outputs) {
        const bool is_dw = output.name == "dw";
        if (!is_dw && output.name != (is_row ? "dx" : "y")) continue;
        QG_ASSIGN_OR_RETURN(
            const Tensor part,
            ShardOf(reference, output.name, output.tensor,
                    is_dw ? ParameterShardRule(whole.layer, "weight") : divided, rank, size));
        const Tensor& subject = is_dw ? subjects[i].dw : is_row ? subjects[i].dx : subjects[i].y;
        QG_RETURN_IF_ERROR(
            context.ExpectSameBits(absl::StrCat(where, " ", output.name), subject, part));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAgainstOne(ScenarioContext& context) {
  for (const ParallelMode mode : kParallelModes) {
    QG_RETURN_IF_ERROR(CheckAgainstOneRank(context, mode, 2));
    QG_RETURN_IF_ERROR(CheckAgainstOneRank(context, mode, 4));
  }
  return absl::OkStatus();
}

// ---- Bias (D17)

/// Integers whose products and sums are exact. Every block of 32 has a 4 in it, so that codes are
/// exact too.
absl::StatusOr<Tensor> Integers(Shape shape, int64_t modulus) {
  QG_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(DType::kF32, std::move(shape)));
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    const bool is_small = i % 5 == 0 || modulus == 5;
    const float value = is_small ? static_cast<float>(i * 7 % modulus - modulus / 2) : 0.0f;
    tensor.as<float>()[i] = i % 32 == 0 ? 4.0f : value;
  }
  return tensor;
}

absl::StatusOr<Tensor> ExactLinear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const int64_t k = x.columns();
  const int64_t n = weight.rows();
  QG_ASSIGN_OR_RETURN(Tensor y, Tensor::Allocate(DType::kF32, {x.rows(), n}));
  for (int64_t i = 0; i < y.element_count(); ++i) {
    int64_t sum = static_cast<int64_t>(bias.as<float>()[i % n]);
    for (int64_t at = 0; at < k; ++at) {
      sum +=
          static_cast<int64_t>(x.as<float>()[i / n * k + at] * weight.as<float>()[i % n * k + at]);
    }
    y.as<float>()[i] = static_cast<float>(sum);
  }
  return CastTensor(y, DType::kBF16, ExecutionContext());
}

absl::Status CheckBiasOnce(ScenarioContext& context) {
  LayerRequest whole;
  whole.layer.parallel_mode = ParallelMode::kRow;
  QG_ASSIGN_OR_RETURN(const Tensor x, Integers({64, 128}, 5));
  QG_ASSIGN_OR_RETURN(const Tensor weight, Integers({128, 128}, 3));
  QG_ASSIGN_OR_RETURN(const Tensor bias, Integers({128}, 5));
  QG_ASSIGN_OR_RETURN(const Tensor expected, ExactLinear(x, weight, bias));
  QG_ASSIGN_OR_RETURN(whole.x, CastTensor(x, DType::kBF16, ExecutionContext()));
  whole.parameters = {{"weight", weight}, {"bias", bias}};
  for (const int size : {2, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, size));
      std::vector<Tensor> y(static_cast<size_t>(size));
      RunBodies(context, "forward", *world, [&](Rank& rank) -> absl::Status {
        QG_ASSIGN_OR_RETURN(const LayerRequest shard,
                            ShardOn(rank, whole, rank.group(kWorldGroup), sequence_parallel));
        StepOptions options = StepOptionsOf(context, shard);
        options.grad_enabled = false;
        QG_ASSIGN_OR_RETURN(const ForwardResult forward,
                            RankLayer(rank, shard).Forward(shard.x, options));
        QG_ASSIGN_OR_RETURN(y[static_cast<size_t>(rank.index())],
                            rank.engine().ToHost(forward.y, rank.cancellation()));
        return absl::OkStatus();
      });
      for (int rank = 0; rank < size; ++rank) {
        Tensor part = expected;
        if (sequence_parallel) {
          QG_ASSIGN_OR_RETURN(part, RowPart(expected, rank, size));
        }
        QG_RETURN_IF_ERROR(context.ExpectSameBits(
            absl::StrCat(ModeText(ParallelMode::kRow, sequence_parallel, rank), " y"),
            y[static_cast<size_t>(rank)], part));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

ScenarioGroup ParallelScenarios() {
  ScenarioGroup group;
  group.faults = {
      InCode(kFaultBiasOnAllRanks, "A row-parallel bias is added by every rank's GEMM."),
  };
  group.scenarios = {
      {.name = "parallel-linear-is-its-shards",
       .invariant = "A rank of a divided linear layer computes what its shard of the weight with "
                    "all rows of x and dy does, and partial results are summed in rank order.",
       .criterion =
           "y, dx and dw bit-equal to the shards run alone on one rank and sums in fp32 by "
           "hand; column- and row-parallel, sequence-parallel and not, 2 and 4 ranks.",
       .faults = {kFaultReduceScatterOwner, kFaultChunkOrder},
       .recipes = {"bf16", "fp8_current", "fp8_current:backward_override=dequantized", "fp8_block",
                   "mxfp8", "mxfp8:backward_override=high_precision",
                   "nvfp4:disable_stochastic_rounding=true", "fp8_rowwise",
                   "fp8_rowwise:backward_override=dequantized"},
       .run = &CheckParallelSteps},
      {.name = "parallel-linear-equals-one-rank",
       .invariant = "What divides no contraction, no block and no tensor's own amax is computed on "
                    "several ranks as on one.",
       .criterion =
           "y and dw of a column-parallel layer, dx and dw of a row-parallel one bit-equal "
           "to their parts of the whole layer's, sequence-parallel and not, 2 and 4 "
           "ranks.",
       .faults = {kFaultChunkOrder},
       .recipes = {"bf16", "fp8_delayed", "fp8_block", "mxfp8",
                   "mxfp8:backward_override=dequantized", "fp8_rowwise"},
       .run = &CheckAgainstOne},
      {.name = "unaligned-shards-gather-the-source",
       .invariant = "Shards that are no whole blocks are gathered in high precision and quantized "
                    "once.",
       .criterion = "y, dx and dw bit-equal to the shards run alone on one rank, 8 rows each.",
       .faults = {kFaultReduceScatterOwner, kFaultChunkOrder},
       .recipes = {"fp8_block", "mxfp8", "nvfp4:disable_stochastic_rounding=true", "fp8_rowwise"},
       .run = &CheckUnalignedSteps},
      {.name = "row-parallel-bias-once",
       .invariant = "The bias of a row-parallel layer is added once, after the sum over the ranks.",
       .criterion = "y of integers equals exact arithmetic, with 2 and 4 ranks, sequence-parallel "
                    "and not.",
       .faults = {kFaultBiasOnAllRanks},
       .recipes = {"bf16", "fp8_current", "mxfp8"},
       .run = &CheckBiasOnce},
  };
  return group;
}

}  // namespace quantgate
