// Plans of layers of several operations: what is reported of each, and that every number of it can
// be told from a wrong one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/validate/run/run.h"
#include "tests/engine/tensor_values.h"
#include "tests/validate/rank_variants.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kM = 64, kK = 96, kF = 128, kN = 160;

Tensor Normal(uint64_t seed, Shape shape) {
  return Generated(Distribution::kNormal, seed, DType::kBF16, std::move(shape));
}

LayerRequest LayerNormLinear() {
  LayerRequest request;
  request.layer.kind = LayerKind::kLayerNormLinear;
  request.x = Normal(1, {kM, kK});
  request.parameters = {{"weight", Normal(2, {kN, kK})},
                        {"bias", Normal(3, {kN})},
                        {"gamma", Normal(4, {kK})},
                        {"beta", Normal(5, {kK})}};
  request.grad_output = Normal(6, {kM, kN});
  return request;
}

LayerRequest LayerNormMlp(ActivationKind activation) {
  LayerRequest request;
  request.layer.kind = LayerKind::kLayerNormMlp;
  request.layer.activation.kind = activation;
  request.x = Normal(1, {kM, kK});
  const int64_t hidden = IsGated(activation) ? 2 * kF : kF;
  request.parameters = {{"gamma", Normal(2, {kK})},
                        {"beta", Normal(3, {kK})},
                        {"fc1.weight", Normal(4, {hidden, kK})},
                        {"fc1.bias", Normal(5, {hidden})},
                        {"fc2.weight", Normal(6, {kN, kF})},
                        {"fc2.bias", Normal(7, {kN})}};
  request.grad_output = Normal(8, {kM, kN});
  return request;
}

LayerRequest GroupedLinear() {
  LayerRequest request;
  request.layer.kind = LayerKind::kGroupedLinear;
  request.layer.m_splits = {32, 0, 64};
  request.x = Normal(1, {96, kK});
  for (int i = 0; i < 3; ++i) {
    request.parameters[absl::StrCat("weight.", i)] = Normal(10 + i, {kN, kK});
    request.parameters[absl::StrCat("bias.", i)] = Normal(20 + i, {kN});
  }
  request.grad_output = Normal(2, {96, kN});
  return request;
}

OperationSpec Operation(OperationKind kind, const std::string& name) {
  OperationSpec operation;
  operation.kind = kind;
  operation.name = name;
  return operation;
}

/// x -> norm -> fc -> bias -> gelu -> * 0.5 -> + norm's output: every kind but quantize, and a
/// value with two readers.
LayerRequest Chain() {
  LayerRequest request;
  request.layer.kind = LayerKind::kChain;
  auto& operations = request.layer.operations;
  operations = {
      Operation(OperationKind::kNorm, "ln"),    Operation(OperationKind::kBasicLinear, "fc"),
      Operation(OperationKind::kBias, "b"),     Operation(OperationKind::kActivation, "act"),
      Operation(OperationKind::kScale, "half"), Operation(OperationKind::kAdd, "sum")};
  operations[4].factor = 0.3f;
  operations[5].addend = "ln";
  request.x = Normal(1, {kM, kK});
  request.parameters = {{"ln.gamma", Normal(2, {kK})},
                        {"ln.beta", Normal(3, {kK})},
                        {"fc.weight", Normal(4, {kK, kK})},
                        {"b.bias", Normal(5, {kK})}};
  request.grad_output = Normal(6, {kM, kK});
  return request;
}

LayerRunRequest RequestOf(LayerRequest step, const std::vector<std::string>& recipes,
                          const std::string& arithmetic = "auto") {
  LayerRunRequest request;
  request.step = std::move(step);
  for (const std::string& recipe : recipes) {
    request.variants.push_back({*Recipe::Parse(recipe), *Arithmetic::Parse(arithmetic)});
  }
  return request;
}

std::vector<std::string> Names(const VariantReport& variant, bool intermediates) {
  std::vector<std::string> names;
  for (const OutputReport& output : variant.outputs) {
    if (output.is_intermediate == intermediates) names.push_back(output.tensor);
  }
  return names;
}

const std::vector<std::string>& Recipes() {
  static const std::vector<std::string> recipes = {
      "bf16",      "fp8_delayed", "fp8_current", "fp8_current:backward_override=dequantized",
      "fp8_block", "mxfp8",       "nvfp4"};
  return recipes;
}

/// Every output has a truth and a bound, which it keeps.
void ExpectWithinBounds(const LayerRequest& step, const std::vector<std::string>& recipes) {
  LayerRunRequest request = RequestOf(step, recipes);
  request.requirement = Requirement::kBound;
  const RunReport report = RunOk(request);
  EXPECT_TRUE(report.verdict.pass) << report.verdict.finding;
  for (const VariantReport& variant : report.variants) {
    for (const OutputReport& output : variant.outputs) {
      SCOPED_TRACE(absl::StrCat(variant.label, ": ", output.tensor));
      ASSERT_TRUE(output.bound.has_value());
      EXPECT_TRUE(output.bound->pass) << output.bound->worst_ratio;
      EXPECT_EQ(output.against_exact.error.element_count, output.value.element_count());
      EXPECT_EQ(output.against_unquantized.element_count, output.value.element_count());
      EXPECT_LT(output.against_exact.error.relative_frobenius, 0x1p-7);
      EXPECT_FALSE(output.exact_note.empty());
    }
  }
}

TEST(RunLayers, LayerNormLinear) {
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    LayerRequest step = LayerNormLinear();
    step.layer.norm.kind = kind;
    if (kind == NormKind::kRmsNorm) step.parameters.erase("beta");
    ExpectWithinBounds(step, Recipes());
    step.layer.return_norm_output = true;
    ExpectWithinBounds(step, {"fp8_delayed"});
  }
}

TEST(RunLayers, LayerNormMlp) {
  for (const ActivationKind kind : {ActivationKind::kGelu, ActivationKind::kSrelu,
                                    ActivationKind::kSwiglu, ActivationKind::kClampedSwiglu}) {
    ExpectWithinBounds(LayerNormMlp(kind), Recipes());
  }
  LayerRequest unfused = LayerNormMlp(ActivationKind::kGelu);
  unfused.layer.fused = false;
  ExpectWithinBounds(unfused, {"bf16", "fp8_delayed", "mxfp8"});
}

TEST(RunLayers, GroupedLinear) {
  ExpectWithinBounds(GroupedLinear(), Recipes());
  LayerRequest unfused = GroupedLinear();
  unfused.layer.fused = false;
  ExpectWithinBounds(unfused, {"bf16", "fp8_delayed", "mxfp8"});
  // Some experts end in a bias of their own, others in a GEMM.
  unfused.parameters.erase("bias.2");
  ExpectWithinBounds(unfused, {"bf16"});
}

TEST(RunLayers, Chain) {
  for (const bool fused : {true, false}) {
    LayerRequest step = Chain();
    step.layer.fused = fused;
    ExpectWithinBounds(step, Recipes());
  }
}

TEST(RunLayers, QuantizeOperationsAreHeldAgainstWhatTheyWereGiven) {
  LayerRequest step = Chain();
  auto& operations = step.layer.operations;
  OperationSpec quantize = Operation(OperationKind::kQuantize, "q");
  quantize.quantize_backward = true;
  operations.insert(operations.begin() + 4, quantize);
  operations.push_back(Operation(OperationKind::kQuantize, "last"));
  const RunReport report = RunOk(RequestOf(step, {"bf16", "fp8_current", "mxfp8"}));
  for (size_t i = 0; i < report.variants.size(); ++i) {
    for (const OutputReport& output : report.variants[i].outputs) {
      SCOPED_TRACE(absl::StrCat(report.variants[i].label, ": ", output.tensor));
      EXPECT_TRUE(!output.bound.has_value() || output.bound->pass);
      // E4M3 keeps four significant bits and E5M2 three.
      EXPECT_LE(output.against_exact.error.relative_frobenius, i == 0 ? 0x1p-7 : 0x1p-3);
    }
    EXPECT_EQ(OutputOf(report.variants[i], "y").arithmetic, "none: quantized");
  }
  EXPECT_TRUE(OutputOf(report.variants[0], "y").against_exact.parity.equal);
  EXPECT_FALSE(OutputOf(report.variants[1], "y").against_exact.parity.equal);
}

TEST(RunLayers, OtherDTypes) {
  LayerRequest step = LayerNormMlp(ActivationKind::kSilu);
  step.x = Generated(Distribution::kNormal, 1, DType::kF32, {4, 16, kK});
  step.grad_output = Generated(Distribution::kNormal, 2, DType::kF16, {4, 16, kN});
  step.parameters["gamma"] = Generated(Distribution::kNormal, 3, DType::kF32, {kK});
  step.parameters["fc1.bias"] = Generated(Distribution::kNormal, 4, DType::kF16, {kF});
  ExpectWithinBounds(step, {"fp8_current:activation_dtype=bf16", "fp8_current", "bf16",
                            "fp8_delayed:activation_dtype=f16",
                            "hybrid:fprop=mxfp8,dgrad=fp8_current,wgrad=fp8_block"});
}

TEST(RunLayers, NoRows) {
  for (LayerRequest step :
       {LayerNormLinear(), LayerNormMlp(ActivationKind::kSwiglu), GroupedLinear(), Chain()}) {
    SCOPED_TRACE(std::string(LayerKindName(step.layer.kind)));
    for (Tensor* tensor : {&step.x, &step.grad_output}) {
      *tensor = *Tensor::Allocate(DType::kBF16, {0, tensor->columns()});
    }
    step.layer.m_splits.assign(step.layer.m_splits.size(), 0);
    const RunReport report = RunOk(RequestOf(step, {"bf16", "fp8_current"}));
    for (const VariantReport& variant : report.variants) {
      EXPECT_EQ(Names(variant, false), LayerOutputs(step));
      for (const OutputReport& output : variant.outputs) {
        EXPECT_TRUE(output.against_exact.parity.equal) << output.tensor;
        EXPECT_TRUE(!output.bound.has_value() || output.bound->pass) << output.tensor;
      }
    }
  }
}

TEST(RunLayers, NamesOutputsAndWhatLiesBetween) {
  LayerRequest step = LayerNormMlp(ActivationKind::kSwiglu);
  step.main_grads["fc1.weight"] = Generated(Distribution::kNormal, 9, DType::kF32, {2 * kF, kK});
  const RunReport mlp = RunOk(RequestOf(step, {"fp8_current"}));
  EXPECT_THAT(Names(mlp.variants[0], false), ElementsAre("y", "dx", "fc1.main_grad", "fc1.db",
                                                         "fc2.dw", "fc2.db", "dgamma", "dbeta"));
  EXPECT_THAT(Names(mlp.variants[0], true),
              ElementsAre("norm_out", "fc1.y", "fc2.x", "dnorm_out", "fc1.grad_output", "fc2.dx"));
  const RunReport grouped = RunOk(RequestOf(GroupedLinear(), {"fp8_current"}));
  EXPECT_THAT(Names(grouped.variants[0], false),
              ElementsAre("y", "dx", "dw.0", "db.0", "dw.1", "db.1", "dw.2", "db.2"));
  EXPECT_THAT(Names(grouped.variants[0], true), ElementsAre());
  EXPECT_EQ(OutputOf(grouped.variants[0], "dw.1").arithmetic, "none: a sum over no rows");
  EXPECT_EQ(OutputOf(grouped.variants[0], "y").arithmetic, "sm90:fast");
  EXPECT_EQ(OutputOf(mlp.variants[0], "dgamma").arithmetic, "fp32 operations");
}

TEST(RunLayers, ComparesOutputsAndIntermediatesWithTheReference) {
  LayerRunRequest request =
      RequestOf(LayerNormMlp(ActivationKind::kGelu),
                {"fp8_current", "fp8_current:backward_override=high_precision"});
  request.reference = 0;
  const RunReport report = RunOk(request);
  const VariantReport& variant = report.variants[1];
  EXPECT_EQ(variant.against_reference.size(), variant.outputs.size());
  // Overrides change no bit of the forward pass (docs/quantizers.md section 9).
  for (const TensorComparison& comparison : variant.against_reference) {
    const std::string& name = comparison.tensor;
    const bool is_forward = name == "y" || name == "norm_out" || name == "fc1.y" || name == "fc2.x";
    EXPECT_TRUE(comparison.parity.equal || !is_forward) << name;
    EXPECT_TRUE(name != "dx" || !comparison.parity.equal);
  }
  // The matrix is of outputs alone.
  EXPECT_EQ(report.pairs.size(), Names(variant, false).size());
}

TEST(RunLayers, TheUnquantizedLayerIsBf16InF32UnderExact) {
  // With operands and results that f32 holds, the only error left is what the recipe rounds.
  LayerRequest step = LayerNormLinear();
  const RunReport report =
      RunOk(RequestOf(step, {"bf16:activation_dtype=f32", "bf16", "fp8_current"}, "exact"));
  EXPECT_EQ(OutputOf(report.variants[0], "y").against_unquantized.max_abs, 0);
  EXPECT_EQ(OutputOf(report.variants[0], "norm_out").against_unquantized.max_abs, 0);
  for (const char* name : {"y", "dx", "dw", "dgamma"}) {
    const double rounded =
        OutputOf(report.variants[1], name).against_unquantized.relative_frobenius;
    const double quantized =
        OutputOf(report.variants[2], name).against_unquantized.relative_frobenius;
    EXPECT_GT(rounded, 0) << name;
    EXPECT_LT(rounded, 0x1p-6) << name;
    EXPECT_GT(quantized, 2 * rounded) << name;
  }
}

TEST(RunLayers, SubjectsAreHeldToTheBoundOfWhatMadeThem) {
  LayerRunRequest request = RequestOf(LayerNormLinear(), {"fp8_current"});
  request.step.layer.return_norm_output = true;
  const RunReport report = RunOk(request);
  for (const char* name : {"y", "norm_out", "dx", "dw", "dgamma", "dbeta"}) {
    request.subjects[name] = OutputOf(report.variants[0], name).value;
  }
  request.requirement = Requirement::kBound;
  const RunReport checked = RunOk(request);
  EXPECT_TRUE(checked.verdict.pass) << checked.verdict.finding;
  for (const OutputReport& output : checked.variants[0].outputs) {
    SCOPED_TRACE(output.tensor);
    ASSERT_EQ(output.subject_bound.has_value(), request.subjects.contains(output.tensor));
    if (!output.subject_bound.has_value()) continue;
    EXPECT_TRUE(output.subject_bound->pass) << output.tensor;
    EXPECT_EQ(output.subject_bound->worst_ratio, output.bound->worst_ratio) << output.tensor;
  }
  for (auto& [name, subject] : request.subjects) {
    std::vector<float> values = ToValues(subject);
    values[7] = values[7] * 1.5f + 1;
    subject = FromValues(subject.dtype(), subject.shape(), values);
  }
  const RunReport spoilt = RunOk(request);
  EXPECT_FALSE(spoilt.verdict.pass);
  EXPECT_THAT(spoilt.verdict.finding,
              HasSubstr("the subject for y of fp8_current / none / auto leaves its bound in 1 of"));
  for (const OutputReport& output : spoilt.variants[0].outputs) {
    if (!output.subject_bound.has_value()) continue;
    EXPECT_FALSE(output.subject_bound->pass) << output.tensor;
    EXPECT_EQ(output.subject_bound->violation_count, 1) << output.tensor;
  }
}

TEST(RunLayers, SubjectsMustBeOutputsWithABound) {
  LayerRunRequest request = RequestOf(LayerNormLinear(), {"fp8_current"});
  request.subjects["norm_out"] = request.step.x;
  EXPECT_THAT(std::string(Plan::Create(request).status().message()),
              HasSubstr("subjects[norm_out] is \"norm_out\": this layer's outputs are y, dx, dw, "
                        "db, dgamma, dbeta"));
  request.subjects = {{"db", request.step.parameters["bias"]}};
  EXPECT_THAT(std::string(Plan::Create(request).status().message()),
              HasSubstr("subjects[db] is \"db\": no bound is derived for a sum of rows"));
}

// Nothing of it has a bound, so that the requirement would judge nothing.
TEST(RunLayers, QuantizeAloneHasNoBoundToKeep) {
  LayerRequest step;
  step.layer.kind = LayerKind::kChain;
  step.layer.operations.resize(2);
  for (int i = 0; i < 2; ++i) {
    step.layer.operations[i].kind = OperationKind::kQuantize;
    step.layer.operations[i].name = i == 0 ? "first" : "second";
    step.layer.operations[i].quantize_backward = true;
  }
  step.x = Generated(Distribution::kNormal, 1, DType::kBF16, {32, 32});
  step.grad_output = Generated(Distribution::kNormal, 2, DType::kBF16, {32, 32});
  LayerRunRequest request = RequestOf(step, {"mxfp8"});
  EXPECT_TRUE(Plan::Create(request).ok()) << Plan::Create(request).status();
  request.requirement = Requirement::kBound;
  const absl::Status status = Plan::Create(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("requirement is bound: no bound is derived for what quantize gives"));
  // An operation that has one is enough, and the verdict says what has none.
  OperationSpec& scale = request.step.layer.operations[0];
  scale.kind = OperationKind::kScale;
  scale.quantize_backward = false;
  scale.factor = 0.5f;
  const RunReport report = RunOk(request);
  EXPECT_TRUE(report.verdict.pass) << report.verdict.finding;
  EXPECT_THAT(report.verdict.finding, HasSubstr("; without a bound: y of mxfp8 / none / auto"));
}

TEST(RunLayers, ErrorBudgetsOfEveryGemm) {
  for (LayerRequest step : {LayerNormMlp(ActivationKind::kGelu), GroupedLinear(), Chain()}) {
    LayerRunRequest request = RequestOf(step, {"fp8_current", "bf16", "fp8_delayed", "mxfp8"});
    request.error_budget = true;
    const RunReport report = RunOk(request);
    for (const VariantReport& variant : report.variants) {
      EXPECT_EQ(variant.error_budgets.size(), variant.gemms.size());
      for (const ErrorBudget& budget : variant.error_budgets) {
        SCOPED_TRACE(absl::StrCat(variant.label, ": ", budget.tensor));
        EXPECT_EQ(budget.non_finite_count, 0);
        double share = 0;
        for (const BudgetTerm& term : budget.terms) share += term.share;
        // Each share is rounded, and their sum.
        EXPECT_TRUE(budget.element_count == 0 || std::fabs(share - 1) <= 0x1p-40) << share;
      }
    }
  }
}

TEST(OutputWord, IsWhatAnOutputIs) {
  for (const auto& [output, word] :
       std::vector<std::pair<std::string, std::string>>{{"y", "y"},
                                                        {"fc1.dw", "dw"},
                                                        {"dw.12", "dw"},
                                                        {"db.0", "db"},
                                                        {"op.db", "db"},
                                                        {"0.dw", "dw"},
                                                        {"main_grad.3", "main_grad"},
                                                        {"dgamma", "dgamma"}}) {
    EXPECT_EQ(OutputWord(output), word);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
