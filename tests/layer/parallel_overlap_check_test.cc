// What of an overlap plan a layer refuses before anything is computed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/comm/group/world.h"
#include "kernels/comm/overlap/overlap.h"
#include "kernels/comm/overlap/overlap_spec.h"
#include "kernels/layer/layer_plan.h"
#include "kernels/layer/layer_sharding.h"
#include "kernels/layer/layer_step.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/layer_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using enum OverlapMethod;

constexpr OverlapPlan kColumnDefaults{
    .fprop = kRingExchange, .dgrad = kBulk, .wgrad = kBulk, .splits = 2};
constexpr OverlapPlan kRowDefaults{.fprop = kPipeline, .dgrad = kRingExchange, .splits = 2};

/// `rows` of 256 columns on each of two ranks, to 256.
LayerRequest Linear(ParallelMode mode, int64_t rows = 128) {
  LayerRequest request;
  request.layer.parallel_mode = mode;
  request.x = Generated(Distribution::kNormal, 1, DType::kBF16, {2 * rows, 256});
  request.grad_output = request.x;
  request.parameters["weight"] = Generated(Distribution::kNormal, 2, DType::kBF16, {256, 256});
  return request;
}

ParallelStep StepOf(const OverlapPlan& column, const OverlapPlan& row) {
  return {.sequence_parallel = true,
          .size_without_group = 2,
          .column_overlap = column,
          .row_overlap = row};
}

std::string ErrorOf(const LayerRequest& whole, const ParallelStep& step,
                    const std::string& recipe) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const auto shard = ShardLayer(*engine, whole, step);
  EXPECT_TRUE(shard.ok()) << shard.status();
  const absl::Status status = CheckLayer(*shard, *Recipe::Parse(recipe));
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

std::string ColumnError(const OverlapPlan& plan, const std::string& recipe) {
  return ErrorOf(Linear(ParallelMode::kColumn), StepOf(plan, {}), recipe);
}

std::string RowError(const OverlapPlan& plan, const std::string& recipe) {
  return ErrorOf(Linear(ParallelMode::kRow), StepOf({}, plan), recipe);
}

TEST(OverlapCheck, TakesTheDefaults) {
  for (const char* recipe :
       {"bf16", "bf16:activation_dtype=f16", "fp8_current", "fp8_delayed", "mxfp8"}) {
    EXPECT_EQ(ColumnError(kColumnDefaults, recipe), "");
    EXPECT_EQ(RowError(kRowDefaults, recipe), "");
  }
}

TEST(OverlapCheck, RefusesOtherRecipesByName) {
  for (const char* recipe : {"nvfp4", "fp8_block", "hybrid:fprop=mxfp8,dgrad=mxfp8,wgrad=mxfp8"}) {
    const auto names_it = AllOf(HasSubstr(std::string("recipe is ") + std::string(recipe, 5)),
                                HasSubstr("unquantized, per-tensor FP8 and mxfp8 recipes overlap"));
    EXPECT_THAT(ColumnError(kColumnDefaults, recipe),
                AllOf(HasSubstr("parallel.column_overlap."), names_it));
    EXPECT_THAT(RowError(kRowDefaults, recipe),
                AllOf(HasSubstr("parallel.row_overlap."), names_it));
    EXPECT_EQ(ColumnError({}, recipe), "");
  }
}

TEST(OverlapCheck, RefusesBackwardUnderAnOverride) {
  for (const char* recipe :
       {"fp8_current:backward_override=high_precision", "mxfp8:backward_override=dequantized"}) {
    EXPECT_THAT(ColumnError(kColumnDefaults, recipe), HasSubstr("backward_override is "));
    EXPECT_THAT(RowError(kRowDefaults, recipe), HasSubstr("backward_override is "));
    EXPECT_EQ(ColumnError({.fprop = kRingExchange}, recipe), "");
    EXPECT_EQ(RowError({.fprop = kPipeline, .splits = 2}, recipe), "");
  }
}

TEST(OverlapCheck, RefusesUnitsWithoutSequenceParallelism) {
  ParallelStep step = StepOf(kColumnDefaults, {});
  step.sequence_parallel = false;
  EXPECT_THAT(ErrorOf(Linear(ParallelMode::kColumn), step, "bf16"),
              HasSubstr("parallel.column_overlap.sequence_parallel is false"));
}

/// What a unit overlaps of a plan in which everything gives way, and the notes about the rest.
struct Resolved {
  OverlapPlan plan;
  std::vector<std::string> notes;
};
Resolved ResolvedAsGiven(const LayerRequest& whole, const ParallelStep& step,
                         const std::string& recipe) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const auto shard = ShardLayer(*engine, whole, step);
  EXPECT_TRUE(shard.ok()) << shard.status();
  const auto plan = DecideLayer(*shard, *Recipe::Parse(recipe));
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  const ProgramPlan& program = (*plan)->programs.front();
  return {program.operations.back().linear.parallel.overlap, program.notes};
}

Resolved ResolvedOf(const LayerRequest& whole, ParallelStep step, const std::string& recipe) {
  step.column_overlap.gives_way.fill(true);
  step.row_overlap.gives_way.fill(true);
  return ResolvedAsGiven(whole, step, recipe);
}

/// A step in which both sides overlap as a request of these methods asks.
ParallelStep StepUnder(const std::map<std::pair<OverlapSide, GemmRole>, OverlapMethod>& methods,
                       const std::string& recipe) {
  const OverlapSpec spec{.methods = methods};
  const Recipe parsed = *Recipe::Parse(recipe);
  ParallelStep step = StepOf(OverlapPlanOf(spec, OverlapSide::kColumn, parsed),
                             OverlapPlanOf(spec, OverlapSide::kRow, parsed));
  step.row_overlap.splits = 2;  // mxfp8: of 128 columns at least.
  return step;
}

void ExpectMethods(const OverlapPlan& plan, OverlapMethod fprop, OverlapMethod dgrad,
                   OverlapMethod wgrad) {
  EXPECT_EQ(plan.fprop, fprop);
  EXPECT_EQ(plan.dgrad, dgrad);
  EXPECT_EQ(plan.wgrad, wgrad);
}

TEST(OverlapCheck, WhatIsLeftOpenGivesWayToTheRecipe) {
  const ParallelStep step = StepOf(kColumnDefaults, kRowDefaults);
  for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
    for (const char* recipe :
         {"nvfp4", "fp8_block", "hybrid:fprop=mxfp8,dgrad=mxfp8,wgrad=mxfp8"}) {
      const Resolved resolved = ResolvedOf(Linear(mode), step, recipe);
      ExpectMethods(resolved.plan, kNone, kNone, kNone);
      EXPECT_THAT(
          resolved.notes,
          ElementsAre(AllOf(HasSubstr("dgrad"), HasSubstr(" run without overlap: recipe is "),
                            HasSubstr("per-tensor FP8 and mxfp8 recipes overlap"))))
          << recipe;
    }
  }
  const Resolved column = ResolvedOf(Linear(ParallelMode::kColumn), step, "fp8_current");
  ExpectMethods(column.plan, kRingExchange, kBulk, kBulk);
  EXPECT_THAT(column.notes, IsEmpty());
}

TEST(OverlapCheck, WhatIsLeftOpenGivesWayToTheOverride) {
  const ParallelStep step = StepOf(kColumnDefaults, kRowDefaults);
  const char* recipe = "fp8_current:backward_override=dequantized";
  const Resolved column = ResolvedOf(Linear(ParallelMode::kColumn), step, recipe);
  ExpectMethods(column.plan, kRingExchange, kNone, kNone);
  EXPECT_THAT(column.notes, ElementsAre("dgrad, wgrad run without overlap: backward_override is "
                                        "dequantized: under a backward override dgrad and wgrad "
                                        "gather in high precision and take none"));
  const Resolved row = ResolvedOf(Linear(ParallelMode::kRow), step, recipe);
  ExpectMethods(row.plan, kPipeline, kNone, kNone);
  EXPECT_THAT(row.notes, ElementsAre(HasSubstr("dgrad runs without overlap: backward_override")));
  recipe = "mxfp8:backward_override=dequantized";
  const Resolved beside =
      ResolvedAsGiven(Linear(ParallelMode::kRow), StepUnder({}, recipe), recipe);
  ExpectMethods(beside.plan, kPipeline, kNone, kNone);
  EXPECT_THAT(beside.notes,
              ElementsAre(HasSubstr("dgrad, wgrad run without overlap: backward_override is")));
}

// docs/quantizers.md section 9: without a quantized recipe an override has no effect.
TEST(OverlapCheck, AnOverrideOfNothingChangesNothing) {
  const std::string recipe = "bf16:backward_override=dequantized";
  const ParallelStep step = StepUnder({}, recipe);
  const Resolved column = ResolvedAsGiven(Linear(ParallelMode::kColumn), step, recipe);
  ExpectMethods(column.plan, kRingExchange, kBulk, kBulk);
  EXPECT_THAT(column.notes, IsEmpty());
  const Resolved row = ResolvedAsGiven(Linear(ParallelMode::kRow), step, recipe);
  ExpectMethods(row.plan, kPipeline, kRingExchange, kNone);
  EXPECT_THAT(row.notes, IsEmpty());
  EXPECT_EQ(ColumnError(kColumnDefaults, recipe), "");
}

TEST(OverlapCheck, ADefaultMayBeNamed) {
  const Resolved row = ResolvedAsGiven(
      Linear(ParallelMode::kRow),
      StepUnder({{{OverlapSide::kRow, GemmRole::kWgrad}, kExternal}}, "mxfp8"), "mxfp8");
  ExpectMethods(row.plan, kPipeline, kRingExchange, kExternal);
  EXPECT_THAT(row.notes, IsEmpty());
}

// docs/ranks.md section 10.6: a method whose GEMM a step does not have does nothing.
TEST(OverlapCheck, WhatANamedMethodRunsBesideMayBeAbsent) {
  const ParallelStep step =
      StepUnder({{{OverlapSide::kRow, GemmRole::kWgrad}, kExternal}}, "mxfp8");
  for (const RequiresGrad& wanted :
       {RequiresGrad{.x = false}, RequiresGrad{.weight = false},
        RequiresGrad{.x = false, .weight = false, .bias = false, .norm = false}}) {
    LayerRequest request = Linear(ParallelMode::kRow);
    request.requires_grad = wanted;
    const Resolved row = ResolvedAsGiven(request, step, "mxfp8");
    ExpectMethods(row.plan, kPipeline, wanted.x ? kRingExchange : kNone, kNone);
    EXPECT_THAT(row.notes, IsEmpty());
  }
  LayerRequest evaluated = Linear(ParallelMode::kRow);
  evaluated.grad_output = Tensor();
  const Resolved row = ResolvedAsGiven(evaluated, step, "mxfp8");
  ExpectMethods(row.plan, kPipeline, kNone, kNone);
  EXPECT_THAT(row.notes, IsEmpty());
}

TEST(OverlapCheck, WhatIsLeftOpenRunsBesideADgradWithout) {
  const Resolved column = ResolvedAsGiven(
      Linear(ParallelMode::kColumn),
      StepUnder({{{OverlapSide::kColumn, GemmRole::kDgrad}, kNone}}, "bf16"), "bf16");
  ExpectMethods(column.plan, kRingExchange, kNone, kBulk);
  EXPECT_THAT(column.notes, IsEmpty());
  const Resolved row = ResolvedAsGiven(
      Linear(ParallelMode::kRow),
      StepUnder({{{OverlapSide::kRow, GemmRole::kDgrad}, kNone}}, "mxfp8"), "mxfp8");
  ExpectMethods(row.plan, kPipeline, kNone, kNone);
  EXPECT_THAT(row.notes, ElementsAre(HasSubstr("wgrad runs without overlap: external needs the "
                                               "ring of dgrad")));
}

TEST(OverlapCheck, RefusesANamedExternalForItsOwnReason) {
  const auto error_of = [](const std::string& recipe, int64_t rows = 128) {
    return ErrorOf(Linear(ParallelMode::kRow, rows),
                   StepUnder({{{OverlapSide::kRow, GemmRole::kWgrad}, kExternal}}, recipe), recipe);
  };
  const std::string named = "parallel.row_overlap.overlap.wgrad is external: ";
  EXPECT_THAT(error_of("fp8_current"), HasSubstr(named + "only mxfp8 gathers columnwise codes"));
  EXPECT_THAT(error_of("mxfp8:backward_override=dequantized"),
              HasSubstr(named + "backward_override is dequantized"));
  EXPECT_THAT(error_of("mxfp8", 64),
              HasSubstr(named + "dgrad.rows is 64, 64: shards of the mxfp8"));
}

TEST(OverlapCheck, WhatIsLeftOpenGivesWayToTheDims) {
  ParallelStep step = StepOf(kColumnDefaults, kRowDefaults);
  // Nothing that is gathered beside a GEMM is cut.
  const Resolved column = ResolvedOf(Linear(ParallelMode::kColumn, 64), step, "mxfp8");
  ExpectMethods(column.plan, kNone, kBulk, kBulk);
  EXPECT_THAT(column.notes, ElementsAre(HasSubstr("fprop runs without overlap: fprop.rows is 64, "
                                                  "64: shards of the mxfp8 operand x are ")));
  step.row_overlap.wgrad = kExternal;
  const Resolved row = ResolvedOf(Linear(ParallelMode::kRow, 64), step, "mxfp8");
  ExpectMethods(row.plan, kPipeline, kNone, kNone);
  // What would run beside the ring goes with it.
  EXPECT_THAT(row.notes,
              ElementsAre(HasSubstr("dgrad, wgrad run without overlap: dgrad.rows is 64, 64")));
  // Blocks of 32 rows that two ranks share have codes of the whole x alone.
  const Resolved shared = ResolvedOf(Linear(ParallelMode::kColumn, 16), step, "mxfp8");
  ExpectMethods(shared.plan, kNone, kNone, kBulk);
  EXPECT_THAT(shared.notes, ElementsAre(HasSubstr("fprop runs without overlap"),
                                        HasSubstr("dgrad runs without overlap: blocks of x have "
                                                  "rows of two ranks")));
  step.row_overlap.splits = 3;
  const Resolved split = ResolvedOf(Linear(ParallelMode::kRow), step, "bf16");
  ExpectMethods(split.plan, kNone, kRingExchange, kNone);
  EXPECT_THAT(split.notes, ElementsAre(HasSubstr("fprop runs without overlap: fprop.splits is 3"),
                                       HasSubstr("only mxfp8 gathers columnwise codes")));
}

TEST(OverlapCheck, WhatIsLeftOpenGivesWayAfterANorm) {
  LayerRequest request = Linear(ParallelMode::kColumn);
  request.layer.kind = LayerKind::kLayerNormLinear;
  request.parameters["gamma"] = Generated(Distribution::kNormal, 3, DType::kBF16, {256});
  const ParallelStep step = StepOf(kColumnDefaults, {});
  ExpectMethods(ResolvedOf(request, step, "bf16").plan, kRingExchange, kBulk, kBulk);
  request.layer.return_norm_output = true;
  const Resolved returned = ResolvedOf(request, step, "bf16");
  ExpectMethods(returned.plan, kNone, kBulk, kBulk);
  EXPECT_THAT(returned.notes, ElementsAre(HasSubstr("return_norm_output is true")));
  request.layer.return_norm_output = false;
  request.grad_output = Tensor();
  const Resolved evaluated = ResolvedOf(request, step, "bf16");
  ExpectMethods(evaluated.plan, kNone, kNone, kNone);
  EXPECT_THAT(evaluated.notes, ElementsAre(HasSubstr("fprop runs without overlap: grad is not "
                                                     "enabled")));
}

TEST(OverlapCheck, WithoutSequenceParallelismNothingGivesWay) {
  ParallelStep step = StepOf(kColumnDefaults, {});
  step.sequence_parallel = false;
  step.column_overlap.gives_way.fill(true);
  EXPECT_THAT(ErrorOf(Linear(ParallelMode::kColumn), step, "bf16"),
              HasSubstr("parallel.column_overlap.sequence_parallel is false"));
  step.sequence_parallel = true;
  step.column_overlap.aggregate = true;
  step.column_overlap.pieces = 2;
  EXPECT_THAT(ErrorOf(Linear(ParallelMode::kColumn), step, "bf16"),
              HasSubstr("must be 1 with overlap.aggregate"));
}

TEST(OverlapCheck, RefusesMethodsThatTheTableDoesNotHave) {
  EXPECT_THAT(ColumnError({.fprop = kPipeline}, "bf16"), HasSubstr("overlap.fprop is pipeline"));
  EXPECT_THAT(ColumnError({.dgrad = kPipeline, .wgrad = kBulk}, "bf16"),
              HasSubstr("overlap.wgrad is bulk"));
  EXPECT_THAT(RowError({.fprop = kBulk}, "bf16"), HasSubstr("overlap.fprop is bulk"));
  EXPECT_THAT(RowError({.dgrad = kRingExchange, .wgrad = kExternal}, "fp8_current"),
              HasSubstr("overlap.wgrad is external"));
}

TEST(OverlapCheck, RefusesWhatCannotBeCut) {
  EXPECT_THAT(RowError({.fprop = kPipeline, .splits = 3}, "bf16"),
              HasSubstr("fprop.splits is 3: it must divide the 256 columns"));
  EXPECT_THAT(ColumnError({.dgrad = kPipeline}, "mxfp8"),
              HasSubstr("dgrad.splits is 4: it must divide the 256 columns of the output in "
                        "multiples of 128"));
  const LayerRequest small = Linear(ParallelMode::kColumn, 64);
  EXPECT_THAT(ErrorOf(small, StepOf({.fprop = kRingExchange}, {}), "mxfp8"),
              HasSubstr("overlap.fprop is ring_exchange: fprop.rows is 64, 64: shards of the mxfp8 "
                        "operand x are multiples of "
                        "128"));
  EXPECT_EQ(ErrorOf(small, StepOf({.fprop = kRingExchange}, {}), "fp8_current"), "");
  EXPECT_THAT(
      ErrorOf(Linear(ParallelMode::kRow, 64), StepOf({}, {.dgrad = kRingExchange}), "mxfp8"),
      HasSubstr("dgrad.rows is 64, 64: shards of the mxfp8 operand grad_output"));
  // Nothing that is gathered beside a GEMM is cut.
  EXPECT_EQ(ErrorOf(small, StepOf({.dgrad = kBulk, .wgrad = kBulk}, {}), "mxfp8"), "");
}

TEST(OverlapCheck, RefusesProfilesThatTheMethodDoesNotHave) {
  EXPECT_THAT(RowError({.fprop = kRingExchange}, "bf16"),
              HasSubstr("fprop.profile is rank_asc_fp32: a ring_exchange reduce-scatter sums in "
                        "the order of ub_p2p"));
  ParallelStep step = StepOf({.wgrad = kBulk}, {});
  step.profile = {ReductionKind::kNccl};
  EXPECT_THAT(ErrorOf(Linear(ParallelMode::kColumn), step, "bf16"), HasSubstr("profile is nccl"));
  step = StepOf({}, {.fprop = kPipeline});
  step.profile = {ReductionKind::kNccl};
  EXPECT_THAT(ErrorOf(Linear(ParallelMode::kRow), step, "bf16"), HasSubstr("profile is nccl"));
}

TEST(OverlapCheck, RefusesTheGatherOfANormThatIsReturned) {
  LayerRequest request = Linear(ParallelMode::kColumn);
  request.layer.kind = LayerKind::kLayerNormLinear;
  request.parameters["gamma"] = Generated(Distribution::kNormal, 3, DType::kBF16, {256});
  request.parameters["beta"] = Generated(Distribution::kNormal, 4, DType::kBF16, {256});
  EXPECT_EQ(ErrorOf(request, StepOf(kColumnDefaults, {}), "mxfp8"), "");
  request.layer.return_norm_output = true;
  EXPECT_THAT(ErrorOf(request, StepOf(kColumnDefaults, {}), "mxfp8"),
              HasSubstr("return_norm_output is true"));
  request.layer.return_norm_output = false;
  request.grad_output = Tensor();
  EXPECT_THAT(ErrorOf(request, StepOf(kColumnDefaults, {}), "mxfp8"),
              HasSubstr("grad is not enabled"));
}

// What a session hides is of its other layers: experts communicate nothing, so that a plan which a
// linear layer refuses is none of theirs.
TEST(OverlapCheck, LeavesExpertsAlone) {
  const OverlapPlan refused = {.dgrad = kPipeline, .wgrad = kBulk};
  EXPECT_THAT(ColumnError(refused, "bf16"), HasSubstr("overlap.wgrad is bulk"));
  LayerRequest experts = GroupedLinearCase();
  experts.layer.parallel_mode = ParallelMode::kColumn;
  EXPECT_EQ(ErrorOf(experts, StepOf(refused, {}), "bf16"), "");
}

TEST(OverlapCheck, RefusesAStepWithoutItsEnd) {
  WorldOptions options;
  const auto engine = MakeCpuEngine({.threads = 1});
  options.engines = {engine.get()};
  const auto world = *World::Create(std::move(options));
  const LayerRequest whole = Linear(ParallelMode::kColumn);
  const auto error_of = [&](Rank& rank, const ParallelStep& step) {
    LayerState state;
    state.parameters["weight"].value = whole.parameters.at("weight");
    StepRecorder recorder(rank.engine(), Arithmetic(), nullptr);
    const StepOptions given{.recipe = *Recipe::Parse("bf16"),
                            .parallel = std::make_shared<const ParallelStep>(step)};
    const absl::Status status = ForwardLayer(recorder, whole.layer, state, whole.x, given).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  ASSERT_TRUE(world->AddGroups("tp", {{0}}).ok());
  const absl::Status status = world->Run(
      [&](Rank& rank) {
        ParallelStep step = StepOf(kColumnDefaults, {});
        step.tp = &rank.group("tp");
        EXPECT_EQ(error_of(rank, step),
                  "parallel.overlap is null: a step whose units overlap needs this rank's end of "
                  "overlapped calls");
        OverlapBuffers buffers(rank.engine());
        const auto other = *Overlap::Create(rank.group(kWorldGroup), buffers);
        step.overlap = other.get();
        EXPECT_EQ(
            error_of(rank, step),
            "parallel.overlap is of group \"world\": it must be of parallel.tp, group \"tp\"");
        return absl::OkStatus();
      },
      nullptr);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
