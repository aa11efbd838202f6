// Layers divided over ranks: what their operands are, what is summed, and which group a step has.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/comm_faults.h"
#include "kernels/comm/quantized_gather.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/tensor/convert.h"
#include "kernels/validate/scenarios/parallel_subject.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr int64_t kGatherColumns = 128;

// ---- Gathers (D01, D26)

/// A tensor whose shards have other amaxes each, the largest element the last of all.
absl::StatusOr<Tensor> RisingTensor(ScenarioContext& context, int64_t rows, int size) {
  QG_ASSIGN_OR_RETURN(const Tensor normal, context.Generate(Distribution::kNormal, 11, DType::kBF16,
                                                            {rows, kGatherColumns}));
  QG_ASSIGN_OR_RETURN(Tensor f32, CastTensor(normal, DType::kF32, ExecutionContext()));
  const int64_t shard = f32.element_count() / size;
  for (int64_t i = 0; i < f32.element_count(); ++i) {
    f32.as<float>()[i] *= static_cast<float>(1 << (2 * (i / shard)));
  }
  f32.as<float>()[f32.element_count() - 1] = -3000.0f;
  return CastTensor(f32, DType::kBF16, ExecutionContext());
}

absl::StatusOr<QuantizedTensor> GatherShard(ScenarioContext& context, Rank& rank,
                                            const Tensor& whole, int size, TensorRole role,
                                            QuantizeArguments arguments) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(role);
  const Usages made = ShardUsages(quantizer, {true, true});
  QG_ASSIGN_OR_RETURN(const Tensor part, RowPart(whole, rank.index(), size));
  QG_ASSIGN_OR_RETURN(const Tensor shard, context.ToEngine(part));
  const GatherContext gather{context.engine(), rank.group(kWorldGroup), context.faults(),
                             context.cancellation()};
  QG_RETURN_IF_ERROR(ReduceAmaxes(gather, shard, quantizer, made, arguments));
  if (quantizer.rowwise.format == QuantizerFormat::kNvfp4) {
    arguments.row_offset = rank.index() * part.shape()[0];
  }
  QG_ASSIGN_OR_RETURN(
      const QuantizedTensor codes,
      context.engine().Quantize(shard, quantizer, made, arguments, context.cancellation()));
  return GatherCodes(gather, "x", codes, {true, true});
}

/// Delayed scaling's amax is a note of one rank's own cast and no part of the tensor.
void DropNotedAmaxes(QuantizedTensor& quantized) {
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    std::optional<QuantizedCopy>& copy = quantized.copy(usage);
    if (copy.has_value()) copy->amax = Tensor();
  }
}

absl::Status CheckGather(ScenarioContext& context, int size, TensorRole role) {
  QG_ASSIGN_OR_RETURN(const Tensor whole, RisingTensor(context, 128 * size, size));
  QuantizeArguments arguments;
  arguments.seed = 9;
  if (context.recipe().is_delayed()) {
    QG_ASSIGN_OR_RETURN(arguments.scale, Tensor::FromScalar(4.0f));
  }
  QG_ASSIGN_OR_RETURN(
      QuantizedTensor expected,
      context.reference().Quantize(whole, context.recipe().QuantizerFor(role), {true, true},
                                   arguments, context.cancellation()));
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, size));
  std::vector<QuantizedTensor> subjects(static_cast<size_t>(size));
  RunBodies(context, "gather", *world, [&](Rank& rank) -> absl::Status {
    QG_ASSIGN_OR_RETURN(subjects[static_cast<size_t>(rank.index())],
                        GatherShard(context, rank, whole, size, role, arguments));
    return absl::OkStatus();
  });
  for (int rank = 0; rank < size; ++rank) {
    QuantizedTensor& subject = subjects[static_cast<size_t>(rank)];
    if (context.recipe().is_delayed()) {
      DropNotedAmaxes(subject);
      DropNotedAmaxes(expected);
    }
    const std::string name =
        absl::StrCat(std::string(TensorRoleName(role)), " on rank ", rank, " of ", size);
    QG_RETURN_IF_ERROR(
        context.ExpectSameCopy(name + " rowwise", subject.rowwise, expected.rowwise));
    QG_RETURN_IF_ERROR(
        context.ExpectSameCopy(name + " columnwise", subject.columnwise, expected.columnwise));
  }
  return absl::OkStatus();
}

absl::Status CheckGatheredCodes(ScenarioContext& context) {
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kGradOutput}) {
    QG_RETURN_IF_ERROR(CheckGather(context, 2, role));
    QG_RETURN_IF_ERROR(CheckGather(context, 4, role));
  }
  return absl::OkStatus();
}

// ---- Steps (D05, D06, D07, D11, D27)

absl::Status CheckSteps(ScenarioContext& context, ParallelMode mode, int size, int64_t rows) {
  QG_ASSIGN_OR_RETURN(const LayerRequest whole, MakeParallelLinear(context, mode, rows, 20));
  for (const bool sequence_parallel : {false, true}) {
    QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, size));
    std::vector<StepTensors> subjects(static_cast<size_t>(size));
    RunBodies(context, "step", *world, [&](Rank& rank) -> absl::Status {
      QG_ASSIGN_OR_RETURN(const LayerRequest shard,
                          ShardOn(context, whole, rank.group(kWorldGroup), sequence_parallel));
      QG_ASSIGN_OR_RETURN(subjects[static_cast<size_t>(rank.index())], OneStep(context, shard));
      return absl::OkStatus();
    });
    QG_ASSIGN_OR_RETURN(const std::vector<StepTensors> expected,
                        ExpectedRanks(context, whole, size, sequence_parallel));
    for (int rank = 0; rank < size; ++rank) {
      const size_t i = static_cast<size_t>(rank);
      QG_RETURN_IF_ERROR(
          ExpectStep(context, ModeText(mode, sequence_parallel, rank), subjects[i], expected[i]));
    }
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

// ---- Bias (D17)

/// Integers of which every product and sum is exact; 4 in every block, so that codes are too.
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
                            ShardOn(context, whole, rank.group(kWorldGroup), sequence_parallel));
        StepOptions options = StepOptionsOf(context, shard);
        options.grad_enabled = false;
        QG_ASSIGN_OR_RETURN(const ForwardResult forward,
                            RankLayer(context, shard).Forward(shard.x, options));
        y[static_cast<size_t>(rank.index())] = forward.y;
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
      InCode(kFaultInterleaveLeft,
             "Reads columnwise codes that a gather joined one after the other as lines.", 0),
      InCode(kFaultPadInAmax, "Takes the padding behind a shard into its amax.", 0),
      InCode(kFaultBiasOnAllRanks, "A row-parallel bias is added by every rank's GEMM.", 0),
  };
  group.scenarios = {
      {.name = "gathered-codes-are-the-wholes",
       .invariant = "Shards quantized under the group's amax and gathered are the whole quantized "
                    "at once.",
       .criterion = "Codes, scales and amaxes of both directions bit-equal on every rank, of 2 and "
                    "4 ranks whose shards have other amaxes each.",
       .faults = {kFaultInterleaveLeft},
       .recipes = {"fp8_block", "nvfp4"},
       .run = &CheckGatheredCodes},
      {.name = "gathered-codes-have-the-groups-scale",
       .invariant = "What is gathered under one scale was quantized under the amax of the group, "
                    "or the gather is refused.",
       .criterion = "Codes, scales and amaxes of both directions bit-equal to the whole quantized "
                    "at once.",
       .faults = {kFaultAmaxNotReduced, kFaultRankZeroAmax, kFaultPadInAmax},
       .recipes = {"fp8_current", "fp8_current:power_2_scales=true", "nvfp4"},
       .run = &CheckGatheredCodes},
      {.name = "gathered-shards-in-rank-order",
       .invariant = "Gathered codes and scales of any format stand in the order of the ranks.",
       .criterion = "Bit-equal to the whole quantized at once.",
       .faults = {kFaultChunkOrder},
       .recipes = {"fp8_delayed", "mxfp8", "fp8_block"},
       .run = &CheckGatheredCodes},
      {.name = "parallel-linear-is-its-shards",
       .invariant = "A rank of a divided linear layer computes what its shard of the weight with "
                    "all rows of x and dy does, and partial results are summed in rank order.",
       .criterion =
           "y, dx and dw bit-equal to the shards run alone on one rank and sums in fp32 by "
           "hand; column- and row-parallel, sequence-parallel and not, 2 and 4 ranks.",
       .faults = {kFaultReduceScatterOwner, kFaultChunkOrder},
       .recipes = {"bf16", "fp8_current", "fp8_current:backward_override=dequantized", "fp8_block",
                   "mxfp8", "mxfp8:backward_override=high_precision",
                   "nvfp4:disable_stochastic_rounding=true"},
       .run = &CheckParallelSteps},
      {.name = "unaligned-shards-gather-the-source",
       .invariant = "Shards that are no whole blocks are gathered in high precision and quantized "
                    "once.",
       .criterion = "y, dx and dw bit-equal to the shards run alone on one rank, 8 rows each.",
       .faults = {kFaultReduceScatterOwner, kFaultChunkOrder},
       .recipes = {"fp8_block", "mxfp8", "nvfp4:disable_stochastic_rounding=true"},
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
