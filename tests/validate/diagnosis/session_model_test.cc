// Steps of a session taken again for a diagnosis: only where they give their own bits.
#include "kernels/validate/diagnosis/session_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/training/session_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

/// What a diagnosis is given of a microbatch's forward and backward.
struct TakenSteps {
  SessionSteps steps;
  TensorsByName outputs;  ///< Of the backward.
};

class SessionModelTest : public ::testing::Test {
 protected:
  /// Takes microbatch a; `between`, between its forward and its backward.
  TakenSteps Take(const std::function<void(OneRankSession&)>& between) {
    SessionSpec spec = TwoLayerSpec("bf16");
    spec.main_grads = true;
    const std::unique_ptr<OneRankSession> session = OpenOn(*engine_, spec);
    const auto before = session->Checkpoint(nullptr);
    EXPECT_TRUE(before.ok()) << before.status();
    TakenSteps taken{{.spec = spec,
                      .before = [file = *before] { return file; },
                      .forward = ForwardOf(21, "a"),
                      .backward = BackwardOf(22, "a"),
                      .bytes_max = int64_t{1} << 30}};
    EXPECT_TRUE(session->Forward(taken.steps.forward, nullptr).ok());
    between(*session);
    const auto result = session->Backward(*taken.steps.backward, nullptr);
    EXPECT_TRUE(result.ok()) << result.status();
    for (const NamedTensor& output : result->outputs) taken.outputs[output.name] = output.tensor;
    return taken;
  }

  const std::unique_ptr<Engine> engine_ = MakeCpuEngine({});
};

TEST_F(SessionModelTest, StepsThatRepeatAreTakenUnderAChange) {
  const TakenSteps taken = Take([](OneRankSession&) {});
  const DiagnosisBudget budget = DiagnosisBudget::Unlimited();
  SessionModel model(*engine_, taken.steps, taken.outputs, nullptr, budget);
  const auto again = model.Compute({});
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(again->size(), taken.outputs.size());
  for (const auto& [name, tensor] : taken.outputs) {
    ASSERT_TRUE(again->contains(name)) << name;
    EXPECT_TRUE(HaveSameBytes(again->at(name), tensor)) << name;
  }
}

// The weights' gradients of b are in those of a where b's backward came in between; no change of a
// explains them.
TEST_F(SessionModelTest, StepsThatDoNotRepeatAreNotTakenUnderAChange) {
  const TakenSteps taken = Take([](OneRankSession& session) {
    EXPECT_TRUE(session.Forward(ForwardOf(23, "b"), nullptr).ok());
    EXPECT_TRUE(session.Backward(BackwardOf(24, "b"), nullptr).ok());
  });
  const DiagnosisBudget budget = DiagnosisBudget::Unlimited();
  SessionModel model(*engine_, taken.steps, taken.outputs, nullptr, budget);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto again = model.Compute({});
    EXPECT_EQ(again.status().code(), absl::StatusCode::kUnimplemented) << again.status();
    EXPECT_THAT(again.status().message(), HasSubstr("does not give its own bits"));
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
