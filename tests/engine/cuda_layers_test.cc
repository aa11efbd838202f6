// Every kind of layer on the CUDA engine against the CPU engine: outputs, intermediates, operands
// and results of GEMMs, fingerprints of what is saved, quantizations and the state of delayed
// scaling, byte for byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/engine/both_engines.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/layer_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

OperationSpec Operation(OperationKind kind, const std::string& name) {
  OperationSpec operation;
  operation.kind = kind;
  operation.name = name;
  return operation;
}

/// Every operation, some twice, with values that two operations read.
LayerRequest EveryOperationCase() {
  LayerRequest request = ResidualChainCase();
  std::vector<OperationSpec>& operations = request.layer.operations;
  operations = {
      Operation(OperationKind::kScale, "twice"),      Operation(OperationKind::kNorm, "ln"),
      Operation(OperationKind::kQuantize, "q"),       Operation(OperationKind::kBasicLinear, "up"),
      Operation(OperationKind::kBias, "up_bias"),     Operation(OperationKind::kActivation, "act"),
      Operation(OperationKind::kBasicLinear, "down"), Operation(OperationKind::kAdd, "residual"),
      Operation(OperationKind::kQuantize, "dq"),      Operation(OperationKind::kBias, "shift"),
      Operation(OperationKind::kAdd, "again")};
  operations[0].factor = 2;
  operations[2].quantize_backward = true;
  operations[5].activation.kind = ActivationKind::kGelu;
  operations[7].addend = "twice";
  operations[8].quantize_forward = false;
  operations[8].quantize_backward = true;
  operations[10].addend = "ln";
  request.parameters["ln.beta"] = Generated(Distribution::kNormal, 23, DType::kF32, {64});
  request.parameters["shift.bias"] = Generated(Distribution::kNormal, 24, DType::kF32, {64});
  return request;
}

/// Norm outputs returned, and gamma around zero.
LayerRequest ReturnedNormCase() {
  LayerRequest request = LayerNormMlpCase(ActivationKind::kSrelu);
  request.layer.return_norm_output = true;
  request.layer.norm.zero_centered_gamma = true;
  return request;
}

/// Four experts with so many rows each.
LayerRequest ExpertsCase(std::vector<int64_t> m_splits) {
  LayerRequest request = GroupedLinearCase();
  request.layer.m_splits = std::move(m_splits);
  request.parameters["weight.3"] = Generated(Distribution::kNormal, 25, DType::kBF16, {96, 64});
  return request;
}

std::vector<NamedCase> Cases() {
  std::vector<NamedCase> cases = AllLayerCases();
  cases.push_back({"every_operation", EveryOperationCase()});
  cases.push_back({"returned_norm", ReturnedNormCase()});
  return cases;
}

std::vector<std::string> TextsOf(const std::vector<Recipe>& recipes) {
  std::vector<std::string> texts;
  for (const Recipe& recipe : recipes) texts.push_back(recipe.ShortText());
  return texts;
}

/// A recipe of each kind, and composed ones, under every override that it takes.
std::vector<std::string> ClassTexts() {
  std::vector<std::string> texts = {"bf16",
                                    "bf16:activation_dtype=f16",
                                    "hybrid:fprop=mxfp8,dgrad=fp8_block,wgrad=mxfp8",
                                    "fp8_delayed:amax_history_len=3",
                                    "fp8_delayed:update=unfused,amax_compute_algo=most_recent",
                                    "fp8_current:activation_dtype=bf16"};
  for (const std::string name : {"fp8_current", "fp8_rowwise", "fp8_block", "mxfp8", "nvfp4"}) {
    for (const std::string mode : {"none", "high_precision", "dequantized"}) {
      texts.push_back(absl::StrCat(name, ":backward_override=", mode));
    }
  }
  return texts;
}

std::string TestName(const std::string& text) {
  std::string name;
  for (const char c : text) name += absl::ascii_isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

/// On one of the models, with and without fused operations, from given states as from fresh ones.
void ExpectSameInEveryOrder(LayerRequest request, const Recipe& recipe, const std::string& what) {
  for (const bool fused : {true, false}) {
    request.layer.fused = fused;
    ExpectSameLayer(request, recipe, ModelFor(recipe), absl::StrCat(what, fused ? "" : " unfused"));
    if (!recipe.is_delayed()) continue;
    ExpectSameLayer(WithScales(request), recipe, ModelFor(recipe), what + " of given scales");
  }
}

class CudaLayersOfEveryRecipe : public testing::TestWithParam<std::string> {
 protected:
  const Recipe recipe_ = Recipe::Parse(GetParam()).value();
};
INSTANTIATE_TEST_SUITE_P(Recipes, CudaLayersOfEveryRecipe,
                         testing::ValuesIn(TextsOf(CaseRecipes())));

TEST_P(CudaLayersOfEveryRecipe, EveryKindHasTheBitsOfTheCpu) {
  for (const NamedCase& one : Cases()) ExpectSameInEveryOrder(one.request, recipe_, one.name);
}

// The first splits fit no block of any format, the second no wgrad in FP8: what is refused, both
// engines refuse.
TEST_P(CudaLayersOfEveryRecipe, ExpertsOfAnyNumberOfRows) {
  for (const std::vector<int64_t>& m_splits : std::vector<std::vector<int64_t>>{
           {17, 0, 40, 7}, {24, 0, 32, 8}, {16, 0, 48, 0}, {0, 64, 0, 0}}) {
    LayerRequest request = ExpertsCase(m_splits);
    const std::string what = absl::StrCat("experts of ", m_splits[0], " rows");
    for (const bool wgrad : {true, false}) {
      request.requires_grad.weight = wgrad;
      const bool ran = ExpectSameLayer(request, recipe_, ModelFor(recipe_), what);
      EXPECT_EQ(ran, CheckLayer(request, recipe_).ok()) << what;
      EXPECT_TRUE(ran || (recipe_.is_quantized() && m_splits[0] != 0)) << what;
    }
  }
}

// Four of the 16 choices for each layer; the next layer takes the next four.
TEST_P(CudaLayersOfEveryRecipe, GradientsAsAskedFor) {
  int turn = static_cast<int>(std::hash<std::string>()(GetParam()) % 4);
  for (NamedCase& one : AllLayerCases()) {
    for (int choice = turn++ % 4; choice < 16; choice += 4) {
      one.request.requires_grad = GradientsOf(choice & 7, choice >= 8);
      ExpectSameLayer(one.request, recipe_, ModelFor(recipe_),
                      absl::StrCat(one.name, " gradients ", choice));
    }
  }
}

class CudaLayers : public testing::TestWithParam<std::string> {
 protected:
  const Recipe recipe_ = Recipe::Parse(GetParam()).value();
};
INSTANTIATE_TEST_SUITE_P(Classes, CudaLayers, testing::ValuesIn(ClassTexts()),
                         [](const auto& info) { return TestName(info.param); });

TEST_P(CudaLayers, EveryChoiceOfGradients) {
  for (NamedCase& one : AllLayerCases()) {
    for (int choice = 0; choice < 16; ++choice) {
      one.request.requires_grad = GradientsOf(choice & 7, choice >= 8);
      one.request.layer.fused = choice % 3 != 0;
      ExpectSameLayer(one.request, recipe_, ModelFor(recipe_),
                      absl::StrCat(one.name, " gradients ", choice));
    }
  }
}

TEST_P(CudaLayers, EveryActivation) {
  int index = 0;
  for (const std::string_view name : kActivationKindNames) {
    const auto kind = static_cast<ActivationKind>(index++);
    ExpectSameInEveryOrder(LayerNormMlpCase(kind), recipe_, std::string(name));
  }
  for (const auto variant : {ActivationVariant::kFp32Sigmoid, ActivationVariant::kJitGelu}) {
    const bool is_gelu = variant == ActivationVariant::kJitGelu;
    LayerRequest request =
        LayerNormMlpCase(is_gelu ? ActivationKind::kGelu : ActivationKind::kSwiglu);
    request.layer.activation.variant = variant;
    ExpectSameInEveryOrder(request, recipe_, std::string(ActivationVariantName(variant)));
  }
}

TEST_P(CudaLayers, EveryKindOfData) {
  for (NamedCase& one : Cases()) {
    uint64_t seed = 100;
    for (const Distribution distribution : AllDistributions()) {
      const DType dtypes[] = {DType::kBF16, DType::kF32, DType::kF16};
      const DType dtype = dtypes[seed % 3];
      one.request.x = Generated(distribution, seed++, dtype, one.request.x.shape());
      one.request.grad_output =
          Generated(distribution, seed++, dtype, one.request.grad_output.shape());
      ExpectSameLayer(one.request, recipe_, ModelFor(recipe_),
                      absl::StrCat(one.name, " ", std::string(DistributionName(distribution)), " ",
                                   std::string(DTypeName(dtype))));
    }
  }
}

TEST_P(CudaLayers, MainGradsCalibrationAndForwardAlone) {
  for (NamedCase& one : Cases()) {
    LayerRequest request = one.request;
    uint64_t seed = 200;
    for (const auto& [name, tensor] : one.request.parameters) {
      if (!absl::StrContains(name, "weight")) continue;
      request.main_grads[name] =
          Generated(Distribution::kNormal, seed++, DType::kF32, tensor.shape());
    }
    ExpectSameInEveryOrder(request, recipe_, one.name + " with main grads");
    request.calibrate = true;
    ExpectSameInEveryOrder(request, recipe_, one.name + " calibrating");
    request = one.request;
    request.grad_output = Tensor();
    ExpectSameInEveryOrder(request, recipe_, one.name + " forward alone");
  }
}

TEST_P(CudaLayers, NoRows) {
  for (NamedCase& one : Cases()) {
    LayerRequest& request = one.request;
    for (int64_t& rows : request.layer.m_splits) rows = 0;
    for (Tensor* tensor : {&request.x, &request.grad_output}) {
      *tensor = Tensor::Allocate(tensor->dtype(), {0, tensor->columns()}).value();
    }
    ExpectSameInEveryOrder(request, recipe_, one.name);
  }
}

// auto: cuBLASLt for what it takes, and the models for the rest.
TEST_P(CudaLayers, TheHardwareHasTheBitsOfTheModels) {
  std::set<std::string> ran;
  for (const NamedCase& one : Cases()) {
    LayerRequest request = one.request;
    for (const bool fused : {true, false}) {
      request.layer.fused = fused;
      const auto subject = RunLayer(Cuda(), request, recipe_, Arithmetic{}, nullptr);
      const auto reference = RunLayer(Cpu(), request, recipe_, Arithmetic{}, nullptr);
      ASSERT_TRUE(subject.ok() && reference.ok()) << subject.status() << reference.status();
      EXPECT_EQ(DifferenceOf(*subject, *reference), "") << one.name << fused;
      for (const GemmRecord& gemm : subject->gemms) ran.insert(gemm.result.arithmetic.ToString());
    }
  }
  const bool is_blackwell = recipe_.name() == "mxfp8" || recipe_.name() == "nvfp4";
  const bool used_hardware = std::any_of(ran.begin(), ran.end(), [](const std::string& name) {
    return absl::StartsWith(name, "cublaslt");
  });
  EXPECT_TRUE(is_blackwell || used_hardware);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
