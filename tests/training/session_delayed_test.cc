// Delayed scaling over a session's steps: when scales are updated and when not, and what
// calibrations, recomputations and changes of the recipe do to them. Evaluations, several
// microbatches in flight and infinite amaxes: scenarios (session_scenarios.cc).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/training/session_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Floats = std::vector<float>;

float AmaxOf(const Tensor& tensor) {
  float amax = 0;
  for (const float value : ToValues(tensor)) amax = std::max(amax, std::abs(value));
  return amax;
}

class SessionDelayed : public ::testing::Test {
 protected:
  void Open(const std::string& recipe) {
    session_ = OpenOn(*engine_, TwoLayerSpec(recipe));
    ASSERT_NE(session_, nullptr);
  }
  Floats State(const std::string& name) {
    const auto tensor = session_->Find(name, nullptr);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    return tensor.ok() ? ToValues(*tensor) : Floats{};
  }
  Tensor Forward(const ForwardStep& step) {
    return OutputOf(session_->Forward(step, nullptr), "y");
  }

  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
  std::unique_ptr<OneRankSession> session_;
};

TEST_F(SessionDelayed, AForwardUpdatesInputsAndWeightsAndABackwardGradients) {
  Open("fp8_delayed:amax_history_len=3");
  const ForwardStep forward = ForwardOf(1);
  const BackwardStep backward = BackwardOf(2);
  Forward(forward);
  const float x = AmaxOf(forward.x), w = AmaxOf(TwoLayerParameters().at("fc1.weight"));
  EXPECT_EQ(State("fc1.input.scale"), (Floats{448.0f / x}));
  EXPECT_EQ(State("fc1.input.amax_history"), (Floats{0, 0, x}));
  EXPECT_EQ(State("fc1.weight.scale"), (Floats{448.0f / w}));
  EXPECT_EQ(State("fc2.grad_output.scale"), (Floats{1}));
  ASSERT_TRUE(session_->Backward(backward, nullptr).ok());
  const float dy = AmaxOf(backward.grad_output);
  EXPECT_EQ(State("fc2.grad_output.scale"), (Floats{57344.0f / dy}));
  EXPECT_EQ(State("fc2.grad_output.amax_history"), (Floats{0, 0, dy}));
  EXPECT_EQ(State("fc1.input.scale"), (Floats{448.0f / x}));
}

TEST_F(SessionDelayed, ACalibrationNotesAmaxesAndUpdatesNothing) {
  Open("fp8_delayed:amax_history_len=3");
  ForwardStep calibration = ForwardOf(1);
  calibration.train = false;
  calibration.calibrate = true;
  Forward(calibration);
  EXPECT_EQ(State("fc1.input.scale"), (Floats{1}));
  EXPECT_EQ(State("fc1.input.amax_history"), (Floats{AmaxOf(calibration.x), 0, 0}));
  // With its backward too.
  calibration.train = true;
  Forward(calibration);
  const BackwardStep backward = BackwardOf(2);
  ASSERT_TRUE(session_->Backward(backward, nullptr).ok());
  EXPECT_EQ(State("fc1.input.amax_history"), (Floats{AmaxOf(calibration.x), 0, 0}));
  EXPECT_EQ(State("fc2.grad_output.scale"), (Floats{1}));
  EXPECT_EQ(State("fc2.grad_output.amax_history"), (Floats{AmaxOf(backward.grad_output), 0, 0}));
}

TEST_F(SessionDelayed, ARecomputationHasTheScalesOfItsForwardAndLeavesThoseOfNow) {
  for (const bool recompute : {false, true}) {
    SCOPED_TRACE(recompute);
    Open("fp8_delayed:amax_history_len=4");
    ForwardStep a = ForwardOf(1, "a");
    a.recompute = recompute;
    Forward(a);
    ForwardStep b = ForwardOf(2, "b");
    b.recompute = recompute;
    Forward(b);
    const Floats history = State("fc1.input.amax_history");
    const auto backward_b = session_->Backward(BackwardOf(3, "b"), nullptr);
    const auto backward_a = session_->Backward(BackwardOf(4, "a"), nullptr);
    EXPECT_EQ(State("fc1.input.amax_history"), history);
    if (!recompute) continue;
    int compared = 0;
    for (const SavedOperand& saved : backward_a->saved) {
      EXPECT_EQ(saved.at_save, saved.at_use) << saved.name;
      compared += saved.name.find(" recomputed") != std::string::npos;
    }
    EXPECT_EQ(compared, 4) << "x and weight of two layers";
  }
}

TEST_F(SessionDelayed, AChangeOfTheFormatTakesEffectAtOnceAndInFlightAtNoTime) {
  const std::string e4m3 = "fp8_delayed:amax_history_len=4,fp8_format=e4m3";
  Open(e4m3);
  Forward(ForwardOf(1));
  const BackwardStep first = BackwardOf(2);
  ASSERT_TRUE(session_->Backward(first, nullptr).ok());
  const float dy = AmaxOf(first.grad_output);
  ASSERT_EQ(State("fc2.grad_output.scale"), (Floats{448.0f / dy}));

  Forward(ForwardOf(3, "in_flight"));
  const Floats input = State("fc1.input.scale");
  ASSERT_TRUE(session_->ChangeRecipe(*Recipe::Parse("fp8_delayed:amax_history_len=4")).ok());
  EXPECT_EQ(State("fc2.grad_output.scale"), (Floats{57344.0f / dy}));
  EXPECT_EQ(State("fc1.input.scale"), input);

  const auto in_flight = session_->Backward(BackwardOf(4, "in_flight"), nullptr);
  ASSERT_TRUE(in_flight.ok());
  for (const QuantizationRecord& record : in_flight->quantizations) {
    if (record.tensor != "fc2.grad_output") continue;
    EXPECT_EQ(record.scale, 448.0f / dy);
    EXPECT_NE(record.quantizer.find("e4m3"), std::string::npos) << record.quantizer;
  }
  // It updated what it followed, not what follows.
  EXPECT_EQ(State("fc2.grad_output.scale"), (Floats{57344.0f / dy}));
  Forward(ForwardOf(5));
  const auto now = session_->Backward(BackwardOf(6), nullptr);
  ASSERT_TRUE(now.ok());
  for (const QuantizationRecord& record : now->quantizations) {
    if (record.tensor != "fc2.grad_output") continue;
    EXPECT_EQ(record.scale, 57344.0f / dy);
    EXPECT_NE(record.quantizer.find("e5m2"), std::string::npos) << record.quantizer;
  }
}

TEST_F(SessionDelayed, AMarginScalesWhatThereIsAndLeavesWhatIsFresh) {
  Open("fp8_delayed:amax_history_len=4");
  Forward(ForwardOf(1));
  const Floats input = State("fc1.input.scale");
  ASSERT_TRUE(
      session_->ChangeRecipe(*Recipe::Parse("fp8_delayed:amax_history_len=2,margin=3")).ok());
  EXPECT_EQ(State("fc1.input.scale"), (Floats{input[0] / 8}));
  EXPECT_EQ(State("fc1.input.amax_history").size(), 2u);
  EXPECT_EQ(State("fc1.grad_output.scale"), (Floats{1}));
}

// 448 over an amax of about 2^-118 is a number, but not 2^8 times as much: the largest number is
// taken, as an update under that margin takes it.
TEST_F(SessionDelayed, AMarginThatTakesAScaleBeyondFp32LeavesTheLargestNumber) {
  GeneratorSpec tiny;
  tiny.distribution = Distribution::kNormal;
  tiny.dtype = DType::kBF16;
  tiny.shape = {kRows, kIn};
  tiny.scale = 0x1p-120f;
  ForwardStep forward;
  forward.x = *engine_->Generate(tiny, nullptr);
  for (const char* opened_with : {"margin=0", "margin=-8"}) {
    SCOPED_TRACE(opened_with);
    Open(absl::StrCat("fp8_delayed:", opened_with));
    Forward(forward);
    EXPECT_TRUE(std::isfinite(State("fc1.input.scale")[0]));
    ASSERT_TRUE(session_->ChangeRecipe(*Recipe::Parse("fp8_delayed:margin=-8")).ok());
    EXPECT_EQ(State("fc1.input.scale"), (Floats{std::numeric_limits<float>::max()}));
  }
}

// The cast of a quantized weight is that of its update, which notes the amax; the next forward's
// update takes it for the scale.
TEST_F(SessionDelayed, AQuantizedWeightNotesItsAmaxWhereItIsMade) {
  SessionSpec spec = TwoLayerSpec("fp8_delayed:amax_history_len=3");
  spec.weights = WeightStorage::kQuantized;
  session_ = OpenOn(*engine_, spec);
  ASSERT_NE(session_, nullptr);
  const float given = AmaxOf(TwoLayerParameters().at("fc1.weight"));
  EXPECT_EQ(State("fc1.weight.amax_history"), (Floats{given, 0, 0}));
  EXPECT_EQ(State("fc1.weight.scale"), (Floats{1}));
  Forward(ForwardOf(1));
  EXPECT_EQ(State("fc1.weight.amax_history"), (Floats{0, 0, given}));
  EXPECT_EQ(State("fc1.weight.scale"), (Floats{448.0f / given}));
  ASSERT_TRUE(session_->Backward(BackwardOf(2), nullptr).ok());
  ASSERT_TRUE(session_->Optimize({}, nullptr).ok());
  const float updated = AmaxOf(*session_->Find("fc1.weight.master", nullptr));
  EXPECT_NE(updated, given);
  EXPECT_EQ(State("fc1.weight.amax_history"), (Floats{updated, 0, given}));
}

// The first backward's update is by the recipe of its forward: the second one's gradient has the
// scale that it would have had.
TEST_F(SessionDelayed, ForwardsInFlightShareTheirOwnRecipesUpdates) {
  for (const char* changed : {"fp8_delayed:margin=3", "fp8_delayed:amax_compute_algo=most_recent",
                              "fp8_delayed:fp8_format=e4m3", "fp8_current"}) {
    SCOPED_TRACE(changed);
    std::vector<Tensor> gradients[2];
    for (const bool is_changed : {false, true}) {
      Open("fp8_delayed");
      Forward(ForwardOf(1, "a"));
      Forward(ForwardOf(2, "b"));
      if (is_changed) {
        ASSERT_TRUE(session_->ChangeRecipe(*Recipe::Parse(changed)).ok());
      }
      for (const char* microbatch : {"a", "b"}) {
        const auto backward = session_->Backward(BackwardOf(3, microbatch), nullptr);
        for (const char* name : {"dx", "fc1.dw", "fc2.dw"}) {
          gradients[is_changed].push_back(OutputOf(backward, name));
        }
      }
    }
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      EXPECT_TRUE(SameBits(gradients[1][i], gradients[0][i])) << i;
    }
  }
}

TEST_F(SessionDelayed, AnotherRecipeDropsTheStatesAndAReturnIsFresh) {
  Open("fp8_delayed:amax_history_len=4");
  Forward(ForwardOf(1, "in_flight"));
  ASSERT_TRUE(session_->ChangeRecipe(*Recipe::Parse("fp8_current")).ok());
  EXPECT_FALSE(session_->Find("fc1.input.scale", nullptr).ok());
  ASSERT_TRUE(session_->Backward(BackwardOf(2, "in_flight"), nullptr).ok());
  ASSERT_TRUE(session_->ChangeRecipe(*Recipe::Parse("fp8_delayed:amax_history_len=4")).ok());
  ForwardStep evaluation = ForwardOf(3, "eval");
  evaluation.train = false;
  const auto fresh = session_->Forward(evaluation, nullptr);
  ASSERT_TRUE(fresh.ok());
  for (const QuantizationRecord& record : fresh->quantizations) EXPECT_EQ(record.scale, 1.0f);
}

/// A custom recipe of these rules, in which DELAYED stands for fp8_delayed with such knobs.
std::string Rules(const std::string& rules, const std::string& knobs = "\"amax_history_len\":3") {
  return absl::StrReplaceAll(
      absl::StrCat("custom:rules=[", rules, "]"),
      {{"DELAYED", absl::StrCat("{\"name\":\"fp8_delayed\",\"knobs\":{", knobs, "}}")}});
}

TEST_F(SessionDelayed, RulesOfACustomRecipeKeepTheStatesOfFp8Delayed) {
  const std::string all = R"({"quantizer":DELAYED})";
  const auto reference = OpenOn(*engine_, TwoLayerSpec("fp8_delayed:amax_history_len=3"));
  Open(Rules(all));
  for (const uint64_t seed : {100, 200}) {
    EXPECT_EQ(TrainOnce(*session_, seed), TrainOnce(*reference, seed));
  }
  const std::string changed =
      Rules(all, "\"amax_history_len\":2,\"margin\":1,\"fp8_format\":\"e4m3\"");
  ASSERT_TRUE(session_->ChangeRecipe(*Recipe::Parse(changed)).ok());
  ASSERT_TRUE(
      reference
          ->ChangeRecipe(*Recipe::Parse("fp8_delayed:amax_history_len=2,margin=1,fp8_format=e4m3"))
          .ok());
  EXPECT_EQ(DigestsOf(*session_), DigestsOf(*reference));
  EXPECT_EQ(TrainOnce(*session_, 300), TrainOnce(*reference, 300));
  const auto checkpoint = session_->Checkpoint(nullptr);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto restored =
      OneRankSession::Restore(*engine_, TwoLayerSpec(changed), *checkpoint, nullptr);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(TrainOnce(**restored, 400), TrainOnce(*reference, 400));
}

TEST_F(SessionDelayed, AChangeOfTheRulesKeepsTheStatesThatTheNewOnesHave) {
  Open(Rules(R"({"layer_name":"fc1","quantizer":DELAYED},{"quantizer":"mxfp8"})"));
  const ForwardStep forward = ForwardOf(1);
  Forward(forward);
  ASSERT_TRUE(session_->Backward(BackwardOf(2), nullptr).ok());
  const Floats input = State("fc1.input.scale"), history = State("fc1.input.amax_history"),
               gradient = State("fc1.grad_output.scale");
  EXPECT_EQ(input, (Floats{448.0f / AmaxOf(forward.x)}));
  EXPECT_NE(gradient, (Floats{1}));
  EXPECT_FALSE(session_->Find("fc2.input.scale", nullptr).ok());
  const std::string fprop_alone =
      R"({"layer_name":"fc1","tensor_type":"grad_output","quantizer":"bf16"},)"
      R"({"layer_name":"fc1","rowwise":DELAYED},{"quantizer":"mxfp8"})";
  ASSERT_TRUE(session_->ChangeRecipe(*Recipe::Parse(Rules(fprop_alone))).ok());
  EXPECT_EQ(State("fc1.input.scale"), input);
  EXPECT_EQ(State("fc1.input.amax_history"), history);
  EXPECT_FALSE(session_->Find("fc1.grad_output.scale", nullptr).ok());
  Forward(ForwardOf(3));
  ASSERT_TRUE(session_->Backward(BackwardOf(4), nullptr).ok());
  const auto checkpoint = session_->Checkpoint(nullptr);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto restored =
      OneRankSession::Restore(*engine_, TwoLayerSpec(Rules(fprop_alone)), *checkpoint, nullptr);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(DigestsOf(**restored), DigestsOf(*session_));
}

// The columnwise codes of the weight and the rowwise ones of grad_output, of dgrad.
TEST_F(SessionDelayed, DirectionsOfAHybridHaveStatesOfTheirOwn) {
  Open(
      R"(hybrid:fprop=mxfp8,dgrad={"name":"fp8_delayed","knobs":{"amax_history_len":3}},wgrad=mxfp8)");
  Forward(ForwardOf(1));
  const float w = AmaxOf(TwoLayerParameters().at("fc2.weight"));
  EXPECT_EQ(State("fc2.weight_columnwise.scale"), (Floats{448.0f / w}));
  EXPECT_EQ(State("fc2.weight_columnwise.amax_history"), (Floats{0, 0, w}));
  EXPECT_FALSE(session_->Find("fc2.weight.scale", nullptr).ok());
  EXPECT_FALSE(session_->Find("fc2.input.scale", nullptr).ok());
  EXPECT_EQ(State("fc2.grad_output.scale"), (Floats{1}));
  const BackwardStep backward = BackwardOf(2);
  ASSERT_TRUE(session_->Backward(backward, nullptr).ok());
  EXPECT_EQ(State("fc2.grad_output.scale"), (Floats{57344.0f / AmaxOf(backward.grad_output)}));
}

// One rule for both directions is fp8_delayed's, whichever recipe has it.
TEST_F(SessionDelayed, WeightsHeldQuantizedUnderACustomRecipeAreThoseOfFp8Delayed) {
  std::vector<std::unique_ptr<OneRankSession>> sessions;
  for (const std::string& recipe :
       {Rules(R"({"quantizer":DELAYED})"), std::string("fp8_delayed:amax_history_len=3")}) {
    SessionSpec spec = TwoLayerSpec(recipe);
    spec.weights = WeightStorage::kQuantized;
    spec.masters = Masters::kF32;
    spec.optimizer.kind = OptimizerSpec::Kind::kSgd;
    spec.optimizer.sgd.learning_rate = 0.5f;
    auto session = OneRankSession::Open(*engine_, spec, TwoLayerParameters(), nullptr);
    ASSERT_TRUE(session.ok()) << session.status();
    sessions.push_back(*std::move(session));
  }
  for (uint64_t step = 1; step < 4; ++step) {
    for (const auto& session : sessions) {
      ASSERT_TRUE(session->Forward(ForwardOf(step), nullptr).ok());
      ASSERT_TRUE(session->Backward(BackwardOf(10 + step), nullptr).ok());
      ASSERT_TRUE(session->Optimize({}, nullptr).ok());
    }
    EXPECT_EQ(DigestsOf(*sessions[0]), DigestsOf(*sessions[1])) << step;
  }
}

TEST_F(SessionDelayed, WeightsHeldQuantizedHaveOneDelayedScale) {
  SessionSpec spec =
      TwoLayerSpec(R"(hybrid:fprop=fp8_current,dgrad=fp8_delayed,wgrad=fp8_current)");
  spec.weights = WeightStorage::kQuantized;
  const auto refused = OneRankSession::Open(*engine_, spec, TwoLayerParameters(), nullptr);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("delayed scaling in one direction"), std::string::npos)
      << refused.status();
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
