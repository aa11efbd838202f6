// Training sessions on the CUDA engine against the CPU engine: after every step of a trace the two
// have given the same outputs and records, and every tensor of their states has the same bytes.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/both_engines.h"
#include "tests/engine/recipe_cases.h"
#include "tests/engine/tensor_values.h"
#include "tests/training/layer_network.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// One session on each engine, driven together. After the first difference nothing is done.
class BothSessions {
 public:
  BothSessions(const SessionSpec& spec, const std::map<std::string, Tensor>& parameters)
      : spec_(spec) {
    subject_ = Take(OneRankSession::Open(Cuda(), spec, parameters, nullptr));
    reference_ = Take(OneRankSession::Open(Cpu(), spec, parameters, nullptr));
    CompareStates("open");
  }

  using Step = std::function<absl::StatusOr<SessionStepResult>(OneRankSession&)>;
  void Run(const std::string& what, const Step& step) {
    if (!is_good()) return;
    const auto reference = step(*reference_);
    const auto subject = step(*subject_);
    EXPECT_TRUE(reference.ok()) << what << ": " << reference.status();
    EXPECT_EQ(subject.status(), reference.status()) << what;
    if (!reference.ok() || !subject.ok()) return;
    EXPECT_EQ(DifferenceOf(subject->outputs, reference->outputs), "") << what;
    EXPECT_EQ(DifferenceOf(static_cast<const StepRecords&>(*subject), *reference), "") << what;
    for (const SavedOperand& saved : subject->saved) {
      if (!saved.used) continue;
      EXPECT_EQ(saved.at_save, saved.at_use) << what << ": " << saved.name;
    }
    CompareStates(what);
  }

  using Action = std::function<absl::Status(OneRankSession&)>;
  void Do(const std::string& what, const Action& action) {
    if (!is_good()) return;
    const absl::Status reference = action(*reference_);
    EXPECT_TRUE(reference.ok()) << what << ": " << reference;
    EXPECT_EQ(action(*subject_), reference) << what;
    CompareStates(what);
  }

  void Forward(const ForwardStep& step) {
    Run("forward of " + step.microbatch, [&](OneRankSession& s) { return s.Forward(step, {}); });
  }
  void Backward(const std::string& microbatch, uint64_t seed) {
    const BackwardStep step = BackwardOf(seed, microbatch);
    Run("backward of " + microbatch, [&](OneRankSession& s) { return s.Backward(step, {}); });
  }
  void Optimize(const OptimizerStep& step = {}) {
    Run("optimizer", [&](OneRankSession& s) { return s.Optimize(step, {}); });
  }
  void ChangeRecipe(const std::string& text) {
    const Recipe recipe = Recipe::Parse(text).value();
    Do("change to " + text, [&](OneRankSession& s) { return s.ChangeRecipe(recipe); });
  }
  /// A microbatch from forward to update.
  void Train(uint64_t seed) {
    Forward(ForwardOf(seed));
    Backward("0", seed + 1);
    Optimize();
  }

  /// Each goes on from the other's checkpoint, which is the same.
  void ExchangeCheckpoints() {
    if (!is_good()) return;
    const auto of_subject = subject_->Checkpoint(nullptr);
    const auto of_reference = reference_->Checkpoint(nullptr);
    ASSERT_TRUE(of_subject.ok() && of_reference.ok()) << of_subject.status();
    EXPECT_EQ(of_subject->metadata, of_reference->metadata);
    EXPECT_EQ(DifferenceOf(of_subject->tensors, of_reference->tensors), "") << "checkpoint";
    spec_.recipe = subject_->recipe();
    subject_ = Take(OneRankSession::Restore(Cuda(), spec_, *of_reference, nullptr));
    reference_ = Take(OneRankSession::Restore(Cpu(), spec_, *of_subject, nullptr));
    CompareStates("restore");
  }

 private:
  static std::unique_ptr<OneRankSession> Take(
      absl::StatusOr<std::unique_ptr<OneRankSession>> session) {
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *std::move(session) : nullptr;
  }
  bool is_good() const {
    return subject_ != nullptr && reference_ != nullptr && !testing::Test::HasFailure();
  }
  void CompareStates(const std::string& after) {
    if (!is_good()) return;
    EXPECT_EQ(DigestsOf(*subject_), DigestsOf(*reference_)) << "after " << after;
    EXPECT_EQ(subject_->step_count(), reference_->step_count()) << "after " << after;
    EXPECT_EQ(subject_->microbatches(), reference_->microbatches()) << "after " << after;
  }

  SessionSpec spec_;
  std::unique_ptr<OneRankSession> subject_, reference_;
};

ForwardStep ForwardAs(Microbatch is_first, const std::string& microbatch, uint64_t seed) {
  ForwardStep step = ForwardOf(seed, microbatch);
  step.is_first = is_first;
  return step;
}

/// Three microbatches in flight together: one that is offloaded, one that is recomputed, one whose
/// weight gradients wait; an evaluation among them, and the update.
void TrainThree(BothSessions& both, uint64_t seed) {
  ForwardStep recomputed = ForwardAs(Microbatch::kLater, "recomputed", seed + 1);
  recomputed.recompute = true;
  ForwardStep evaluation = ForwardOf(seed + 2, "evaluation");
  evaluation.train = false;
  ForwardStep deferred = ForwardAs(Microbatch::kLater, "deferred", seed + 3);
  deferred.defer_wgrad = true;
  both.Forward(ForwardAs(Microbatch::kFirst, "offloaded", seed));
  both.Forward(recomputed);
  both.Forward(evaluation);
  both.Do("offload", [](OneRankSession& s) { return s.Offload("offloaded", nullptr); });
  both.Forward(deferred);
  both.Backward("recomputed", seed + 4);
  both.Do("reload", [](OneRankSession& s) { return s.Reload("offloaded", nullptr); });
  both.Backward("offloaded", seed + 5);
  both.Backward("deferred", seed + 6);
  both.Run("wgrad", [](OneRankSession& s) { return s.Wgrad(nullptr); });
  both.Optimize();
}

/// A trace through every step. `knobs` is the same recipe with other knobs, `other` another one
/// (empty: the session's weights do not allow it).
void RunTrace(BothSessions& both, const std::string& knobs, const std::string& other) {
  TrainThree(both, 100);
  both.ChangeRecipe(knobs);
  both.Forward(ForwardOf(110));
  both.Backward("0", 111);
  both.Optimize({.learning_rate = 0.0625f});
  // Gradients that no update has used yet, and weights that are cached.
  both.Forward(ForwardAs(Microbatch::kFirst, "0", 120));
  both.Backward("0", 121);
  both.ExchangeCheckpoints();
  both.Forward(ForwardAs(Microbatch::kLater, "0", 122));
  both.Backward("0", 123);
  both.Optimize();
  if (!other.empty()) {
    both.Forward(ForwardOf(130, "before"));
    both.ChangeRecipe(other);
    both.Forward(ForwardOf(131, "after"));
    both.Backward("after", 132);
    both.Backward("before", 133);
    both.Optimize();
    both.ChangeRecipe(knobs);
  }
  both.ExchangeCheckpoints();
  TrainThree(both, 140);
  both.Train(150);
}

class CudaSessionsOfEveryRecipe : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Recipes, CudaSessionsOfEveryRecipe, testing::ValuesIn(kRecipeCases));

TEST_P(CudaSessionsOfEveryRecipe, OnTheModels) {
  SessionSpec spec = TwoLayerSpec(GetParam());
  spec.arithmetic = ModelFor(spec.recipe);
  BothSessions both(spec, TwoLayerParameters());
  RunTrace(both, GetParam(), "");
}

// auto: cuBLASLt for what it takes. The recipe in between has other formats.
TEST_P(CudaSessionsOfEveryRecipe, OnTheHardware) {
  const SessionSpec spec = TwoLayerSpec(GetParam());
  BothSessions both(spec, TwoLayerParameters());
  RunTrace(both, GetParam(), spec.recipe.name() == "mxfp8" ? "fp8_delayed" : "mxfp8");
}

enum class Updates { kAdam, kAdamWithDecay, kSgd, kSgdWithMomentum };

struct StorageCase {
  const char* name;
  const char* recipe;
  const char* knobs;  ///< The same recipe with other knobs.
  WeightStorage weights = WeightStorage::kHighPrecision;
  Masters masters = Masters::kF32;
  Updates updates = Updates::kAdam;
  bool main_grads = false;
  Requantization requantization = Requantization::kFromF32;
  bool built_without_grad = false;
};

void SetUpdates(Updates updates, OptimizerSpec& optimizer) {
  const bool is_adam = updates == Updates::kAdam || updates == Updates::kAdamWithDecay;
  optimizer.kind = is_adam ? OptimizerSpec::Kind::kAdam : OptimizerSpec::Kind::kSgd;
  optimizer.sgd.learning_rate = 0.0625f;
  if (updates == Updates::kAdamWithDecay) {
    optimizer.adam.weight_decay = 0.01f;
    optimizer.adam.decoupled_decay = false;
  }
  if (updates == Updates::kSgdWithMomentum) {
    optimizer.sgd.momentum = 0.875f;
    optimizer.sgd.weight_decay = 0.01f;
    optimizer.sgd.nesterov = true;
  }
}

SessionSpec WithStorage(SessionSpec spec, const StorageCase& which) {
  spec.weights = which.weights;
  spec.masters = which.masters;
  spec.main_grads = which.main_grads;
  spec.requantization = which.requantization;
  spec.built_without_grad = which.built_without_grad;
  SetUpdates(which.updates, spec.optimizer);
  return spec;
}

class CudaSessionStorage : public testing::TestWithParam<StorageCase> {};

TEST_P(CudaSessionStorage, TwoLinearLayers) {
  const SessionSpec spec = WithStorage(TwoLayerSpec(GetParam().recipe), GetParam());
  BothSessions both(spec, TwoLayerParameters());
  const bool is_quantized = spec.weights == WeightStorage::kQuantized;
  RunTrace(both, GetParam().knobs, is_quantized ? "" : "nvfp4:backward_override=dequantized");
}

TEST_P(CudaSessionStorage, ALayerOfEachKind) {
  const SessionSpec spec = WithStorage(SpecOfLayers(GetParam().recipe), GetParam());
  BothSessions both(spec, ParametersOfLayers());
  const bool is_quantized = spec.weights == WeightStorage::kQuantized;
  RunTrace(both, GetParam().knobs, is_quantized ? "" : "fp8_current");
}

constexpr auto kQuantized = WeightStorage::kQuantized;
constexpr auto kHigh = WeightStorage::kHighPrecision;
INSTANTIATE_TEST_SUITE_P(
    Sessions, CudaSessionStorage,
    testing::Values(
        StorageCase{"Bf16", "bf16", "bf16:activation_dtype=f16", kHigh, Masters::kNone,
                    Updates::kSgd},
        StorageCase{"Bf16Remainder", "bf16", "bf16", kHigh, Masters::kBf16Remainder,
                    Updates::kAdamWithDecay, true},
        StorageCase{"Current", "fp8_current", "fp8_current:amax_epsilon=0.25", kHigh, Masters::kF32,
                    Updates::kSgdWithMomentum, true},
        StorageCase{"CurrentNoMasters", "fp8_current", "fp8_current:backward_override=dequantized",
                    kHigh, Masters::kNone, Updates::kAdam},
        StorageCase{"Delayed", "fp8_delayed:amax_history_len=4",
                    "fp8_delayed:amax_history_len=2,margin=1", kHigh, Masters::kF32, Updates::kAdam,
                    true},
        StorageCase{"DelayedUnfused", "fp8_delayed:update=unfused",
                    "fp8_delayed:amax_compute_algo=most_recent", kHigh, Masters::kBf16Remainder,
                    Updates::kSgd},
        StorageCase{"Mxfp8", "mxfp8", "mxfp8:scale_rule=floor", kHigh, Masters::kBf16Remainder,
                    Updates::kSgdWithMomentum},
        StorageCase{"Nvfp4", "nvfp4", "nvfp4:disable_rht=true", kHigh, Masters::kF32,
                    Updates::kAdamWithDecay, true},
        StorageCase{"QuantizedCurrent", "fp8_current", "fp8_current:amax_epsilon=0.25", kQuantized,
                    Masters::kF32, Updates::kSgd},
        StorageCase{"QuantizedCurrentThroughBf16", "fp8_current", "fp8_current", kQuantized,
                    Masters::kF32, Updates::kAdam, false, Requantization::kThroughBf16},
        StorageCase{"QuantizedDelayed", "fp8_delayed", "fp8_delayed:margin=1", kQuantized,
                    Masters::kF32, Updates::kAdam, true},
        StorageCase{"QuantizedBlock", "fp8_block", "fp8_block:amax_epsilon=0.5", kQuantized,
                    Masters::kF32, Updates::kSgdWithMomentum},
        StorageCase{"QuantizedMxfp8", "mxfp8", "mxfp8:scale_rule=floor", kQuantized,
                    Masters::kBf16Remainder, Updates::kAdam, true, Requantization::kThroughBf16},
        StorageCase{"QuantizedMxfp8BuiltWithoutGrad", "mxfp8:backward_override=dequantized",
                    "mxfp8:backward_override=dequantized,scale_rule=floor", kQuantized,
                    Masters::kF32, Updates::kSgd, false, Requantization::kFromF32, true},
        StorageCase{"QuantizedCurrentBuiltWithoutGrad", "fp8_current", "fp8_current", kQuantized,
                    Masters::kF32, Updates::kSgd, false, Requantization::kFromF32, true},
        StorageCase{"QuantizedNvfp4NoMasters", "nvfp4", "nvfp4", kQuantized, Masters::kNone,
                    Updates::kAdam},
        StorageCase{"QuantizedHybrid", "hybrid:fprop=mxfp8,dgrad=fp8_block,wgrad=mxfp8",
                    "hybrid:fprop=mxfp8,dgrad=fp8_block,wgrad=mxfp8", kQuantized}),
    [](const auto& info) { return info.param.name; });

// Steps that fail leave both as they were.
TEST(CudaSessions, RefuseTheSame) {
  const SessionSpec spec = TwoLayerSpec("fp8_current");
  std::unique_ptr<OneRankSession> sessions[2] = {OpenOn(Cuda(), spec), OpenOn(Cpu(), spec)};
  std::vector<absl::Status> statuses[2];
  for (int i = 0; i < 2; ++i) {
    OneRankSession& session = *sessions[i];
    ForwardStep ragged = ForwardOf(1);
    ragged.x = Normal(1, {17, kIn});
    statuses[i] = {session.Backward(BackwardOf(1, "none"), nullptr).status(),
                   session.Optimize({}, nullptr).status(),
                   session.Reload("none", nullptr),
                   session.Wgrad(nullptr).status(),
                   session.Forward(ragged, nullptr).status(),
                   session.Forward(ForwardOf(2), nullptr).status(),
                   session.Forward(ForwardOf(2), nullptr).status(),
                   session.Checkpoint(nullptr).status()};
    for (size_t step = 0; step < statuses[i].size(); ++step) {
      EXPECT_EQ(statuses[i][step].ok(), step == 5) << step << statuses[i][step];
    }
  }
  EXPECT_EQ(statuses[0], statuses[1]);
  EXPECT_EQ(DigestsOf(*sessions[0]), DigestsOf(*sessions[1]));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
