// Traces (Sessions.RunTrace) without a server: the steps that they play against the same steps of
// sessions done one by one, their comparisons against ones computed here, subjects, cancellation,
// and the sessions' places. What is refused before any step is in trace_refusals_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/server/sessions/trace_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<float> Bf16Values(const std::vector<std::byte>& bytes) {
  std::vector<float> values;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const uint32_t bits =
        std::to_integer<uint32_t>(bytes[i]) | std::to_integer<uint32_t>(bytes[i + 1]) << 8;
    values.push_back(std::bit_cast<float>(bits << 16));
  }
  return values;
}

std::vector<std::byte> BytesOfTensor(const Tensor& tensor) {
  const auto bytes = tensor.bytes();
  return {bytes.begin(), bytes.end()};
}

/// The steps of TwoLayerTrace by kernels/training alone: every tensor that a trace compares, by
/// step and name.
std::map<std::string, std::vector<std::byte>> StepByStep(Engine& engine, const std::string& recipe,
                                                         int rounds) {
  SessionSpec spec{.layers = {{"fc1", {}}, {"fc2", {}}}, .recipe = *Recipe::Parse(recipe)};
  spec.masters = Masters::kF32;
  spec.optimizer.kind = OptimizerSpec::Kind::kSgd;
  spec.optimizer.sgd.learning_rate = 0.1f;
  spec.seed = 5;
  const auto normal = [](uint64_t seed, Shape shape) {
    return Generated(Distribution::kNormal, seed, DType::kBF16, std::move(shape));
  };
  auto session = OneRankSession::Open(engine, spec,
                                      {{"fc1.weight", normal(11, {kTraceHidden, kTraceIn})},
                                       {"fc2.weight", normal(12, {kTraceOut, kTraceHidden})}},
                                      nullptr);
  EXPECT_TRUE(session.ok()) << session.status();
  std::map<std::string, std::vector<std::byte>> tensors;
  int step = 0;
  const auto keep = [&](const absl::StatusOr<SessionStepResult>& result) {
    EXPECT_TRUE(result.ok()) << result.status();
    ++step;
    for (const NamedTensor& output : result->outputs) {
      tensors[std::to_string(step) + " " + output.name] = BytesOfTensor(output.tensor);
    }
  };
  for (int round = 0; round < rounds; ++round) {
    ForwardStep forward;
    forward.x = normal(13, {kTraceRows, kTraceIn});
    keep((*session)->Forward(forward, nullptr));
    keep((*session)->Backward({"0", normal(14, {kTraceRows, kTraceOut})}, nullptr));
    keep((*session)->Optimize({}, nullptr));
    for (const char* name : {"fc1.weight", "fc2.weight"}) {
      tensors[std::to_string(step) + " " + name] =
          BytesOfTensor((*session)->Find(name, nullptr).value());
    }
  }
  return tensors;
}

TEST_F(TraceTest, GivesTheBitsOfTheSameStepsDoneOneByOne) {
  const std::vector<std::string> recipes = {"bf16", "fp8_delayed", "mxfp8"};
  v1::RunTraceRequest request = TwoLayerTrace(recipes);
  request.mutable_trace()->set_rounds(2);
  request.set_keep_outputs(true);
  const Outcome outcome = Play(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  ASSERT_EQ(outcome.events.size(), 1u + 6 * 3);
  EXPECT_EQ(outcome.events[0].trace().step_count(), 6);
  int compared = 0;
  for (int variant = 0; variant < 3; ++variant) {
    const auto expected = StepByStep(engine(), recipes[variant], 2);
    EXPECT_EQ(expected.size(), 2u * (1 + 3 + 2));  // y; dx and two dw; two weights.
    for (const auto& [place, bytes] : expected) {
      const int step = std::stoi(place.substr(0, place.find(' ')));
      const std::string name = place.substr(place.find(' ') + 1);
      EXPECT_TRUE(BytesOf(outcome.Step(step, variant), name) == bytes)
          << recipes[variant] << " " << place;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 3 * 12);
  EXPECT_EQ(outcome.Step(4, 1).round(), 2);
  EXPECT_EQ(outcome.Step(4, 1).kind(), "forward");
  EXPECT_EQ(sessions_.usage().open, 0);
}

/// The reference variant is the first to play each step, and its report comes first.
TEST_F(TraceTest, StepsComeInOrderWithTheReferenceFirst) {
  v1::RunTraceRequest request = TwoLayerTrace({"bf16", "mxfp8", "fp8_current"});
  request.mutable_trace()->set_reference(1);
  const Outcome outcome = Play(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(
      outcome.events[0].trace().variants(),
      ElementsAre("bf16 / none / auto", "mxfp8 / none / auto", "fp8_current / none / auto"));
  std::vector<int> order;
  for (const v1::RunEvent& event : outcome.events) {
    if (event.has_trace_step()) order.push_back(event.trace_step().variant());
  }
  EXPECT_THAT(order, ElementsAre(1, 0, 2, 1, 0, 2, 1, 0, 2));
  EXPECT_EQ(outcome.Step(1, 1).against_reference_size(), 0);
  EXPECT_EQ(outcome.Step(1, 0).against_reference_size(), 1);
  // Bytes do not travel unless asked for.
  for (const v1::NamedTensor& output : outcome.Step(2, 0).outputs()) {
    EXPECT_FALSE(output.has_data() || output.has_digest()) << output.name();
    EXPECT_NE(output.fingerprint().high(), 0u);
  }
}

TEST_F(TraceTest, ComparisonsAreThoseOfTheBytes) {
  v1::RunTraceRequest request = TwoLayerTrace({"bf16", "fp8_current"});
  request.set_keep_outputs(true);
  const Outcome outcome = Play(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  int differing = 0, compared = 0;
  for (int step = 1; step <= 3; ++step) {
    for (const v1::StepComparison& comparison : outcome.Step(step, 1).against_reference()) {
      const auto own = BytesOf(outcome.Step(step, 1), comparison.tensor());
      const auto other = BytesOf(outcome.Step(step, 0), comparison.tensor());
      const std::vector<float> subject = Bf16Values(own), reference = Bf16Values(other);
      ASSERT_EQ(subject.size(), reference.size());
      int64_t mismatches = 0, first = -1;
      double max_abs = 0, squares = 0, dot = 0, subject_squares = 0, reference_squares = 0;
      for (size_t i = 0; i < subject.size(); ++i) {
        if (own[2 * i] != other[2 * i] || own[2 * i + 1] != other[2 * i + 1]) {
          if (mismatches++ == 0) first = static_cast<int64_t>(i);
        }
        const double error = double{subject[i]} - double{reference[i]};
        max_abs = std::max(max_abs, std::fabs(error));
        squares += error * error;
        dot += double{subject[i]} * double{reference[i]};
        subject_squares += double{subject[i]} * double{subject[i]};
        reference_squares += double{reference[i]} * double{reference[i]};
      }
      const v1::ParityReport& parity = comparison.parity();
      EXPECT_EQ(parity.mismatch_count(), mismatches) << comparison.tensor();
      EXPECT_EQ(parity.equal(), mismatches == 0);
      ++compared;
      differing += mismatches > 0 ? 1 : 0;
      EXPECT_EQ(comparison.error().max_abs(), max_abs) << comparison.tensor();
      // Each sum has n terms, of relative error 2^-53 each and in all n 2^-53 of the terms'
      // magnitudes; a quotient or root adds less than as much again.
      const auto count = static_cast<double>(subject.size());
      const double rms = std::sqrt(squares / count);
      EXPECT_LE(std::fabs(comparison.error().rms() - rms), count * 0x1p-51 * rms);
      const double cosine = dot / std::sqrt(subject_squares * reference_squares);
      EXPECT_LE(std::fabs(comparison.error().cosine() - cosine), count * 0x1p-51);
      EXPECT_FALSE(comparison.error().has_heat_map());
      if (mismatches == 0) continue;
      int64_t index = 0;
      for (int dim = 0; dim < parity.first().coordinate_size(); ++dim) {
        index = index * comparison.type().shape(dim) + parity.first().coordinate(dim);
      }
      EXPECT_EQ(index, first);
      uint32_t bits = 0;
      std::memcpy(&bits, &own[2 * first], 2);
      EXPECT_EQ(parity.first().subject_bits(), bits);
      EXPECT_EQ(parity.first().subject_dtype(), "bf16");
    }
  }
  EXPECT_EQ(compared, 1 + 3 + 2);
  EXPECT_GT(differing, 3);
  const v1::TraceSummary& summary = outcome.report.trace();
  EXPECT_EQ(summary.compared_count(), compared);
  EXPECT_EQ(summary.differing_count(), differing);
  EXPECT_EQ(summary.step_count(), 3);
  EXPECT_EQ(summary.variant_count(), 2);
  // Nothing was required.
  EXPECT_EQ(outcome.report.verdict().criterion(), v1::REQUIREMENT_UNSPECIFIED);
  EXPECT_TRUE(outcome.report.verdict().pass());
}

// Delayed scaling begins with scale 1, current scaling with 448 / amax; both quantize the same x.
TEST_F(TraceTest, ScalesAreHeldAgainstTheReferences) {
  const Outcome outcome = Play(TwoLayerTrace({"fp8_current", "fp8_delayed", "mxfp8"}));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  const v1::TraceQuantization& reference = outcome.Step(1, 0).quantizations(0);
  EXPECT_FALSE(reference.has_scale_against_reference_log2());
  const v1::TraceQuantization& delayed = outcome.Step(1, 1).quantizations(0);
  ASSERT_EQ(delayed.record().tensor(), "fc1.x");
  ASSERT_EQ(delayed.record().scale(), 1.0f);
  // 448 is exact; the quotient is rounded once to fp32.
  const double scale = double{448.0f / reference.record().amax()};
  EXPECT_EQ(delayed.scale_against_reference_log2(), 0.0 - std::log2(scale));
  for (const v1::TraceQuantization& blocks : outcome.Step(1, 2).quantizations()) {
    EXPECT_FALSE(blocks.has_scale_against_reference_log2());  // mxfp8 has no scale of the tensor.
  }
}

// A label is the variant's as it is after the step.
TEST_F(TraceTest, AChangedRecipeIsInTheLabel) {
  v1::RunTraceRequest request = TwoLayerTrace({"bf16", "mxfp8"});
  request.mutable_trace()->add_steps()->mutable_change_recipe()->mutable_recipe()->set_name(
      "fp8_current");
  *request.mutable_trace()->add_steps() = request.trace().steps(0);
  const Outcome outcome = Play(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.Step(3, 1).label(), "mxfp8 / none / auto");
  EXPECT_EQ(outcome.Step(4, 1).label(), "fp8_current / none / auto");
  EXPECT_EQ(outcome.Step(5, 0).label(), "fp8_current / none / auto");
}

TEST_F(TraceTest, BitwiseIsRequiredOfAllVariants) {
  v1::RunTraceRequest request = TwoLayerTrace({"mxfp8", "mxfp8"});
  request.set_requirement(v1::REQUIREMENT_BITWISE);
  Outcome outcome = Play(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_TRUE(outcome.report.verdict().pass());
  EXPECT_EQ(outcome.report.verdict().finding(), "6 tensors equal bit for bit");
  request = TwoLayerTrace({"mxfp8", "bf16"});
  request.set_requirement(v1::REQUIREMENT_BITWISE);
  outcome = Play(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_FALSE(outcome.report.verdict().pass());
  EXPECT_THAT(outcome.report.verdict().finding(),
              HasSubstr("step 1: y of bf16 / none / auto differs in "));
  EXPECT_FALSE(outcome.Step(1, 1).against_reference(0).pass());
  EXPECT_EQ(outcome.report.verdict().criterion(), v1::REQUIREMENT_BITWISE);
}

/// A bf16 tensor of these bytes, inline.
v1::TensorSource Bf16(const std::vector<std::byte>& bytes, std::vector<int64_t> shape) {
  v1::TensorSource source;
  source.mutable_inline_()->mutable_type()->set_dtype("bf16");
  for (const int64_t dim : shape) source.mutable_inline_()->mutable_type()->add_shape(dim);
  source.mutable_inline_()->set_data(bytes.data(), bytes.size());
  return source;
}

class SubjectTest : public TraceTest {
 protected:
  /// y of step 1 and fc2.dw of step 2 by fp8_current, with a bit of one element of y flipped.
  Outcome PlayWith(int flipped_bit, v1::Requirement requirement) {
    const auto own = StepByStep(engine(), "fp8_current", 1);
    std::vector<std::byte> y = own.at("1 y");
    if (flipped_bit >= 0) y[14 + flipped_bit / 8] ^= std::byte(1 << flipped_bit % 8);
    v1::RunTraceRequest request = TwoLayerTrace({"bf16", "fp8_current"});
    auto& tensors = *request.mutable_tensors();
    tensors["my y"] = Bf16(y, {kTraceRows, kTraceOut});
    tensors["my dw"] = Bf16(own.at("2 fc2.dw"), {kTraceOut, kTraceHidden});
    const char* const names[] = {"y", "fc2.dw"};
    for (int i = 0; i < 2; ++i) {
      v1::SessionTrace::Step& step = *request.mutable_trace()->mutable_steps(i);
      (*step.mutable_subjects())[names[i]] = i == 0 ? "my y" : "my dw";
      step.set_subjects_of(1);
      step.set_subjects_requirement(requirement);
    }
    return Play(request);
  }
};

TEST_F(SubjectTest, ItsOwnBitsPass) {
  for (const auto requirement : {v1::REQUIREMENT_BITWISE, v1::REQUIREMENT_BOUND}) {
    const Outcome outcome = PlayWith(-1, requirement);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_TRUE(outcome.report.verdict().pass()) << outcome.report.verdict().finding();
    EXPECT_EQ(outcome.report.trace().subject_count(), 2);
    EXPECT_EQ(outcome.report.trace().failed_count(), 0);
    EXPECT_EQ(outcome.Step(1, 0).subjects_size(), 0);
    const v1::StepComparison& y = outcome.Step(1, 1).subjects(0);
    EXPECT_TRUE(y.parity().equal());
    EXPECT_EQ(y.has_bound(), requirement == v1::REQUIREMENT_BOUND);
    EXPECT_LT(y.bound().worst_ratio(), 1);
  }
}

TEST_F(SubjectTest, AWrongBitFails) {
  const Outcome outcome = PlayWith(0, v1::REQUIREMENT_BITWISE);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_FALSE(outcome.report.verdict().pass());
  EXPECT_EQ(outcome.report.trace().failed_count(), 1);
  const v1::StepComparison& y = outcome.Step(1, 1).subjects(0);
  EXPECT_FALSE(y.pass());
  EXPECT_EQ(y.parity().mismatch_count(), 1);
  EXPECT_THAT(y.parity().first().coordinate(), ElementsAre(0, 7));  // Byte 14 is of element 7.
  EXPECT_THAT(outcome.report.verdict().finding(),
              HasSubstr("step 1: the subject's y of fp8_current / none / auto differs in 1 of"));
  EXPECT_TRUE(outcome.Step(2, 1).subjects(0).pass());
}

// Bit 14 is the exponent's highest: the element is 2^127 times or less of what it was.
TEST_F(SubjectTest, AnElementBeyondItsBoundFails) {
  const Outcome outcome = PlayWith(14, v1::REQUIREMENT_BOUND);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_FALSE(outcome.report.verdict().pass());
  EXPECT_EQ(outcome.report.verdict().criterion(), v1::REQUIREMENT_BOUND);
  const v1::StepComparison& y = outcome.Step(1, 1).subjects(0);
  ASSERT_TRUE(y.has_bound());
  EXPECT_EQ(y.bound().violation_count(), 1);
  EXPECT_FALSE(y.pass());
}

// Results that have the values of their codes lie beyond the bound of the GEMM's own result, whose
// rounding is far finer than three bits of mantissa. No bound is derived for such a subject.
TEST_F(SubjectTest, ValuesOfCodesAreHeldToTheirBits) {
  v1::RunTraceRequest request = TwoLayerTrace({"custom"});
  (*request.mutable_trace()->mutable_variants(0)->mutable_recipe()->mutable_knobs())["rules"] =
      R"([{"tensor_type": "output", "quantizer": "mxfp8"},)"
      R"( {"tensor_type": "grad_input", "quantizer": "mxfp8"}, {"quantizer": "fp8_current"}])";
  request.set_keep_outputs(true);
  const Outcome own = Play(request);
  ASSERT_TRUE(own.status.ok()) << own.status;
  const auto play_with = [&](std::vector<std::byte> y, const std::vector<std::byte>& dx) {
    auto& tensors = *request.mutable_tensors();
    tensors["my y"] = Bf16(y, {kTraceRows, kTraceOut});
    tensors["my dx"] = Bf16(dx, {kTraceRows, kTraceIn});
    for (int i = 0; i < 2; ++i) {
      v1::SessionTrace::Step& step = *request.mutable_trace()->mutable_steps(i);
      (*step.mutable_subjects())[i == 0 ? "y" : "dx"] = i == 0 ? "my y" : "my dx";
      step.set_subjects_requirement(v1::REQUIREMENT_BOUND);
    }
    return Play(request);
  };
  std::vector<std::byte> y = BytesOf(own.Step(1, 0), "y");
  const std::vector<std::byte> dx = BytesOf(own.Step(2, 0), "dx");
  const Outcome same = play_with(y, dx);
  ASSERT_TRUE(same.status.ok()) << same.status;
  EXPECT_TRUE(same.report.verdict().pass()) << same.report.verdict().finding();
  EXPECT_EQ(same.report.trace().subject_count(), 2);
  EXPECT_FALSE(same.Step(1, 0).subjects(0).has_bound());
  EXPECT_TRUE(same.Step(2, 0).subjects(0).pass());
  y[14] ^= std::byte(1);
  const Outcome other = play_with(y, dx);
  ASSERT_TRUE(other.status.ok()) << other.status;
  EXPECT_FALSE(other.report.verdict().pass());
  EXPECT_EQ(other.report.trace().failed_count(), 1);
  EXPECT_EQ(other.Step(1, 0).subjects(0).parity().mismatch_count(), 1);
}

TEST_F(SubjectTest, NothingIsRequiredUnlessAsked) {
  const Outcome outcome = PlayWith(14, v1::REQUIREMENT_UNSPECIFIED);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_TRUE(outcome.report.verdict().pass());
  EXPECT_EQ(outcome.Step(1, 1).subjects(0).parity().mismatch_count(), 1);
}

TEST_F(SubjectTest, AnotherTypeIsADifference) {
  v1::RunTraceRequest request = TwoLayerTrace({"bf16"});
  (*request.mutable_tensors())["mine"] = TraceTensor(1, {3, 5});
  v1::SessionTrace::Step& step = *request.mutable_trace()->mutable_steps(0);
  (*step.mutable_subjects())["y"] = "mine";
  step.set_subjects_requirement(v1::REQUIREMENT_BOUND);
  const Outcome outcome = Play(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_FALSE(outcome.report.verdict().pass());
  EXPECT_FALSE(outcome.Step(1, 0).subjects(0).has_parity());
  EXPECT_THAT(outcome.report.verdict().finding(), HasSubstr("bf16[3x5] against bf16[32x32]"));
}

TEST_F(TraceTest, EndsBetweenStepsWhenCancelled) {
  const Outcome outcome =
      Play(TwoLayerTrace({"bf16", "mxfp8"}), [](const v1::RunEvent& event, Cancellation& cancel) {
        if (event.trace_step().step() == 2) cancel.Cancel();
      });
  EXPECT_TRUE(absl::IsCancelled(outcome.status)) << outcome.status;
  // Its beginning, both variants' first step, and the reference's second.
  EXPECT_EQ(outcome.events.size(), 1u + 2 + 1);
  EXPECT_EQ(sessions_.usage().open, 0);
}

TEST_F(TraceTest, ItsSessionsAreItsOwn) {
  int seen = 0;
  const Outcome outcome =
      Play(TwoLayerTrace({"bf16", "mxfp8"}), [&](const v1::RunEvent& event, Cancellation&) {
        if (!event.has_trace_step()) return;
        const std::vector<SessionRecord> records = sessions_.List(0, 10);
        EXPECT_EQ(records.size(), 2u);
        for (const SessionRecord& record : records) {
          ++seen;
          EXPECT_EQ(record.run_id, "run-of-test");
          EXPECT_GT(record.bytes, 0);
          EXPECT_TRUE(absl::IsFailedPrecondition(sessions_.Use(record.id).status()));
          EXPECT_TRUE(absl::IsFailedPrecondition(sessions_.Close(record.id).status()));
        }
      });
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(seen, 2 * 6);
  EXPECT_TRUE(sessions_.List(0, 10).empty());
  EXPECT_EQ(sessions_.usage().bytes, 0);
}

class FewPlacesTest : public TraceTest {
 protected:
  static SessionLimits Few() {
    SessionLimits limits;
    limits.sessions_max = 2;
    limits.bytes_max = 1 << 20;
    return limits;
  }
  FewPlacesTest() : TraceTest(Few()) {}
};

TEST_F(FewPlacesTest, ATraceTakesAPlaceForEachVariant) {
  const Outcome three = Play(TwoLayerTrace({"bf16", "mxfp8", "fp8_current"}));
  EXPECT_TRUE(absl::IsResourceExhausted(three.status)) << three.status;
  EXPECT_THAT(three.status.message(), HasSubstr("3 given"));
  EXPECT_THAT(three.status.message(), HasSubstr("places for 2 (sessions_max)"));
  EXPECT_THAT(three.status.message(), HasSubstr("can never fit"));
  EXPECT_TRUE(three.events.empty());
  {
    // Of two variants one finds no place, and the other's is free again afterwards.
    const absl::StatusOr<SessionPlace> taken = sessions_.Reserve("", Sha256());
    ASSERT_TRUE(taken.ok()) << taken.status();
    const Outcome two = Play(TwoLayerTrace({"bf16", "mxfp8"}));
    EXPECT_TRUE(absl::IsResourceExhausted(two.status)) << two.status;
    EXPECT_THAT(two.status.message(), HasSubstr("variants need 2 places, and 1 "));
    EXPECT_TRUE(two.events.empty());
  }
  // A restart needs no place more.
  v1::RunTraceRequest request = TwoLayerTrace({"bf16", "mxfp8"});
  request.mutable_trace()->add_steps()->mutable_restart();
  const Outcome two = Play(request);
  EXPECT_TRUE(two.status.ok()) << two.status;
  EXPECT_EQ(sessions_.usage().open, 0);
}

// A trace that leaves its queue before its turn is not executed.
TEST_F(FewPlacesTest, ATraceThatIsNotBegunGivesItsPlacesBack) {
  absl::StatusOr<CheckedRun> checked = CheckTraceRun(context_, TwoLayerTrace({"bf16", "mxfp8"}));
  ASSERT_TRUE(checked.ok()) << checked.status();
  const std::unique_ptr<RunWork> work = std::move(checked->make)(
      RunPlace{*checked->device, "run-of-test", std::make_shared<Cancellation>(),
               [](v1::RunEvent&) { return absl::OkStatus(); }});
  EXPECT_TRUE(absl::IsResourceExhausted(sessions_.ReserveAll(1).status()));
  work->Release();
  EXPECT_TRUE(sessions_.ReserveAll(2).ok());
}

TEST_F(FewPlacesTest, BytesAreBounded) {
  v1::RunTraceRequest request = TwoLayerTrace({"bf16"});
  (*request.mutable_tensors())["x"] = TraceTensor(1, {1 << 15, kTraceIn});  // 4 MiB.
  EXPECT_EQ(FieldRefused(request), "tensors");
  // An x of 512 KiB, which both sessions hold for their backwards, and what else they save.
  request = TwoLayerTrace({"bf16", "bf16"});
  (*request.mutable_tensors())["x"] = TraceTensor(1, {1 << 12, kTraceIn});
  (*request.mutable_tensors())["dy"] = TraceTensor(1, {1 << 12, kTraceOut});
  const Outcome outcome = Play(request);
  EXPECT_TRUE(absl::IsResourceExhausted(outcome.status)) << outcome.status;
  EXPECT_THAT(outcome.status.message(), HasSubstr("step 1 (forward)"));
  EXPECT_EQ(sessions_.usage().open, 0);
}

// Codes of 384 KiB with 12 KiB of scales fit; the 768 KiB of their values, which stay with them, do
// not.
TEST_F(FewPlacesTest, TheValuesOfCodesCount) {
  constexpr int64_t kRows = 6144;
  v1::RunTraceRequest request = TwoLayerTrace({"mxfp8"});
  v1::TensorSource codes;
  v1::QuantizedSource& source = *codes.mutable_quantized();
  source.set_source_dtype("bf16");
  source.mutable_description()->mutable_rowwise()->set_format("mxfp8");
  const auto add = [&](const char* name, const char* dtype, int64_t columns) {
    v1::InlineTensor& part = *(*source.mutable_tensors())[name].mutable_inline_();
    part.mutable_type()->set_dtype(dtype);
    part.mutable_type()->add_shape(kRows);
    part.mutable_type()->add_shape(columns);
    part.set_data(std::string(static_cast<size_t>(kRows * columns), '\0'));
  };
  add("rowwise_data", "f8_e4m3", kTraceIn);
  add("rowwise_scale_inv", "u8", kTraceIn / 32);
  (*request.mutable_tensors())["x"] = codes;
  std::string text;
  EXPECT_EQ(FieldRefused(request, &text), "tensors");
  constexpr int64_t kOthers =
      2 * (kTraceHidden * kTraceIn + kTraceOut * kTraceHidden + kTraceRows * kTraceOut);
  EXPECT_THAT(
      text, HasSubstr(std::to_string(kRows * (kTraceIn + kTraceIn / 32 + 2 * kTraceIn) + kOthers)));
}

// Each copy of the parameters is whole, and so are those that a checkpoint gives other ranks.
TEST_F(TraceTest, GoesOnFromACheckpointOnOtherRanks) {
  v1::RunTraceRequest request = TwoLayerTrace({"mxfp8", "mxfp8"});
  v1::SessionTrace::Restart& restart = *request.mutable_trace()->add_steps()->mutable_restart();
  restart.add_variants(1);
  restart.mutable_parallel()->set_data_parallel(2);
  // Each copy has whole blocks of 32 rows.
  v1::SessionTrace::Step& forward = *request.mutable_trace()->add_steps();
  forward.mutable_forward();
  forward.set_x("x of two copies");
  (*request.mutable_tensors())["x of two copies"] = TraceTensor(15, {2 * kTraceRows, kTraceIn});
  const Outcome outcome = Play(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  const v1::TraceStep& restarted = outcome.Step(4, 1);
  EXPECT_EQ(restarted.label(), "mxfp8 / none / auto / tp1 dp2");
  EXPECT_TRUE(restarted.has_checkpoint());
  EXPECT_FALSE(outcome.Step(4, 0).has_checkpoint());
  ASSERT_EQ(restarted.against_reference_size(), 2);
  for (const v1::StepComparison& weight : restarted.against_reference()) {
    EXPECT_TRUE(weight.parity().equal()) << weight.tensor();
  }
  // Rows of y do not depend on which copy has them.
  EXPECT_TRUE(outcome.Step(5, 1).against_reference(0).parity().equal());
  EXPECT_TRUE(outcome.Step(5, 1).quantizations(0).has_rank());
}

v1::TensorSource F32Tensor(uint64_t seed, std::vector<int64_t> shape) {
  v1::TensorSource source = TraceTensor(seed, std::move(shape));
  source.mutable_generate()->mutable_type()->set_dtype("f32");
  return source;
}

/// Two experts on one rank, and one on each of two: forward, backward, update, restart.
v1::RunTraceRequest ExpertsTrace(bool is_stacked) {
  constexpr int64_t kIn = 96, kOut = 64;
  v1::RunTraceRequest request = TwoLayerTrace({"mxfp8", "mxfp8"});
  v1::SessionTrace& trace = *request.mutable_trace();
  trace.mutable_spec()->clear_layers();
  v1::SessionLayer& layer = *trace.mutable_spec()->add_layers();
  layer.set_name("g");
  layer.mutable_layer()->set_kind("grouped_linear");
  layer.mutable_layer()->add_m_splits(32);
  layer.mutable_layer()->add_m_splits(64);
  trace.mutable_variants(1)->mutable_parallel()->set_expert_parallel(2);
  trace.add_steps()->mutable_restart();
  trace.clear_parameters();
  auto& tensors = *request.mutable_tensors();
  tensors.clear();
  tensors["x"] = TraceTensor(2, {96, kIn});
  tensors["dy"] = TraceTensor(3, {96, kOut});
  const std::vector<std::byte> stack =
      BytesOfTensor(Generated(Distribution::kNormal, 1, DType::kBF16, {2, kOut, kIn}));
  if (is_stacked) {
    tensors["w"] = Bf16(stack, {2, kOut, kIn});
    (*trace.mutable_parameters())["g.weight"] = "w";
    return request;
  }
  const auto half = stack.begin() + static_cast<std::ptrdiff_t>(stack.size() / 2);
  tensors["w0"] = Bf16({stack.begin(), half}, {kOut, kIn});
  tensors["w1"] = Bf16({half, stack.end()}, {kOut, kIn});
  for (const char* expert : {"0", "1"}) {
    (*trace.mutable_parameters())[std::string("g.weight.") + expert] = std::string("w") + expert;
  }
  return request;
}

// One stack of all experts' weights is the weights of the experts, under their names.
TEST_F(TraceTest, ComparesEachExpertsWeightOfAStack) {
  const Outcome stacked = Play(ExpertsTrace(true));
  ASSERT_TRUE(stacked.status.ok()) << stacked.status;
  const Outcome apart = Play(ExpertsTrace(false));
  ASSERT_TRUE(apart.status.ok()) << apart.status;
  for (const int step : {3, 4}) {
    for (const int variant : {0, 1}) {
      const auto& outputs = stacked.Step(step, variant).outputs();
      const auto& expected = apart.Step(step, variant).outputs();
      ASSERT_EQ(outputs.size(), 2);
      ASSERT_EQ(expected.size(), 2);
      for (int expert = 0; expert < 2; ++expert) {
        EXPECT_EQ(outputs[expert].name(), "g.weight." + std::to_string(expert));
        EXPECT_EQ(outputs[expert].fingerprint().SerializeAsString(),
                  expected[expert].fingerprint().SerializeAsString());
      }
      EXPECT_EQ(stacked.Step(step, variant).against_reference_size(), variant == 0 ? 0 : 2);
    }
  }
  // What a step gives is known before any: the experts' weights, and no stack.
  v1::RunTraceRequest request = ExpertsTrace(true);
  (*request.mutable_trace()->mutable_steps(2)->mutable_subjects())["g.weight"] = "w";
  EXPECT_EQ(FieldRefused(request), R"(trace.steps[2].subjects["g.weight"])");
}

// Main gradients and optimizer state that are given are no parameters.
TEST_F(TraceTest, ComparesNothingButParametersAfterAnUpdate) {
  v1::RunTraceRequest experts = ExpertsTrace(false);
  experts.mutable_trace()->mutable_variants()->RemoveLast();
  experts.mutable_trace()->mutable_spec()->set_main_grads(true);
  (*experts.mutable_trace()->mutable_parameters())["g.main_grad"] = "sum";
  (*experts.mutable_tensors())["sum"] = F32Tensor(4, {2, 64, 96});
  const Outcome of_experts = Play(experts);
  ASSERT_TRUE(of_experts.status.ok()) << of_experts.status;
  EXPECT_EQ(of_experts.Step(3, 0).outputs_size(), 2);

  v1::RunTraceRequest request = TwoLayerTrace({"bf16", "bf16"});
  v1::SessionTrace& trace = *request.mutable_trace();
  trace.mutable_variants(1)->mutable_parallel()->set_data_parallel(2);
  trace.mutable_spec()->mutable_adam()->set_learning_rate(0.1f);
  trace.mutable_spec()->set_main_grads(true);
  trace.add_steps()->mutable_restart();
  for (const char* name : {"fc1.main_grad", "fc1.weight.exp_avg"}) {
    (*trace.mutable_parameters())[name] = name;
    (*request.mutable_tensors())[name] = F32Tensor(5, {kTraceHidden, kTraceIn});
  }
  const Outcome outcome = Play(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  for (const int step : {3, 4}) {
    const v1::TraceStep& of_ranks = outcome.Step(step, 1);
    ASSERT_EQ(of_ranks.outputs_size(), 2);
    EXPECT_EQ(of_ranks.outputs(0).name(), "fc1.weight");
    EXPECT_EQ(of_ranks.outputs(1).name(), "fc2.weight");
    EXPECT_EQ(of_ranks.against_reference_size(), 2);
  }
}

// A step's default overlap does nothing where nothing is communicated (docs/ranks.md section 10.6).
TEST_F(TraceTest, VariantsOnOneRankTakeADefaultOverlap) {
  v1::RunTraceRequest request = TwoLayerTrace({"bf16", "bf16", "bf16"});
  v1::SessionTrace& trace = *request.mutable_trace();
  trace.mutable_spec()->mutable_layers(0)->mutable_layer()->set_parallel_mode("column");
  trace.mutable_spec()->mutable_layers(1)->mutable_layer()->set_parallel_mode("row");
  v1::Parallel& divided = *trace.mutable_variants(1)->mutable_parallel();
  divided.set_tensor_parallel(2);
  divided.set_sequence_parallel(true);
  trace.mutable_variants(2)->mutable_parallel()->set_data_parallel(2);
  trace.mutable_steps(0)->mutable_forward()->mutable_overlap();
  const Outcome outcome = Play(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  for (int variant = 0; variant < 3; ++variant) {
    const bool overlaps = variant == 1;
    EXPECT_EQ(outcome.Step(1, variant).overlaps_size() > 0, overlaps) << variant;
    EXPECT_EQ(outcome.Step(2, variant).overlaps_size() > 0, overlaps) << variant;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
