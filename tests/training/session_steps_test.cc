// The steps beside forward and backward: recomputation, offload, deferred gradients, main
// gradients, random numbers, changes of the recipe, and what a session counts and refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/elementwise/elementwise.h"
#include "tests/training/session_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

const ExecutionContext kContext;

class SessionSteps : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<OneRankSession> Open(SessionSpec spec) {
    auto session = OpenOn(*engine_, spec);
    EXPECT_NE(session, nullptr);
    return session;
  }
  /// The gradients of two sessions' backwards of one microbatch.
  void ExpectSameBackward(OneRankSession& a, OneRankSession& b, const std::string& microbatch) {
    const auto of_a = a.Backward(BackwardOf(9, microbatch), nullptr);
    const auto of_b = b.Backward(BackwardOf(9, microbatch), nullptr);
    ASSERT_TRUE(of_a.ok() && of_b.ok()) << of_a.status() << of_b.status();
    ASSERT_EQ(of_a->outputs.size(), of_b->outputs.size());
    for (size_t i = 0; i < of_a->outputs.size(); ++i) {
      EXPECT_EQ(of_a->outputs[i].name, of_b->outputs[i].name);
      EXPECT_TRUE(SameBits(of_a->outputs[i].tensor, of_b->outputs[i].tensor));
    }
    for (const SavedOperand& saved : of_b->saved) {
      EXPECT_EQ(saved.at_save, saved.at_use) << saved.name;
    }
  }

  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 2});
};

TEST_P(SessionSteps, ARecomputationGivesTheBitsOfTheOriginal) {
  const auto original = Open(TwoLayerSpec(GetParam()));
  const auto recomputed = Open(TwoLayerSpec(GetParam()));
  for (const char* microbatch : {"a", "b"}) {
    ForwardStep forward = ForwardOf(microbatch[0], microbatch);
    const auto y = original->Forward(forward, nullptr);
    forward.recompute = true;
    const auto again = recomputed->Forward(forward, nullptr);
    EXPECT_TRUE(SameBits(OutputOf(again, "y"), OutputOf(y, "y")));
    ASSERT_EQ(again->saved.size(), 1u);
    EXPECT_EQ(again->saved[0].name, "x");
  }
  EXPECT_LT(recomputed->bytes(), original->bytes());
  ExpectSameBackward(*original, *recomputed, "b");
  ExpectSameBackward(*original, *recomputed, "a");
  EXPECT_EQ(DigestsOf(*original), DigestsOf(*recomputed));
}

TEST_P(SessionSteps, ARecomputationAfterAnUpdateIsOfTheWeightsOfItsForward) {
  const auto original = Open(TwoLayerSpec(GetParam()));
  const auto recomputed = Open(TwoLayerSpec(GetParam()));
  for (const bool recompute : {false, true}) {
    OneRankSession& session = recompute ? *recomputed : *original;
    ForwardStep forward = ForwardOf(1, "waits");
    forward.recompute = recompute;
    ASSERT_TRUE(session.Forward(forward, nullptr).ok());
    TrainOnce(session, 20);
  }
  ExpectSameBackward(*original, *recomputed, "waits");
}

TEST_P(SessionSteps, AnOffloadedMicrobatchComesBackWithTheSameBits) {
  const auto resident = Open(TwoLayerSpec(GetParam()));
  const auto offloaded = Open(TwoLayerSpec(GetParam()));
  for (OneRankSession* session : {resident.get(), offloaded.get()}) {
    ASSERT_TRUE(session->Forward(ForwardOf(1, "a"), nullptr).ok());
    ForwardStep b = ForwardOf(2, "b");
    b.recompute = true;
    ASSERT_TRUE(session->Forward(b, nullptr).ok());
  }
  const auto before = DigestsOf(*offloaded);
  for (const char* microbatch : {"a", "b"}) {
    ASSERT_TRUE(offloaded->Offload(microbatch, nullptr).ok());
  }
  EXPECT_EQ(DigestsOf(*offloaded), before);
  for (const char* microbatch : {"b", "a"}) {
    ASSERT_TRUE(offloaded->Reload(microbatch, nullptr).ok());
  }
  ExpectSameBackward(*resident, *offloaded, "a");
  ExpectSameBackward(*resident, *offloaded, "b");
}

TEST_P(SessionSteps, DeferredGradientsAreThoseOfTheBackward) {
  for (const bool main_grads : {false, true}) {
    SCOPED_TRACE(main_grads);
    SessionSpec spec = TwoLayerSpec(GetParam());
    spec.main_grads = main_grads;
    const auto now = Open(spec);
    const auto later = Open(spec);
    // Three, so that the order of their sum shows.
    for (const char* microbatch : {"a", "b", "c"}) {
      ForwardStep forward = ForwardOf(microbatch[0], microbatch);
      ASSERT_TRUE(now->Forward(forward, nullptr).ok());
      ASSERT_TRUE(now->Backward(BackwardOf(5, microbatch), nullptr).ok());
      forward.defer_wgrad = true;
      ASSERT_TRUE(later->Forward(forward, nullptr).ok());
      const auto backward = later->Backward(BackwardOf(5, microbatch), nullptr);
      ASSERT_TRUE(backward.ok());
      for (const NamedTensor& output : backward->outputs) {
        EXPECT_THAT(output.name, ::testing::Not(HasSubstr("dw")));
      }
    }
    const auto wgrad = later->Wgrad(nullptr);
    ASSERT_TRUE(wgrad.ok()) << wgrad.status();
    EXPECT_EQ(wgrad->outputs.size(), main_grads ? 0u : 6u);
    for (const SavedOperand& saved : wgrad->saved) EXPECT_EQ(saved.at_save, saved.at_use);
    EXPECT_EQ(DigestsOf(*later), DigestsOf(*now));
    ASSERT_TRUE(now->Optimize({}, nullptr).ok());
    ASSERT_TRUE(later->Optimize({}, nullptr).ok());
    EXPECT_EQ(DigestsOf(*later), DigestsOf(*now));
  }
}

TEST_P(SessionSteps, TheSameSeedDrawsTheSameAndNoTwoForwardsDrawAlike) {
  SessionSpec spec = TwoLayerSpec(GetParam());
  Tensor first[2], second[2];  // fc2.dw of two microbatches alike, in two sessions alike.
  for (const int i : {0, 1}) {
    const auto session = Open(spec);
    ASSERT_TRUE(session->Forward(ForwardOf(1, "a"), nullptr).ok());
    ASSERT_TRUE(session->Forward(ForwardOf(1, "b"), nullptr).ok());
    first[i] = OutputOf(session->Backward(BackwardOf(2, "a"), nullptr), "fc2.dw");
    second[i] = OutputOf(session->Backward(BackwardOf(2, "b"), nullptr), "fc2.dw");
  }
  EXPECT_TRUE(SameBits(first[0], first[1]));
  EXPECT_TRUE(SameBits(second[0], second[1]));
  // Under delayed scaling the second microbatch has other scales.
  if (spec.recipe.is_delayed()) return;
  const bool rounds_stochastically = spec.recipe.RoundsStochastically(TensorRole::kGradOutput);
  EXPECT_EQ(SameBits(first[0], second[0]), !rounds_stochastically);
}

INSTANTIATE_TEST_SUITE_P(Recipes, SessionSteps,
                         ::testing::Values("bf16", "fp8_delayed:amax_history_len=4", "fp8_current",
                                           "fp8_block", "mxfp8", "nvfp4",
                                           "fp8_current:backward_override=high_precision",
                                           "mxfp8:backward_override=dequantized"));

using SessionGradients = SessionSteps;

TEST_F(SessionGradients, MainGradientsAreOverwrittenByTheFirstAndSummedAfterwards) {
  SessionSpec spec = TwoLayerSpec("bf16");
  spec.main_grads = true;
  const auto session = Open(spec);
  const auto reference = Open(TwoLayerSpec("bf16"));
  const auto run = [&](uint64_t seed, Microbatch is_first) {
    ForwardStep forward = ForwardOf(seed);
    forward.is_first = is_first;
    EXPECT_TRUE(session->Forward(forward, nullptr).ok());
    EXPECT_TRUE(session->Backward(BackwardOf(seed + 1), nullptr).ok());
    return *session->Find("fc1.main_grad", nullptr);
  };
  const Tensor first = run(1, Microbatch::kUnset);
  const Tensor doubled = run(1, Microbatch::kLater);
  // x + x is exact.
  EXPECT_TRUE(SameBits(doubled, *AddCpu(first, first, DType::kF32, kContext)));
  EXPECT_TRUE(SameBits(run(1, Microbatch::kFirst), first));
  ASSERT_TRUE(session->Optimize({}, nullptr).ok());
  for (const float value : ToValues(*session->Find("fc1.main_grad", nullptr))) {
    ASSERT_EQ(value, 0.0f);
  }
}

TEST_F(SessionGradients, OtherGradientsAreSummedInTheirOwnDtype) {
  const auto session = Open(TwoLayerSpec("bf16"));
  Tensor expected;
  for (uint64_t seed : {1, 3, 5}) {
    ASSERT_TRUE(session->Forward(ForwardOf(seed), nullptr).ok());
    const auto backward = session->Backward(BackwardOf(seed + 1), nullptr);
    const Tensor dw = OutputOf(backward, "fc2.dw");
    expected = expected.has_value() ? *AddCpu(expected, dw, DType::kBF16, kContext) : dw;
  }
  EXPECT_TRUE(SameBits(*session->Find("fc2.dw", nullptr), expected));
}

TEST_F(SessionGradients, OnlyWhatRequiresGradIsUpdated) {
  const auto session = Open(TwoLayerSpec("fp8_current"));
  ForwardStep forward = ForwardOf(1);
  forward.requires_grad = {.x = false, .weight = false, .bias = true};
  ASSERT_TRUE(session->Forward(forward, nullptr).ok());
  const auto backward = session->Backward(BackwardOf(2), nullptr);
  ASSERT_TRUE(backward.ok());
  std::set<std::string> names;
  for (const NamedTensor& output : backward->outputs) names.insert(output.name);
  EXPECT_EQ(names, (std::set<std::string>{"fc1.db", "fc2.db"}));
  const Tensor weight = *session->Find("fc1.weight", nullptr);
  const Tensor bias = *session->Find("fc1.bias", nullptr);
  ASSERT_TRUE(session->Optimize({}, nullptr).ok());
  EXPECT_TRUE(SameBits(*session->Find("fc1.weight", nullptr), weight));
  EXPECT_FALSE(SameBits(*session->Find("fc1.bias", nullptr), bias));
}

// Adam's moments would move a weight whose gradient is zero.
TEST_F(SessionGradients, AnUpdateLeavesAFrozenWeightWithAMainGradient) {
  SessionSpec spec = TwoLayerSpec("mxfp8");
  spec.main_grads = true;
  const auto session = Open(spec);
  const auto pass = [&](bool trains_weights) {
    ForwardStep forward = ForwardOf(1);
    forward.requires_grad.weight = trains_weights;
    EXPECT_TRUE(session->Forward(forward, nullptr).ok());
    EXPECT_TRUE(session->Backward(BackwardOf(2), nullptr).ok());
    EXPECT_TRUE(session->Optimize({}, nullptr).ok());
    std::vector<Tensor> state;
    for (const char* name : {"", ".master", ".exp_avg", ".exp_avg_sq"}) {
      state.push_back(*session->Find(std::string("fc1.weight") + name, nullptr));
    }
    state.push_back(*session->Find("fc1.bias", nullptr));
    return state;
  };
  const std::vector<Tensor> trained = pass(true), frozen = pass(false);
  for (size_t i = 0; i + 1 < trained.size(); ++i) EXPECT_TRUE(SameBits(trained[i], frozen[i])) << i;
  EXPECT_FALSE(SameBits(trained.back(), frozen.back()));
}

TEST_F(SessionGradients, AMasterWithARemainderIsTheF32Master) {
  SessionSpec spec = TwoLayerSpec("bf16");
  const auto f32 = Open(spec);
  spec.masters = Masters::kBf16Remainder;
  const auto remainder = Open(spec);
  for (OneRankSession* session : {f32.get(), remainder.get()}) {
    ASSERT_TRUE(session->Forward(ForwardOf(1), nullptr).ok());
    ASSERT_TRUE(session->Backward(BackwardOf(2), nullptr).ok());
    ASSERT_TRUE(session->Optimize({}, nullptr).ok());
  }
  const Tensor parameter = *remainder->Find("fc1.weight", nullptr);
  const Tensor rest = *remainder->Find("fc1.weight.master_remainder", nullptr);
  EXPECT_TRUE(SameBits(*JoinMasterCpu({parameter, rest}, kContext),
                       *f32->Find("fc1.weight.master", nullptr)));
}

TEST_F(SessionGradients, TheLearningRateOfAStepIsThatStepsAlone) {
  SessionSpec spec = TwoLayerSpec("bf16");
  const auto session = Open(spec);
  const Tensor before = *session->Find("fc1.weight.master", nullptr);
  ASSERT_TRUE(session->Forward(ForwardOf(1), nullptr).ok());
  ASSERT_TRUE(session->Backward(BackwardOf(2), nullptr).ok());
  ASSERT_TRUE(session->Optimize({.learning_rate = 0.0f}, nullptr).ok());
  EXPECT_TRUE(SameBits(*session->Find("fc1.weight.master", nullptr), before));
  ASSERT_TRUE(session->Forward(ForwardOf(1), nullptr).ok());
  ASSERT_TRUE(session->Backward(BackwardOf(2), nullptr).ok());
  ASSERT_TRUE(session->Optimize({}, nullptr).ok());
  EXPECT_FALSE(SameBits(*session->Find("fc1.weight.master", nullptr), before));
}

using SessionRecipe = SessionSteps;

TEST_F(SessionRecipe, AForwardInFlightKeepsItsRecipe) {
  const std::pair<const char*, const char*> changes[] = {
      {"fp8_current", "fp8_current:split_accumulator_dgrad=false"},
      {"fp8_current", "fp8_current:backward_override=dequantized"},
      {"fp8_current", "mxfp8"},
      {"nvfp4", "bf16"},
      {"bf16", "fp8_delayed"}};
  for (const auto& [from, to] : changes) {
    SCOPED_TRACE(absl::StrCat(from, " to ", to));
    const auto uninterrupted = Open(TwoLayerSpec(from));
    const auto changed = Open(TwoLayerSpec(from));
    ASSERT_TRUE(uninterrupted->Forward(ForwardOf(1, "a"), nullptr).ok());
    ASSERT_TRUE(changed->Forward(ForwardOf(1, "a"), nullptr).ok());
    ASSERT_TRUE(changed->ChangeRecipe(*Recipe::Parse(to)).ok());
    ExpectSameBackward(*uninterrupted, *changed, "a");
    // And the next forward has the new one.
    const auto fresh = Open(TwoLayerSpec(to));
    const auto y = changed->Forward(ForwardOf(2), nullptr);
    EXPECT_TRUE(SameBits(OutputOf(y, "y"), OutputOf(fresh->Forward(ForwardOf(2), nullptr), "y")));
  }
}

using SessionOpen = SessionSteps;

TEST_F(SessionOpen, RefusesWhatMakesNoSense) {
  const auto expect_refused = [&](const SessionSpec& spec,
                                  const std::map<std::string, Tensor>& parameters,
                                  const std::string& what) {
    const absl::Status status = OneRankSession::Open(*engine_, spec, parameters, nullptr).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  const auto good = TwoLayerParameters();
  SessionSpec spec = TwoLayerSpec("bf16");
  spec.layers.clear();
  expect_refused(spec, good, "layers is 0 given: from 1 to 64");
  spec = TwoLayerSpec("bf16");
  spec.layers[1].name = "fc1";
  expect_refused(spec, good, "layers[1].name is fc1: it is given twice");
  spec.layers[1].name = "deferred";
  expect_refused(spec, good, "layers[1].name is deferred: the session's own");
  spec.layers[1].name = "a.b";
  expect_refused(spec, good, "layers[1].name is \"a.b\"");
  spec.layers[0].name = "";
  expect_refused(spec, good, "layers[0].name is \"\"");
  spec = TwoLayerSpec("bf16");
  spec.weights = WeightStorage::kQuantized;
  expect_refused(spec, good, "recipe bf16 does not quantize weights");
  spec = TwoLayerSpec("bf16");
  spec.optimizer.adam.beta1 = 1;
  expect_refused(spec, good, "beta1 is 1");
  spec = TwoLayerSpec("bf16");
  auto parameters = good;
  parameters["fc3.weight"] = good.at("fc1.weight");
  expect_refused(spec, parameters, "parameters[fc3.weight] is given: no layer has");
  parameters = good;
  parameters.erase("fc2.weight");
  expect_refused(spec, parameters, "layers[fc2].");
  parameters = good;
  parameters["fc2.weight"] = Normal(1, {kOut, kHidden / 2});
  expect_refused(spec, parameters, "layers[fc2].");
  parameters = good;
  parameters["fc1.main_grad"] = Normal(1, {kHidden, kIn}, DType::kF32);
  expect_refused(spec, parameters,
                 "parameters[fc1.main_grad] is given: this session keeps no such tensor");
  spec.main_grads = true;
  parameters["fc1.main_grad"] = Normal(1, {kHidden, kIn});
  expect_refused(spec, parameters,
                 "parameters[fc1.main_grad] is bf16[96x64]: it must be f32[96x64]");
  parameters["fc1.main_grad"] = Normal(1, {kIn, kHidden}, DType::kF32);
  expect_refused(spec, parameters,
                 "parameters[fc1.main_grad] is f32[64x96]: it must be f32[96x64]");
  spec.main_grads = false;
  spec.masters = Masters::kBf16Remainder;
  parameters = good;
  parameters["fc1.weight"] = Normal(1, {kHidden, kIn}, DType::kF16);
  expect_refused(spec, parameters, "masters is bf16_remainder: weight is f16[96x64]");
}

TEST_F(SessionOpen, TakesMainGradientsAndOptimizerState) {
  SessionSpec spec = TwoLayerSpec("bf16");
  spec.main_grads = true;
  auto parameters = TwoLayerParameters();
  parameters["fc1.main_grad"] = Normal(1, {kHidden, kIn}, DType::kF32);
  parameters["fc2.bias.exp_avg"] = Normal(2, {kOut}, DType::kF32);
  const auto session = OneRankSession::Open(*engine_, spec, parameters, nullptr);
  ASSERT_TRUE(session.ok()) << session.status();
  for (const char* name : {"fc1.main_grad", "fc2.bias.exp_avg"}) {
    EXPECT_TRUE(SameBits(*(*session)->Find(name, nullptr), parameters.at(name)));
  }
}

TEST_F(SessionOpen, CountsEveryByteOnce) {
  SessionSpec spec = TwoLayerSpec("bf16");
  const auto session = Open(spec);
  const int64_t weights = kHidden * kIn + kOut * kHidden, biases = kHidden + kOut;
  // bf16 parameters, f32 masters and two f32 moments.
  const int64_t at_rest = (weights + biases) * (2 + 4 + 8);
  EXPECT_EQ(session->bytes(), at_rest);
  ASSERT_TRUE(session->Forward(ForwardOf(1), nullptr).ok());
  // Each layer's bf16 x; the weights that backward reads are the parameters themselves.
  EXPECT_EQ(session->bytes(), at_rest + kRows * (kIn + kHidden) * 2);
  ASSERT_TRUE(session->Backward(BackwardOf(2), nullptr).ok());
  EXPECT_EQ(session->bytes(), at_rest + (weights + biases) * 2);
  ASSERT_TRUE(session->Optimize({}, nullptr).ok());
  EXPECT_EQ(session->bytes(), at_rest);
}

TEST_F(SessionOpen, AStepBeyondTheBytesThatItMayHoldIsNotDone) {
  const auto session = Open(TwoLayerSpec("bf16"));
  const int64_t at_rest = session->bytes();
  const int64_t in_flight = kRows * (kIn + kHidden) * 2;
  const auto before = DigestsOf(*session);
  session->LimitBytes(at_rest + in_flight - 1);
  const absl::Status refused = session->Forward(ForwardOf(1), nullptr).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr(absl::StrCat(at_rest + in_flight, " bytes after this step; it may hold ",
                                     at_rest + in_flight - 1)));
  EXPECT_EQ(DigestsOf(*session), before);
  EXPECT_EQ(session->step_count(), 0);
  session->LimitBytes(at_rest + in_flight);
  EXPECT_TRUE(session->Forward(ForwardOf(1), nullptr).ok());
  session->LimitBytes(2 * at_rest);
  ASSERT_TRUE(session->Backward(BackwardOf(2), nullptr).ok());
  // An update gives back the gradients' bytes: it is done where the session stays beyond the limit.
  session->LimitBytes(0);
  EXPECT_TRUE(session->Optimize({}, nullptr).ok());
}

TEST_F(SessionOpen, EveryStepThatSucceedsCounts) {
  const auto session = Open(TwoLayerSpec("bf16"));
  EXPECT_EQ(session->step_count(), 0);
  ASSERT_TRUE(session->Forward(ForwardOf(1), nullptr).ok());
  ASSERT_FALSE(session->Forward(ForwardOf(1), nullptr).ok());
  ASSERT_TRUE(session->Offload("0", nullptr).ok());
  ASSERT_TRUE(session->Reload("0", nullptr).ok());
  ASSERT_TRUE(session->Backward(BackwardOf(2), nullptr).ok());
  ASSERT_TRUE(session->Optimize({}, nullptr).ok());
  ASSERT_TRUE(session->ChangeRecipe(*Recipe::Parse("mxfp8")).ok());
  EXPECT_EQ(session->step_count(), 6);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
