// A step that fails at any of its engine calls leaves the session as it was: the same step done
// again gives what it would have given.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/engine/forwarding_engine.h"
#include "tests/training/session_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// Has no memory at its call number `fails_at`, or is told then that nobody waits any more.
class FailingEngine : public ForwardingEngine {
 public:
  explicit FailingEngine(Engine& engine) : ForwardingEngine(engine) {}

  int calls = 0;
  int fails_at = -1;
  Cancellation* cancellation = nullptr;  ///< Not null: cancelled in place of failing.

  absl::StatusOr<Tensor> ToDevice(const Tensor& tensor, const Cancellation* c) override {
    return Guarded([&] { return ForwardingEngine::ToDevice(tensor, c); });
  }
  absl::StatusOr<Tensor> ToHost(const Tensor& tensor, const Cancellation* c) override {
    return Guarded([&] { return ForwardingEngine::ToHost(tensor, c); });
  }
  absl::StatusOr<Tensor> Generate(const GeneratorSpec& spec, const Cancellation* c) override {
    return Guarded([&] { return ForwardingEngine::Generate(spec, c); });
  }
  absl::StatusOr<Tensor> Cast(const Tensor& source, DType out, const Cancellation* c) override {
    return Guarded([&] { return ForwardingEngine::Cast(source, out, c); });
  }
  absl::StatusOr<QuantizedTensor> Quantize(const Tensor& source, const Quantizer& quantizer,
                                           Usages usages, const QuantizeArguments& arguments,
                                           const Cancellation* c) override {
    return Guarded(
        [&] { return ForwardingEngine::Quantize(source, quantizer, usages, arguments, c); });
  }
  absl::StatusOr<DelayedScalingState> NoteCast(const DelayedScalingState& state,
                                               const Tensor& amax) override {
    return Guarded([&] { return ForwardingEngine::NoteCast(state, amax); });
  }
  absl::StatusOr<DelayedScalingState> UpdateScale(const DelayedScalingState& state,
                                                  const DelayedScalingOptions& options,
                                                  float max_finite) override {
    return Guarded([&] { return ForwardingEngine::UpdateScale(state, options, max_finite); });
  }
  absl::StatusOr<std::vector<QuantizationSummary>> Summarize(
      std::span<const QuantizedTensor> quantized) override {
    return Guarded([&] { return ForwardingEngine::Summarize(quantized); });
  }
  absl::StatusOr<StartedGemm> StartGemm(const GemmDesc& desc, const Cancellation* c) override {
    return Guarded([&] { return ForwardingEngine::StartGemm(desc, c); });
  }
  absl::StatusOr<Tensor> ColumnSums(const Tensor& source, DType out,
                                    const Cancellation* c) override {
    return Guarded([&] { return ForwardingEngine::ColumnSums(source, out, c); });
  }
  absl::StatusOr<AdamResult> AdamStep(const AdamDesc& desc, const Cancellation* c) override {
    return Guarded([&] { return ForwardingEngine::AdamStep(desc, c); });
  }
  absl::StatusOr<Tensor> Add(const Tensor& a, const Tensor& b, DType out,
                             const Cancellation* c) override {
    return Guarded([&] { return ForwardingEngine::Add(a, b, out, c); });
  }
  absl::StatusOr<std::vector<Tensor>> StartFingerprints(std::span<const Tensor> tensors,
                                                        const Cancellation* c) override {
    return Guarded([&] { return ForwardingEngine::StartFingerprints(tensors, c); });
  }
  absl::StatusOr<std::vector<Fingerprint>> ReadFingerprints(
      std::span<const Tensor> started) override {
    return Guarded([&] { return ForwardingEngine::ReadFingerprints(started); });
  }

 private:
  template <typename Call>
  auto Guarded(Call call) -> decltype(call()) {
    if (calls++ != fails_at) return call();
    if (cancellation == nullptr) return absl::ResourceExhaustedError("the device has no memory");
    cancellation->Cancel();
    return call();
  }
};

using Step = std::function<absl::Status(OneRankSession&, const Cancellation*)>;

struct FailureCase {
  const char* name;
  const char* recipe;
  std::vector<Step> before;
  Step step;
};

Step Forward(const std::string& microbatch, bool recompute = false, bool train = true) {
  return [=](OneRankSession& session, const Cancellation* cancellation) {
    ForwardStep step = ForwardOf(1, microbatch);
    step.recompute = recompute;
    step.train = train;
    step.is_first = Microbatch::kFirst;
    return session.Forward(step, cancellation).status();
  };
}
Step Backward(const std::string& microbatch) {
  return [=](OneRankSession& session, const Cancellation* cancellation) {
    return session.Backward(BackwardOf(2, microbatch), cancellation).status();
  };
}
absl::Status Optimize(OneRankSession& session, const Cancellation* cancellation) {
  return session.Optimize({}, cancellation).status();
}
Step Deferring(const std::string& microbatch) {
  return [=](OneRankSession& session, const Cancellation* cancellation) {
    ForwardStep step = ForwardOf(1, microbatch);
    step.defer_wgrad = true;
    return session.Forward(step, cancellation).status();
  };
}
absl::Status Wgrad(OneRankSession& session, const Cancellation* cancellation) {
  return session.Wgrad(cancellation).status();
}
absl::Status Reload(OneRankSession& session, const Cancellation* cancellation) {
  return session.Reload("a", cancellation);
}
absl::Status Offload(OneRankSession& session, const Cancellation* cancellation) {
  return session.Offload("a", cancellation);
}
absl::Status Checkpoint(OneRankSession& session, const Cancellation* cancellation) {
  return session.Checkpoint(cancellation).status();
}
absl::Status ChangeRecipe(OneRankSession& session, const Cancellation* cancellation) {
  return session.ChangeRecipe(*Recipe::Parse("fp8_delayed:margin=2"), cancellation);
}

class SessionFailure : public ::testing::TestWithParam<FailureCase> {
 protected:
  std::unique_ptr<Engine> cpu_ = MakeCpuEngine({.threads = 1});
  FailingEngine engine_{*cpu_};

  std::unique_ptr<OneRankSession> OpenBefore() {
    engine_.cancellation = nullptr;
    engine_.fails_at = -1;
    auto session = OpenOn(engine_, TwoLayerSpec(GetParam().recipe));
    for (const Step& step : GetParam().before) {
      const absl::Status status = step(*session, nullptr);
      EXPECT_TRUE(status.ok()) << status;
    }
    return session;
  }
};

TEST_P(SessionFailure, AtAnyCallTheSessionStaysAsItWas) {
  const auto undisturbed = OpenBefore();
  const auto before = DigestsOf(*undisturbed);
  engine_.calls = 0;
  ASSERT_TRUE(GetParam().step(*undisturbed, nullptr).ok());
  const int calls = engine_.calls;
  ASSERT_GT(calls, 1);
  const auto after = DigestsOf(*undisturbed);

  const auto session = OpenBefore();
  const int64_t step_count = session->step_count();
  for (int call = 0; call < calls; ++call) {
    engine_.calls = 0;
    engine_.fails_at = call;
    const absl::Status status = GetParam().step(*session, nullptr);
    engine_.fails_at = -1;
    ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    ASSERT_EQ(DigestsOf(*session), before) << "after a failure at call " << call;
    ASSERT_EQ(session->step_count(), step_count);
  }
  ASSERT_TRUE(GetParam().step(*session, nullptr).ok());
  EXPECT_EQ(DigestsOf(*session), after);
}

TEST_P(SessionFailure, CancelledAtAnyCallItStaysAsItWasOrIsDone) {
  const auto undisturbed = OpenBefore();
  const auto before = DigestsOf(*undisturbed);
  engine_.calls = 0;
  ASSERT_TRUE(GetParam().step(*undisturbed, nullptr).ok());
  const int calls = engine_.calls;
  const auto after = DigestsOf(*undisturbed);
  for (int call = 0; call < calls; ++call) {
    const auto session = OpenBefore();
    Cancellation cancellation;
    engine_.cancellation = &cancellation;
    engine_.calls = 0;
    engine_.fails_at = call;
    const absl::Status status = GetParam().step(*session, &cancellation);
    engine_.fails_at = -1;
    // Some of the last calls only read what has been computed, and look at no cancellation.
    EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
    ASSERT_EQ(DigestsOf(*session), status.ok() ? after : before) << "cancelled at call " << call;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Steps, SessionFailure,
    ::testing::Values(
        FailureCase{"Forward", "fp8_delayed", {}, Forward("a")},
        FailureCase{"SecondForward", "nvfp4", {Forward("b")}, Forward("a")},
        FailureCase{"Evaluation", "mxfp8", {Forward("b")}, Forward("a", false, false)},
        FailureCase{"Backward", "fp8_delayed", {Forward("a"), Forward("b")}, Backward("a")},
        FailureCase{"RecomputedBackward", "fp8_delayed", {Forward("a", true)}, Backward("a")},
        FailureCase{"Optimizer", "fp8_current", {Forward("a"), Backward("a")}, Optimize},
        FailureCase{
            "SecondBackward", "mxfp8", {Forward("a"), Backward("a"), Forward("a")}, Backward("a")},
        FailureCase{"Wgrad", "nvfp4", {Deferring("a"), Backward("a")}, Wgrad},
        FailureCase{"Reload", "mxfp8", {Forward("a"), Offload}, Reload},
        FailureCase{"Offload", "mxfp8", {Forward("a")}, Offload},
        FailureCase{"Checkpoint", "fp8_block", {Forward("a"), Backward("a")}, Checkpoint},
        FailureCase{"RecipeChange", "fp8_delayed", {Forward("a"), Backward("a")}, ChangeRecipe}),
    [](const auto& info) { return info.param.name; });

}  // namespace QG_TEST_FILE
}  // namespace quantgate
