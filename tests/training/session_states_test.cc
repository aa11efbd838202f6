// States that a session must not reach: whatever Open, ChangeRecipe and Restore accept, a forward
// and backward of fitting rows can follow, and whatever is refused leaves the session as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/tensor/fingerprint.h"
#include "kernels/tensor/safetensors_bytes.h"
#include "tests/training/parallel_fixture.h"

namespace quantgate {
namespace {

using testing::HasSubstr;

Recipe RecipeUnder(const std::string& text, BackwardOverride mode = BackwardOverride::kNone) {
  return Recipe::Parse(text)->WithBackwardOverride(mode);
}

/// SHA-256 of every byte of the state.
std::string StateDigest(Session& session) {
  const auto file = session.Checkpoint(nullptr);
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return "";
  const auto bytes = SafetensorsBytes(file->tensors, file->metadata);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return Sha256Of(bytes->bytes()).Hex();
}

class SessionStates : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Session>> Open(const SessionSpec& spec, int64_t in, int64_t out,
                                                DType dtype = DType::kBF16) {
    return OpenSession(*engine_, spec, {{"fc1.weight", Normal(3, {out, in}, dtype)}}, nullptr,
                       nullptr);
  }
  /// A column-parallel layer on two ranks that overlap as they do by default.
  static SessionSpec Overlapped(const std::string& recipe) {
    SessionSpec spec = LinearLayers(recipe, {ParallelMode::kColumn});
    spec.parallel = Ranks(2, 1, /*sp=*/true);
    spec.parallel->overlap.emplace();
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
  spec = LinearLayers("fp8_current", {ParallelMode::kNone});
  spec.recipe = RecipeUnder("fp8_delayed", BackwardOverride::kDequantized);
  EXPECT_THAT(Open(spec, 64, 64).status().ToString(), HasSubstr("no backward override"));
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

/// Random sessions, and what is done with them.
class RandomSession {
 public:
  RandomSession(Engine& engine, uint64_t seed) : engine_(engine), random_(seed), seed_(seed) {}

  void Run();
  int opened() const { return session_ == nullptr ? 0 : 1; }
  int changes() const { return changes_; }
  int refusals() const { return refusals_; }

 private:
  static constexpr int64_t kRows = 256;

  template <size_t kCount>
  const char* OneOf(const std::array<const char*, kCount>& texts) {
    return texts[random_() % kCount];
  }
  bool Chance(int percent) { return static_cast<int>(random_() % 100) < percent; }
  DType AnyDType() {
    constexpr DType kDTypes[] = {DType::kBF16, DType::kBF16, DType::kF16, DType::kF32};
    return kDTypes[random_() % std::size(kDTypes)];
  }
  Recipe AnyRecipe();
  OverlapSpec AnyOverlap();
  SessionSpec AnySpec();
  std::map<std::string, Tensor> AnyParameters(const SessionSpec& spec);
  void Step();
  void Change();
  void Restore();
  /// The session of a spec that was accepted has a step.
  absl::Status StepIn(DType dtype);

  Engine& engine_;
  std::mt19937_64 random_;
  const uint64_t seed_;
  std::optional<SessionSpec> spec_;
  std::unique_ptr<Session> session_;
  std::optional<DType> dtype_;  ///< Of the last forward.
  int64_t in_ = 0, out_ = 0;
  int changes_ = 0, refusals_ = 0;
};

Recipe RandomSession::AnyRecipe() {
  constexpr std::array kRecipes = {
      "bf16",
      "fp8_delayed",
      "fp8_delayed:fp8_format=e4m3,amax_history_len=4",
      "fp8_current",
      "fp8_current:power_2_scales=true,activation_dtype=bf16",
      "fp8_block",
      "fp8_block:w_block_dim=1,power_2_scales=false",
      "mxfp8",
      "mxfp8:fp8_format=hybrid",
      "mxfp8:enable_2d_quantization=true,activation_dtype=f16",
      "nvfp4",
      "nvfp4:disable_rht=true,row_scaled_activation=true",
      "nvfp4:activation_dtype=bf16",
      "hybrid:fprop=fp8_current,dgrad=bf16,wgrad=bf16",
      "hybrid:fprop=mxfp8,dgrad=mxfp8,wgrad=mxfp8,columnwise_source=rowwise_dequantized",
      "custom:rules=[{\"quantizer\":\"fp8_current\"}]",
      "custom:rules=[{\"quantizer\":\"bf16\"}]"};
  constexpr BackwardOverride kModes[] = {BackwardOverride::kNone, BackwardOverride::kNone,
                                         BackwardOverride::kHighPrecision,
                                         BackwardOverride::kDequantized};
  return RecipeUnder(OneOf(kRecipes), kModes[random_() % std::size(kModes)]);
}

OverlapSpec RandomSession::AnyOverlap() {
  OverlapSpec overlap;
  constexpr OverlapMethod kMethods[] = {OverlapMethod::kNone, OverlapMethod::kRingExchange,
                                        OverlapMethod::kPipeline, OverlapMethod::kBulk};
  for (const OverlapSide side : {OverlapSide::kColumn, OverlapSide::kRow}) {
    for (const GemmRole role : {GemmRole::kFprop, GemmRole::kDgrad, GemmRole::kWgrad}) {
      if (!Chance(20)) continue;
      overlap.methods[{side, role}] = kMethods[random_() % std::size(kMethods)];
    }
  }
  overlap.aggregate = Chance(10);
  if (Chance(20)) overlap.pieces = 2;
  if (Chance(20)) overlap.splits = 3;
  return overlap;
}

SessionSpec RandomSession::AnySpec() {
  constexpr int64_t kDims[] = {8, 16, 24, 32, 48, 64, 128, 128, 256, 256};
  in_ = kDims[random_() % std::size(kDims)];
  out_ = kDims[random_() % std::size(kDims)];
  constexpr ParallelMode kModes[] = {ParallelMode::kColumn, ParallelMode::kRow};
  const bool is_parallel = Chance(40);
  const ParallelMode mode = is_parallel ? kModes[random_() % 2] : ParallelMode::kNone;
  SessionSpec spec = LinearLayers("bf16", {mode});
  spec.recipe = AnyRecipe();
  constexpr std::array kArithmetics = {"auto", "auto", "sm90", "sm100", "fp32", "exact", "sm80"};
  spec.arithmetic = *Arithmetic::Parse(OneOf(kArithmetics));
  if (Chance(40)) {
    spec.layers[0].spec.kind = LayerKind::kLayerNormLinear;
    spec.layers[0].spec.return_norm_output = Chance(40);
  }
  if (Chance(30)) spec.masters = Masters::kNone;
  if (Chance(25)) spec.weights = WeightStorage::kQuantized;
  spec.main_grads = Chance(30);
  if (!is_parallel) return spec;
  spec.parallel = Ranks(2, 1, /*sp=*/Chance(80));
  if (Chance(70)) spec.parallel->overlap = AnyOverlap();
  return spec;
}

std::map<std::string, Tensor> RandomSession::AnyParameters(const SessionSpec& spec) {
  const DType dtype = AnyDType();
  std::map<std::string, Tensor> parameters = {{"fc1.weight", Normal(1, {out_, in_}, dtype)}};
  if (Chance(30)) parameters["fc1.bias"] = Normal(2, {out_}, dtype);
  if (spec.layers[0].spec.kind == LayerKind::kLayerNormLinear) {
    parameters["fc1.gamma"] = Normal(3, {in_}, dtype);
  }
  return parameters;
}

absl::Status RandomSession::StepIn(DType dtype) {
  ForwardStep forward;
  forward.x = Normal(random_(), {kRows, in_}, dtype);
  const auto result = session_->Forward(forward, nullptr);
  if (!result.ok()) return result.status();
  const DType of_y = session_->recipe().activation_dtype().value_or(dtype);
  const auto backward = session_->Backward({"0", Normal(random_(), {kRows, out_}, of_y)}, nullptr);
  EXPECT_TRUE(backward.ok()) << backward.status();
  return backward.status();
}

void RandomSession::Step() {
  std::vector<DType> dtypes = {DType::kBF16, DType::kF16, DType::kF32};
  std::shuffle(dtypes.begin(), dtypes.end(), random_);
  if (dtype_.has_value()) dtypes = {*dtype_};
  absl::Status last;
  for (const DType dtype : dtypes) {
    const std::string before = StateDigest(*session_);
    last = StepIn(dtype);
    if (last.ok()) {
      dtype_ = dtype;
      return;
    }
    EXPECT_EQ(StateDigest(*session_), before);
  }
  ADD_FAILURE() << "no forward: " << last;
}

void RandomSession::Change() {
  const std::string before = StateDigest(*session_);
  const Recipe to = AnyRecipe();
  const absl::Status status = session_->ChangeRecipe(to, nullptr);
  if (status.ok()) {
    ++changes_;
    EXPECT_EQ(session_->recipe().CanonicalText(), to.CanonicalText());
    return Step();
  }
  ++refusals_;
  EXPECT_EQ(StateDigest(*session_), before) << status;
}

void RandomSession::Restore() {
  const auto file = session_->Checkpoint(nullptr);
  ASSERT_TRUE(file.ok()) << file.status();
  SessionSpec spec = *spec_;
  spec.recipe = session_->recipe();
  if (Chance(30)) spec.recipe = AnyRecipe();
  auto restored = RestoreSession(engine_, spec, *file, nullptr, nullptr);
  if (!restored.ok()) {
    // A session's own recipe always goes on.
    EXPECT_NE(spec.recipe.CanonicalText(), session_->recipe().CanonicalText()) << restored.status();
    ++refusals_;
    return;
  }
  session_ = *std::move(restored);
  dtype_.reset();
  Step();
}

void RandomSession::Run() {
  spec_ = AnySpec();
  const auto parameters = AnyParameters(*spec_);
  SCOPED_TRACE(absl::StrCat("seed ", seed_, ": ", spec_->recipe.ShortText(), " ", in_, "x", out_,
                            " ", std::string(DTypeName(parameters.begin()->second.dtype()))));
  auto session = OpenSession(engine_, *spec_, parameters, nullptr, nullptr);
  if (!session.ok()) {
    EXPECT_FALSE(session.status().message().empty());
    return;
  }
  session_ = *std::move(session);
  Step();
  for (int i = 0; i < 6 && !testing::Test::HasFailure(); ++i) {
    const uint64_t choice = random_() % 5;
    choice == 0 ? Step() : choice == 1 ? Restore() : Change();
  }
}

TEST_F(SessionStates, WhatIsAcceptedStepsAndWhatIsRefusedChangesNothing) {
  int opened = 0, changes = 0, refusals = 0;
  for (uint64_t seed = 1; seed <= 400 && !HasFailure(); ++seed) {
    RandomSession session(*engine_, seed);
    session.Run();
    opened += session.opened();
    changes += session.changes();
    refusals += session.refusals();
  }
  // Enough of each for the walk to mean something.
  EXPECT_GT(opened, 80);
  EXPECT_GT(changes, 60);
  EXPECT_GT(refusals, 100);
}

}  // namespace
}  // namespace quantgate
