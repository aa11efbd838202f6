// Variants whose experts are divided over ranks: every output has the bits of one rank, and is
// reported as one rank's is; what each rank had; what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/layer/expert_run.h"
#include "kernels/validate/run.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kIn = 64, kOut = 96;

Tensor Normal(uint64_t seed, Shape shape, DType dtype = DType::kBF16) {
  return Generated(Distribution::kNormal, seed, dtype, std::move(shape));
}

/// Experts with rows that no number of ranks divides, and one without rows.
const std::vector<int64_t> kUneven = {37, 0, 21, 5, 40};
/// Of whole blocks, the last ones empty: the last of five ranks has nothing to do.
const std::vector<int64_t> kBlocks = {32, 96, 0, 64, 0};

LayerRequest Experts(const std::vector<int64_t>& splits) {
  LayerRequest step;
  step.layer.kind = LayerKind::kGroupedLinear;
  step.layer.m_splits = splits;
  int64_t rows = 0;
  for (size_t i = 0; i < splits.size(); ++i) {
    rows += splits[i];
    step.parameters[absl::StrCat("weight.", i)] = Normal(10 + i, {kOut, kIn});
    step.parameters[absl::StrCat("bias.", i)] = Normal(20 + i, {kOut});
  }
  step.x = Normal(1, {rows, kIn});
  step.grad_output = Normal(2, {rows, kOut});
  return step;
}

ParallelSpec Ranks(int ranks) {
  ParallelSpec parallel;
  parallel.tensor_parallel = 1;
  parallel.expert_parallel = ranks;
  return parallel;
}

LayerRunRequest Twins(LayerRequest step, const std::string& recipe, ParallelSpec parallel) {
  LayerRunRequest request;
  request.step = std::move(step);
  request.variants = {{*Recipe::Parse(recipe), {}}, {*Recipe::Parse(recipe), {}, parallel}};
  request.reference = 0;
  request.requirement = Requirement::kBitwise;
  return request;
}

absl::StatusOr<RunReport> TryRun(const LayerRunRequest& request) {
  const auto engine = MakeCpuEngine({.threads = 2});
  const absl::StatusOr<Plan> plan = Plan::Create(request);
  if (!plan.ok()) return plan.status();
  return RunPlan(*plan, *engine, nullptr,
                 {[](const RunProgress&) {}, [](int, const VariantReport&) {}});
}

/// The bits of one rank, and what a report says of them.
void ExpectAsOnOneRank(const RunReport& report) {
  ASSERT_EQ(report.variants.size(), 2u);
  EXPECT_TRUE(report.verdict.pass) << report.verdict.finding;
  const VariantReport& one = report.variants[0];
  const VariantReport& ranks = report.variants[1];
  ASSERT_EQ(ranks.outputs.size(), one.outputs.size());
  for (size_t i = 0; i < one.outputs.size(); ++i) {
    const OutputReport& alone = one.outputs[i];
    const OutputReport& output = ranks.outputs[i];
    SCOPED_TRACE(alone.tensor);
    EXPECT_EQ(output.tensor, alone.tensor);
    EXPECT_TRUE(SameBits(output.value, alone.value));
    EXPECT_EQ(output.against_exact.error.relative_frobenius,
              alone.against_exact.error.relative_frobenius);
    EXPECT_EQ(output.against_exact.error.element_count, output.value.element_count());
    EXPECT_EQ(output.bound.has_value(), alone.bound.has_value());
    if (alone.bound.has_value()) {
      EXPECT_EQ(output.bound->worst_ratio, alone.bound->worst_ratio);
    }
  }
  ASSERT_EQ(ranks.state.size(), one.state.size());
  for (size_t i = 0; i < one.state.size(); ++i) {
    const auto same = [&](const NamedTensor& state) { return state.name == one.state[i].name; };
    const auto found = std::find_if(ranks.state.begin(), ranks.state.end(), same);
    ASSERT_NE(found, ranks.state.end()) << one.state[i].name;
    EXPECT_TRUE(SameBits(found->tensor, one.state[i].tensor)) << one.state[i].name;
  }
}

TEST(ExpertVariants, HaveTheBitsOfOneRank) {
  for (const int ranks : {2, 3, 5}) {
    for (const char* recipe : {"bf16", "bf16:activation_dtype=f32"}) {
      SCOPED_TRACE(absl::StrCat(recipe, " on ", ranks));
      const auto report = TryRun(Twins(Experts(kUneven), recipe, Ranks(ranks)));
      ASSERT_TRUE(report.ok()) << report.status();
      ExpectAsOnOneRank(*report);
    }
    for (const char* recipe : {"fp8_delayed", "fp8_current", "fp8_block", "mxfp8", "nvfp4"}) {
      SCOPED_TRACE(absl::StrCat(recipe, " on ", ranks));
      LayerRunRequest request = Twins(Experts(kBlocks), recipe, Ranks(ranks));
      // Random numbers are the experts', wherever they are.
      if (std::string(recipe) == "nvfp4") request.step.seed = 7;
      const auto report = TryRun(request);
      ASSERT_TRUE(report.ok()) << report.status();
      ExpectAsOnOneRank(*report);
    }
  }
}

TEST(ExpertVariants, MainGradientsAndDelayedStatesAreTheExperts) {
  LayerRequest step = Experts(kBlocks);
  for (const int expert : {0, 3}) {
    step.main_grads[absl::StrCat("weight.", expert)] =
        Normal(50 + expert, {kOut, kIn}, DType::kF32);
  }
  DelayedScalingState state = *FreshDelayedScaling(3);
  state.scale = *Tensor::FromScalar(4);
  step.delayed["input.3"] = state;
  const auto report = TryRun(Twins(std::move(step), "fp8_delayed:amax_history_len=3", Ranks(2)));
  ASSERT_TRUE(report.ok()) << report.status();
  ExpectAsOnOneRank(*report);
  const auto forward = [] {
    LayerRequest alone = Experts(kBlocks);
    alone.grad_output = Tensor();
    return alone;
  };
  const auto of_forward = TryRun(Twins(forward(), "fp8_delayed", Ranks(3)));
  ASSERT_TRUE(of_forward.ok()) << of_forward.status();
  ExpectAsOnOneRank(*of_forward);
}

TEST(ExpertVariants, RanksAreReportedByTheNumbersOfTheWhole) {
  const auto report = TryRun(Twins(Experts(kBlocks), "mxfp8", Ranks(2)));
  ASSERT_TRUE(report.ok()) << report.status();
  const VariantReport& variant = report->variants[1];
  EXPECT_EQ(variant.label, "mxfp8 / none / auto / ep2");
  ASSERT_EQ(variant.ranks.size(), 2u);
  std::vector<std::string> outputs;
  for (const auto& output : variant.ranks[1].outputs) outputs.push_back(output.tensor);
  EXPECT_THAT(outputs, ElementsAre("y", "dx", "dw.3", "db.3", "dw.4", "db.4"));
  // Half of 32, 96 and 64 rows.
  EXPECT_EQ(variant.ranks[1].outputs[0].shape, Shape({96, kOut}));
  std::vector<std::string> quantized;
  for (const auto& quantization : variant.ranks[1].quantizations) {
    quantized.push_back(quantization.tensor);
  }
  EXPECT_THAT(quantized, ::testing::Contains("weight.3"));
  EXPECT_THAT(quantized, ::testing::Not(::testing::Contains("weight.0")));
  std::vector<std::string> stages;
  for (const auto& stage : variant.ranks[0].stages) stages.push_back(stage.stage);
  for (const char* stage : {"dispatch x", "combine y", "dispatch grad_output", "combine dx"}) {
    EXPECT_THAT(stages, ::testing::Contains(stage));
  }
}

TEST(ExpertVariants, EveryRankBeginsWithAPartOfEachExpertsRows) {
  LayerSpec layer;
  layer.kind = LayerKind::kGroupedLinear;
  layer.m_splits = {3, 0, 2};
  const ExpertDivision division = DivideExperts(layer, 2);
  EXPECT_THAT(division.first_expert, ElementsAre(0, 2, 3));
  EXPECT_THAT(division.first_row, ElementsAre(0, 3, 3, 5));
  EXPECT_THAT(division.tokens[0], ElementsAre(0, 1, 3));
  EXPECT_THAT(division.tokens[1], ElementsAre(2, 4));
}

TEST(ExpertVariants, Refusals) {
  const auto refusal = [](LayerRequest step, ParallelSpec parallel) {
    const absl::Status status = TryRun(Twins(std::move(step), "bf16", parallel)).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  EXPECT_THAT(
      refusal(Experts(kUneven), Ranks(6)),
      HasSubstr("variants[1].parallel.expert_parallel: 6; each rank has an expert at least, "
                "of 5"));
  EXPECT_THAT(refusal(Experts(kUneven), Ranks(9)), HasSubstr("expert_parallel: 9; a group has 2"));
  ParallelSpec both = Ranks(2);
  both.tensor_parallel = 2;
  EXPECT_THAT(refusal(Experts(kUneven), both),
              HasSubstr("parallel.tensor_parallel: 2; with expert_parallel the ranks divide"));
  ParallelSpec summed = Ranks(2);
  summed.profile = {ReductionKind::kUbP2p};
  EXPECT_THAT(refusal(Experts(kUneven), summed), HasSubstr("nothing is summed over ranks"));
  ParallelSpec sp = Ranks(2);
  sp.sequence_parallel = true;
  EXPECT_THAT(refusal(Experts(kUneven), sp), HasSubstr("sequence_parallel: given; it is of"));
  LayerRequest divided = Experts(kUneven);
  divided.layer.parallel_mode = ParallelMode::kColumn;
  EXPECT_THAT(refusal(divided, Ranks(2)), HasSubstr("every expert is whole on its rank"));
  LayerRequest linear;
  linear.x = Normal(1, {32, kIn});
  linear.parameters["weight"] = Normal(2, {kOut, kIn});
  EXPECT_THAT(refusal(linear, Ranks(2)),
              HasSubstr("layer.kind: linear; expert_parallel divides the experts"));
}

}  // namespace
}  // namespace quantgate
