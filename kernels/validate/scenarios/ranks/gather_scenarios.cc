// Quantized tensors divided over ranks, and what their gathers make of them.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/tensor/convert.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/oracles/quantize_checks.h"
#include "kernels/validate/scenarios/ranks/parallel_subject.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr int64_t kGatherRows = 128, kGatherColumns = 128;
constexpr Usages kRowwiseOnly{true, false};
constexpr Usages kColumnwiseOnly{false, true};
constexpr Usages kBothUsages{true, true};

/// A tensor whose shards have different amaxes, rising with the rank; the very last element is the
/// largest.
absl::StatusOr<Tensor> RisingTensor(ScenarioContext& context, int size) {
  QG_ASSIGN_OR_RETURN(const Tensor normal, context.Generate(Distribution::kNormal, 11, DType::kBF16,
                                                            {kGatherRows * size, kGatherColumns}));
  QG_ASSIGN_OR_RETURN(Tensor f32, CastTensor(normal, DType::kF32, ExecutionContext()));
  const int64_t shard = f32.element_count() / size;
  for (int64_t i = 0; i < f32.element_count(); ++i) {
    f32.as<float>()[i] *= static_cast<float>(1 << (2 * (i / shard)));
  }
  f32.as<float>()[f32.element_count() - 1] = -3000.0f;
  return CastTensor(f32, DType::kBF16, ExecutionContext());
}

absl::StatusOr<QuantizeArguments> ArgumentsOf(const Recipe& recipe) {
  QuantizeArguments arguments;
  arguments.seed = 9;
  if (recipe.is_delayed()) {
    QG_ASSIGN_OR_RETURN(arguments.scale, Tensor::FromScalar(4.0f));
  }
  return arguments;
}

/// The codes of a rank's part of `whole` under the amax of all of it.
absl::StatusOr<QuantizedTensor> ShardCodes(const GatherContext& rank, const Recipe& recipe,
                                           TensorRole role, const Tensor& whole, Usages wanted) {
  const Quantizer& quantizer = recipe.QuantizerFor(role);
  const Usages made = ShardUsages(quantizer, wanted);
  QG_ASSIGN_OR_RETURN(const Tensor part, RowPart(whole, rank.group.rank(), rank.group.size()));
  QG_ASSIGN_OR_RETURN(const Tensor shard, rank.engine.ToDevice(part, rank.cancellation));
  QG_ASSIGN_OR_RETURN(QuantizeArguments arguments, ArgumentsOf(recipe));
  QG_RETURN_IF_ERROR(ReduceAmaxes(rank, shard, quantizer, made, arguments));
  if (quantizer.rowwise.format == QuantizerFormat::kNvfp4) {
    arguments.row_offset = rank.group.rank() * part.shape()[0];
  }
  return rank.engine.Quantize(shard, quantizer, made, arguments, rank.cancellation);
}

absl::StatusOr<QuantizedTensor> GatherCodesToHost(const GatherContext& rank,
                                                  const QuantizedTensor& shard, Usages usages) {
  QG_ASSIGN_OR_RETURN(const QuantizedTensor whole, GatherCodes(rank, "x", shard, usages));
  return CopiesOnHost(rank.engine, whole);
}

// ---- D01, D04, D26

/// Drops the amaxes that delayed scaling noted: each is of one rank's own cast and not part of the
/// gathered tensor.
void DropNotedAmaxes(QuantizedTensor& quantized) {
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    std::optional<QuantizedCopy>& copy = quantized.copy(usage);
    if (copy.has_value()) copy->amax = Tensor();
  }
}

absl::Status CheckGather(ScenarioContext& context, int size, TensorRole role) {
  const Recipe& recipe = context.recipe();
  QG_ASSIGN_OR_RETURN(const Tensor whole, RisingTensor(context, size));
  QG_ASSIGN_OR_RETURN(const QuantizeArguments arguments, ArgumentsOf(recipe));
  QG_ASSIGN_OR_RETURN(
      QuantizedTensor expected,
      ExpectedQuantization(whole, recipe.QuantizerFor(role), kBothUsages, arguments));
  if (recipe.is_delayed()) DropNotedAmaxes(expected);
  std::vector<QuantizedTensor> subjects(static_cast<size_t>(size));
  const bool is_done =
      RunOnRanks(context, size, "gather", [&](const GatherContext& rank) -> absl::Status {
        QG_ASSIGN_OR_RETURN(const QuantizedTensor shard,
                            ShardCodes(rank, recipe, role, whole, kBothUsages));
        QG_ASSIGN_OR_RETURN(subjects[rank.group.rank()],
                            GatherCodesToHost(rank, shard, kBothUsages));
        return absl::OkStatus();
      });
  if (!is_done) return absl::OkStatus();
  for (int rank = 0; rank < size; ++rank) {
    QuantizedTensor& subject = subjects[static_cast<size_t>(rank)];
    if (recipe.is_delayed()) DropNotedAmaxes(subject);
    QG_RETURN_IF_ERROR(ExpectSameQuantization(
        context, absl::StrCat(std::string(TensorRoleName(role)), " on rank ", rank, " of ", size),
        subject, expected));
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

// ---- D25: dgrad reads one direction of dy, wgrad the other; each travels by itself.

struct TwoGathers {
  QuantizedTensor rows, columns;
};

absl::Status CheckTwoGathers(ScenarioContext& context, int size) {
  constexpr TensorRole kRole = TensorRole::kGradOutput;
  QG_ASSIGN_OR_RETURN(const Tensor whole, RisingTensor(context, size));
  QG_ASSIGN_OR_RETURN(
      QuantizedTensor expected,
      ExpectedQuantization(whole, context.recipe().QuantizerFor(kRole), kBothUsages));
  const std::span<const std::byte> rowwise = expected.rowwise->data.bytes();
  context.Expect(!std::ranges::equal(rowwise, expected.columnwise->data.bytes()),
                 "codes of the two directions", "equal", "different");
  std::vector<TwoGathers> subjects(static_cast<size_t>(size));
  const bool is_done =
      RunOnRanks(context, size, "gathers", [&](const GatherContext& rank) -> absl::Status {
        QG_ASSIGN_OR_RETURN(const QuantizedTensor shard,
                            ShardCodes(rank, context.recipe(), kRole, whole, kBothUsages));
        TwoGathers& own = subjects[rank.group.rank()];
        QG_ASSIGN_OR_RETURN(own.rows, GatherCodesToHost(rank, shard, kRowwiseOnly));
        QG_ASSIGN_OR_RETURN(own.columns, GatherCodesToHost(rank, shard, kColumnwiseOnly));
        return absl::OkStatus();
      });
  if (!is_done) return absl::OkStatus();
  QuantizedTensor rows = expected, columns = expected;
  rows.columnwise.reset();
  columns.rowwise.reset();
  for (const TwoGathers& own : subjects) {
    QG_RETURN_IF_ERROR(ExpectSameQuantization(context, "dy of dgrad", own.rows, rows));
    QG_RETURN_IF_ERROR(ExpectSameQuantization(context, "dy of wgrad", own.columns, columns));
  }
  return absl::OkStatus();
}

absl::Status CheckDirections(ScenarioContext& context) {
  QG_RETURN_IF_ERROR(CheckTwoGathers(context, 2));
  QG_RETURN_IF_ERROR(CheckTwoGathers(context, 4));
  QG_ASSIGN_OR_RETURN(const LayerRequest whole,
                      MakeParallelLinear(context, ParallelMode::kRow, 128, 160));
  QG_ASSIGN_OR_RETURN(const std::vector<StepTensors> subjects,
                      StepOnRanks(context, whole, 2, true));
  return ExpectStepsOfRanks(context, subjects, whole, true);
}

// ---- D24: backward overrides

/// Gathering codes and dequantizing must give the same values as dequantizing and gathering.
absl::Status CheckGatherOfValues(ScenarioContext& context) {
  constexpr int kSize = 2;
  constexpr TensorRole kRole = TensorRole::kInput;
  QG_ASSIGN_OR_RETURN(const Tensor whole, RisingTensor(context, kSize));
  QG_ASSIGN_OR_RETURN(
      const QuantizedTensor codes,
      ExpectedQuantization(whole, context.recipe().QuantizerFor(kRole), kRowwiseOnly));
  QG_ASSIGN_OR_RETURN(
      const Tensor expected,
      ExpectedValues(*codes.rowwise, Usage::kRowwise, whole.rows(), kGatherColumns, DType::kBF16));
  std::vector<TensorsOfRank> subjects(kSize);
  const bool is_done =
      RunOnRanks(context, kSize, "gathers", [&](const GatherContext& rank) -> absl::Status {
        const auto values_of = [&](const QuantizedTensor& quantized) {
          return rank.engine.Dequantize(quantized, Usage::kRowwise, DType::kBF16,
                                        rank.cancellation);
        };
        QG_ASSIGN_OR_RETURN(const QuantizedTensor shard,
                            ShardCodes(rank, context.recipe(), kRole, whole, kRowwiseOnly));
        QG_ASSIGN_OR_RETURN(const QuantizedTensor gathered,
                            GatherCodes(rank, "x", shard, kRowwiseOnly));
        QG_ASSIGN_OR_RETURN(const Tensor of_gathered, values_of(gathered));
        QG_ASSIGN_OR_RETURN(const Tensor of_shard, values_of(shard));
        QG_ASSIGN_OR_RETURN(const Tensor joined, GatherRows(rank, "x", of_shard, whole.rows()));
        for (const Tensor& tensor : {of_gathered, joined}) {
          QG_ASSIGN_OR_RETURN(subjects[rank.group.rank()].emplace_back(),
                              rank.engine.ToHost(tensor, rank.cancellation));
        }
        return absl::OkStatus();
      });
  if (!is_done) return absl::OkStatus();
  for (const TensorsOfRank& own : subjects) {
    QG_RETURN_IF_ERROR(context.ExpectSameBits("values of gathered codes", own[0], expected));
    QG_RETURN_IF_ERROR(context.ExpectSameBits("gathered values of codes", own[1], expected));
  }
  return absl::OkStatus();
}

/// Expects the operand of wgrad that was gathered to have dtype and shape of the whole tensor.
void ExpectHighPrecisionOperands(ScenarioContext& context, const LayerRequest& whole,
                                 const std::vector<StepTensors>& ranks) {
  const bool is_row = whole.layer.parallel_mode == ParallelMode::kRow;
  for (const StepTensors& rank : ranks) {
    const GemmOperand& gathered = is_row ? rank.wgrad_grad_output : rank.wgrad_x;
    context.ExpectSameText(is_row ? "dy of wgrad" : "x of wgrad", TensorText(gathered.data),
                           TensorText(is_row ? whole.grad_output : whole.x));
  }
}

absl::Status CheckOverrides(ScenarioContext& context) {
  for (const ParallelMode mode : kParallelModes) {
    QG_ASSIGN_OR_RETURN(const LayerRequest whole, MakeParallelLinear(context, mode, 256, 170));
    for (const bool sequence_parallel : {false, true}) {
      QG_ASSIGN_OR_RETURN(const std::vector<StepTensors> subjects,
                          StepOnRanks(context, whole, 2, sequence_parallel));
      ExpectHighPrecisionOperands(context, whole, subjects);
      QG_RETURN_IF_ERROR(ExpectStepsOfRanks(context, subjects, whole, sequence_parallel));
    }
  }
  const bool has_values = context.recipe().backward_override() == BackwardOverride::kDequantized;
  return has_values ? CheckGatherOfValues(context) : absl::OkStatus();
}

// ---- D23: what the second quantization under a hybrid recipe adds

/// max |x| of every `rows` rows of each column.
std::vector<double> ColumnBlockAmaxes(const Tensor& x, int64_t rows) {
  std::vector<double> amaxes(static_cast<size_t>(x.rows() / rows * x.columns()));
  for (int64_t i = 0; i < x.element_count(); ++i) {
    const int64_t block = i / x.columns() / rows * x.columns() + i % x.columns();
    double& amax = amaxes[static_cast<size_t>(block)];
    amax = std::max(amax, std::abs(static_cast<double>(ValueAt(x, i))));
  }
  return amaxes;
}

/// How far rounding to E4M3 moves a value at most, under a scale_inv of at most `scale_inv`: half a
/// step of normal numbers, 2^-4 of the value, or of subnormal ones, 2^-10 of the scale.
double HalfStep(double value, double scale_inv) {
  return std::max(0x1p-4 * std::abs(value), 0x1p-10 * scale_inv);
}
/// The largest scale_inv of a block with this amax: the next power of two above amax / 448.
double LargestScaleInv(double amax) { return 2 * amax / 448; }

/// Values of x quantized twice and once. The first of the two quantizations has an fp32 scale; its
/// error includes up to four roundings of 2^-24 and one to bf16.
struct DoubleQuantization {
  Tensor x;       ///< As given.
  Tensor values;  ///< The values of its rowwise codes.
  Tensor twice;   ///< The values of columnwise codes of `values`, f32.
  Tensor once;    ///< The values of columnwise codes of x, f32.
};

absl::StatusOr<DoubleQuantization> QuantizedTwice(const Tensor& x, const Quantizer& quantizer,
                                                  const QuantizedTensor& twice) {
  DoubleQuantization values;
  values.x = x;
  const auto values_of = [&](const QuantizedTensor& quantized, Usage usage, DType dtype) {
    return ExpectedValues(*quantized.copy(usage), usage, x.rows(), x.columns(), dtype);
  };
  QG_ASSIGN_OR_RETURN(const QuantizedTensor once, ExpectedQuantization(x, quantizer, kBothUsages));
  QG_ASSIGN_OR_RETURN(values.values, values_of(once, Usage::kRowwise, DType::kBF16));
  QG_ASSIGN_OR_RETURN(values.once, values_of(once, Usage::kColumnwise, DType::kF32));
  QG_ASSIGN_OR_RETURN(values.twice, values_of(twice, Usage::kColumnwise, DType::kF32));
  return values;
}

void ExpectBounded(ScenarioContext& context, const DoubleQuantization& of, int64_t block_rows) {
  const double tensor_scale = ExpectedAmax(of.x) / 448.0;
  const std::vector<double> amaxes = ColumnBlockAmaxes(of.x, block_rows);
  const std::vector<double> amaxes_of_values = ColumnBlockAmaxes(of.values, block_rows);
  const int64_t columns = of.x.columns();
  int64_t differing = 0;
  double largest = 0, part = 0;
  for (int64_t i = 0; i < of.x.element_count(); ++i) {
    const size_t block = static_cast<size_t>(i / columns / block_rows * columns + i % columns);
    const double x = ValueAt(of.x, i), value = ValueAt(of.values, i);
    const double first = HalfStep(x, tensor_scale) * (1 + 0x1p-21) + 0x1p-21 * std::abs(x) +
                         0x1p-8 * std::abs(value);
    const double bound = first + HalfStep(value, LargestScaleInv(amaxes_of_values[block])) +
                         HalfStep(x, LargestScaleInv(amaxes[block]));
    const double error = std::abs(static_cast<double>(ValueAt(of.twice, i)) - ValueAt(of.once, i));
    differing += error != 0;
    largest = std::max(largest, error);
    part = std::max(part, bound == 0 ? error : error / bound);
  }
  const std::string found = absl::StrFormat(
      "x of wgrad quantized twice: %d of %d elements are not those of one "
      "quantization, by %.6g at most, %.3f of the bound at most",
      differing, of.x.element_count(), largest, part);
  context.Expect(part <= 1, "error of the second quantization", found, "at most the bound");
  context.AddNote(found);
}

absl::Status CheckDoubleQuantization(ScenarioContext& context) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kInput);
  QG_ASSIGN_OR_RETURN(const LayerRequest whole,
                      MakeParallelLinear(context, ParallelMode::kColumn, 256, 180));
  QG_ASSIGN_OR_RETURN(const std::vector<StepTensors> subjects,
                      StepOnRanks(context, whole, 2, /*sequence_parallel=*/true));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor codes,
                      ExpectedQuantization(whole.x, quantizer, kRowwiseOnly));
  QG_ASSIGN_OR_RETURN(const Tensor values,
                      ExpectedValues(*codes.rowwise, Usage::kRowwise, whole.x.rows(),
                                     whole.x.columns(), DType::kBF16));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor twice,
                      ExpectedQuantization(values, quantizer, kBothUsages));
  for (const StepTensors& rank : subjects) {
    QG_RETURN_IF_ERROR(
        context.ExpectSameBits("x of wgrad data", rank.wgrad_x.data, twice.columnwise->data));
    QG_RETURN_IF_ERROR(context.ExpectSameBits("x of wgrad scale_inv", rank.wgrad_x.scale_inv,
                                              twice.columnwise->scale_inv));
  }
  // Forward reads rowwise codes, which the second quantization reproduces.
  QG_RETURN_IF_ERROR(
      context.ExpectSameCopy("x of fprop, twice and once", twice.rowwise, codes.rowwise));
  QG_ASSIGN_OR_RETURN(const DoubleQuantization both, QuantizedTwice(whole.x, quantizer, twice));
  ExpectBounded(context, both, BlockLength(quantizer.columnwise.format));
  return absl::OkStatus();
}

// ---- Faults

EngineAlterations InterleaveLeft() {
  EngineAlterations alterations;
  alterations.concatenate_columns = [](Engine& engine, std::span<const Tensor> parts,
                                       const Cancellation* cancellation) -> absl::StatusOr<Tensor> {
    std::vector<Tensor> flat;
    for (const Tensor& part : parts) {
      QG_ASSIGN_OR_RETURN(flat.emplace_back(),
                          part.Reinterpret(part.dtype(), {part.element_count()}));
    }
    QG_ASSIGN_OR_RETURN(const Tensor joined, engine.ConcatenateRows(flat, cancellation));
    const int64_t lines = parts[0].shape()[0];
    return joined.Reinterpret(joined.dtype(), {lines, joined.element_count() / lines});
  };
  return alterations;
}

/// Takes the memory behind the shard, never written, for elements of it.
EngineAlterations PadInAmax() {
  EngineAlterations alterations;
  alterations.measured = [](Engine& engine, TensorAmaxes measured) -> absl::StatusOr<TensorAmaxes> {
    Tensor& amax = measured.rowwise.has_value() ? measured.rowwise : measured.columnwise;
    if (!amax.has_value()) return measured;
    QG_ASSIGN_OR_RETURN(const Tensor pad, Tensor::FromScalar(3.0e4f));
    QG_ASSIGN_OR_RETURN(const Tensor there, engine.ToDevice(pad, nullptr));
    const Tensor both[] = {amax, there};
    QG_ASSIGN_OR_RETURN(amax, engine.Maximum(both, nullptr));
    return measured;
  };
  return alterations;
}

}  // namespace

ScenarioGroup GatherScenarios() {
  ScenarioGroup group;
  group.faults = {
      {"gather-interleave-left",
       "Reads columnwise codes that a gather joined one after the other as lines.", 0,
       &InterleaveLeft},
      {"pad-included-in-amax", "Takes the padding behind a shard into its amax.", 0, &PadInAmax},
      InCommunication(kFaultRowBytesForColumns,
                      "Sends rowwise codes with the columnwise scales, as of per-tensor FP8."),
      InCode(kFaultOverrideQuantizes,
             "Quantizes again what a backward override gathered in high precision."),
      InCode(kFaultOverrideGathersOriginal,
             "Keeps and gathers the source of x where the override says what its codes stand for."),
  };
  group.scenarios = {
      {.name = "gathered-codes-are-the-wholes",
       .invariant = "Shards quantized under the group's amax and gathered are the whole quantized "
                    "at once.",
       .criterion = "Codes, scales and amaxes of both directions bit-equal on every rank, of 2 and "
                    "4 ranks whose shards have other amaxes each.",
       .faults = {"gather-interleave-left"},
       .recipes = {"fp8_block", "nvfp4"},
       .run = &CheckGatheredCodes},
      {.name = "gathered-codes-have-the-groups-scale",
       .invariant = "What is gathered under one scale was quantized under the amax of the group, "
                    "or the gather is refused.",
       .criterion = "Codes, scales and amaxes of both directions bit-equal to the whole quantized "
                    "at once.",
       .faults = {kFaultAmaxNotReduced, kFaultRankZeroAmax, "pad-included-in-amax"},
       .recipes = {"fp8_current", "fp8_current:power_2_scales=true", "nvfp4"},
       .run = &CheckGatheredCodes},
      {.name = "gathered-shards-in-rank-order",
       .invariant = "Gathered codes and scales of any format stand in the order of the ranks.",
       .criterion = "Bit-equal to the whole quantized at once.",
       .faults = {kFaultChunkOrder},
       .recipes = {"fp8_delayed", "mxfp8", "fp8_block"},
       .run = &CheckGatheredCodes},
      {.name = "each-direction-travels-by-itself",
       .invariant = "The columnwise mxfp8 codes that wgrad gathers are those of the whole, and not "
                    "the rowwise ones that dgrad gathered, turned or not.",
       .criterion = "Codes and scales of two gathers, one for each direction, bit-equal to the "
                    "whole quantized at once, whose directions differ; y, dx and dw of a "
                    "row-parallel step bit-equal to the shards run alone.",
       .faults = {kFaultRowBytesForColumns},
       .recipes = {"mxfp8", "mxfp8:fp8_format=hybrid"},
       .run = &CheckDirections},
      {.name = "overrides-gather-high-precision",
       .invariant = "Under a backward override what travels in backward is high precision; of "
                    "`dequantized` what the codes stand for, gathered before or after.",
       .criterion = "wgrad's gathered operand has the activation dtype; y, dx and dw bit-equal to "
                    "the shards run alone, column- and row-parallel, sequence-parallel and not; "
                    "values of gathered codes and gathered values of codes bit-equal to those of "
                    "the whole.",
       .faults = {kFaultOverrideQuantizes, kFaultOverrideGathersOriginal, kFaultChunkOrder},
       .recipes = {"fp8_current:backward_override=high_precision",
                   "fp8_current:backward_override=dequantized",
                   "fp8_block:backward_override=high_precision",
                   "fp8_block:backward_override=dequantized",
                   "mxfp8:backward_override=high_precision", "mxfp8:backward_override=dequantized",
                   "nvfp4:backward_override=high_precision", "nvfp4:backward_override=dequantized"},
       .run = &CheckOverrides},
      {.name = "hybrid-gathers-quantize-twice",
       .invariant = "Under a hybrid recipe what the shards' codes stand for is gathered and "
                    "quantized again: the same codes for fprop, and for wgrad an error of three "
                    "half steps at most.",
       .criterion = "x of wgrad bit-equal to a recomputation; its distance from x quantized once "
                    "at most half a step of each of the three roundings, which a note states.",
       .faults = {kFaultGroupOfWrapper, kFaultChunkOrder},
       .recipes = {"hybrid:fprop=fp8_current,dgrad=fp8_current,wgrad=mxfp8",
                   "hybrid:fprop=fp8_current,dgrad=fp8_current,wgrad=fp8_block"},
       .run = &CheckDoubleQuantization},
  };
  return group;
}

}  // namespace quantgate
