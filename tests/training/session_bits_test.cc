// Five steps of two layers under every recipe: every output, gradient and tensor of the state has
// the bits of the same training by hand.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/validate/scenarios/oracles/network_by_hand.h"
#include "tests/engine/recipe_cases.h"
#include "tests/training/session_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

class SessionBits : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 2});

  void ExpectState(OneRankSession& session, const std::string& name, const Tensor& expected) {
    const auto found = session.Find(name, nullptr);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_TRUE(SameBits(*found, expected)) << name;
  }

  void ExpectState(OneRankSession& session, const NetworkByHand& by_hand) {
    for (const std::string parameter : {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}) {
      ExpectState(session, parameter, by_hand.ParameterOf(parameter).value());
      const NamedOutputs kept = by_hand.OptimizerStateOf(parameter).value();
      for (const auto& [part, tensor] : kept) {
        ExpectState(session, parameter + "." + part, tensor);
      }
    }
    for (const auto& [name, history] : by_hand.histories()) {
      const std::vector<float>& rows = history.history();
      ExpectState(session, name + ".scale", FromValues(DType::kF32, {1}, {history.scale()}));
      ExpectState(session, name + ".amax_history",
                  FromValues(DType::kF32, {static_cast<int64_t>(rows.size())}, rows));
    }
  }
};

TEST_P(SessionBits, FiveStepsAreThoseComposedByHand) {
  const SessionSpec spec = TwoLayerSpec(GetParam());
  const auto session = OpenOn(*engine_, spec);
  ASSERT_NE(session, nullptr);
  const auto reference = MakeCpuEngine({Isa::kScalar, 1});
  NetworkByHand by_hand(*reference, spec, TwoLayerParameters());
  for (uint64_t step = 0; step < 5; ++step) {
    SCOPED_TRACE(step);
    const uint64_t seed = 100 + 10 * step;
    ForwardStep evaluation = ForwardOf(seed + 4, "eval");
    evaluation.train = false;
    for (const ForwardStep& forward :
         {ForwardOf(seed, "a"), evaluation, ForwardOf(seed + 1, "b")}) {
      const auto result = session->Forward(forward, nullptr);
      const Tensor y = by_hand.Forward(forward.microbatch, forward.x, forward.train).value();
      EXPECT_TRUE(SameBits(OutputOf(result, "y"), y)) << forward.microbatch;
    }
    for (const char* name : {"b", "a"}) {
      const BackwardStep backward = BackwardOf(seed + 2, name);
      const auto result = session->Backward(backward, nullptr);
      const NamedOutputs gradients = by_hand.Backward(name, backward.grad_output).value();
      for (const auto& [gradient, tensor] : gradients) {
        EXPECT_TRUE(SameBits(OutputOf(result, gradient), tensor)) << gradient;
      }
      ASSERT_TRUE(result.ok());
      for (const SavedOperand& saved : result->saved) {
        EXPECT_EQ(saved.at_save, saved.at_use) << saved.name;
      }
    }
    ASSERT_TRUE(session->Optimize({}, nullptr).ok());
    ASSERT_TRUE(by_hand.Optimize().ok());
    ExpectState(*session, by_hand);
    EXPECT_EQ(by_hand.histories().size(), spec.recipe.is_delayed() ? 6u : 0u);
    if (::testing::Test::HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryRecipe, SessionBits, ::testing::ValuesIn(kRecipeCases));

}  // namespace QG_TEST_FILE
}  // namespace quantgate
