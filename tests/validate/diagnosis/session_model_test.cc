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
  TakenSteps Take() {
    const SessionSpec spec = TwoLayerSpec("bf16");
    const std::unique_ptr<OneRankSession> session = OpenOn(*engine_, spec);
    const auto before = session->Checkpoint(nullptr);
    EXPECT_TRUE(before.ok()) << before.status();
    TakenSteps taken{{.spec = spec,
                      .before = [file = *before] { return file; },
                      .forward = ForwardOf(21, "a"),
                      .backward = BackwardOf(22, "a"),
                      .bytes_max = int64_t{1} << 30}};
    EXPECT_TRUE(session->Forward(taken.steps.forward, nullptr).ok());
    const auto result = session->Backward(*taken.steps.backward, nullptr);
    EXPECT_TRUE(result.ok()) << result.status();
    for (const NamedTensor& output : result->outputs) taken.outputs[output.name] = output.tensor;
    return taken;
  }

  const std::unique_ptr<Engine> engine_ = MakeCpuEngine({});
};

TEST_F(SessionModelTest, StepsThatRepeatAreTakenUnderAChange) {
  const TakenSteps taken = Take();
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

// No change of a step explains what the step does not do by itself.
TEST_F(SessionModelTest, StepsThatDoNotRepeatAreNotTakenUnderAChange) {
  TakenSteps taken = Take();
  const auto dx = taken.outputs.find("dx");
  ASSERT_NE(dx, taken.outputs.end());
  dx->second = *Tensor::FromBytes(dx->second.dtype(), dx->second.shape(), dx->second.bytes());
  dx->second.as<uint16_t>()[7] ^= 1;
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
