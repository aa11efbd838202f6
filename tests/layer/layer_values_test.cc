// The bits of every kind of layer against a composition by hand, over recipes, overrides and
// choices of gradients; and what names and stages say beforehand.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/base/exhaustive.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/layer_cases.h"
#include "tests/layer/layer_reference.h"

namespace quantgate {
namespace QG_TEST_FILE {

std::vector<std::string> NamesOf(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const NamedTensor& tensor : tensors) names.push_back(tensor.name);
  return names;
}

void ExpectReference(const LayerResult& result, const std::map<std::string, Tensor>& reference) {
  for (const NamedTensor& output : result.outputs) {
    const auto expected = reference.find(output.name);
    ASSERT_NE(expected, reference.end()) << output.name;
    EXPECT_TRUE(SameBits(output.tensor, expected->second)) << output.name;
  }
}

/// The composition's outputs of a case. Two tests read them, and they are most of the work of both.
const std::map<std::string, Tensor>& KeptReferenceOf(const NamedCase& of,
                                                     const LayerRequest& request,
                                                     const Recipe& recipe) {
  static auto& kept = *new std::map<std::string, std::map<std::string, Tensor>>;
  std::map<std::string, Tensor>& reference =
      kept[absl::StrCat(of.name, " ", recipe.CanonicalText())];
  if (reference.empty()) reference = ReferenceOf(request, recipe);
  return reference;
}

class LayerValues : public ::testing::TestWithParam<NamedCase> {};

TEST_P(LayerValues, EveryGradientOfEveryRecipeIsTheComposition) {
  const LayerRequest request = WithScales(GetParam().request);
  size_t recipes = 0;
  for (const Recipe& recipe : CaseRecipes()) {
    SCOPED_TRACE(recipe.CanonicalText());
    const auto& reference = KeptReferenceOf(GetParam(), request, recipe);
    const LayerResult result = RunCase(request, recipe);
    ExpectReference(result, reference);
    EXPECT_EQ(result.outputs.size(), reference.size());
    ++recipes;
  }
  EXPECT_GT(recipes, 80u);
}

TEST_P(LayerValues, AGradientDoesNotDependOnWhichOthersAreAskedFor) {
  LayerRequest request = WithScales(GetParam().request);
  int turn = 0;
  for (const Recipe& recipe : CaseRecipes()) {
    SCOPED_TRACE(recipe.CanonicalText());
    const auto& reference = KeptReferenceOf(GetParam(), request, recipe);
    ++turn;
    for (int mask = 0; mask < 8; ++mask) {
      // Every choice meets an eighth of the recipes.
      if (mask != turn % 8 && !IsExhaustive()) continue;
      for (const bool norm : {false, true}) {
        request.requires_grad = GradientsOf(mask, norm);
        const LayerResult result = RunCase(request, recipe);
        ExpectReference(result, reference);
        EXPECT_EQ(NamesOf(result.outputs), LayerOutputs(request)) << mask << norm;
        for (const NamedTensor& output : result.outputs) {
          EXPECT_EQ(LayerOutputShape(request, output.name), output.tensor.shape()) << output.name;
        }
        for (const SavedOperand& saved : result.saved) {
          EXPECT_EQ(saved.at_save, saved.at_use) << saved.name;
        }
      }
    }
  }
}

TEST_P(LayerValues, GivesItsOutputsUnfusedAndCalibrating) {
  LayerRequest request = GetParam().request;
  request.x = *CastTensor(request.x, DType::kF32, ExecutionContext());
  request.grad_output = *CastTensor(request.grad_output, DType::kF32, ExecutionContext());
  for (const char* text :
       {"bf16:activation_dtype=bf16", "fp8_current:activation_dtype=bf16", "fp8_current",
        "fp8_delayed:activation_dtype=bf16", "mxfp8:activation_dtype=bf16", "mxfp8",
        "fp8_rowwise:activation_dtype=bf16", "mxfp4:activation_dtype=bf16", "mxfp6_e2m3",
        "fp8_block:activation_dtype=f16,backward_override=high_precision",
        "nvfp4:activation_dtype=bf16,backward_override=dequantized",
        "hybrid:fprop=mxfp8,activation_dtype=bf16",
        "hybrid:fprop=mxfp8,columnwise_source=rowwise_dequantized,activation_dtype=bf16"}) {
    const Recipe recipe = *Recipe::Parse(text);
    for (const bool fused : {false, true}) {
      for (const bool calibrate : {false, true}) {
        request.layer.fused = fused;
        request.calibrate = calibrate;
        const LayerResult result = RunCase(request, recipe);
        EXPECT_EQ(NamesOf(result.outputs), LayerOutputs(request)) << text << fused << calibrate;
        for (const SavedOperand& saved : result.saved) EXPECT_EQ(saved.at_save, saved.at_use);
      }
    }
  }
}

TEST_P(LayerValues, ForwardIsTheSameUnderEveryOverride) {
  const LayerRequest request = GetParam().request;
  for (const std::string name : {"fp8_current", "fp8_rowwise", "fp8_block", "mxfp8", "mxfp6_e2m3",
                                 "mxfp6_e3m2", "mxfp4", "nvfp4"}) {
    const LayerResult none = RunCase(request, name);
    for (const std::string mode : {"high_precision", "dequantized"}) {
      const LayerResult other = RunCase(request, name + ":backward_override=" + mode);
      EXPECT_TRUE(SameBits(OutputOf(other, "y"), OutputOf(none, "y"))) << name << mode;
    }
  }
}

TEST_P(LayerValues, AnActivationDTypeIsTheBitsOfACastInput) {
  LayerRequest request = GetParam().request;
  request.x = Generated(Distribution::kNormal, 21, DType::kF32, request.x.shape());
  request.grad_output =
      Generated(Distribution::kNormal, 22, DType::kF32, request.grad_output.shape());
  LayerRequest cast = request;
  cast.x = *CastTensor(request.x, DType::kBF16, ExecutionContext());
  cast.grad_output = *CastTensor(request.grad_output, DType::kBF16, ExecutionContext());
  for (const std::string name :
       {"bf16", "fp8_current", "fp8_rowwise", "fp8_delayed", "mxfp8", "mxfp4", "nvfp4"}) {
    for (const std::string mode : {"none", "high_precision", "dequantized"}) {
      if (name == "fp8_delayed" && mode != "none") continue;
      SCOPED_TRACE(name + " " + mode);
      const std::string recipe = name + ":backward_override=" + mode;
      ExpectSameOutputs(RunCase(request, recipe + ",activation_dtype=bf16"), RunCase(cast, recipe));
    }
  }
}

// Which activations have one kernel for derivative, bias gradient and cast depends on the kind.
TEST(LayerActivations, EveryKindIsTheComposition) {
  for (size_t i = 0; i < std::size(kActivationKindNames); ++i) {
    LayerRequest request = WithScales(LayerNormMlpCase(static_cast<ActivationKind>(i)));
    if (request.layer.activation.kind == ActivationKind::kClampedSwiglu) {
      request.layer.activation.limit = 1.5f;
      request.layer.activation.alpha = 1.25f;
      request.layer.activation.offset = 0.5f;
    }
    for (const char* recipe :
         {"bf16", "fp8_delayed", "fp8_current", "fp8_block", "mxfp8", "nvfp4", "fp8_rowwise",
          "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4", "mxfp8:backward_override=high_precision"}) {
      SCOPED_TRACE(absl::StrCat(std::string(kActivationKindNames[i]), " ", recipe));
      const auto reference = ReferenceOf(request, *Recipe::Parse(recipe));
      const LayerResult result = RunCase(request, recipe);
      ExpectReference(result, reference);
      EXPECT_EQ(result.outputs.size(), reference.size());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, LayerValues, ::testing::ValuesIn(AllLayerCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace QG_TEST_FILE
}  // namespace quantgate
