// How a plan goes: which operations an engine is asked for and in what order, what is told
// meanwhile, and how it stops.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/engine/forwarding_engine.h"
#include "tests/validate/run_watched.h"

namespace quantgate {
namespace QG_TEST_FILE {

TEST(RunPlan, SharesExactResultsBetweenVariants) {
  class ExactCounter : public ForwardingEngine {
   public:
    using ForwardingEngine::ForwardingEngine;
    absl::StatusOr<StartedGemm> StartGemm(const GemmDesc& desc,
                                          const Cancellation* cancel) override {
      ++(desc.arithmetic.family == ArithmeticFamily::kExact ? exact : model);
      return ForwardingEngine::StartGemm(desc, cancel);
    }
    int exact = 0;
    int model = 0;
  };
  const auto cpu = MakeCpuEngine({});
  ExactCounter engine(*cpu);
  Watched watched;
  const auto report = RunWatched(RequestOf({"bf16", "fp8_current", kHighPrecision, kDequantized}),
                                 engine, nullptr, watched);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(engine.model, 4 * 3);
  // The bf16 layer's three GEMMs and db, in f32 for the unquantized reference and again in bf16,
  // which high_precision shares; to both at once the FP8 layer's three GEMMs, whose fprop all
  // overrides share, and dgrad and wgrad of the dequantized operands.
  EXPECT_EQ(engine.exact, 2 * 4 + 3 + 2);
}

TEST(RunPlan, ProgressCountsEveryStep) {
  for (int variants : {1, 3}) {
    LayerRunRequest request = RequestOf({"bf16", "fp8_current", kDequantized});
    while (static_cast<int>(request.variants.size()) > variants) request.variants.pop_back();
    const auto engine = MakeCpuEngine({});
    Watched watched;
    ASSERT_TRUE(RunWatched(request, *engine, nullptr, watched).ok());
    const int count = Plan::Create(request)->StepCount();
    int step = -1;
    for (const RunProgress& progress : watched.progress) {
      EXPECT_EQ(progress.step_count, count);
      // Again and again while a layer goes through its stages.
      EXPECT_TRUE(progress.step == step || progress.step == step + 1) << progress.what;
      step = progress.step;
    }
    EXPECT_EQ(watched.progress[0].what, "unquantized: y");
    EXPECT_EQ(watched.progress[4].what, "bf16 / none / sm90");
    EXPECT_EQ(watched.progress[4].step, 4);
    EXPECT_EQ(watched.progress[5].what, "bf16 / none / sm90: fingerprint saved operands");
    EXPECT_EQ(watched.progress[5].step, 4);
    EXPECT_EQ(watched.progress[6].what, "bf16 / none / sm90: fprop");
    EXPECT_EQ(watched.progress.back().what, "done");
    EXPECT_EQ(watched.progress.back().step, count);
  }
}

TEST(RunPlan, StopsAtTheNextOperationWhenCancelled) {
  const LayerRunRequest request = RequestOf({"bf16", "fp8_current"});
  const auto engine = MakeCpuEngine({});
  const int count = Plan::Create(request)->StepCount();
  for (int stop = 0; stop < count; ++stop) {
    Cancellation cancellation;
    Watched watched;
    const auto report = RunWatched(request, *engine, &cancellation, watched, [&](int step) {
      if (step == stop) cancellation.Cancel();
    });
    EXPECT_EQ(report.status().code(), absl::StatusCode::kCancelled) << stop;
    EXPECT_EQ(watched.progress.back().step, stop);
  }
}

TEST(RunPlan, StopsAtItsDeadline) {
  const auto engine = MakeCpuEngine({});
  const Cancellation late(absl::InfinitePast());
  Watched watched;
  EXPECT_EQ(RunWatched(RequestOf({"bf16"}), *engine, &late, watched).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(watched.progress.empty());
}

TEST(RunPlan, AnEnginesRefusalIsNotTheCallersFault) {
  class FailingEngine : public ForwardingEngine {
   public:
    FailingEngine(Engine& engine, absl::Status status)
        : ForwardingEngine(engine), status_(std::move(status)) {}
    absl::StatusOr<Tensor> ColumnSums(const Tensor&, DType, const Cancellation*) override {
      return status_;
    }

   private:
    const absl::Status status_;
  };
  const auto cpu = MakeCpuEngine({});
  const auto status_for = [&](const absl::Status& status) {
    FailingEngine engine(*cpu, status);
    Watched watched;
    return RunWatched(RequestOf({"bf16"}), engine, nullptr, watched).status();
  };
  EXPECT_EQ(status_for(absl::ResourceExhaustedError("no memory")),
            absl::ResourceExhaustedError("no memory"));
  const absl::Status internal = status_for(absl::InvalidArgumentError("bad dtype"));
  EXPECT_EQ(internal.code(), absl::StatusCode::kInternal);
  EXPECT_NE(std::string(internal.message()).find("bad dtype"), std::string::npos);
}

/// An engine that runs ahead, and notes what is begun and what is asked for.
class DeferringEngine : public ForwardingEngine {
 public:
  using ForwardingEngine::ForwardingEngine;
  std::vector<std::string> steps;

  bool RunsAhead() const override { return true; }
  absl::StatusOr<Deferred<ParityReport>> StartCompareBits(
      const Tensor& subject, const Tensor& reference, const Cancellation* cancellation) override {
    return Noted(forwarded().CompareBits(subject, reference, cancellation));
  }
  absl::StatusOr<Deferred<ErrorReport>> StartMeasureError(
      const Tensor& subject, const Tensor& reference, const Cancellation* cancellation) override {
    return Noted(forwarded().MeasureError(subject, reference, cancellation));
  }
  absl::StatusOr<Deferred<BoundCheck>> StartCheckBound(const GemmDesc& desc, const Tensor& subject,
                                                       const Tensor& exact,
                                                       const Cancellation* cancellation) override {
    return Noted(forwarded().CheckBound(desc, subject, exact, cancellation));
  }
  absl::StatusOr<StartedGemm> StartGemm(const GemmDesc& desc,
                                        const Cancellation* cancellation) override {
    // The layer's own, which are waited for at once, have no note.
    if (desc.arithmetic.family != ArithmeticFamily::kExact) {
      return forwarded().StartGemm(desc, cancellation);
    }
    absl::StatusOr<GemmResult> result = forwarded().Gemm(desc, cancellation);
    if (!result.ok()) return result.status();
    auto note = Noted(absl::StatusOr<std::string>(std::exchange(result->note, "")));
    return StartedGemm{*std::move(result), *std::move(note)};
  }

 private:
  template <typename Report>
  absl::StatusOr<Deferred<Report>> Noted(absl::StatusOr<Report> report) {
    if (!report.ok()) return report.status();
    steps.push_back("begin");
    return Deferred<Report>([this, report = *std::move(report)]() mutable {
      steps.push_back("read");
      return absl::StatusOr<Report>(std::move(report));
    });
  }
};

TEST(RunPlan, BeginsEveryReportBeforeItAsksForOne) {
  const LayerRunRequest request = RequestOf({"fp8_current"});
  const auto cpu = MakeCpuEngine({});
  DeferringEngine engine(*cpu);
  // Whatever stands before an engine takes the same path.
  ForwardingEngine decorated(static_cast<Engine&>(engine));
  Watched watched;
  const auto run = RunWatched(request, decorated, nullptr, watched);
  ASSERT_TRUE(run.ok()) << run.status();
  const auto first_read = std::find(engine.steps.begin(), engine.steps.end(), "read");
  EXPECT_EQ(std::find(first_read, engine.steps.end(), "begin"), engine.steps.end());
  // Of y, dx, dw and db: a parity, a note and two errors each, of db, whose operands are the
  // originals, one; and bounds of those from GEMMs.
  EXPECT_EQ(engine.steps.end() - first_read, 4 * 4 - 1 + 3);
  // The reports are those of an engine that gives them at once.
  const RunReport at_once = RunOk(request);
  for (const char* name : {"y", "dx", "dw", "db"}) {
    const OutputReport& deferred = OutputOf(run->variants[0], name);
    const OutputReport& expected = OutputOf(at_once.variants[0], name);
    EXPECT_EQ(deferred.fingerprint, expected.fingerprint);
    EXPECT_EQ(deferred.exact_note, expected.exact_note);
    EXPECT_EQ(deferred.against_exact.parity.mismatch_count,
              expected.against_exact.parity.mismatch_count);
    EXPECT_EQ(deferred.against_exact.error.relative_frobenius,
              expected.against_exact.error.relative_frobenius);
    EXPECT_EQ(deferred.against_unquantized.relative_frobenius,
              expected.against_unquantized.relative_frobenius);
    ASSERT_EQ(deferred.bound.has_value(), expected.bound.has_value());
    if (expected.bound.has_value()) {
      EXPECT_EQ(deferred.bound->worst_ratio, expected.bound->worst_ratio);
    }
  }
}

TEST(RunPlan, TellsWhatIsMeasuredBeforeItAsksForBounds) {
  const auto cpu = MakeCpuEngine({});
  DeferringEngine engine(*cpu);
  const auto plan = Plan::Create(RequestOf({"fp8_current"}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  size_t stages_measured = 0, stages = 0;
  const auto on_progress = [](const RunProgress&) {};
  const auto on_output = [&](int, const OutputReport& output) {
    EXPECT_FALSE(output.bound.has_value());
    engine.steps.push_back(output.tensor);
  };
  const auto on_measured = [&](int, const VariantReport& variant) {
    engine.steps.push_back("measured");
    stages_measured = variant.stages.size();
  };
  const auto on_variant = [&](int, const VariantReport& variant) {
    engine.steps.push_back("variant");
    stages = variant.stages.size();
    for (const char* name : {"y", "dx", "dw"}) {
      EXPECT_TRUE(OutputOf(variant, name).bound.has_value()) << name;
    }
  };
  ASSERT_TRUE(
      RunPlan(*plan, engine, nullptr, {on_progress, on_variant, on_output, on_measured}).ok());
  std::vector<std::string> expected;
  // A parity, two errors and a note; db's operands are the originals.
  for (const auto& [name, reads] :
       {std::pair{"y", 4}, std::pair{"dx", 4}, std::pair{"dw", 4}, std::pair{"db", 3}}) {
    expected.insert(expected.end(), reads, "read");
    expected.push_back(name);
  }
  expected.push_back("measured");
  expected.insert(expected.end(), 3, "read");  // Bounds of all but db.
  expected.push_back("variant");
  std::erase(engine.steps, "begin");
  EXPECT_EQ(engine.steps, expected);
  EXPECT_EQ(stages, stages_measured + 1);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
