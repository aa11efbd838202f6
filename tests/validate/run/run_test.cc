// What is reported of a plan from end to end.
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/grouped_digits.h"
#include "tests/validate/run_watched.h"

namespace quantgate {
namespace QG_TEST_FILE {

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
  const std::vector<std::string> stages = {"quantize x",
                                           "quantize weight",
                                           "fingerprint saved operands",
                                           "fprop",
                                           "bias gradient",
                                           "quantize grad_output",
                                           "check saved operands",
                                           "dgrad",
                                           "wgrad",
                                           "report y",
                                           "report dx",
                                           "report dw",
                                           "report db"};
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
      EXPECT_TRUE(output.bound.has_value() && output.bound->pass);
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
  // What is rounded once has one value.
  ASSERT_TRUE(y.bound.has_value());
  EXPECT_TRUE(y.bound->pass);
  EXPECT_EQ(y.bound->worst_ratio, 0);
  EXPECT_EQ(y.bound->bound.derivation, "correctly rounded");
}

TEST(RunPlan, ASubjectUnderExactIsHeldToItsOneRounding) {
  LayerRunRequest request = RequestOf({"mxfp8"}, "exact");
  request.step.x = Generated(Distribution::kNormal, 1, DType::kBF16, {64, 96});
  request.step.parameters = {
      {"weight", Generated(Distribution::kNormal, 2, DType::kBF16, {64, 96})}};
  request.step.grad_output = {};
  const Tensor y = OutputOf(RunOk(request).variants[0], "y").value;
  request.requirement = Requirement::kBound;
  request.subjects["y"] = y;
  EXPECT_TRUE(RunOk(request).verdict.pass);
  Tensor changed = *Tensor::FromBytes(y.dtype(), y.shape(), y.bytes());
  changed.as<uint16_t>()[77] ^= 1;
  request.subjects["y"] = changed;
  const RunReport report = RunOk(request);
  EXPECT_FALSE(report.verdict.pass);
  EXPECT_EQ(report.verdict.finding,
            "the subject for y of mxfp8 / none / exact leaves its bound in 1 of 4,096 elements, by "
            "up to 2 times");
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
                             GroupedDigits(y.mismatch_count), " of 1,536 elements, first at (")),
            0u)
      << report.verdict.finding;
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

// FP8 saturates the infinity, so that neither an output nor its exact value shows it.
TEST(RunPlan, NamesAnInfiniteInputThatNoOutputShows) {
  LayerRunRequest request = RequestOf({"fp8_current"});
  std::vector<float> x = ToValues(request.step.x);
  x[5] = std::numeric_limits<float>::infinity();
  request.step.x = FromValues(DType::kBF16, {2, 16, 96}, x);
  request.requirement = Requirement::kBound;
  const RunReport report = RunOk(request);
  EXPECT_TRUE(report.verdict.pass) << report.verdict.finding;
  EXPECT_EQ(report.verdict.non_finite, "");
  EXPECT_EQ(report.verdict.non_finite_inputs, "x has 1 infinite");
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

}  // namespace QG_TEST_FILE
}  // namespace quantgate
