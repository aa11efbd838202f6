// States that a session must not reach: whatever Open, ChangeRecipe and Restore accept, a forward
// and backward of fitting rows can follow, and whatever is refused leaves the session as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/training/amax_records.h"
#include "tests/training/parallel/parallel_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;

class SessionStates : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Session>> Open(const SessionSpec& spec, int64_t in, int64_t out,
                                                DType dtype = DType::kBF16) {
    return OpenSession(*engine_, spec, {{"fc1.weight", Normal(3, {out, in}, dtype)}}, nullptr,
                       nullptr);
  }
  /// A column-parallel layer on two ranks, whose fprop is asked by name to overlap.
  static SessionSpec Overlapped(const std::string& recipe) {
    SessionSpec spec = LinearLayers(recipe, {ParallelMode::kColumn});
    spec.parallel = Ranks(2, 1, /*sp=*/true);
    spec.parallel->overlap.emplace().methods[{OverlapSide::kColumn, GemmRole::kFprop}] =
        OverlapMethod::kRingExchange;
    return spec;
  }
  const std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 2});
};

TEST_F(SessionStates, OpenRefusesWhatNoForwardTakes) {
  SessionSpec spec = Overlapped("fp8_block");
  EXPECT_THAT(Open(spec, 256, 512).status().ToString(), HasSubstr("fp8_block codes and scales"));
  spec = Overlapped("hybrid:fprop=fp8_current,dgrad=bf16,wgrad=bf16");
  EXPECT_THAT(Open(spec, 256, 512).status().ToString(), HasSubstr("composed recipe"));
  spec = Overlapped("mxfp8");
  EXPECT_THAT(Open(spec, 96, 192).status().ToString(), HasSubstr("multiples of 128"));
  EXPECT_TRUE(Open(spec, 256, 512).ok());
  spec = LinearLayers("mxfp8", {ParallelMode::kNone});
  EXPECT_THAT(Open(spec, 48, 64).status().ToString(), HasSubstr("a multiple of 32"));
  spec.arithmetic = *Arithmetic::Parse("sm90");
  EXPECT_THAT(Open(spec, 64, 64).status().ToString(), HasSubstr("sm90"));
  spec.arithmetic = *Arithmetic::Parse("sm100");
  EXPECT_TRUE(Open(spec, 64, 64).ok());
  EXPECT_THAT(OpenSession(*engine_, spec, {}, nullptr, nullptr).status().ToString(),
              HasSubstr("layers[fc1].parameters[weight] is absent: a linear layer needs it"));
  spec = LinearLayers("fp8_current", {ParallelMode::kNone});
  spec.recipe = RecipeUnder("fp8_delayed", BackwardOverride::kDequantized);
  EXPECT_THAT(Open(spec, 64, 64).status().ToString(), HasSubstr("no backward override"));
}

// Rows of a weight are quantized under the amax of all of them, which is found before there are
// codes: so at every update, in every way that a session begins or changes.
TEST_F(SessionStates, ColumnwiseAmaxesOfCodesAreNobodysGroups) {
  const char* of_codes =
      "hybrid:fprop=fp8_current,dgrad=fp8_current,columnwise_source=rowwise_dequantized";
  const char* of_source = "hybrid:fprop=fp8_current,dgrad=fp8_current";
  const std::string rule = "no group amax can come before";
  SessionSpec spec = LinearLayers(of_codes, {ParallelMode::kNone});
  spec.weights = WeightStorage::kQuantized;
  spec.parallel = Ranks(1, 2);
  const auto whole = Open(spec, 64, 64);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const TensorFile file = *(*whole)->Checkpoint(nullptr);

  std::vector<ParallelSpec> divided(2, Ranks(1, 2));
  divided[0].fully_sharded = true;
  divided[1].amax_groups = AmaxGroupsOf({{TensorRole::kWeight, "data"}});
  for (const ParallelSpec& ranks : divided) {
    SCOPED_TRACE(ranks.Label());
    spec.parallel = ranks;
    spec.recipe = *Recipe::Parse(of_codes);
    EXPECT_THAT(Open(spec, 64, 64).status().ToString(), HasSubstr(rule));
    EXPECT_THAT(RestoreSession(*engine_, spec, file, nullptr, nullptr).status().ToString(),
                HasSubstr(rule));
    spec.recipe = *Recipe::Parse(of_source);
    auto session = Open(spec, 64, 64);
    ASSERT_TRUE(session.ok()) << session.status();
    const std::string before = StateDigest(**session);
    EXPECT_THAT((*session)->ChangeRecipe(*Recipe::Parse(of_codes), nullptr).ToString(),
                HasSubstr(rule));
    EXPECT_EQ(StateDigest(**session), before);
  }
  // Each copy quantizes the whole: no group.
  divided[1].amax_groups = AmaxGroupsOf({{TensorRole::kWeight, "none"}});
  spec.parallel = divided[1];
  spec.recipe = *Recipe::Parse(of_codes);
  EXPECT_TRUE(Open(spec, 64, 64).ok());
  // What a forward quantizes is under its group then.
  spec.weights = WeightStorage::kHighPrecision;
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput}) {
    SCOPED_TRACE(std::string(TensorRoleName(role)));
    spec.recipe = *Recipe::Parse(absl::StrCat(of_codes, ",wgrad=fp8_current"));
    spec.parallel->amax_groups = AmaxGroupsOf({{role, "data"}});
    EXPECT_THAT(Open(spec, 64, 64).status().ToString(), HasSubstr(rule));
  }
  spec.parallel->amax_groups.clear();
  EXPECT_TRUE(Open(spec, 64, 64).ok());
}

// Rows of copies are whole blocks of the rule that they are quantized by now: where the session
// would begin under it, it can go on under it, and so can a session from its checkpoint.
TEST_F(SessionStates, AChangeOfRecipeDividesRowsByItsBlocks) {
  const std::string prefix = "hybrid:fprop=";
  SessionSpec spec = LinearLayers(prefix + "fp8_current", {ParallelMode::kNone});
  spec.weights = WeightStorage::kQuantized;
  spec.parallel = Ranks(1, 2);
  spec.parallel->fully_sharded = true;
  auto session = Open(spec, 128, 160);
  ASSERT_TRUE(session.ok()) << session.status();
  // 80 and 80 rows; by 32 of them 96 and 64, by 128 of them 128 and 32.
  for (const auto& [rule, rows] : {std::pair("mxfp8", 96), std::pair("fp8_block", 128)}) {
    SCOPED_TRACE(rule);
    spec.recipe = *Recipe::Parse(prefix + rule);
    const absl::Status changed = (*session)->ChangeRecipe(spec.recipe, nullptr);
    ASSERT_TRUE(changed.ok()) << changed;
    EXPECT_EQ((*session)->Find("rank0.fc1.weight.master", nullptr)->shape(), Shape({rows, 128}));
    const TensorFile file = *(*session)->Checkpoint(nullptr);
    auto restored = RestoreSession(*engine_, spec, file, nullptr, nullptr);
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(DigestsOf(**restored), DigestsOf(**session));
    ForwardStep forward;
    forward.x = Normal(5, {64, 128});
    ASSERT_TRUE((*session)->Forward(forward, nullptr).ok());
    ASSERT_TRUE((*session)->Backward({"0", Normal(6, {64, 160})}, nullptr).ok());
    ASSERT_TRUE((*session)->Optimize({}, nullptr).ok());
  }
}

// dgrad and wgrad of FP8 need outputs of 16; a forward needs 8.
TEST_F(SessionStates, WeightsBuiltWithoutGradientsNeedAnEvaluationOnly) {
  SessionSpec spec = LinearLayers("fp8_current", {ParallelMode::kNone});
  spec.weights = WeightStorage::kQuantized;
  EXPECT_THAT(Open(spec, 64, 24).status().ToString(), HasSubstr("no forward and backward"));
  spec.built_without_grad = true;
  auto session = Open(spec, 64, 24);
  ASSERT_TRUE(session.ok()) << session.status();
  ForwardStep forward;
  forward.x = Normal(5, {32, 64}, DType::kBF16);
  forward.train = false;
  EXPECT_TRUE((*session)->Forward(forward, nullptr).ok());
  EXPECT_THAT(Open(spec, 24, 64).status().ToString(), HasSubstr("no forward could follow"));
}

TEST_F(SessionStates, OpenRefusesAnOverlapWhoseNormOutputIsReturned) {
  SessionSpec spec = Overlapped("fp8_current");
  spec.layers[0].spec.kind = LayerKind::kLayerNormLinear;
  spec.layers[0].spec.return_norm_output = true;
  const auto open = [&] {
    return OpenSession(*engine_, spec,
                       {{"fc1.weight", Normal(3, {64, 32})}, {"fc1.gamma", Normal(4, {32})}},
                       nullptr, nullptr);
  };
  EXPECT_THAT(open().status().ToString(), HasSubstr("norm"));
  spec.layers[0].spec.return_norm_output = false;
  EXPECT_TRUE(open().ok()) << open().status();
}

TEST_F(SessionStates, ChangeRecipeRefusesWhatNoForwardTakes) {
  struct Case {
    SessionSpec spec;
    DType dtype;
    Recipe to;
    const char* rule;
  };
  const SessionSpec one = LinearLayers("bf16", {ParallelMode::kNone});
  const std::vector<Case> cases = {
      {LinearLayers("mxfp8", {ParallelMode::kNone}), DType::kBF16,
       RecipeUnder("fp8_delayed", BackwardOverride::kDequantized), "no backward override"},
      {Overlapped("fp8_current"), DType::kBF16, RecipeUnder("fp8_block"), "fp8_block codes"},
      {one, DType::kF32, RecipeUnder("nvfp4"), "needs a bf16 source"}};
  for (const Case& one_case : cases) {
    SCOPED_TRACE(one_case.to.ShortText());
    auto session = Open(one_case.spec, 256, 512, one_case.dtype);
    ASSERT_TRUE(session.ok()) << session.status();
    for (const bool is_later : {false, true}) {
      const std::string before = StateDigest(**session);
      EXPECT_THAT((*session)->ChangeRecipe(one_case.to, nullptr).ToString(),
                  HasSubstr(one_case.rule));
      EXPECT_EQ(StateDigest(**session), before);
      if (is_later) break;
      ForwardStep forward;
      forward.x = Normal(5, {256, 256}, one_case.dtype);
      ASSERT_TRUE((*session)->Forward(forward, nullptr).ok());
      ASSERT_TRUE((*session)->Backward({"0", Normal(6, {256, 512}, one_case.dtype)}, nullptr).ok());
    }
  }
}

// An f32 session that has computed in bf16 goes on so.
TEST_F(SessionStates, ChangeRecipeFollowsTheLastForward) {
  auto session = Open(LinearLayers("bf16", {ParallelMode::kNone}), 64, 64, DType::kF32);
  ASSERT_TRUE(session.ok());
  ForwardStep forward;
  forward.x = Normal(5, {64, 64});
  ASSERT_TRUE((*session)->Forward(forward, nullptr).ok());
  EXPECT_TRUE((*session)->ChangeRecipe(RecipeUnder("nvfp4"), nullptr).ok());
}

// What 0.1.0 wrote of a session that it let go from mxfp8 to fp8_delayed with an override.
TEST_F(SessionStates, RestoreNamesTheRecipeOfACheckpointThatNoSessionHas) {
  SessionSpec spec = LinearLayers("fp8_delayed", {ParallelMode::kNone});
  auto session = Open(spec, 64, 64);
  ASSERT_TRUE(session.ok());
  TensorFile file = *(*session)->Checkpoint(nullptr);
  std::string& recipe = file.metadata.at("recipe");
  const std::string none = "backward_override=none";
  ASSERT_NE(recipe.find(none), std::string::npos);
  recipe.replace(recipe.find(none), none.size(), "backward_override=dequantized");
  const absl::Status status = RestoreSession(*engine_, spec, file, nullptr, nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(), HasSubstr("checkpoint: metadata \"recipe\": "));
  EXPECT_THAT(status.ToString(), HasSubstr("dequantized"));
  EXPECT_THAT(status.ToString(), HasSubstr("no backward override"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
