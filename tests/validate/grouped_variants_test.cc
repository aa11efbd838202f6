// Variants whose grouped_linear is divided over tensor-parallel ranks: what has the bits of one
// rank, what is held to a bound, what each rank had, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/validate/ranks/parallel_variant.h"
#include "kernels/validate/run/output_report.h"
#include "kernels/validate/run/run.h"
#include "tests/engine/tensor_values.h"
#include "tests/validate/rank_variants.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int64_t kIn = 128, kOut = 256;
/// Whole blocks, unevenly; an expert without rows.
const std::vector<int64_t> kSplits = {32, 96, 0, 64};

Tensor Normal(uint64_t seed, Shape shape) {
  return Generated(Distribution::kNormal, seed, DType::kBF16, std::move(shape));
}

LayerRequest Grouped(ParallelMode mode, const std::vector<int64_t>& splits = kSplits) {
  LayerRequest step;
  step.layer.kind = LayerKind::kGroupedLinear;
  step.layer.parallel_mode = mode;
  step.layer.m_splits = splits;
  int64_t rows = 0;
  for (size_t i = 0; i < splits.size(); ++i) {
    rows += splits[i];
    step.parameters[absl::StrCat("weight.", i)] = Normal(10 + i, {kOut, kIn});
    if (mode == ParallelMode::kRow) continue;
    step.parameters[absl::StrCat("bias.", i)] = Normal(20 + i, {kOut});
  }
  step.x = Normal(1, {rows, kIn});
  step.grad_output = Normal(2, {rows, kOut});
  return step;
}

TEST(GroupedVariants, ColumnParallelOutputsHaveTheBitsOfOneRank) {
  for (const char* recipe : {"bf16", "fp8_delayed", "mxfp8", "fp8_block"}) {
    for (const bool sequence_parallel : {false, true}) {
      SCOPED_TRACE(absl::StrCat(recipe, sequence_parallel ? " sp" : ""));
      const RunReport report =
          RunOk(Twins(Grouped(ParallelMode::kColumn), recipe,
                      {.tensor_parallel = 2, .sequence_parallel = sequence_parallel}));
      ExpectWholeAndWithinBounds(report);
      for (const char* output : {"y", "dw.0", "dw.1", "dw.2", "dw.3", "db.0", "db.2"}) {
        EXPECT_TRUE(HasBitsOfOneRank(report, output)) << output;
      }
      EXPECT_THAT(report.variants[1].notes, Contains(HasSubstr("dx: a sum over the ranks")));
    }
  }
}

TEST(GroupedVariants, RowParallelGradientsHaveTheBitsOfOneRank) {
  for (const char* recipe : {"bf16", "fp8_delayed", "mxfp8"}) {
    for (const bool sequence_parallel : {false, true}) {
      SCOPED_TRACE(absl::StrCat(recipe, sequence_parallel ? " sp" : ""));
      const RunReport report =
          RunOk(Twins(Grouped(ParallelMode::kRow), recipe,
                      {.tensor_parallel = 4, .sequence_parallel = sequence_parallel}));
      ExpectWholeAndWithinBounds(report);
      for (const char* output : {"dx", "dw.0", "dw.1", "dw.2", "dw.3"}) {
        EXPECT_TRUE(HasBitsOfOneRank(report, output)) << output;
      }
      EXPECT_THAT(report.variants[1].notes, Contains(HasSubstr("y: a sum over the ranks")));
    }
  }
}

std::vector<std::string> AmaxStages(const std::vector<std::string>& stages) {
  std::vector<std::string> of_amaxes;
  for (const std::string& stage : stages) {
    if (absl::StartsWith(stage, "reduce amax")) of_amaxes.push_back(stage);
  }
  return of_amaxes;
}

// docs/ranks.md section 5: "topology" becomes "yes" where what is divided of every expert has
// the amax of the whole, by one call for all experts.
TEST(GroupedVariants, NamedGroupsGiveTheBitsOfOneRank) {
  struct Case {
    ParallelMode mode;
    TensorRole divided;
    std::vector<std::string> outputs, stages;
  };
  const Case cases[] = {
      {ParallelMode::kColumn,
       TensorRole::kGradOutput,
       {"y", "dw.0", "dw.1", "dw.3"},
       {"reduce amax of weight over tensor", "reduce amax of grad_output over tensor"}},
      {ParallelMode::kRow,
       TensorRole::kInput,
       {"dx", "dw.0", "dw.1", "dw.3"},
       {"reduce amax of x over tensor", "reduce amax of weight over tensor"}}};
  for (const char* recipe : {"fp8_current", "nvfp4:disable_stochastic_rounding=true"}) {
    for (const Case& one : cases) {
      SCOPED_TRACE(absl::StrCat(recipe, " ", std::string(ParallelModeName(one.mode))));
      ParallelSpec parallel{.tensor_parallel = 4, .sequence_parallel = true};
      const RunReport own = RunOk(Twins(Grouped(one.mode), recipe, parallel));
      parallel.amax_groups = {{TensorRole::kWeight, {AmaxGroup::Kind::kTensor}},
                              {one.divided, {AmaxGroup::Kind::kTensor}}};
      const RunReport named = RunOk(Twins(Grouped(one.mode), recipe, parallel));
      ExpectWholeAndWithinBounds(named);
      for (const std::string& output : one.outputs) {
        EXPECT_TRUE(HasBitsOfOneRank(named, output)) << output;
        EXPECT_FALSE(HasBitsOfOneRank(own, output)) << output;
      }
      std::vector<std::string> stages;
      for (const StageTime& stage : named.variants[1].ranks[3].stages) {
        stages.push_back(stage.stage);
      }
      EXPECT_EQ(AmaxStages(stages), one.stages);
    }
  }
}

TEST(GroupedVariants, OthersAreWithinTheirBounds) {
  for (const char* recipe : {"fp8_current", "nvfp4", "mxfp8:backward_override=dequantized"}) {
    for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
      SCOPED_TRACE(absl::StrCat(recipe, " ", std::string(ParallelModeName(mode))));
      ExpectWholeAndWithinBounds(
          RunOk(Twins(Grouped(mode), recipe, {.tensor_parallel = 2, .sequence_parallel = true})));
    }
  }
}

// Neither the experts' rows nor the ranks' are even; forward alone; and no rows at all.
TEST(GroupedVariants, UnevenEmptyAndForwardOnly) {
  for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
    for (const bool sequence_parallel : {false, true}) {
      const ParallelSpec parallel{.tensor_parallel = 4, .sequence_parallel = sequence_parallel};
      ExpectWholeAndWithinBounds(RunOk(Twins(Grouped(mode, {37, 0, 21, 5}), "bf16", parallel)));
      LayerRequest forward = Grouped(mode);
      forward.grad_output = Tensor();
      ExpectWholeAndWithinBounds(RunOk(Twins(forward, "mxfp8", parallel)));
      const RunReport empty = RunOk(Twins(Grouped(mode, {0, 0}), "bf16", parallel));
      EXPECT_TRUE(empty.verdict.pass) << empty.verdict.finding;
      EXPECT_TRUE(HasBitsOfOneRank(empty, "dw.1"));
    }
  }
}

TEST(GroupedVariants, MainGradientsAccumulateOnTheRanks) {
  LayerRequest step = Grouped(ParallelMode::kColumn);
  step.main_grads["weight.1"] = Generated(Distribution::kNormal, 50, DType::kF32, {kOut, kIn});
  step.main_grads["weight.2"] = Generated(Distribution::kNormal, 51, DType::kF32, {kOut, kIn});
  const RunReport report = RunOk(Twins(step, "bf16", {.tensor_parallel = 2}));
  ExpectWholeAndWithinBounds(report);
  EXPECT_TRUE(HasBitsOfOneRank(report, "main_grad.1"));
  // An expert without rows leaves it alone.
  EXPECT_TRUE(
      SameBits(FindOutput(report.variants[1], "main_grad.2")->value, step.main_grads["weight.2"]));
}

TEST(GroupedVariants, RanksAreReported) {
  const RunReport report = RunOk(Twins(Grouped(ParallelMode::kRow), "fp8_current",
                                       {.tensor_parallel = 2, .sequence_parallel = true}));
  const VariantReport& variant = report.variants[1];
  EXPECT_EQ(variant.label, "fp8_current / none / auto / tp2 sp");
  ASSERT_EQ(variant.ranks.size(), 2u);
  for (const VariantReport::RankReport& rank : variant.ranks) {
    EXPECT_EQ(rank.device, "cpu");
    ASSERT_FALSE(rank.outputs.empty());
    EXPECT_EQ(rank.outputs[0].tensor, "y");
    EXPECT_EQ(rank.outputs[0].shape, (Shape{192 / 2, kOut}));
    // Three experts with rows, each multiplied three times; y and dx of one without.
    EXPECT_EQ(rank.gemms.size(), 11u);
    // x and weight of all experts, grad_output of those with rows: each by itself.
    const auto is_of = [&](const char* tensor) {
      return std::any_of(rank.quantizations.begin(), rank.quantizations.end(),
                         [&](const QuantizationRecord& one) { return one.tensor == tensor; });
    };
    for (const char* tensor : {"x.0", "x.1", "x.3", "grad_output.1", "weight.3"}) {
      EXPECT_TRUE(is_of(tensor)) << tensor;
    }
    EXPECT_FALSE(rank.saved.empty());
    EXPECT_FALSE(rank.stages.empty());
  }
}

std::string Refusal(const LayerRunRequest& request) {
  return std::string(TryRun(request).status().message());
}

TEST(GroupedVariants, Refusals) {
  const LayerRequest column = Grouped(ParallelMode::kColumn);
  EXPECT_THAT(Refusal(Twins(Grouped(ParallelMode::kNone), "bf16", {})),
              HasSubstr("layer.parallel_mode is none: a parallel variant needs column or row"));
  EXPECT_THAT(Refusal(Twins(column, "bf16", {.tensor_parallel = 3})), HasSubstr("multiple of 3"));
  LayerRequest with_bias = Grouped(ParallelMode::kRow);
  with_bias.parameters["bias.1"] = Normal(3, {kOut});
  EXPECT_THAT(
      Refusal(Twins(with_bias, "bf16", {})),
      HasSubstr("parameters[bias.1] is bf16[256]: a row-parallel grouped_linear has no bias"));
  EXPECT_EQ(
      Refusal(Twins(column, "bf16",
                    {.tensor_parallel = 2, .sequence_parallel = true, .overlap = OverlapSpec{}})),
      "variants[1].parallel.overlap is given: a grouped_linear has no communication to overlap");
  EXPECT_THAT(
      Refusal(Twins(column, "bf16", {.tensor_parallel = 2, .expert_parallel = 2})),
      HasSubstr("variants[1].parallel.tensor_parallel is 2: with expert_parallel the ranks of "
                "a copy divide experts alone"));
  LayerRequest row = Grouped(ParallelMode::kColumn, {1, 0});
  row.x = Normal(1, {kIn});
  row.grad_output = Normal(2, {kOut});
  EXPECT_EQ(Refusal(Twins(row, "bf16", {.tensor_parallel = 2, .sequence_parallel = true})),
            "x is bf16[128]: under sequence parallelism its rank must be at least 2: dim 0 is "
            "divided");
  EXPECT_EQ(TryRun(Twins(row, "bf16", {.tensor_parallel = 2})).status(), absl::OkStatus());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
