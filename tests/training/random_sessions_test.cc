// Random sessions, and what is done with them: whatever Open, ChangeRecipe and Restore accept, a
// forward, a backward and an update can follow; a checkpoint gives back the state of every rank,
// bit for bit; and whatever is refused leaves the session as it was.
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
#include "kernels/training/sharding/state_sharding.h"
#include "tests/base/exhaustive.h"
#include "tests/training/amax_records.h"
#include "tests/training/parallel/parallel_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// One of them.
class RandomSession {
 public:
  RandomSession(Engine& engine, uint64_t seed) : engine_(engine), random_(seed), seed_(seed) {}

  void Run();
  int opened() const { return session_ == nullptr ? 0 : 1; }
  int changes() const { return changes_; }
  int refusals() const { return refusals_; }
  int updates() const { return updates_; }
  int restored() const { return restored_; }

 private:
  /// Of the batch: 128 on each of two tensor-parallel ranks, which fit every rule.
  int64_t rows() const {
    return spec_->parallel.has_value() ? 256 * spec_->parallel->data_parallel : 256;
  }

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
  Recipe AnyHybrid();
  OverlapSpec AnyOverlap();
  ParallelSpec AnyRanks(bool is_divided);
  SessionSpec AnySpec();
  std::map<std::string, Tensor> AnyParameters(const SessionSpec& spec);
  void Step();
  void Change();
  void Restore();
  void Update();
  /// The session of a spec that was accepted has a step.
  absl::Status StepIn(DType dtype);

  Engine& engine_;
  std::mt19937_64 random_;
  const uint64_t seed_;
  std::optional<SessionSpec> spec_;
  std::unique_ptr<Session> session_;
  std::optional<DType> dtype_;  ///< Of the last forward.
  int64_t in_ = 0, out_ = 0;
  int changes_ = 0, refusals_ = 0, updates_ = 0, restored_ = 0;
};

/// Of rules whose operands go together.
Recipe RandomSession::AnyHybrid() {
  constexpr std::array kRules = {"bf16", "mxfp8", "nvfp4", "fp8_block", "fp8_current"};
  constexpr std::array kSources = {"original", "rowwise_dequantized"};
  for (;;) {
    const auto recipe = Recipe::Parse(
        absl::StrCat("hybrid:fprop=", OneOf(kRules), ",dgrad=", OneOf(kRules),
                     ",wgrad=", OneOf(kRules), ",columnwise_source=", OneOf(kSources)));
    if (recipe.ok()) return *recipe;
  }
}

Recipe RandomSession::AnyRecipe() {
  if (Chance(35)) return AnyHybrid();
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

ParallelSpec RandomSession::AnyRanks(bool is_divided) {
  ParallelSpec ranks = is_divided ? Ranks(2, Chance(10) ? 2 : 1, /*sp=*/Chance(80)) : Ranks(1, 2);
  if (is_divided && Chance(50)) ranks.overlap = AnyOverlap();
  if (ranks.data_parallel > 1) {
    ranks.fully_sharded = Chance(40);
    ranks.distributed_optimizer = !ranks.fully_sharded && Chance(50);
    ranks.reshard_after_forward = !ranks.fully_sharded || Chance(70);
  }
  constexpr std::array kGroups = {"none", "tensor", "data", "world"};
  if (Chance(20)) ranks.amax_groups = AmaxGroupsOf({{TensorRole::kWeight, OneOf(kGroups)}});
  return ranks;
}

SessionSpec RandomSession::AnySpec() {
  constexpr int64_t kDims[] = {8, 16, 24, 32, 48, 64, 128, 128, 256, 256};
  in_ = kDims[random_() % std::size(kDims)];
  out_ = kDims[random_() % std::size(kDims)];
  constexpr ParallelMode kModes[] = {ParallelMode::kColumn, ParallelMode::kRow};
  const bool is_divided = Chance(35);
  const ParallelMode mode = is_divided ? kModes[random_() % 2] : ParallelMode::kNone;
  SessionSpec spec = LinearLayers("bf16", {mode});
  spec.recipe = AnyRecipe();
  constexpr std::array kArithmetics = {"auto", "auto", "sm90", "sm100", "fp32", "exact", "sm80"};
  spec.arithmetic = *Arithmetic::Parse(OneOf(kArithmetics));
  if (Chance(40)) {
    spec.layers[0].spec.kind = LayerKind::kLayerNormLinear;
    spec.layers[0].spec.return_norm_output = Chance(40);
  }
  constexpr Masters kMasters[] = {Masters::kF32, Masters::kF32, Masters::kBf16Remainder,
                                  Masters::kNone};
  spec.masters = kMasters[random_() % std::size(kMasters)];
  if (Chance(50)) spec.weights = WeightStorage::kQuantized;
  if (Chance(40)) spec.requantization = Requantization::kThroughBf16;
  spec.main_grads = Chance(30);
  if (Chance(50)) spec.optimizer.kind = OptimizerSpec::Kind::kSgd;
  spec.optimizer.sgd.momentum = Chance(50) ? 0.5f : 0.0f;
  if (is_divided || Chance(40)) spec.parallel = AnyRanks(is_divided);
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
  forward.x = Normal(random_(), {rows(), in_}, dtype);
  if (Chance(20)) forward.is_first = Chance(50) ? Microbatch::kFirst : Microbatch::kLater;
  const auto result = session_->Forward(forward, nullptr);
  if (!result.ok()) return result.status();
  const DType of_y = session_->recipe().activation_dtype().value_or(dtype);
  const auto backward = session_->Backward({"0", Normal(random_(), {rows(), out_}, of_y)}, nullptr);
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
      return Chance(60) ? Update() : void();
    }
    EXPECT_EQ(StateDigest(*session_), before);
  }
  ADD_FAILURE() << "no forward: " << last;
}

void RandomSession::Update() {
  const auto updated = session_->Optimize({}, nullptr);
  EXPECT_TRUE(updated.ok()) << updated.status();
  ++updates_;
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
  if (spec.recipe.CanonicalText() == session_->recipe().CanonicalText()) {
    EXPECT_EQ(DigestsOf(**restored), DigestsOf(*session_));
    ++restored_;
  }
  session_ = *std::move(restored);
  dtype_.reset();
  Step();
}

void RandomSession::Run() {
  spec_ = AnySpec();
  const auto parameters = AnyParameters(*spec_);
  SCOPED_TRACE(absl::StrCat(
      "seed ", seed_, ": ", spec_->recipe.ShortText(), " ", in_, "x", out_, " ",
      std::string(DTypeName(parameters.at("fc1.weight").dtype())), " ",
      std::string(WeightStorageName(spec_->weights)), " ", std::string(MastersName(spec_->masters)),
      " ", spec_->parallel.has_value() ? RanksText(*spec_) : "one rank",
      spec_->parallel.has_value() && spec_->parallel->fully_sharded ? " fully_sharded" : ""));
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

TEST(RandomSessions, WhatIsAcceptedStepsAndWhatIsRefusedChangesNothing) {
  const std::unique_ptr<Engine> engine = MakeCpuEngine({.threads = 2});
  int opened = 0, changes = 0, refusals = 0, updates = 0, restored = 0;
  const int quarters = IsExhaustive() ? 4 : 1;
  for (int seed = 1; seed <= 100 * quarters && !testing::Test::HasFailure(); ++seed) {
    RandomSession session(*engine, static_cast<uint64_t>(seed));
    session.Run();
    opened += session.opened();
    changes += session.changes();
    refusals += session.refusals();
    updates += session.updates();
    restored += session.restored();
  }
  // Enough of each for the walk to mean something.
  EXPECT_GT(opened, 20 * quarters);
  EXPECT_GT(changes, 15 * quarters);
  EXPECT_GT(refusals, 25 * quarters);
  EXPECT_GT(updates, 25 * quarters);
  EXPECT_GT(restored, 15 * quarters);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
