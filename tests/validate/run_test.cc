// A plan from end to end: what is reported, in what order, and how it stops.
#include "kernels/validate/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/engine/deferred_reports.h"
#include "kernels/engine/forwarding_engine.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace {

constexpr char kHighPrecision[] = "fp8_current:backward_override=high_precision";
constexpr char kDequantized[] = "fp8_current:backward_override=dequantized";

LayerRunRequest RequestOf(const std::vector<std::string>& recipes,
                          const std::string& arithmetic = "sm90") {
  LayerRunRequest request;
  request.step.x = Generated(Distribution::kNormal, 1, DType::kBF16, {2, 16, 96});
  request.step.parameters["weight"] = Generated(Distribution::kNormal, 2, DType::kBF16, {48, 96});
  request.step.parameters["bias"] = Generated(Distribution::kNormal, 3, DType::kBF16, {48});
  request.step.grad_output = Generated(Distribution::kNormal, 4, DType::kBF16, {2, 16, 48});
  for (const std::string& recipe : recipes) {
    request.variants.push_back({*Recipe::Parse(recipe), *Arithmetic::Parse(arithmetic)});
  }
  return request;
}

struct Watched {
  std::vector<RunProgress> progress;
  std::vector<int> variants;
  std::vector<size_t> comparisons;  ///< Of each variant when it was handed out.
};

absl::StatusOr<RunReport> RunWatched(const LayerRunRequest& request, Engine& engine,
                                     const Cancellation* cancellation, Watched& watched,
                                     const std::function<void(int)>& on_step = nullptr) {
  const absl::StatusOr<Plan> plan = Plan::Create(request);
  EXPECT_TRUE(plan.ok()) << plan.status();
  const auto on_progress = [&](const RunProgress& progress) {
    watched.progress.push_back(progress);
    if (on_step) on_step(progress.step);
  };
  const auto on_variant = [&](int index, const VariantReport& report) {
    watched.variants.push_back(index);
    watched.comparisons.push_back(report.against_reference.size());
  };
  return RunPlan(*plan, engine, cancellation, {on_progress, on_variant});
}

RunReport RunOk(const LayerRunRequest& request, const CpuEngineOptions& options = {}) {
  const auto engine = MakeCpuEngine(options);
  Watched watched;
  auto report = RunWatched(request, *engine, nullptr, watched);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? *std::move(report) : RunReport{};
}

const OutputReport& OutputOf(const VariantReport& variant, const std::string& name) {
  for (const OutputReport& output : variant.outputs) {
    if (output.tensor == name) return output;
  }
  ADD_FAILURE() << "no " << name;
  return variant.outputs.front();
}

TEST(RunPlan, DescribesEachVariant) {
  LayerRunRequest request = RequestOf({"fp8_current:power_2_scales=true"}, "sm90:split");
  const RunReport report = RunOk(request);
  ASSERT_EQ(report.variants.size(), 1u);
  const VariantReport& variant = report.variants[0];
  const Recipe& recipe = request.variants[0].recipe;
  EXPECT_EQ(variant.label, "fp8_current:power_2_scales=true / none / sm90:split");
  EXPECT_EQ(variant.recipe, recipe.CanonicalText());
  EXPECT_EQ(variant.recipe_name, "fp8_current");
  EXPECT_EQ(variant.recipe_digest, recipe.Digest());
  EXPECT_EQ(variant.backward_override, "none");
  EXPECT_EQ(variant.arithmetic, "sm90:split");
  EXPECT_FALSE(variant.is_hardware);
  EXPECT_EQ(variant.saved.size(), 2u);
  EXPECT_EQ(variant.quantizations.size(), 3u);
  ASSERT_EQ(variant.gemms.size(), 3u);
  EXPECT_EQ(variant.gemms[1].role, "dgrad");
  EXPECT_EQ(variant.gemms[1].a_source, "grad_output quantized rowwise");
  EXPECT_EQ(variant.gemms[1].b_source, "weight quantized columnwise");
  EXPECT_EQ(variant.gemms[1].arithmetic, "sm90:split");
  EXPECT_NE(variant.gemms[1].text.find("m=32 n=96 k=48"), std::string::npos);
  EXPECT_TRUE(variant.against_reference.empty());
  EXPECT_TRUE(report.pairs.empty());
  // The layer's stages, then one report per output.
  std::vector<std::string> stages = LayerStages(request.step, recipe);
  for (const char* name : {"y", "dx", "dw", "db"}) stages.push_back(absl::StrCat("report ", name));
  ASSERT_EQ(variant.stages.size(), stages.size());
  for (size_t i = 0; i < stages.size(); ++i) {
    EXPECT_EQ(variant.stages[i].stage, stages[i]);
    EXPECT_GE(variant.stages[i].seconds, 0);
  }
}

TEST(RunPlan, OutputsAreThoseOfTheLayer) {
  // One recipe under several arithmetics: the same operands and exact values, other outputs.
  LayerRunRequest request = RequestOf({"fp8_current", "fp8_current", "fp8_current"});
  request.variants[1].arithmetic = *Arithmetic::Parse("sm90:fast");
  request.variants[2].arithmetic = *Arithmetic::Parse("fp32");
  const RunReport report = RunOk(request);
  const auto engine = MakeCpuEngine({});
  for (size_t v = 0; v < request.variants.size(); ++v) {
    const VariantReport& variant = report.variants[v];
    const LayerResult direct = *RunLayer(*engine, request.step, request.variants[v].recipe,
                                         request.variants[v].arithmetic, nullptr);
    ASSERT_EQ(variant.outputs.size(), direct.outputs.size());
    for (size_t i = 0; i < direct.outputs.size(); ++i) {
      const OutputReport& output = variant.outputs[i];
      EXPECT_EQ(output.tensor, direct.outputs[i].name);
      EXPECT_TRUE(SameBits(output.value, direct.outputs[i].tensor)) << variant.label;
      EXPECT_EQ(output.fingerprint, FingerprintOf(direct.outputs[i].tensor, ExecutionContext()));
      EXPECT_EQ(output.against_unquantized.element_count, output.value.element_count());
      EXPECT_EQ(output.against_exact.error.element_count, output.value.element_count());
      EXPECT_EQ(output.against_exact.parity.element_count, output.value.element_count());
      EXPECT_EQ(output.against_exact.reference, "exact");
      EXPECT_FALSE(output.exact_note.empty());
      EXPECT_EQ(output.bound.has_value(), output.tensor != "db");
    }
    EXPECT_EQ(OutputOf(variant, "db").arithmetic, "pairwise fp32 sum");
  }
  EXPECT_EQ(OutputOf(report.variants[0], "y").arithmetic, "sm90:fast");
  EXPECT_EQ(OutputOf(report.variants[0], "dw").arithmetic, "sm90:split");
  EXPECT_EQ(OutputOf(report.variants[1], "dw").arithmetic, "sm90:fast");
  EXPECT_EQ(OutputOf(report.variants[2], "dw").arithmetic, "fp32");
}

TEST(RunPlan, EqualOutputsOfDifferentOperandsAreMeasuredEach) {
  // x is 31/16 everywhere and the weight 1.75 on the diagonal: both recipes give y = 217/64. But
  // FP8 holds 448 * f32(1 / f32(448 / (31/16))), which is not 31/16, so that its exact value is not
  // 217/64.
  LayerRunRequest request = RequestOf({"bf16", "fp8_current"}, "exact");
  request.step = LayerRequest{};
  request.step.x = FromValues(DType::kBF16, {16, 16}, std::vector<float>(256, 1.9375f));
  std::vector<float> diagonal(256, 0.0f);
  for (int i = 0; i < 16; ++i) diagonal[i * 17] = 1.75f;
  request.step.parameters["weight"] = FromValues(DType::kBF16, {16, 16}, diagonal);
  const RunReport report = RunOk(request);
  const OutputReport& plain = OutputOf(report.variants[0], "y");
  const OutputReport& quantized = OutputOf(report.variants[1], "y");
  EXPECT_EQ(ToValues(plain.value), std::vector<float>(256, 217.0f / 64));
  EXPECT_TRUE(SameBits(plain.value, quantized.value));
  EXPECT_EQ(plain.arithmetic, quantized.arithmetic);
  EXPECT_EQ(plain.against_exact.error.max_abs, 0);
  EXPECT_GT(quantized.against_exact.error.max_abs, 0);
}

// Integers with amax 7 lose nothing in FP8 (7 = 1.75 * 4), and small sums nothing in bf16.
LayerRunRequest IntegerRequest(const std::vector<std::string>& recipes) {
  const auto integers = [](Shape shape, int seed) {
    std::vector<float> values(shape[0] * shape[1]);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>((i * 7 + seed + i / 5) % 3) - 1;
    }
    values[seed] = 7;
    return FromValues(DType::kBF16, shape, values);
  };
  LayerRunRequest request = RequestOf(recipes);
  request.step.x = integers({32, 32}, 1);
  request.step.parameters["weight"] = integers({16, 32}, 2);
  request.step.parameters["bias"] = FromValues(DType::kBF16, {16}, std::vector<float>(16, 3));
  request.step.grad_output = integers({32, 16}, 3);
  return request;
}

TEST(RunPlan, EverythingAgreesWhereNothingIsRounded) {
  LayerRunRequest request = IntegerRequest({"bf16", "fp8_current", kHighPrecision, kDequantized});
  request.reference = 1;
  request.requirement = Requirement::kBitwise;
  for (bool accumulates : {false, true}) {
    if (accumulates) {
      request.step.main_grads["weight"] =
          FromValues(DType::kF32, {16, 32}, std::vector<float>(512, 0x1p20f));
    }
    const RunReport report = RunOk(request);
    EXPECT_TRUE(report.verdict.pass) << report.verdict.finding;
    EXPECT_EQ(report.verdict.finding, "all 12 outputs have the bits of fp8_current / none / sm90");
    for (const VariantReport& variant : report.variants) {
      for (const OutputReport& output : variant.outputs) {
        EXPECT_EQ(output.against_unquantized.max_abs, 0) << variant.label << output.tensor;
        EXPECT_GT(output.against_unquantized.sum_reference_squared, 0);
        EXPECT_TRUE(output.against_exact.parity.equal) << variant.label << output.tensor;
        EXPECT_EQ(output.against_exact.error.max_abs, 0);
        EXPECT_TRUE(!output.bound.has_value() || output.bound->pass);
      }
    }
    for (const PairSummary& pair : report.pairs) {
      EXPECT_TRUE(pair.comparable);
      EXPECT_EQ(pair.mismatch_count, 0);
    }
    request.reference.reset();
    EXPECT_TRUE(RunOk(request).verdict.pass);
    request.reference = 1;
  }
}

TEST(RunPlan, TheUnquantizedReferenceIsOfTheOriginalOperands) {
  LayerRunRequest request = RequestOf({"bf16:activation_dtype=bf16"}, "exact");
  request.step.x = Generated(Distribution::kUniform, 5, DType::kF32, {2, 16, 96});
  request.step.parameters["weight"] = Generated(Distribution::kUniform, 6, DType::kF32, {48, 96});
  const RunReport report = RunOk(request);
  const OutputReport& y = OutputOf(report.variants[0], "y");
  // Under exact the only error against its own operands is the one rounding to bf16, at most 2^-9
  // of the exact value; that one is itself rounded to f32, hence the 2^-23.
  EXPECT_TRUE(y.against_exact.parity.equal);
  EXPECT_LE(y.against_exact.error.max_rel, 0x1p-8 * (1 + 0x1p-13));
  // Against the originals there is the rounding of the f32 operands to bf16 besides.
  EXPECT_GT(y.against_unquantized.relative_frobenius, y.against_exact.error.relative_frobenius);
  EXPECT_FALSE(y.bound.has_value());
}

TEST(RunPlan, QuantizationShowsAgainstUnquantizedAndNotAgainstExact) {
  const RunReport report = RunOk(RequestOf({"fp8_current"}, "exact"));
  for (const char* name : {"y", "dx", "dw"}) {
    const OutputReport& output = OutputOf(report.variants[0], name);
    // The one rounding to bf16 is at most 2^-8 of each element and so of the norm; E4M3's are up to
    // 2^-4.
    EXPECT_LE(output.against_exact.error.relative_frobenius, 0x1p-8 * (1 + 0x1p-13)) << name;
    EXPECT_GT(output.against_unquantized.relative_frobenius, 0x1p-7) << name;
  }
}

TEST(RunPlan, TheBiasGradientsReferenceIsTheExactSum) {
  LayerRunRequest request = RequestOf({"bf16"});
  request.step = LayerRequest{};
  request.step.x = FromValues(DType::kF32, {4, 1}, {1, 1, 1, 1});
  request.step.parameters["weight"] = FromValues(DType::kF32, {2, 1}, {1, 1});
  request.step.parameters["bias"] = FromValues(DType::kF32, {2}, {0, 0});
  // Pairwise: (2^30 + 1) + (-2^30 + 0) = 0 in the first column; the sum is 1.
  request.step.grad_output = FromValues(DType::kF32, {4, 2}, {0x1p30f, 1, 1, 2, -0x1p30f, 3, 0, 4});
  const RunReport report = RunOk(request);
  const OutputReport& db = OutputOf(report.variants[0], "db");
  EXPECT_EQ(ToValues(db.value), (std::vector<float>{0, 10}));
  EXPECT_EQ(db.against_exact.parity.mismatch_count, 1);
  EXPECT_EQ(db.against_exact.parity.first.reference, 1);
  EXPECT_EQ(db.against_exact.error.max_abs, 1);
  EXPECT_EQ(db.against_unquantized.max_abs, 1);
}

TEST(RunPlan, ComparesEveryVariantWithTheReference) {
  LayerRunRequest request = RequestOf({"bf16", "fp8_current", kHighPrecision, kDequantized});
  request.reference = 2;
  const auto engine = MakeCpuEngine({});
  Watched watched;
  const RunReport report = *RunWatched(request, *engine, nullptr, watched);
  EXPECT_EQ(watched.variants, (std::vector<int>{2, 0, 1, 3}));
  EXPECT_EQ(watched.comparisons, (std::vector<size_t>{0, 4, 4, 4}));
  const VariantReport& reference = report.variants[2];
  for (int index : {0, 1, 3}) {
    const VariantReport& variant = report.variants[index];
    ASSERT_EQ(variant.against_reference.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      const TensorComparison& comparison = variant.against_reference[i];
      const Tensor& subject = variant.outputs[i].value;
      const Tensor& other = reference.outputs[i].value;
      EXPECT_EQ(comparison.tensor, variant.outputs[i].tensor);
      EXPECT_EQ(comparison.reference, reference.label);
      EXPECT_EQ(comparison.parity.mismatch_count,
                CompareBits(subject, other, ExecutionContext())->mismatch_count);
      EXPECT_EQ(comparison.error.sum_error_squared,
                MeasureError(subject, other, ExecutionContext())->sum_error_squared);
      ASSERT_TRUE(comparison.nearer.has_value());
      EXPECT_EQ(comparison.nearer->subject_nearer + comparison.nearer->reference_nearer +
                    comparison.nearer->tied,
                subject.element_count());
      // Of two different values at most one is the truth's, unless it lies in the middle.
      EXPECT_EQ(comparison.nearer->tied == subject.element_count(), comparison.parity.equal);
      // The truth is of the subject's operands, so its own error is the one reported against exact.
      EXPECT_EQ(comparison.nearer->subject_rms, variant.outputs[i].against_exact.error.rms);
    }
  }
  // Forward is the same under every override; so is a high-precision backward and bf16's.
  EXPECT_TRUE(report.variants[1].against_reference[0].parity.equal);
  EXPECT_TRUE(report.variants[0].against_reference[1].parity.equal);
  EXPECT_FALSE(report.variants[1].against_reference[1].parity.equal);
}

TEST(RunPlan, TheMatrixHoldsEveryPairAndTensor) {
  LayerRunRequest request = RequestOf({"bf16", "fp8_current", kHighPrecision});
  for (std::optional<int> reference : {std::optional<int>(), std::optional<int>(0)}) {
    request.reference = reference;
    const RunReport report = RunOk(request);
    ASSERT_EQ(report.pairs.size(), 3u * 4u);
    const std::vector<std::pair<int, int>> order = {{1, 0}, {2, 0}, {2, 1}};
    for (size_t i = 0; i < report.pairs.size(); ++i) {
      const PairSummary& pair = report.pairs[i];
      EXPECT_EQ(std::pair(pair.subject, pair.reference), order[i / 4]);
      const OutputReport& subject = report.variants[pair.subject].outputs[i % 4];
      const OutputReport& other = report.variants[pair.reference].outputs[i % 4];
      EXPECT_EQ(pair.tensor, subject.tensor);
      EXPECT_TRUE(pair.comparable);
      EXPECT_EQ(pair.element_count, subject.value.element_count());
      EXPECT_EQ(pair.mismatch_count,
                CompareBits(subject.value, other.value, ExecutionContext())->mismatch_count);
      EXPECT_EQ(pair.relative_frobenius,
                MeasureError(subject.value, other.value, ExecutionContext())->relative_frobenius);
    }
  }
}

TEST(RunPlan, OutputsOfDifferentDTypesAreNotCompared) {
  LayerRunRequest request = RequestOf({"bf16", "bf16:activation_dtype=f16"});
  request.reference = 0;
  request.requirement = Requirement::kBitwise;
  const RunReport report = RunOk(request);
  EXPECT_TRUE(report.variants[1].against_reference.empty());
  ASSERT_EQ(report.variants[1].notes.size(), 4u);
  EXPECT_EQ(report.variants[1].notes[0],
            "y is f16[2x16x48] and not compared with bf16[2x16x48] of bf16 / none / sm90");
  EXPECT_FALSE(report.verdict.pass);
  for (const PairSummary& pair : report.pairs) {
    EXPECT_FALSE(pair.comparable);
    EXPECT_GT(pair.relative_frobenius, 0);
  }
}

TEST(RunPlan, SharesExactResultsBetweenVariants) {
  class ExactCounter : public ForwardingEngine {
   public:
    using ForwardingEngine::ForwardingEngine;
    absl::StatusOr<GemmResult> Gemm(const GemmDesc& desc, const Cancellation* cancel) override {
      ++(desc.arithmetic.family == ArithmeticFamily::kExact ? exact : model);
      return ForwardingEngine::Gemm(desc, cancel);
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

TEST(RunPlan, EveryGemmLiesWithinItsBound) {
  LayerRunRequest request = RequestOf({"bf16", "fp8_current", kHighPrecision, kDequantized});
  request.requirement = Requirement::kBound;
  const RunReport report = RunOk(request);
  EXPECT_TRUE(report.verdict.pass) << report.verdict.finding;
  EXPECT_EQ(report.verdict.criterion, Requirement::kBound);
  EXPECT_FALSE(report.verdict.source.empty());
}

TEST(RunPlan, AMismatchIsAResult) {
  LayerRunRequest request = RequestOf({"bf16", "fp8_current"});
  request.reference = 0;
  request.requirement = Requirement::kBitwise;
  const RunReport report = RunOk(request);
  EXPECT_FALSE(report.verdict.pass);
  const ParityReport& y = report.variants[1].against_reference[0].parity;
  EXPECT_EQ(report.verdict.finding.find(
                absl::StrCat("y of fp8_current / none / sm90 differs from bf16 / none / sm90 in ",
                             y.mismatch_count, " of 1536 elements, first at (")),
            0u)
      << report.verdict.finding;
}

TEST(RunPlan, ProgressCountsEveryStepOnce) {
  for (int variants : {1, 3}) {
    LayerRunRequest request = RequestOf({"bf16", "fp8_current", kDequantized});
    while (static_cast<int>(request.variants.size()) > variants) request.variants.pop_back();
    const auto engine = MakeCpuEngine({});
    Watched watched;
    ASSERT_TRUE(RunWatched(request, *engine, nullptr, watched).ok());
    const int count = Plan::Create(request)->StepCount();
    ASSERT_EQ(watched.progress.size(), static_cast<size_t>(count) + 1);
    for (int i = 0; i <= count; ++i) {
      EXPECT_EQ(watched.progress[i].step, i);
      EXPECT_EQ(watched.progress[i].step_count, count);
    }
    EXPECT_EQ(watched.progress[0].what, "unquantized: y");
    EXPECT_EQ(watched.progress[4].what, "bf16 / none / sm90: fingerprint saved operands");
    EXPECT_EQ(watched.progress[5].what, "bf16 / none / sm90: fprop");
    EXPECT_EQ(watched.progress[count].what, "done");
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
    EXPECT_EQ(watched.progress.size(), static_cast<size_t>(stop) + 1);
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

/// An engine that defers reports, and notes what is begun and what is asked for.
class DeferringEngine : public ForwardingEngine, public DeferredReports {
 public:
  using ForwardingEngine::ForwardingEngine;
  std::vector<std::string> steps;

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
  Watched watched;
  const auto run = RunWatched(request, engine, nullptr, watched);
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

TEST(RunPlan, NoRowsAreAValidRun) {
  LayerRunRequest request = RequestOf({"bf16", "fp8_current", kHighPrecision, kDequantized});
  request.step.x = *Tensor::Allocate(DType::kBF16, {0, 96});
  request.step.grad_output = *Tensor::Allocate(DType::kBF16, {0, 48});
  for (Requirement requirement : {Requirement::kBitwise, Requirement::kBound}) {
    request.requirement = requirement;
    const RunReport report = RunOk(request);
    EXPECT_TRUE(report.verdict.pass) << report.verdict.finding;
    for (const VariantReport& variant : report.variants) {
      EXPECT_EQ(OutputOf(variant, "dw").arithmetic, "none: a sum over no rows");
      EXPECT_EQ(OutputOf(variant, "y").value.shape(), (Shape{0, 48}));
    }
  }
}

TEST(RunPlan, SpecialValuesAreResults) {
  LayerRunRequest request = RequestOf({"bf16", "fp8_current", kHighPrecision, kDequantized});
  request.step.x = Generated(Distribution::kSpecialsLaced, 7, DType::kBF16, {32, 96});
  request.step.grad_output = Generated(Distribution::kSpecialsLaced, 8, DType::kBF16, {32, 48});
  request.reference = 0;
  request.requirement = Requirement::kBound;
  const RunReport report = RunOk(request);
  EXPECT_GT(OutputOf(report.variants[0], "y").against_exact.error.non_finite_count, 0);
  EXPECT_TRUE(report.verdict.pass) << report.verdict.finding;
}

TEST(RunPlan, EveryCodePathAndThreadCountReportsTheSame) {
  LayerRunRequest request = RequestOf({"bf16", "fp8_current", kDequantized});
  request.reference = 0;
  const RunReport first = RunOk(request, {Isa::kScalar, 1});
  for (Isa isa : RunnableIsas()) {
    for (int threads : {1, 3}) {
      const RunReport report = RunOk(request, {isa, threads});
      for (size_t v = 0; v < first.variants.size(); ++v) {
        for (size_t i = 0; i < first.variants[v].outputs.size(); ++i) {
          const OutputReport& subject = report.variants[v].outputs[i];
          const OutputReport& reference = first.variants[v].outputs[i];
          EXPECT_EQ(subject.fingerprint, reference.fingerprint);
          EXPECT_EQ(subject.against_unquantized.sum_error_squared,
                    reference.against_unquantized.sum_error_squared);
          EXPECT_EQ(subject.against_exact.error.cosine, reference.against_exact.error.cosine);
          EXPECT_EQ(subject.against_exact.parity.mismatch_count,
                    reference.against_exact.parity.mismatch_count);
          if (reference.bound.has_value()) {
            EXPECT_EQ(subject.bound->worst_ratio, reference.bound->worst_ratio);
          }
        }
      }
      ASSERT_EQ(report.pairs.size(), first.pairs.size());
      for (size_t i = 0; i < first.pairs.size(); ++i) {
        EXPECT_EQ(report.pairs[i].mismatch_count, first.pairs[i].mismatch_count);
        EXPECT_EQ(report.pairs[i].relative_frobenius, first.pairs[i].relative_frobenius);
      }
    }
  }
}

}  // namespace
}  // namespace quantgate
