// Why subjects of a trace fail: mistakes of a training framework, made here of the very outputs of
// the session (kernels/training alone), and what the trace says of them. docs/reports.md section
// 10.5.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/tensor/transpose.h"
#include "tests/server/sessions/trace_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::Contains;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kRows = 32, kSide = 64;

using Outputs = std::map<std::string, Tensor>;

Tensor Normal(uint64_t seed, Shape shape) {
  return Generated(Distribution::kNormal, seed, DType::kBF16, std::move(shape));
}

/// The outputs of the steps of a session of one linear of a square weight with bias, by step and
/// name: "2 dx".
struct Linear {
  std::string recipe = "bf16";
  Tensor weight = Normal(11, {kSide, kSide});
  Tensor bias = Normal(12, {kSide});
  int rounds = 1;

  Outputs Play(Engine& engine) const {
    SessionSpec spec{.layers = {{"fc", {}}}, .recipe = *Recipe::Parse(recipe)};
    spec.masters = Masters::kF32;
    spec.optimizer.kind = OptimizerSpec::Kind::kSgd;
    spec.optimizer.sgd.learning_rate = 0.1f;
    auto session =
        OneRankSession::Open(engine, spec, {{"fc.weight", weight}, {"fc.bias", bias}}, nullptr);
    EXPECT_TRUE(session.ok()) << session.status();
    Outputs outputs;
    int step = 0;
    const auto keep = [&](const absl::StatusOr<SessionStepResult>& result) {
      EXPECT_TRUE(result.ok()) << result.status();
      ++step;
      for (const NamedTensor& output : result->outputs) {
        outputs[absl::StrCat(step, " ", output.name)] = output.tensor;
      }
    };
    for (int round = 0; round < rounds; ++round) {
      ForwardStep forward;
      forward.x = Normal(13, {kRows, kSide});
      keep((*session)->Forward(forward, nullptr));
      keep((*session)->Backward({"0", Normal(14, {kRows, kSide})}, nullptr));
      keep((*session)->Optimize({}, nullptr));
      for (const char* const name : {"fc.weight", "fc.bias"}) {
        outputs[absl::StrCat(step, " ", name)] = (*session)->Find(name, nullptr).value();
      }
    }
    return outputs;
  }
};

v1::TensorSource Inline(const Tensor& tensor) {
  v1::TensorSource source;
  source.mutable_inline_()->mutable_type()->set_dtype(std::string(DTypeName(tensor.dtype())));
  for (const int64_t dim : tensor.shape()) {
    source.mutable_inline_()->mutable_type()->add_shape(dim);
  }
  source.mutable_inline_()->set_data(tensor.data(), tensor.byte_size());
  return source;
}

/// A bf16 tensor with each value changed by `change`, rounded to nearest even.
template <typename Change>
Tensor Changed(const Tensor& tensor, Change change) {
  std::vector<uint16_t> codes(static_cast<size_t>(tensor.element_count()));
  std::memcpy(codes.data(), tensor.data(), tensor.byte_size());
  for (size_t i = 0; i < codes.size(); ++i) {
    const float value = change(i, std::bit_cast<float>(uint32_t{codes[i]} << 16));
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    codes[i] = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  return Tensor::FromBytes(tensor.dtype(), tensor.shape(), std::as_bytes(std::span(codes))).value();
}

class TraceDiagnosisTest : public TraceTest {
 protected:
  /// The same steps as Linear's, with these subjects by step and name.
  v1::RunTraceRequest RequestOf(const Linear& linear, const Outputs& subjects,
                                v1::Requirement requirement = v1::REQUIREMENT_BITWISE) {
    v1::RunTraceRequest request = TwoLayerTrace({linear.recipe});
    v1::SessionTrace& trace = *request.mutable_trace();
    trace.mutable_spec()->mutable_layers()->DeleteSubrange(1, 1);
    trace.mutable_spec()->mutable_layers(0)->set_name("fc");
    trace.mutable_spec()->clear_seed();
    trace.mutable_parameters()->clear();
    (*trace.mutable_parameters())["fc.weight"] = "w1";
    (*trace.mutable_parameters())["fc.bias"] = "b";
    auto& tensors = *request.mutable_tensors();
    tensors.erase("w2");
    tensors["w1"] = TraceTensor(11, {kSide, kSide});
    tensors["b"] = TraceTensor(12, {kSide});
    tensors["dy"] = TraceTensor(14, {kRows, kSide});
    const std::vector<v1::SessionTrace::Step> round(trace.steps().begin(), trace.steps().end());
    for (int i = 1; i < linear.rounds; ++i) {
      for (const v1::SessionTrace::Step& step : round) *trace.add_steps() = step;
    }
    for (const auto& [place, tensor] : subjects) {
      v1::SessionTrace::Step& step = *trace.mutable_steps(std::stoi(place) - 1);
      (*step.mutable_subjects())[place.substr(place.find(' ') + 1)] = "my " + place;
      step.set_subjects_requirement(requirement);
      tensors["my " + place] = Inline(tensor);
    }
    return request;
  }
  /// What the trace says of one step. A diagnosis has as much time as the trace took: an hour.
  v1::Diagnosis Diagnosed(const v1::RunTraceRequest& request, int step) {
    absl::Time now = SteadyNow();
    context_.clock = [&now] { return now; };
    const Outcome outcome = Play(request, [&now](const v1::RunEvent& event, Cancellation&) {
      if (event.has_trace()) now += absl::Hours(1);
    });
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_FALSE(outcome.report.verdict().pass());
    for (const v1::RunEvent& event : outcome.events) {
      if (event.has_trace_step() && event.trace_step().step() != step) {
        EXPECT_FALSE(event.trace_step().has_diagnosis()) << event.trace_step().step();
      }
    }
    EXPECT_TRUE(outcome.Step(step, 0).has_diagnosis());
    EXPECT_EQ(sessions_.usage().open, 0);
    return outcome.Step(step, 0).diagnosis();
  }
};

TEST_F(TraceDiagnosisTest, AGreenTraceHasNone) {
  const Linear linear{.recipe = "fp8_delayed", .rounds = 2};
  const Outcome outcome = Play(RequestOf(linear, linear.Play(engine())));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_TRUE(outcome.report.verdict().pass()) << outcome.report.verdict().finding();
  for (const v1::RunEvent& event : outcome.events) {
    EXPECT_FALSE(event.trace_step().has_diagnosis());
  }
}

TEST_F(TraceDiagnosisTest, NothingIsSaidOfWhatIsNotRequired) {
  const Linear linear;
  Outputs subjects = linear.Play(engine());
  subjects["1 y"] = Changed(subjects["1 y"], [](size_t, float value) { return 2 * value; });
  const Outcome outcome = Play(RequestOf(linear, subjects, v1::REQUIREMENT_UNSPECIFIED));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_FALSE(outcome.Step(1, 0).has_diagnosis());
}

TEST_F(TraceDiagnosisTest, NamesAGradientThatIsTwiceAsLarge) {
  const Linear linear;
  Outputs subjects = linear.Play(engine());
  subjects["2 fc.dw"] = Changed(subjects["2 fc.dw"], [](size_t, float value) { return 2 * value; });
  for (const auto requirement : {v1::REQUIREMENT_BITWISE, v1::REQUIREMENT_BOUND}) {
    const v1::Diagnosis found = Diagnosed(RequestOf(linear, subjects, requirement), 2);
    EXPECT_THAT(found.sentence(), StartsWith("fc.dw is twice the expected"));
    EXPECT_FALSE(found.is_unknown());
    EXPECT_THAT(found.figures(), Contains(HasSubstr("as expected: dx and fc.db")));
  }
}

TEST_F(TraceDiagnosisTest, NamesAMissingBias) {
  const Linear linear;
  Linear without = linear;
  without.bias = Changed(without.bias, [](size_t, float) { return 0.0f; });
  const v1::Diagnosis found =
      Diagnosed(RequestOf(linear, {{"1 y", without.Play(engine())["1 y"]}}), 1);
  EXPECT_THAT(found.sentence(), HasSubstr("bias is missing"));
  EXPECT_FALSE(found.is_unknown());
}

TEST_F(TraceDiagnosisTest, NamesATransposedWeight) {
  for (const char* const recipe : {"bf16", "fp8_delayed", "mxfp8"}) {
    const Linear linear{.recipe = recipe};
    Linear other = linear;
    other.weight = Transpose2d(linear.weight, ExecutionContext()).value();
    const Outputs wrong = other.Play(engine());
    EXPECT_EQ(Diagnosed(RequestOf(linear, {{"1 y", wrong.at("1 y")}}), 1).sentence(),
              "the weight is transposed (fc.weight): that gives y")
        << recipe;
    EXPECT_EQ(Diagnosed(RequestOf(linear, {{"2 dx", wrong.at("2 dx")}}), 2).sentence(),
              "the weight of dgrad is transposed (fc.weight): that gives dx")
        << recipe;
  }
}

TEST_F(TraceDiagnosisTest, NamesAnotherRecipesGradient) {
  const Linear linear{.recipe = "fp8_current"};
  const Outputs wrong = Linear{.recipe = "mxfp8"}.Play(engine());
  EXPECT_EQ(Diagnosed(RequestOf(linear, {{"2 dx", wrong.at("2 dx")}}), 2).sentence(),
            "fits mxfp8 in dx");
}

// The first step's scales are 1, since nothing is known of its tensors; the second's are those of
// the first step's amaxes.
TEST_F(TraceDiagnosisTest, NamesAScaleOfTheStepBefore) {
  const Linear linear{.recipe = "fp8_delayed", .rounds = 2};
  const Outputs own = linear.Play(engine());
  // By another session that begins with the weight after the update, and with fresh scales.
  Linear fresh = linear;
  fresh.weight = own.at("3 fc.weight");
  fresh.rounds = 1;
  fresh.bias = own.at("3 fc.bias");
  const v1::Diagnosis found =
      Diagnosed(RequestOf(linear, {{"4 y", fresh.Play(engine())["1 y"]}}), 4);
  EXPECT_THAT(found.sentence(), HasSubstr("of the forward before")) << found.DebugString();
  EXPECT_FALSE(found.is_unknown());
}

TEST_F(TraceDiagnosisTest, SaysWhatItDoesNotKnow) {
  const Linear linear;
  Outputs subjects = linear.Play(engine());
  // A pattern that no hypothesis has.
  subjects["2 dx"] = Changed(subjects["2 dx"], [](size_t i, float value) {
    return value + 0.125f * static_cast<float>(i * i * 7919 % 61);
  });
  const v1::Diagnosis found = Diagnosed(RequestOf(linear, subjects), 2);
  EXPECT_THAT(found.sentence(), StartsWith("unknown: nothing that was tried gives dx"));
  EXPECT_TRUE(found.is_unknown());
  EXPECT_GT(found.tried_size(), 10);
}

// After an update the parameters are compared, and nothing is computed again.
TEST_F(TraceDiagnosisTest, NamesAnUpdateThatWasNotMade) {
  const Linear linear;
  Outputs own = linear.Play(engine());
  const v1::Diagnosis found = Diagnosed(RequestOf(linear, {{"3 fc.weight", linear.weight}}), 3);
  EXPECT_THAT(found.sentence(), HasSubstr("fc.weight before the step"));
  EXPECT_THAT(found.not_tried(),
              Contains("the step under a mistake (only a forward and a backward are taken again)"));
}

// A session on several ranks is not taken again, and what only that could tell is unknown.
TEST_F(TraceDiagnosisTest, OnSeveralRanksOnlyTheTensorsAreLookedAt) {
  const Linear linear;
  Linear other = linear;
  other.weight = Transpose2d(linear.weight, ExecutionContext()).value();
  Outputs subjects = linear.Play(engine());
  v1::RunTraceRequest request = RequestOf(
      linear,
      {{"1 y", other.Play(engine())["1 y"]},
       {"2 fc.dw", Changed(subjects["2 fc.dw"], [](size_t, float value) { return 2 * value; })}});
  request.mutable_trace()->mutable_spec()->mutable_layers(0)->mutable_layer()->set_parallel_mode(
      "column");
  request.mutable_trace()->mutable_variants(0)->mutable_parallel()->set_tensor_parallel(2);
  const Outcome outcome = Play(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.Step(1, 0).diagnosis().sentence(), StartsWith("unknown: "));
  EXPECT_THAT(outcome.Step(1, 0).diagnosis().not_tried(),
              Contains("the step under a mistake (a session on several ranks is not taken again)"));
  EXPECT_THAT(outcome.Step(2, 0).diagnosis().sentence(), StartsWith("fc.dw is twice"));
}

// The session goes on from where it was: later steps have their own bits. Diagnoses take at most as
// long as the trace, a few milliseconds, and say what they have not tried.
TEST_F(TraceDiagnosisTest, LeavesTheSessionAsItWas) {
  for (const char* const recipe : {"fp8_delayed", "nvfp4"}) {
    const Linear linear{.recipe = recipe, .rounds = 3};
    Outputs subjects = linear.Play(engine());
    for (const char* const place : {"1 y", "2 dx", "4 y"}) {
      subjects[place] = Changed(subjects[place], [](size_t i, float value) {
        return value + static_cast<float>(i * i * 7919 % 61);
      });
    }
    // Each look at the clock takes as long as all that the trace did.
    absl::Time now = SteadyNow();
    context_.clock = [&now] { return now += absl::Seconds(1); };
    const Outcome outcome = Play(RequestOf(linear, subjects));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.report.trace().failed_count(), 3) << recipe;
    for (int step = 1; step <= 9; ++step) {
      EXPECT_EQ(outcome.Step(step, 0).has_diagnosis(), step == 1 || step == 2 || step == 4);
    }
    EXPECT_THAT(outcome.Step(4, 0).diagnosis().not_tried(), Contains(HasSubstr("(no time)")));
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
