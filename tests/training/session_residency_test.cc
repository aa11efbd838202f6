// Nothing is read between the operations of a training step: on a device each read would wait for
// all that is under way. What reports need is read once everything is on its way.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/engine/order_recorder.h"
#include "tests/engine/recipe_cases.h"
#include "tests/training/session_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

class SessionResidency : public ::testing::TestWithParam<const char*> {
 protected:
  /// Runs a step and looks at its order; how many reads there were.
  int64_t Reads(const std::function<absl::Status()>& step) {
    engine_.operations.clear();
    const absl::Status status = step();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_FALSE(engine_.operations.empty());
    return ExpectReadsLast(engine_.operations);
  }

  const std::unique_ptr<Engine> cpu_ = MakeCpuEngine({.threads = 1});
  OrderRecorder engine_{*cpu_};
};
INSTANTIATE_TEST_SUITE_P(Recipes, SessionResidency, ::testing::ValuesIn(kRecipeCases));

TEST_P(SessionResidency, StepsReadNothingBeforeTheirLastOperation) {
  for (const bool main_grads : {false, true}) {
    for (const Masters masters : {Masters::kF32, Masters::kBf16Remainder}) {
      SessionSpec spec = TwoLayerSpec(GetParam());
      spec.main_grads = main_grads;
      spec.masters = masters;
      if (masters == Masters::kBf16Remainder) spec.optimizer.kind = OptimizerSpec::Kind::kSgd;
      const auto session = OpenOn(engine_, spec);
      ASSERT_NE(session, nullptr);
      const auto forward = [&](const std::string& microbatch, bool recompute, bool defer_wgrad) {
        ForwardStep step = ForwardOf(1, microbatch);
        step.recompute = recompute;
        step.defer_wgrad = defer_wgrad;
        step.is_first = microbatch == "a" ? Microbatch::kFirst : Microbatch::kLater;
        EXPECT_GT(Reads([&] { return session->Forward(step, nullptr).status(); }), 0);
      };
      const auto backward = [&](const std::string& microbatch) {
        const BackwardStep step = BackwardOf(2, microbatch);
        EXPECT_GT(Reads([&] { return session->Backward(step, nullptr).status(); }), 0);
      };
      for (int update = 0; update < 2; ++update) {
        SCOPED_TRACE(update);
        forward("a", false, false);
        forward("b", true, false);
        forward("c", false, true);
        backward("a");
        backward("b");
        backward("c");
        Reads([&] { return session->Wgrad(nullptr).status(); });
        EXPECT_EQ(Reads([&] { return session->Optimize({}, nullptr).status(); }), 0);
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
