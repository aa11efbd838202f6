// A grouped_linear divided over ranks against linear layers on one rank, one for each expert and
// part of its weight, put together by hand; and against the whole layer on one rank where
// docs/ranks.md section 5 says that they are equal.
#include "kernels/layer/experts/grouped_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/layer/layer_program.h"
#include "tests/base/exhaustive.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/parallel_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// Experts that no number of ranks divides evenly, one of them without rows: 192 rows.
const std::vector<int64_t> kSplits = {32, 96, 0, 64};

struct Division {
  int ranks;
  int64_t columns;  ///< Of x and of y: whole blocks of 32 on each rank.
};
constexpr Division kDivisions[] = {{2, 128}, {3, 96}, {4, 128}, {8, 256}};

LayerRequest Grouped(ParallelMode mode, const std::vector<int64_t>& splits, int64_t columns) {
  LayerRequest request;
  request.layer.kind = LayerKind::kGroupedLinear;
  request.layer.parallel_mode = mode;
  request.layer.m_splits = splits;
  int64_t rows = 0;
  for (size_t expert = 0; expert < splits.size(); ++expert) {
    rows += splits[expert];
    request.parameters[absl::StrCat("weight.", expert)] =
        Generated(Distribution::kNormal, 20 + expert, DType::kBF16, {columns, columns});
    if (mode == ParallelMode::kRow) continue;
    request.parameters[absl::StrCat("bias.", expert)] =
        Generated(Distribution::kNormal, 30 + expert, DType::kBF16, {columns});
  }
  request.x = Generated(Distribution::kLogNormalOutliers, 1, DType::kBF16, {rows, columns});
  request.grad_output = Generated(Distribution::kNormal, 2, DType::kBF16, {rows, columns});
  request.seed = 7;
  return request;
}

Tensor ColumnsOf(const Tensor& tensor, int part, int parts) {
  const std::vector<float> values = ToValues(tensor);
  const int64_t width = tensor.columns() / parts;
  std::vector<float> cut;
  for (int64_t row = 0; row < tensor.rows(); ++row) {
    const auto begin = values.begin() + row * tensor.columns() + part * width;
    cut.insert(cut.end(), begin, begin + width);
  }
  return FromValues(tensor.dtype(), {tensor.rows(), width}, cut);
}

Tensor RowPart(const Tensor& tensor, int part, int parts) {
  const int64_t count = tensor.shape()[0] / parts;
  return RowsOf(tensor, part * count, count);
}

Tensor ExpertRows(const Tensor& tensor, int64_t begin, int64_t rows) {
  if (rows > 0) return RowsOf(tensor, begin, rows);
  return *Tensor::Allocate(tensor.dtype(), {0, tensor.columns()});
}

/// One expert's part on a rank, as a linear layer of one rank.
LayerRequest LinearOf(const LayerRequest& whole, size_t expert, int rank, int size) {
  const bool is_column = whole.layer.parallel_mode == ParallelMode::kColumn;
  int64_t begin = 0;
  for (size_t before = 0; before < expert; ++before) begin += whole.layer.m_splits[before];
  const int64_t rows = whole.layer.m_splits[expert];
  const std::string suffix = absl::StrCat(".", expert);
  LayerRequest linear;
  linear.seed = whole.seed;
  linear.x = ExpertRows(whole.x, begin, rows);
  linear.grad_output = ExpertRows(whole.grad_output, begin, rows);
  const Tensor& weight = whole.parameters.at("weight" + suffix);
  if (is_column) {
    linear.grad_output = ColumnsOf(linear.grad_output, rank, size);
    linear.parameters["weight"] = RowPart(weight, rank, size);
    linear.parameters["bias"] = RowPart(whole.parameters.at("bias" + suffix), rank, size);
  } else {
    linear.x = ColumnsOf(linear.x, rank, size);
    linear.parameters["weight"] = ColumnsOf(weight, rank, size);
  }
  for (const char* state : {"input", "weight", "grad_output"}) {
    const auto given = whole.delayed.find(state + suffix);
    if (given != whole.delayed.end()) linear.delayed[state] = given->second;
  }
  return linear;
}

/// A rank's y and dx, and gradients by the experts' names.
std::map<std::string, Tensor> ComposedRank(const LayerRequest& whole, const Recipe& recipe,
                                           int rank, int size) {
  std::map<std::string, Tensor> outputs;
  std::vector<Tensor> y, dx;
  for (size_t expert = 0; expert < whole.layer.m_splits.size(); ++expert) {
    const LayerResult result = RunCase(LinearOf(whole, expert, rank, size), recipe);
    for (const NamedTensor& output : result.outputs) {
      if (output.name == "y") {
        y.push_back(output.tensor);
      } else if (output.name == "dx") {
        dx.push_back(output.tensor);
      } else {
        outputs[absl::StrCat(output.name, ".", expert)] = output.tensor;
      }
    }
  }
  outputs["y"] = JoinRowsByHand(y);
  outputs["dx"] = JoinRowsByHand(dx);
  return outputs;
}

absl::StatusOr<std::vector<GroupedStep>> TryGrouped(const LayerRequest& whole, const Recipe& recipe,
                                                    const ParallelSetup& setup) {
  TestWorld world(setup.size, setup.noise);
  std::vector<GroupedStep> steps(static_cast<size_t>(setup.size));
  const absl::Status status = world.world().Run(
      [&](Rank& rank) -> absl::Status {
        QG_ASSIGN_OR_RETURN(
            steps[static_cast<size_t>(rank.index())],
            RunGrouped(rank.engine(), whole, StepOf(setup, rank.group("tp")), recipe, {}, nullptr));
        // The group ends with the world.
        steps[static_cast<size_t>(rank.index())].request.parallel = nullptr;
        return absl::OkStatus();
      },
      nullptr);
  if (!status.ok()) return status;
  return steps;
}

std::vector<GroupedStep> RunGroupedRanks(const LayerRequest& whole, const Recipe& recipe,
                                         const ParallelSetup& setup) {
  auto steps = TryGrouped(whole, recipe, setup);
  EXPECT_TRUE(steps.ok()) << steps.status();
  return steps.ok() ? *std::move(steps) : std::vector<GroupedStep>(setup.size);
}

std::string Text(const std::string& recipe, ParallelMode mode, const ParallelSetup& setup) {
  return absl::StrCat(recipe, ", ", std::string(ParallelModeName(mode)), ", ", setup.size, " ranks",
                      setup.sequence_parallel ? ", SP" : "");
}

/// What a rank should have of a sum: all, or its even part of the rows.
Tensor SumOnRank(const Tensor& sum, const ParallelSetup& setup, int rank) {
  if (!setup.sequence_parallel) return sum;
  int64_t begin = 0;
  const int64_t rows = sum.shape()[0];
  for (int before = 0; before < rank; ++before) {
    begin += rows / setup.size + (before < rows % setup.size ? 1 : 0);
  }
  return RowsOf(sum, begin, rows / setup.size + (rank < rows % setup.size ? 1 : 0));
}

void ExpectIsItsLinears(const std::string& text, const LayerRequest& whole,
                        const ParallelSetup& setup) {
  const ParallelMode mode = whole.layer.parallel_mode;
  SCOPED_TRACE(Text(text, mode, setup));
  const Recipe recipe = *Recipe::Parse(text);
  const std::vector<GroupedStep> steps = RunGroupedRanks(whole, recipe, setup);
  const std::string summed = mode == ParallelMode::kColumn ? "dx" : "y";
  std::vector<std::map<std::string, Tensor>> composed;
  std::vector<Tensor> partials;
  for (int rank = 0; rank < setup.size; ++rank) {
    composed.push_back(ComposedRank(whole, recipe, rank, setup.size));
    partials.push_back(composed.back().at(summed));
  }
  const Tensor sum = SumByHand(partials);
  for (int rank = 0; rank < setup.size; ++rank) {
    const GroupedStep& step = steps[static_cast<size_t>(rank)];
    for (const auto& [name, expected] : composed[static_cast<size_t>(rank)]) {
      SCOPED_TRACE(absl::StrCat(name, " of rank ", rank));
      const Tensor& subject = OutputOf(step.result, name);
      if (name != summed) {
        EXPECT_TRUE(SameBits(subject, expected));
        continue;
      }
      EXPECT_TRUE(SameBits(subject, SumOnRank(sum, setup, rank)));
      ASSERT_EQ(step.partials.size(), 1u);
      EXPECT_EQ(step.partials[0].name, summed);
      EXPECT_TRUE(SameBits(step.partials[0].tensor, expected));
    }
  }
}

TEST(GroupedRun, IsItsExpertsAsLinearLayers) {
  // No codes are joined, so that two rules for one operand change nothing.
  std::vector<std::string> recipes(std::begin(kDividedRecipes), std::end(kDividedRecipes));
  recipes.push_back("hybrid:fprop=mxfp8");
  int turn = 0;
  for (const std::string& recipe : recipes) {
    ++turn;
    for (const Division& division : kDivisions) {
      for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
        const LayerRequest whole = WithScales(Grouped(mode, kSplits, division.columns));
        const bool is_odd = (turn + (mode == ParallelMode::kRow ? 1 : 0)) % 2 != 0;
        for (const bool sequence_parallel : {false, true}) {
          if (sequence_parallel != is_odd && !IsExhaustive()) continue;
          ExpectIsItsLinears(recipe, whole,
                             {.size = division.ranks, .sequence_parallel = sequence_parallel});
        }
      }
    }
  }
}

// Rows that neither experts nor ranks divide: a block that began in one expert or one rank's rows
// and ended in the next would be another one.
TEST(GroupedRun, NoBlockAndNoAmaxSeesOtherRows) {
  for (const char* recipe : {"bf16", "bf16:activation_dtype=f32"}) {
    for (const std::vector<int64_t>& splits :
         {std::vector<int64_t>{37, 0, 21, 5}, std::vector<int64_t>{1, 0}}) {
      for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
        for (const bool sequence_parallel : {false, true}) {
          ExpectIsItsLinears(recipe, Grouped(mode, splits, 64),
                             {.size = 4, .sequence_parallel = sequence_parallel});
        }
      }
    }
  }
  // 64 rows on three ranks are 22, 21 and 21: no whole blocks, which the experts' 48 and 16 are.
  for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
    ExpectIsItsLinears("nvfp4:disable_stochastic_rounding=true", Grouped(mode, {48, 16, 0}, 96),
                       {.size = 3, .sequence_parallel = true});
  }
}

/// What docs/ranks.md section 5 says has the bits of one rank.
TEST(GroupedRun, HasTheBitsOfOneRank) {
  for (const char* text : {"bf16", "fp8_delayed", "fp8_rowwise", "fp8_block", "mxfp8", "mxfp6_e2m3",
                           "mxfp6_e3m2", "mxfp4"}) {
    for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
      const bool is_column = mode == ParallelMode::kColumn;
      // fp8_delayed's row-parallel y and dw: the scale is everybody's.
      const LayerRequest whole = WithScales(Grouped(mode, kSplits, 256));
      LayerRequest alone = whole;
      alone.layer.parallel_mode = ParallelMode::kNone;
      const LayerResult one = RunCase(alone, text);
      for (const bool sequence_parallel : {false, true}) {
        const ParallelSetup setup{.size = 2, .sequence_parallel = sequence_parallel};
        SCOPED_TRACE(Text(text, mode, setup));
        const std::vector<GroupedStep> steps = RunGroupedRanks(whole, *Recipe::Parse(text), setup);
        std::vector<std::string> names = {is_column ? "y" : "dx"};
        for (const int expert : {0, 1, 2, 3}) names.push_back(absl::StrCat("dw.", expert));
        for (const std::string& name : names) {
          const bool by_rows = is_column && name[0] == 'd';
          std::vector<Tensor> parts;
          for (const GroupedStep& step : steps) parts.push_back(OutputOf(step.result, name));
          EXPECT_TRUE(SameBits(by_rows ? JoinRowsByHand(parts) : JoinColumnsByHand(parts),
                               OutputOf(one, name)))
              << name;
        }
        // States of delayed scaling too: their amaxes are reduced over the ranks.
        for (const NamedTensor& state : one.state) {
          for (const GroupedStep& step : steps) {
            const auto found =
                std::find_if(step.result.state.begin(), step.result.state.end(),
                             [&](const NamedTensor& mine) { return mine.name == state.name; });
            ASSERT_NE(found, step.result.state.end()) << state.name;
            EXPECT_TRUE(SameBits(found->tensor, state.tensor)) << state.name;
          }
        }
      }
    }
  }
}

// One expert is a linear layer, which draws random numbers by the place in the whole tensor.
TEST(GroupedRun, OneExpertIsADividedLinear) {
  for (const char* text : {"nvfp4", "nvfp4:disable_rht=true", "fp8_current", "mxfp8"}) {
    for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
      const LayerRequest whole = Grouped(mode, {64}, 128);
      LayerRequest linear = whole;
      linear.layer.kind = LayerKind::kLinear;
      linear.layer.m_splits.clear();
      linear.parameters.clear();
      for (const auto& [name, tensor] : whole.parameters) {
        linear.parameters[name.substr(0, name.find('.'))] = tensor;
      }
      const ParallelSetup setup{.size = 4};
      SCOPED_TRACE(Text(text, mode, setup));
      const Recipe recipe = *Recipe::Parse(text);
      const std::vector<GroupedStep> steps = RunGroupedRanks(whole, recipe, setup);
      const std::vector<LayerResult> expected = RunRanks(linear, recipe, setup);
      for (size_t rank = 0; rank < steps.size(); ++rank) {
        for (const char* output : {"y", "dx", "dw"}) {
          const std::string name = absl::StrCat(output, output[1] == 'w' ? ".0" : "");
          EXPECT_TRUE(
              SameBits(OutputOf(steps[rank].result, name), OutputOf(expected[rank], output)))
              << name << " of rank " << rank;
        }
      }
    }
  }
}

TEST(GroupedRun, SumsInTheOrderOfTheProfile) {
  const LayerRequest whole = Grouped(ParallelMode::kRow, kSplits, 128);
  const Recipe recipe = *Recipe::Parse("bf16");
  // Owner r adds r, r - 1, ..., r + 1: docs/ranks.md section 1.1.
  const ParallelSetup setup{
      .size = 4, .sequence_parallel = true, .profile = {.kind = ReductionKind::kUbP2p}};
  const std::vector<GroupedStep> steps = RunGroupedRanks(whole, recipe, setup);
  std::vector<Tensor> partials;
  for (int rank = 0; rank < 4; ++rank) {
    partials.push_back(ComposedRank(whole, recipe, rank, 4).at("y"));
  }
  for (int owner = 0; owner < 4; ++owner) {
    std::vector<Tensor> ordered;
    for (int i = 0; i < 4; ++i) ordered.push_back(partials[(owner + 4 - i) % 4]);
    EXPECT_TRUE(
        SameBits(OutputOf(steps[owner].result, "y"), SumOnRank(SumByHand(ordered), setup, owner)));
  }
}

TEST(GroupedRun, RecordsWhatItDid) {
  const auto stages_of = [](ParallelMode mode, bool sequence_parallel) {
    const std::vector<GroupedStep> steps =
        RunGroupedRanks(Grouped(mode, {32, 0}, 64), *Recipe::Parse("mxfp8"),
                        {.size = 2, .sequence_parallel = sequence_parallel});
    std::vector<std::string> stages;
    for (const TimedStage& stage : steps[1].result.stages) stages.push_back(stage.stage);
    for (const SavedOperand& saved : steps[1].result.saved) {
      EXPECT_EQ(saved.at_save, saved.at_use) << saved.name;
    }
    return stages;
  };
  const std::vector<std::string> column = stages_of(ParallelMode::kColumn, true);
  EXPECT_EQ(column.front(), "all-gather x");
  EXPECT_EQ(column.back(), "reduce-scatter dx");
  const std::vector<std::string> row = stages_of(ParallelMode::kRow, true);
  EXPECT_EQ(row.front(), "all-gather grad_output");
  EXPECT_EQ(row.back(), "reduce-scatter y");
  EXPECT_EQ(stages_of(ParallelMode::kColumn, false).back(), "all-reduce dx");
  EXPECT_EQ(stages_of(ParallelMode::kRow, false).back(), "all-reduce y");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
