// What CheckLayer refuses of layers of several operations, with the words a user reads.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/layer/layer_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

Tensor Blank(DType dtype, Shape shape) { return *Tensor::Allocate(dtype, std::move(shape)); }

struct Refusal {
  std::string message;
  std::function<void(LayerRequest&)> spoil;
};

void ExpectRefusals(const LayerRequest& good, const std::string& recipe_text,
                    const std::vector<Refusal>& refusals) {
  const Recipe recipe = *Recipe::Parse(recipe_text);
  EXPECT_TRUE(CheckLayer(good, recipe).ok()) << CheckLayer(good, recipe);
  const auto engine = MakeCpuEngine({});
  for (const Refusal& refusal : refusals) {
    LayerRequest request = good;
    refusal.spoil(request);
    const absl::Status status = CheckLayer(request, recipe);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << refusal.message;
    EXPECT_EQ(std::string(status.message()), refusal.message);
    EXPECT_EQ(RunLayer(*engine, request, recipe, Arithmetic{}, nullptr).status(), status);
  }
}

TEST(CheckLayer, TakesEveryCaseUnderEveryRecipe) {
  for (const NamedCase& one : AllLayerCases()) {
    for (const Recipe& recipe : CaseRecipes()) {
      EXPECT_TRUE(CheckLayer(one.request, recipe).ok())
          << one.name << " " << recipe.CanonicalText() << CheckLayer(one.request, recipe);
      EXPECT_TRUE(CheckGemmsOf(one.request, recipe, Arithmetic{}).ok()) << one.name;
    }
  }
}

TEST(CheckLayer, NamesParametersThatAreMissingUnknownOrOfAnotherShape) {
  ExpectRefusals(
      LayerNormMlpCase(ActivationKind::kSwiglu), "bf16",
      {{"parameters[fc2.weight] is absent: a layernorm_mlp layer needs it",
        [](LayerRequest& r) { r.parameters.erase("fc2.weight"); }},
       {"parameters[gamma] is absent: a layernorm_mlp layer needs it",
        [](LayerRequest& r) { r.parameters["gamma"] = Tensor(); }},
       {"parameters[weight] is bf16[2x2]: the layer's parameters are fc1.weight, fc1.bias, "
        "fc2.weight, fc2.bias, gamma, beta",
        [](LayerRequest& r) {
          r.parameters["weight"] = Blank(DType::kBF16, {2, 2});
        }},
       {"parameters[fc1.bias] is i32[192]: its dtype must be f32, bf16 or f16",
        [](LayerRequest& r) { r.parameters["fc1.bias"] = Blank(DType::kI32, {192}); }},
       {"parameters[beta] is bf16[32]: its shape must be 64, the last dim of x",
        [](LayerRequest& r) { r.parameters["beta"] = Blank(DType::kBF16, {32}); }},
       {"parameters[fc1.weight] is f32[192x32]: K, its last dim, must be 64, the columns of "
        "norm_out",
        [](LayerRequest& r) {
          r.parameters["fc1.weight"] = Blank(DType::kF32, {192, 32});
        }},
       {"layer.activation.h is bf16[2x32x191]: its last dim must be even for swiglu, an activated "
        "and a gate half",
        [](LayerRequest& r) {
          r.parameters["fc1.weight"] = Blank(DType::kF32, {191, 64});
          r.parameters.erase("fc1.bias");
        }},
       {"parameters[fc2.weight] is bf16[64x64]: K, its last dim, must be 96, the columns of fc2.x",
        [](LayerRequest& r) {
          r.parameters["fc2.weight"] = Blank(DType::kBF16, {64, 64});
        }},
       {"layer.norm.epsilon is -1: must be finite and at least 0",
        [](LayerRequest& r) { r.layer.norm.epsilon = -1; }},
       {"layer.activation.limit is 0: must be above 0",
        [](LayerRequest& r) {
          r.layer.activation.kind = ActivationKind::kClampedSwiglu;
          r.layer.activation.limit = 0;
        }},
       {"grad_output is bf16[2x32x96]: its shape must be 2x32x64, as y's",
        [](LayerRequest& r) {
          r.grad_output = Blank(DType::kBF16, {2, 32, 96});
        }},
       {"main_grads[fc1.bias] is f32[192]: the layer has no such weight",
        [](LayerRequest& r) { r.main_grads["fc1.bias"] = Blank(DType::kF32, {192}); }},
       {"main_grads[fc2.weight] is bf16[64x96]: its dtype must be f32",
        [](LayerRequest& r) {
          r.main_grads["fc2.weight"] = Blank(DType::kBF16, {64, 96});
        }},
       {"layer.m_splits is 1 experts: they are a grouped_linear's, not a layernorm_mlp's",
        [](LayerRequest& r) { r.layer.m_splits = {64}; }},
       {"layer.operations is 1 operations: they are a chain's, not a layernorm_mlp's",
        [](LayerRequest& r) { r.layer.operations.resize(1); }}});
  ExpectRefusals(LayerNormLinearCase(NormKind::kRmsNorm), "bf16",
                 {{"parameters[beta] is bf16[64]: the layer's parameters are weight, bias, gamma",
                   [](LayerRequest& r) { r.parameters["beta"] = Blank(DType::kBF16, {64}); }}});
  ExpectRefusals(LinearCase(), "bf16",
                 {{"layer.return_norm_output is true: a linear has no norm",
                   [](LayerRequest& r) { r.layer.return_norm_output = true; }}});
}

TEST(CheckLayer, NamesTheSplitThatDoesNotFit) {
  ExpectRefusals(
      GroupedLinearCase(), "bf16",
      {{"layer.m_splits is sum 63: it must be 64, the rows of x bf16[2x32x64]",
        [](LayerRequest& r) {
          r.layer.m_splits = {31, 0, 32};
        }},
       {"layer.m_splits is sum 96 or more: it must be 64, the rows of x bf16[2x32x64]",
        [](LayerRequest& r) {
          r.layer.m_splits = {64, 0, 32};
        }},
       {"layer.m_splits[1] is -32: it must be at least 0",
        [](LayerRequest& r) {
          r.layer.m_splits = {64, -32, 32};
        }},
       {"layer.m_splits[0] is 9223372036854775807: x bf16[2x32x64] has 64 rows",
        [](LayerRequest& r) {
          r.layer.m_splits = {INT64_MAX, INT64_MAX, 2};
        }},
       {"layer.m_splits is 0 experts: a grouped_linear has from 1 to 256",
        [](LayerRequest& r) { r.layer.m_splits.clear(); }},
       {"layer.m_splits is 257 experts: a grouped_linear has from 1 to 256",
        [](LayerRequest& r) { r.layer.m_splits.resize(257); }},
       {"parameters[weight.2] is bf16[96x32]: its shape must be 96x64, as that of weight.0",
        [](LayerRequest& r) {
          r.parameters["weight.2"] = Blank(DType::kBF16, {96, 32});
        }},
       {"parameters[weight.3] is bf16[96x64]: the layer's parameters are weight.0, bias.0, "
        "weight.1, "
        "bias.1, weight.2, bias.2",
        [](LayerRequest& r) {
          r.parameters["weight.3"] = Blank(DType::kBF16, {96, 64});
        }}});
}

TEST(CheckLayer, NamesTheExpertThatIsOffTheBlocks) {
  const auto uneven = [](LayerRequest& r) { r.layer.m_splits = {40, 0, 24}; };
  ExpectRefusals(GroupedLinearCase(), "fp8_current",
                 {{"layer.m_splits[0] is bf16[40x64]: M is 40 and must be a multiple of 16 under "
                   "an FP8 recipe: "
                   "wgrad contracts over M",
                   uneven}});
  ExpectRefusals(
      GroupedLinearCase(), "mxfp8",
      {{"layer.m_splits[0] is bf16[40x64]: M is 40 and must be a multiple of 32 under mxfp8: both "
        "dims of a quantized tensor are in whole blocks",
        uneven}});
  ExpectRefusals(
      GroupedLinearCase(), "nvfp4",
      {{"layer.m_splits[2] is bf16[8x64]: M is 8 and must be a multiple of 16 under nvfp4: "
        "both dims of a quantized tensor are in whole blocks",
        [](LayerRequest& r) {
          r.layer.m_splits = {48, 0, 8};
          r.x = Blank(DType::kBF16, {56, 64});
          r.grad_output = Blank(DType::kBF16, {56, 96});
        }}});
  LayerRequest request = GroupedLinearCase();
  uneven(request);
  EXPECT_TRUE(CheckLayer(request, *Recipe::Parse("bf16")).ok());
  EXPECT_TRUE(
      CheckLayer(request, *Recipe::Parse("fp8_current:backward_override=dequantized")).ok());
}

TEST(CheckLayer, NamesDimsInsideOfTheLayerByTheWeightThatHasThem) {
  LayerRequest narrow = LayerNormMlpCase(ActivationKind::kGelu);
  const auto hidden = [](int64_t n) {
    return [=](LayerRequest& r) {
      r.parameters["fc1.weight"] = Blank(DType::kBF16, {n, 64});
      r.parameters["fc2.weight"] = Blank(DType::kBF16, {64, n});
      r.parameters.erase("fc1.bias");
    };
  };
  ExpectRefusals(
      narrow, "mxfp8",
      {{"parameters[fc1.weight] is bf16[80x64]: N is 80 and must be a multiple of 32 under "
        "mxfp8: both dims of a quantized tensor are in whole blocks",
        hidden(80)}});
  ExpectRefusals(narrow, "fp8_current:backward_override=dequantized",
                 {{"parameters[fc2.weight] is bf16[64x104]: K is 104 and must be a multiple of 16 "
                   "under an FP8 recipe: fprop contracts over K",
                   hidden(104)}});
}

TEST(CheckLayer, NamesTheOperationOfAChain) {
  ExpectRefusals(
      ResidualChainCase(), "fp8_current",
      {{"layer.operations is 0 operations: a chain has from 1 to 64",
        [](LayerRequest& r) { r.layer.operations.clear(); }},
       {"layer.operations is 65 operations: a chain has from 1 to 64",
        [](LayerRequest& r) { r.layer.operations.resize(65); }},
       {"layer.operations[2].name is \"\": it must have 1 to 64 letters, digits and _",
        [](LayerRequest& r) { r.layer.operations[2].name = ""; }},
       {"layer.operations[2].name is \"a.b\": it must have 1 to 64 letters, digits and _",
        [](LayerRequest& r) { r.layer.operations[2].name = "a.b"; }},
       {"layer.operations[4].name is up: another operation has this name",
        [](LayerRequest& r) { r.layer.operations[4].name = "up"; }},
       {"layer.operations[0].name is x: x names the layer's input",
        [](LayerRequest& r) { r.layer.operations[0].name = "x"; }},
       {"layer.operations[5].addend is \"half\": it is x or the name of an earlier operation",
        [](LayerRequest& r) { r.layer.operations[5].addend = "half"; }},
       {"layer.operations[6].factor is inf: it is finite",
        [](LayerRequest& r) {
          r.layer.operations[6].factor = std::numeric_limits<float>::infinity();
        }},
       {"layer.operations[6].factor is nan: it is finite",
        [](LayerRequest& r) {
          r.layer.operations[6].factor = std::numeric_limits<float>::quiet_NaN();
        }},
       {"layer.operations[5].addend is act.y of 2x32x96: its shape must be 2x32x64, that of down.y",
        [](LayerRequest& r) { r.layer.operations[5].addend = "act"; }},
       {"layer.operations[0].epsilon is -2: must be finite and at least 0",
        [](LayerRequest& r) { r.layer.operations[0].norm.epsilon = -2; }},
       {"parameters[up_bias.bias] is absent: a chain layer needs it",
        [](LayerRequest& r) { r.parameters.erase("up_bias.bias"); }},
       {"parameters[up_bias.bias] is bf16[64]: its shape must be 96, N of up.weight",
        [](LayerRequest& r) { r.parameters["up_bias.bias"] = Blank(DType::kBF16, {64}); }}});
}

TEST(CheckLayer, NamesAQuantizeWhoseTensorItsFormatDoesNotTake) {
  LayerRequest request;
  request.layer.kind = LayerKind::kChain;
  request.layer.operations.resize(1);
  request.layer.operations[0].kind = OperationKind::kQuantize;
  request.layer.operations[0].name = "q";
  request.x = Blank(DType::kBF16, {32, 64});
  ExpectRefusals(request, "mxfp8",
                 {{"layer.operations[0] is 32x48: source is 32x48: mxfp8 needs the last dim in "
                   "multiples of 32",
                   [](LayerRequest& r) {
                     r.x = Blank(DType::kBF16, {32, 48});
                   }}});
}

TEST(CheckLayer, NamesDelayedStates) {
  ExpectRefusals(
      LayerNormMlpCase(ActivationKind::kGelu), "fp8_delayed",
      {{"delayed_state[input] is no such state: the layer's are fc1.input, fc1.weight, "
        "fc1.grad_output, fc2.input, fc2.weight, fc2.grad_output",
        [](LayerRequest& r) { r.delayed["input"] = *FreshDelayedScaling(4); }},
       {"delayed_state[fc2.input].scale is -1: must be positive and finite", [](LayerRequest& r) {
          r.delayed["fc2.input"] = *FreshDelayedScaling(4);
          *r.delayed["fc2.input"].scale.as<float>() = -1;
        }}});
  EXPECT_EQ(std::string(CheckLayer(GroupedLinearCase(),
                                   Recipe::Parse("fp8_delayed")
                                       ->WithBackwardOverride(BackwardOverride::kDequantized))
                            .message()),
            "backward_override is dequantized: delayed scaling has no backward override");
}

TEST(CheckLayerGemms, NamesTheUnitWhoseGemmTheArithmeticDoesNotTake) {
  const auto message = [](const LayerRequest& request, const char* recipe) {
    return std::string(
        CheckGemmsOf(request, *Recipe::Parse(recipe), *Arithmetic::Parse("sm90")).message());
  };
  EXPECT_EQ(message(LayerNormMlpCase(ActivationKind::kGelu), "mxfp8").substr(0, 10), "fc1.fprop.");
  EXPECT_EQ(message(GroupedLinearCase(), "nvfp4").substr(0, 8), "fprop.0.");
  EXPECT_EQ(message(ResidualChainCase(), "hybrid:dgrad=mxfp8").substr(0, 9), "up.dgrad.");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
