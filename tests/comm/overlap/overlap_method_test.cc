// The table of methods and what is refused.
#include "kernels/comm/overlap/overlap_method.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;

Recipe RecipeOf(const std::string& text) {
  absl::StatusOr<Recipe> recipe = Recipe::Parse(text);
  EXPECT_TRUE(recipe.ok()) << recipe.status();
  return *recipe;
}

OverlapFacts Facts(OverlapSide side) {
  OverlapFacts facts;
  facts.side = side;
  facts.ranks = 4;
  facts.sequence_parallel = true;
  return facts;
}

absl::Status Check(OverlapSide side, const OverlapPlan& plan, const std::string& recipe) {
  return CheckOverlapPlan(plan, Facts(side), RecipeOf(recipe));
}

/// The row of the defaults table (Transformer Engine's, for qkv, fc1, proj and fc2).
TEST(OverlapAssignmentTest, IsTheTable) {
  using enum OverlapMethod;
  struct Row {
    OverlapSide side;
    GemmRole role;
    OverlapCollective collective;
    OverlapMethod method;
    GemmRole beside;
  };
  for (const Row& row : {
           Row{OverlapSide::kColumn, GemmRole::kFprop, OverlapCollective::kAllGather, kRingExchange,
               GemmRole::kFprop},
           Row{OverlapSide::kRow, GemmRole::kFprop, OverlapCollective::kReduceScatter, kPipeline,
               GemmRole::kFprop},
           Row{OverlapSide::kColumn, GemmRole::kDgrad, OverlapCollective::kAllGather, kBulk,
               GemmRole::kDgrad},
           Row{OverlapSide::kColumn, GemmRole::kWgrad, OverlapCollective::kReduceScatter, kBulk,
               GemmRole::kWgrad},
           Row{OverlapSide::kRow, GemmRole::kDgrad, OverlapCollective::kAllGather, kRingExchange,
               GemmRole::kDgrad},
           Row{OverlapSide::kRow, GemmRole::kWgrad, OverlapCollective::kAllGather, kExternal,
               GemmRole::kDgrad},
       }) {
    const OverlapAssignment& found = AssignmentOf(row.side, row.role);
    EXPECT_EQ(found.collective, row.collective);
    EXPECT_EQ(found.method, row.method);
    EXPECT_EQ(found.beside, row.beside);
  }
}

TEST(OverlapMethodTest, NamesParse) {
  for (const char* name : {"none", "ring_exchange", "pipeline", "bulk", "external"}) {
    const auto method = ParseOverlapMethod(name);
    ASSERT_TRUE(method.ok()) << method.status();
    EXPECT_EQ(OverlapMethodName(*method), name);
  }
  EXPECT_THAT(ParseOverlapMethod("ring").status().message(),
              HasSubstr("method is \"ring\": unknown name"));
}

TEST(OverlapPlanTest, DefaultsAreAccepted) {
  for (const char* recipe : {"bf16", "fp8_current", "fp8_delayed", "mxfp8"}) {
    for (const OverlapSide side : {OverlapSide::kColumn, OverlapSide::kRow}) {
      const bool is_mxfp8 = std::string(recipe) == "mxfp8";
      const absl::Status status = Check(side, DefaultOverlapPlan(side, is_mxfp8), recipe);
      EXPECT_TRUE(status.ok()) << recipe << ": " << status;
    }
  }
}

TEST(OverlapPlanTest, RecipesThatCannotAreNamed) {
  for (const char* recipe : {"fp8_block", "fp8_rowwise", "nvfp4", "hybrid", "custom"}) {
    const absl::Status status =
        Check(OverlapSide::kColumn, DefaultOverlapPlan(OverlapSide::kColumn, false), recipe);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << recipe;
    EXPECT_THAT(status.message(),
                HasSubstr(std::string("overlap.fprop is ring_exchange: recipe is ") + recipe));
    EXPECT_TRUE(Check(OverlapSide::kColumn, OverlapPlan(), recipe).ok()) << "nothing overlaps";
  }
}

TEST(OverlapPlanTest, MethodsThatDoNotGoAreNamed) {
  using enum OverlapMethod;
  struct Case {
    OverlapSide side;
    OverlapMethod fprop, dgrad, wgrad;
    const char* message;
  };
  for (const Case& each : {
           Case{OverlapSide::kColumn, kPipeline, kNone, kNone, "overlap.fprop is pipeline"},
           Case{OverlapSide::kColumn, kBulk, kNone, kNone, "overlap.fprop is bulk"},
           Case{OverlapSide::kColumn, kNone, kExternal, kNone, "overlap.dgrad is external"},
           Case{OverlapSide::kColumn, kNone, kRingExchange, kBulk, "scatters dx already"},
           Case{OverlapSide::kColumn, kNone, kPipeline, kBulk, "scatters dx already"},
           Case{OverlapSide::kColumn, kNone, kNone, kPipeline, "overlap.wgrad is pipeline"},
           Case{OverlapSide::kRow, kBulk, kNone, kNone, "overlap.fprop is bulk"},
           Case{OverlapSide::kRow, kNone, kPipeline, kNone, "overlap.dgrad is pipeline"},
           Case{OverlapSide::kRow, kNone, kRingExchange, kExternal, "only mxfp8"},
       }) {
    OverlapPlan plan;
    plan.fprop = each.fprop;
    plan.dgrad = each.dgrad;
    plan.wgrad = each.wgrad;
    const absl::Status status = Check(each.side, plan, "fp8_current");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << each.message;
    EXPECT_THAT(status.message(), HasSubstr(each.message));
  }
  OverlapPlan plan;
  plan.dgrad = kRingExchange;
  EXPECT_TRUE(Check(OverlapSide::kColumn, plan, "fp8_current").ok()) << "without bulk wgrad";

  plan = {.wgrad = kExternal};
  EXPECT_THAT(Check(OverlapSide::kRow, plan, "mxfp8").message(),
              HasSubstr("overlap.wgrad is external: external needs the ring"));
  // A ring would not help where there is nothing to gather beside it.
  EXPECT_THAT(Check(OverlapSide::kRow, plan, "fp8_current").message(), HasSubstr("only mxfp8"));
}

TEST(OverlapPlanTest, StepsThatCannotAreNamed) {
  const OverlapPlan plan = DefaultOverlapPlan(OverlapSide::kColumn, false);
  const Recipe recipe = RecipeOf("fp8_current");
  OverlapFacts facts = Facts(OverlapSide::kColumn);
  facts.sequence_parallel = false;
  EXPECT_THAT(CheckOverlapPlan(plan, facts, recipe).message(),
              HasSubstr("sequence_parallel is false"));

  const Recipe overridden = recipe.WithBackwardOverride(BackwardOverride::kDequantized);
  EXPECT_THAT(CheckOverlapPlan(plan, Facts(OverlapSide::kColumn), overridden).message(),
              HasSubstr("overlap.dgrad is bulk: backward_override is dequantized"));
  EXPECT_THAT(
      CheckOverlapPlan({.wgrad = OverlapMethod::kBulk}, Facts(OverlapSide::kColumn), overridden)
          .message(),
      HasSubstr("overlap.wgrad is bulk: backward_override is dequantized"));
  // Who asks for what runs beside the ring has perhaps not named the ring.
  const OverlapPlan row = DefaultOverlapPlan(OverlapSide::kRow, true);
  const Recipe mxfp8 = RecipeOf("mxfp8:backward_override=dequantized");
  EXPECT_THAT(CheckOverlapPlan(row, Facts(OverlapSide::kRow), mxfp8).message(),
              HasSubstr("overlap.wgrad is external: backward_override is dequantized"));
  // Nothing is quantized, so that the override has no effect (docs/quantizers.md section 9).
  EXPECT_TRUE(CheckOverlapPlan(plan, Facts(OverlapSide::kColumn),
                               RecipeOf("bf16:backward_override=dequantized"))
                  .ok());
  OverlapPlan forward_only;
  forward_only.fprop = OverlapMethod::kRingExchange;
  EXPECT_TRUE(CheckOverlapPlan(forward_only, Facts(OverlapSide::kColumn), overridden).ok())
      << "an override is backward's alone";

  facts = Facts(OverlapSide::kColumn);
  facts.is_after_norm = true;
  EXPECT_TRUE(CheckOverlapPlan(plan, facts, recipe).ok());
  facts.returns_norm_output = true;
  EXPECT_THAT(CheckOverlapPlan(plan, facts, recipe).message(),
              HasSubstr("return_norm_output is true"));
  facts.returns_norm_output = false;
  facts.is_grad_enabled = false;
  EXPECT_THAT(CheckOverlapPlan(plan, facts, recipe).message(), HasSubstr("grad is not enabled"));
}

TEST(OverlapPlanTest, CutsThatCannotAreNamed) {
  OverlapPlan plan = DefaultOverlapPlan(OverlapSide::kColumn, false);
  plan.aggregate = true;
  EXPECT_TRUE(Check(OverlapSide::kColumn, plan, "bf16").ok());
  plan.pieces = 2;
  EXPECT_THAT(Check(OverlapSide::kColumn, plan, "bf16").message(), HasSubstr("pieces is 2"));
  plan.pieces = 0;
  EXPECT_THAT(Check(OverlapSide::kColumn, plan, "bf16").message(), HasSubstr("pieces is 0"));
  plan.pieces = 65;
  EXPECT_THAT(Check(OverlapSide::kColumn, plan, "bf16").message(),
              HasSubstr("overlap.pieces is 65: must be in [1, 64]"));
  plan.pieces = 1;
  OverlapFacts facts = Facts(OverlapSide::kColumn);
  facts.ranks = 3;
  EXPECT_THAT(CheckOverlapPlan(plan, facts, RecipeOf("bf16")).message(),
              HasSubstr("an even number of ranks, not 3"));
  plan.splits = 0;
  EXPECT_THAT(Check(OverlapSide::kColumn, plan, "bf16").message(), HasSubstr("splits is 0"));
  plan.splits = 65;
  EXPECT_THAT(Check(OverlapSide::kColumn, plan, "bf16").message(), HasSubstr("splits is 65"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
