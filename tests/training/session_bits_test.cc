// Five steps of two layers under every recipe: every output, gradient and tensor of the state has
// the bits of the same training composed by hand.
#include <gtest/gtest.h>

#include <string>

#include "tests/engine/recipe_cases.h"
#include "tests/training/composed_training.h"
#include "tests/training/session_fixture.h"

namespace quantgate {
namespace {

class SessionBits : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 2});

  void ExpectState(TrainingSession& session, const std::string& name, const Tensor& expected) {
    const auto found = session.Find(name, nullptr);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_TRUE(SameBits(*found, expected)) << name;
  }

  void ExpectLayer(TrainingSession& session, const std::string& name, const ComposedLinear& layer,
                   bool is_delayed) {
    ExpectState(session, name + ".weight", layer.weight);
    ExpectState(session, name + ".bias", layer.bias);
    ExpectState(session, name + ".weight.master", layer.weight_master);
    ExpectState(session, name + ".bias.master", layer.bias_master);
    ExpectState(session, name + ".weight.exp_avg", layer.weight_m);
    ExpectState(session, name + ".bias.exp_avg_sq", layer.bias_v);
    if (!is_delayed) return;
    ExpectState(session, name + ".input.scale", layer.input.scale);
    ExpectState(session, name + ".input.amax_history", layer.input.amax_history);
    ExpectState(session, name + ".weight.scale", layer.weight_state.scale);
    ExpectState(session, name + ".weight.amax_history", layer.weight_state.amax_history);
    ExpectState(session, name + ".grad_output.scale", layer.grad_output.scale);
    ExpectState(session, name + ".grad_output.amax_history", layer.grad_output.amax_history);
  }
};

TEST_P(SessionBits, FiveStepsAreThoseComposedByHand) {
  const SessionSpec spec = TwoLayerSpec(GetParam());
  const auto session = OpenOn(*engine_, spec);
  ASSERT_NE(session, nullptr);
  ComposedTraining composed(spec.recipe, spec.seed, TwoLayerParameters());
  for (uint64_t step = 0; step < 5; ++step) {
    SCOPED_TRACE(step);
    const uint64_t seed = 100 + 10 * step;
    const auto a = session->Forward(ForwardOf(seed, "a"), nullptr);
    ForwardStep evaluation = ForwardOf(seed + 4, "eval");
    evaluation.train = false;
    const auto eval = session->Forward(evaluation, nullptr);
    const auto b = session->Forward(ForwardOf(seed + 1, "b"), nullptr);
    const ComposedMicrobatch composed_a = composed.Forward(ForwardOf(seed).x);
    const ComposedMicrobatch composed_eval = composed.Forward(evaluation.x, false);
    const ComposedMicrobatch composed_b = composed.Forward(ForwardOf(seed + 1).x);
    EXPECT_TRUE(SameBits(OutputOf(a, "y"), composed_a.y));
    EXPECT_TRUE(SameBits(OutputOf(eval, "y"), composed_eval.y));
    EXPECT_TRUE(SameBits(OutputOf(b, "y"), composed_b.y));

    const std::pair<const char*, const ComposedMicrobatch*> backwards[] = {{"b", &composed_b},
                                                                           {"a", &composed_a}};
    for (const auto& [name, microbatch] : backwards) {
      const BackwardStep backward = BackwardOf(seed + 2, name);
      const auto result = session->Backward(backward, nullptr);
      const ComposedGradients expected = composed.Backward(*microbatch, backward.grad_output);
      EXPECT_TRUE(SameBits(OutputOf(result, "dx"), expected.dx));
      for (const auto& [gradient, tensor] : expected.named) {
        EXPECT_TRUE(SameBits(OutputOf(result, gradient), tensor)) << gradient;
      }
      for (const SavedOperand& saved : result->saved) {
        EXPECT_EQ(saved.at_save, saved.at_use) << saved.name;
      }
    }
    ASSERT_TRUE(session->Optimize({}, nullptr).ok());
    composed.Adam(spec.optimizer.adam);
    ExpectLayer(*session, "fc1", composed.layer(0), spec.recipe.is_delayed());
    ExpectLayer(*session, "fc2", composed.layer(1), spec.recipe.is_delayed());
    if (::testing::Test::HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryRecipe, SessionBits, ::testing::ValuesIn(kRecipeCases));

}  // namespace
}  // namespace quantgate
