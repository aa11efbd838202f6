// Steps in the wrong order, and steps with the wrong tensors: what is refused, by which rule, and
// that the session is as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/training/session_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

struct OrderCase {
  const char* name;
  /// What was done before, in order; all of it is in order.
  std::vector<std::string> before;
  std::string step;
  absl::StatusCode code;
  const char* rule;
};

absl::Status Do(OneRankSession& session, const std::string& step) {
  const std::string microbatch = step.substr(step.find(' ') + 1);
  if (step.find("forward") == 0) return session.Forward(ForwardOf(1, microbatch), nullptr).status();
  if (step.find("deferring") == 0) {
    ForwardStep forward = ForwardOf(1, microbatch);
    forward.defer_wgrad = true;
    return session.Forward(forward, nullptr).status();
  }
  if (step.find("recomputed") == 0) {
    ForwardStep forward = ForwardOf(1, microbatch);
    forward.recompute = true;
    return session.Forward(forward, nullptr).status();
  }
  if (step.find("evaluate") == 0) {
    ForwardStep forward = ForwardOf(1, microbatch);
    forward.train = false;
    return session.Forward(forward, nullptr).status();
  }
  if (step.find("narrow") == 0) {
    ForwardStep forward = ForwardOf(1, microbatch);
    forward.x = Normal(1, {kRows, kIn / 2});
    return session.Forward(forward, nullptr).status();
  }
  if (step.find("backward") == 0) {
    return session.Backward(BackwardOf(2, microbatch), nullptr).status();
  }
  if (step.find("misshapen") == 0) {
    BackwardStep backward = BackwardOf(2, microbatch);
    backward.grad_output = Normal(2, {kRows, kOut / 2});
    return session.Backward(backward, nullptr).status();
  }
  if (step == "wgrad") return session.Wgrad(nullptr).status();
  if (step == "optimize") return session.Optimize({}, nullptr).status();
  if (step.find("offload") == 0) return session.Offload(microbatch, nullptr);
  if (step.find("reload") == 0) return session.Reload(microbatch, nullptr);
  if (step == "checkpoint") return session.Checkpoint(nullptr).status();
  return absl::UnknownError(step);
}

class SessionOrder : public ::testing::TestWithParam<OrderCase> {};

TEST_P(SessionOrder, IsRefusedByItsRuleAndLeavesTheSession) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const auto session = OpenOn(*engine, TwoLayerSpec("fp8_delayed:amax_history_len=4"));
  ASSERT_NE(session, nullptr);
  for (const std::string& step : GetParam().before) {
    const absl::Status done = Do(*session, step);
    ASSERT_TRUE(done.ok()) << step << ": " << done;
  }
  const auto before = DigestsOf(*session);
  const int64_t step_count = session->step_count();
  const int64_t bytes = session->bytes();
  const std::vector<std::string> in_flight = session->microbatches();
  const absl::Status refused = Do(*session, GetParam().step);
  EXPECT_EQ(refused.code(), GetParam().code) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(GetParam().rule));
  EXPECT_EQ(DigestsOf(*session), before);
  EXPECT_EQ(session->step_count(), step_count);
  EXPECT_EQ(session->bytes(), bytes);
  EXPECT_EQ(session->microbatches(), in_flight);
}

constexpr auto kOrder = absl::StatusCode::kFailedPrecondition;
constexpr auto kTensors = absl::StatusCode::kInvalidArgument;

INSTANTIATE_TEST_SUITE_P(
    Table, SessionOrder,
    ::testing::Values(
        OrderCase{"BackwardFirst", {}, "backward a", kOrder, "no forward of it is in flight"},
        OrderCase{"BackwardTwice",
                  {"forward a", "backward a"},
                  "backward a",
                  kOrder,
                  "each training forward takes one backward"},
        OrderCase{"BackwardOfAnEvaluation", {"evaluate a"}, "backward a", kOrder, "in flight"},
        OrderCase{"BackwardOfAnother", {"forward a"}, "backward b", kOrder, "microbatch is b"},
        OrderCase{"ForwardTwice",
                  {"forward a"},
                  "forward a",
                  kOrder,
                  "run its backward first or use another name"},
        OrderCase{"WgradOfNothing", {"forward a", "backward a"}, "wgrad", kOrder, "deferred"},
        OrderCase{"OptimizeFirst", {}, "optimize", kOrder, "run a backward first"},
        OrderCase{"OptimizeTwice",
                  {"forward a", "backward a", "optimize"},
                  "optimize",
                  kOrder,
                  "none since the last update"},
        OrderCase{"OptimizeBeforeWgrad",
                  {"deferring a", "backward a"},
                  "optimize",
                  kOrder,
                  "run the deferred wgrads before the optimizer"},
        OrderCase{"OffloadOfNothing", {}, "offload a", kOrder, "in flight"},
        OrderCase{"OffloadTwice", {"forward a", "offload a"}, "offload a", kOrder, "already"},
        OrderCase{"ReloadFirst", {"forward a"}, "reload a", kOrder, "not offloaded"},
        OrderCase{"BackwardOffloaded",
                  {"forward a", "offload a"},
                  "backward a",
                  kOrder,
                  "reload it first"},
        OrderCase{"CheckpointInFlight",
                  {"forward a"},
                  "checkpoint",
                  kOrder,
                  "microbatch is a: it is in flight"},
        OrderCase{"CheckpointRecomputed", {"recomputed a"}, "checkpoint", kOrder, "in flight"},
        OrderCase{"CheckpointDeferred",
                  {"deferring a", "backward a"},
                  "checkpoint",
                  kOrder,
                  "run the deferred wgrads before"},
        OrderCase{"NameWithADot", {}, "forward a.b", kTensors, "microbatch is \"a.b\""},
        OrderCase{"XTooNarrow", {"forward a"}, "narrow b", kTensors, "layers[fc1].x"},
        OrderCase{"GradOutputMisshapen",
                  {"forward a"},
                  "misshapen a",
                  kTensors,
                  "grad_output is bf16[64x32]: it must be f32, bf16 or f16 of y's shape 64x64"}),
    [](const auto& info) { return info.param.name; });

// Rows in multiples of 16 are what FP8's wgrad takes, of 8 its fprop, of 32 mxfp8's quantizer.
TEST(SessionOrder, AForwardIsCheckedAnewUnlessItIsLikeTheLast) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const auto session = OpenOn(*engine, TwoLayerSpec("fp8_current"));
  ASSERT_NE(session, nullptr);
  const auto forward = [&](const std::string& microbatch, int64_t rows, bool train) {
    ForwardStep step = ForwardOf(1, microbatch);
    step.x = Normal(1, {rows, kIn});
    step.train = train;
    return session->Forward(step, nullptr).status();
  };
  EXPECT_TRUE(forward("a", 48, true).ok());
  EXPECT_TRUE(forward("b", 48, true).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(forward("c", 40, true)));
  EXPECT_TRUE(forward("c", 40, false).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(forward("c", 40, true)));
  EXPECT_TRUE(forward("c", 48, true).ok());
  ASSERT_TRUE(session->ChangeRecipe(*Recipe::Parse("mxfp8")).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(forward("d", 48, true)));
  EXPECT_TRUE(forward("d", 64, true).ok());
}

TEST(SessionOrder, MicrobatchesInFlightAreBounded) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const auto session = OpenOn(*engine, TwoLayerSpec("bf16"));
  ASSERT_NE(session, nullptr);
  for (int i = 0; i < kMicrobatchesInFlightMax; ++i) {
    ASSERT_TRUE(Do(*session, absl::StrCat("forward ", i)).ok());
  }
  EXPECT_EQ(Do(*session, "forward last").code(), kOrder);
  EXPECT_TRUE(Do(*session, "evaluate last").ok());
  EXPECT_TRUE(Do(*session, "backward 7").ok());
  EXPECT_TRUE(Do(*session, "forward last").ok());
}

// An evaluation needs no name of its own, and leaves the microbatch of its name alone.
TEST(SessionOrder, AnEvaluationMayHaveTheNameOfAMicrobatchInFlight) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const auto asked = OpenOn(*engine, TwoLayerSpec("mxfp8"));
  const auto alone = OpenOn(*engine, TwoLayerSpec("mxfp8"));
  ASSERT_NE(asked, nullptr);
  ASSERT_NE(alone, nullptr);
  for (OneRankSession* const session : {asked.get(), alone.get()}) {
    ASSERT_TRUE(Do(*session, "forward a").ok());
  }
  ForwardStep evaluation = ForwardOf(3, "a");
  evaluation.train = false;
  const auto evaluated = asked->Forward(evaluation, nullptr);
  ASSERT_TRUE(evaluated.ok()) << evaluated.status();
  EXPECT_EQ(asked->microbatches(), std::vector<std::string>{"a"});
  evaluation.microbatch = "b";
  const auto other = alone->Forward(evaluation, nullptr);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(SameBits(OutputOf(evaluated, "y"), OutputOf(other, "y")));
  const auto backward = asked->Backward(BackwardOf(2, "a"), nullptr);
  const auto expected = alone->Backward(BackwardOf(2, "a"), nullptr);
  ASSERT_TRUE(backward.ok()) << backward.status();
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const char* name : {"dx", "fc1.dw", "fc2.dw"}) {
    EXPECT_TRUE(SameBits(OutputOf(backward, name), OutputOf(expected, name))) << name;
  }
  EXPECT_EQ(DigestsOf(*asked), DigestsOf(*alone));
}

TEST(SessionOrder, NothingButTheOptimizerNeedsOne) {
  const auto engine = MakeCpuEngine({.threads = 1});
  SessionSpec spec = TwoLayerSpec("bf16");
  spec.optimizer = {};
  const auto session = OpenOn(*engine, spec);
  ASSERT_NE(session, nullptr);
  EXPECT_TRUE(Do(*session, "forward a").ok());
  EXPECT_TRUE(Do(*session, "backward a").ok());
  EXPECT_THAT(std::string(Do(*session, "optimize").message()), HasSubstr("opened without one"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
