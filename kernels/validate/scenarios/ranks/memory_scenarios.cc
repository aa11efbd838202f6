// What a step holds for its backward: bytes of saved operands, and of what ranks gather.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/validate/scenarios/linear_subject.h"
#include "kernels/validate/scenarios/ranks/parallel_subject.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

// Expected bytes are products of dims, of bytes of dtypes and of counts of blocks
// (docs/file-formats.md section 2), written down here once more.

constexpr int64_t kBf16Bytes = 2, kF32Bytes = 4;

struct MatrixDims {
  int64_t rows = 0, columns = 0;
  int64_t elements() const { return rows * columns; }
};

int64_t BlockCount(int64_t length, int64_t block) { return (length + block - 1) / block; }

/// The bytes of scales of one direction under one of the recipes of this file. Tiles: 128 x 128 of
/// fp8_block.
int64_t ScaleBytes(const std::string& recipe, MatrixDims of, Usage usage, bool has_tiles) {
  const int64_t lines = usage == Usage::kRowwise ? of.rows : of.columns;
  const int64_t length = usage == Usage::kRowwise ? of.columns : of.rows;
  if (recipe == "fp8_block") {
    return kF32Bytes * (has_tiles ? BlockCount(lines, 128) : lines) * BlockCount(length, 128);
  }
  if (recipe == "mxfp8") return lines * BlockCount(length, 32);
  if (recipe == "nvfp4") return lines * BlockCount(length, 16) + kF32Bytes;  // And the amax.
  return kF32Bytes;
}

int64_t CodeBytes(const std::string& recipe, MatrixDims of) {
  return recipe == "nvfp4" ? of.elements() / 2 : of.elements();
}

struct ExpectedBytes {
  std::string name;
  int64_t data = 0, scales = 0, held = 0;
};

/// The rows "saved input" and "saved weight" of the table in docs/quantizers.md section 9.
std::vector<ExpectedBytes> ExpectedOf(const Recipe& recipe, MatrixDims x, MatrixDims weight) {
  const std::string name = recipe.name();
  const int64_t x_codes = CodeBytes(name, x), codes = CodeBytes(name, weight);
  const auto x_scales = [&](Usage usage) { return ScaleBytes(name, x, usage, false); };
  const auto scales = [&](Usage usage) { return ScaleBytes(name, weight, usage, true); };
  const int64_t values = kBf16Bytes * weight.elements();
  if (name == "bf16" || recipe.backward_override() == BackwardOverride::kHighPrecision) {
    std::vector<ExpectedBytes> saved = {{"x", kBf16Bytes * x.elements()},
                                        {"weight", values, 0, values}};
    if (name != "bf16") saved.push_back({"weight workspace", codes, scales(Usage::kRowwise)});
    return saved;
  }
  if (recipe.backward_override() == BackwardOverride::kDequantized) {
    return {{"x", x_codes, x_scales(Usage::kRowwise)}, {"weight", codes, scales(Usage::kRowwise)}};
  }
  // The one scale of a tensor is that of both directions.
  const bool has_one_scale = name == "fp8_current" || name == "fp8_delayed";
  const int64_t columnwise = has_one_scale ? 0 : scales(Usage::kColumnwise);
  return {{"x", x_codes, x_scales(Usage::kColumnwise)},
          {"weight", 2 * codes, scales(Usage::kRowwise) + columnwise}};
}

absl::Status CheckSavedBytes(ScenarioContext& context) {
  constexpr int64_t kM = 64, kN = 96, kK = 128;
  QG_ASSIGN_OR_RETURN(const LinearOperands operands,
                      MakeLinearOperands(context, DType::kBF16, kM, kN, kK, 16));
  QG_ASSIGN_OR_RETURN(const LinearRun run, RunLinearOn(context, operands, context.recipe()));
  const std::vector<ExpectedBytes> expected = ExpectedOf(context.recipe(), {kM, kK}, {kN, kK});
  context.ExpectEqual("saved operands", static_cast<int64_t>(run.saved.size()),
                      static_cast<int64_t>(expected.size()));
  int64_t sum = 0;
  for (size_t i = 0; i < std::min(expected.size(), run.saved.size()); ++i) {
    const ExpectedBytes& of = expected[i];
    const SavedOperand& saved = run.saved[i];
    context.ExpectSameText("saved operand", saved.name, of.name);
    context.ExpectEqual(of.name + " data", saved.size.data, of.data);
    context.ExpectEqual(of.name + " scales", saved.size.scales, of.scales);
    context.ExpectEqual(of.name + " held anyway", saved.size.held, of.held);
    sum += of.data + of.scales;
  }
  context.ExpectEqual("sum", SumOf(run.saved).bytes(), sum);
  return absl::OkStatus();
}

/// The most that a rank of a layer holds at a time of what it gathers for backward: of a
/// column-parallel one the whole x as wgrad reads it, of a row-parallel one the whole grad_output
/// as dgrad and wgrad do.
int64_t ExpectedPeak(const Recipe& recipe, ParallelMode mode, MatrixDims whole) {
  const int64_t values = kBf16Bytes * whole.elements();
  const auto copy = [&](const std::string& name, Usage usage) {
    return whole.elements() + ScaleBytes(name, whole, usage, false);
  };
  const bool is_row = mode == ParallelMode::kRow;
  if (recipe.name() == "bf16" || recipe.backward_override() != BackwardOverride::kNone) {
    return values;
  }
  if (recipe.name() == "hybrid") {
    // The dequantized values of the ranks' codes, and the codes that are made of them.
    return values + copy("fp8_block", Usage::kColumnwise) +
           (is_row ? copy("fp8_current", Usage::kRowwise) : 0);
  }
  const int64_t columnwise = copy(recipe.name(), Usage::kColumnwise);
  if (!is_row) return columnwise;
  const int64_t rowwise = copy(recipe.name(), Usage::kRowwise);
  return rowwise + columnwise - (recipe.name() == "fp8_current" ? kF32Bytes : 0);
}

absl::Status CheckGathered(ScenarioContext& context, ParallelMode mode, int size) {
  const int64_t rows = 128 * size, columns = 128;
  QG_ASSIGN_OR_RETURN(const LayerRequest whole,
                      MakeParallelLinear(context, mode, rows, 40, columns));
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, size));
  std::vector<StepRecords> records(static_cast<size_t>(size));
  const bool is_done = RunBodies(context, "step", *world, [&](Rank& rank) -> absl::Status {
    QG_ASSIGN_OR_RETURN(const LayerRequest shard,
                        ShardOn(rank, whole, rank.group(kWorldGroup), true));
    RankLayer layer(rank, shard);
    QG_ASSIGN_OR_RETURN(ForwardResult forward,
                        layer.Forward(shard.x, StepOptionsOf(context, shard)));
    QG_RETURN_IF_ERROR(layer.Backward(std::move(forward.saved), shard.grad_output).status());
    StepRecords& mine = records[static_cast<size_t>(rank.index())];
    mine.saved = layer.records().saved;
    mine.gathered = layer.records().gathered;
    return absl::OkStatus();
  });
  if (!is_done) return absl::OkStatus();
  const bool is_column = mode == ParallelMode::kColumn;
  const MatrixDims own = {is_column ? rows / size : rows, is_column ? columns : columns / size};
  for (int rank = 0; rank < size; ++rank) {
    const StepRecords& of = records[static_cast<size_t>(rank)];
    const std::string where = ModeText(mode, true, rank);
    context.ExpectEqual(where + " gathered at a time", of.gathered.peak,
                        ExpectedPeak(context.recipe(), mode, {rows, columns}));
    context.ExpectEqual(where + " gathered and held after the step", of.gathered.held, 0);
    for (const SavedOperand& saved : of.saved) {
      if (saved.name != "x") continue;
      // A byte of a code or two of bf16, of this rank's part alone.
      const bool is_plain =
          context.recipe().name() == "bf16" ||
          context.recipe().backward_override() == BackwardOverride::kHighPrecision;
      context.ExpectEqual(where + " x saved", saved.size.data,
                          (is_plain ? kBf16Bytes : 1) * own.elements());
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGatheredAreReleased(ScenarioContext& context) {
  for (const ParallelMode mode : kParallelModes) {
    for (const int size : {2, 4}) QG_RETURN_IF_ERROR(CheckGathered(context, mode, size));
  }
  return absl::OkStatus();
}

}  // namespace

ScenarioGroup MemoryScenarios() {
  ScenarioGroup group;
  group.faults = {
      InCode(kFaultScalesUncounted, "Counts the bytes saved for backward without scales.", 51),
      InCode(kFaultGatheredGradientKept,
             "Keeps the grad_output that it has gathered after its backward.", 50),
  };
  group.scenarios = {
      {.name = "saved-bytes-are-counted",
       .invariant = "The bytes that a report says a backward mode saves are those of the operands "
                    "that the mode saves, each tensor once.",
       .criterion = "Data, scales and what the parameter holds anyway, by operand and together, "
                    "equal products of dims, bytes of dtypes and counts of blocks.",
       .bug_classes = {51},
       .faults = {kFaultScalesUncounted},
       .recipes = {"bf16", "fp8_current", "fp8_current:backward_override=high_precision",
                   "fp8_current:backward_override=dequantized", "fp8_delayed", "fp8_block",
                   "fp8_block:backward_override=dequantized", "mxfp8",
                   "mxfp8:backward_override=high_precision", "mxfp8:backward_override=dequantized",
                   "nvfp4", "nvfp4:backward_override=dequantized"},
       .run = &CheckSavedBytes},
      {.name = "gathered-operands-are-released",
       .invariant = "A rank saves its own part of x, gathers x or grad_output whole for its "
                    "backward, and holds nothing of that when the backward has ended.",
       .criterion = "Bytes saved of x, the most that is held at a time of what was gathered, and 0 "
                    "after the step equal products of dims, bytes and blocks; column- and "
                    "row-parallel under sequence parallelism, 2 and 4 ranks.",
       .bug_classes = {50},
       .faults = {kFaultGatheredGradientKept},
       .recipes = {"bf16", "fp8_current", "fp8_current:backward_override=high_precision",
                   "fp8_block", "mxfp8", "mxfp8:backward_override=dequantized",
                   "hybrid:fprop=mxfp8,dgrad=fp8_current,wgrad=fp8_block"},
       .run = &CheckGatheredAreReleased},
  };
  return group;
}

}  // namespace quantgate
