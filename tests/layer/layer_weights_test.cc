// Weights over several steps: quantized once for several microbatches, held quantized, and their
// main gradients.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/layer/layer_trainee.h"

namespace quantgate {
namespace QG_TEST_FILE {

TEST(Workspace, IsMadeByTheFirstMicrobatchAndReadByTheLaterOnes) {
  for (const char* recipe :
       {"fp8_current", "fp8_rowwise", "fp8_block", "mxfp8", "nvfp4", "fp8_delayed"}) {
    SCOPED_TRACE(recipe);
    const LayerRequest request = LayerNormMlpCase(ActivationKind::kSwiglu);
    const LayerResult reference = RunCase(request, recipe);
    Trainee layer(request);
    StepOptions options = OptionsOf(recipe);
    for (const Microbatch microbatch : {Microbatch::kFirst, Microbatch::kLater}) {
      options.microbatch = microbatch;
      auto forward = layer.Forward(request.x, options);
      ASSERT_TRUE(forward.ok());
      EXPECT_EQ(Quantizes(layer.records, "fc1.weight"), microbatch == Microbatch::kFirst);
      EXPECT_EQ(Quantizes(layer.records, "fc2.weight"), microbatch == Microbatch::kFirst);
      const auto backward = layer.Backward(std::move(forward->saved), request.grad_output);
      ASSERT_TRUE(backward.ok());
      ExpectSameGradients(*backward, reference);
    }
    // The weight changes: a later microbatch still has the old one, the next first has the new.
    layer.state.parameters.at("fc2.weight").value =
        Generated(Distribution::kNormal, 70, DType::kBF16, {64, 96});
    options.microbatch = Microbatch::kLater;
    EXPECT_TRUE(SameBits(layer.Forward(request.x, options)->y, OutputOf(reference, "y")));
    options.microbatch = Microbatch::kFirst;
    EXPECT_FALSE(SameBits(layer.Forward(request.x, options)->y, OutputOf(reference, "y")));
  }
}

TEST(Workspace, IsCompletedWhereADirectionIsMissing) {
  for (const char* recipe :
       {"fp8_current", "fp8_rowwise", "fp8_block", "fp8_block:w_block_dim=1", "mxfp8", "nvfp4"}) {
    SCOPED_TRACE(recipe);
    const LayerRequest request = LinearCase();
    Trainee layer(request);
    StepOptions options = OptionsOf(recipe);
    options.microbatch = Microbatch::kFirst;
    options.grad_enabled = false;
    ASSERT_TRUE(layer.Forward(request.x, options).ok());
    EXPECT_EQ(layer.state.workspaces.at("weight").quantized.usages(), (Usages{true, false}));
    options.microbatch = Microbatch::kLater;
    options.grad_enabled = true;
    auto forward = layer.Forward(request.x, options);
    ASSERT_TRUE(forward.ok());
    EXPECT_EQ(layer.state.workspaces.at("weight").quantized.usages(), (Usages{true, true}));
    const auto backward = layer.Backward(std::move(forward->saved), request.grad_output);
    ExpectSameGradients(*backward, RunCase(request, recipe));
  }
}

TEST(Workspace, OfAnotherRuleIsMadeAnew) {
  const LayerRequest request = LinearCase();
  Trainee layer(request);
  StepOptions options = OptionsOf("fp8_current");
  options.microbatch = Microbatch::kFirst;
  ASSERT_TRUE(layer.Forward(request.x, options).ok());
  options = OptionsOf("fp8_current:power_2_scales=true");
  options.microbatch = Microbatch::kLater;
  const auto forward = layer.Forward(request.x, options);
  EXPECT_TRUE(Quantizes(layer.records, "weight"));
  EXPECT_TRUE(
      SameBits(forward->y, OutputOf(RunCase(request, "fp8_current:power_2_scales=true"), "y")));
}

TEST(MainGrad, IsOverwrittenByTheFirstMicrobatchAndAddedToOtherwise) {
  for (const char* recipe : {"bf16", "fp8_current", "mxfp8:backward_override=dequantized"}) {
    LayerRequest request = LinearCase();
    const LayerResult plain = RunCase(request, recipe);
    request.main_grads["weight"] = Generated(Distribution::kNormal, 61, DType::kF32, {96, 64});
    const Tensor given = request.main_grads.at("weight");
    for (const Microbatch microbatch :
         {Microbatch::kUnset, Microbatch::kFirst, Microbatch::kLater}) {
      SCOPED_TRACE(absl::StrCat(recipe, static_cast<int>(microbatch)));
      Trainee layer(request);
      StepOptions options = OptionsOf(recipe);
      options.microbatch = microbatch;
      auto forward = layer.Forward(request.x, options);
      const auto backward = layer.Backward(std::move(forward->saved), request.grad_output);
      ASSERT_TRUE(backward.ok());
      for (const NamedTensor& gradient : backward->gradients) EXPECT_NE(gradient.name, "dw");
      const Tensor& main_grad = layer.state.main_grads.at("weight");
      if (microbatch == Microbatch::kFirst) {
        // The wgrad itself: its rounding to bf16 is the dw that is returned without main gradients.
        EXPECT_TRUE(SameBits(*CastTensor(main_grad, DType::kBF16, ExecutionContext()),
                             OutputOf(plain, "dw")));
      } else {
        EXPECT_TRUE(SameBits(main_grad, OutputOf(RunCase(request, recipe), "main_grad")));
      }
      EXPECT_FALSE(SameBits(main_grad, given));
    }
  }
}

// No rows give a gradient of zero, which the first microbatch writes and later ones add.
TEST(MainGrad, OfAnEmptyExpertIsOverwrittenToo) {
  LayerRequest request = GroupedLinearCase();
  const Tensor given = Generated(Distribution::kNormal, 62, DType::kF32, {96, 64});
  request.main_grads["weight.1"] = given;
  for (const char* recipe : {"bf16", "mxfp8", "fp8_current:backward_override=high_precision"}) {
    SCOPED_TRACE(recipe);
    for (const Microbatch microbatch :
         {Microbatch::kUnset, Microbatch::kFirst, Microbatch::kLater}) {
      Trainee layer(request);
      StepOptions options = OptionsOf(recipe);
      options.microbatch = microbatch;
      auto forward = layer.Forward(request.x, options);
      ASSERT_TRUE(forward.ok()) << forward.status();
      ASSERT_TRUE(layer.Backward(std::move(forward->saved), request.grad_output).ok());
      const Tensor& main_grad = layer.state.main_grads.at("weight.1");
      if (microbatch == Microbatch::kFirst) {
        for (const float value : ToValues(main_grad)) EXPECT_EQ(value, 0.0f);
      } else {
        EXPECT_TRUE(SameBits(main_grad, given));
      }
    }
  }
}

TEST(QuantizedParameter, GivesTheBitsOfTheWeightQuantizedInTheStep) {
  for (const char* recipe :
       {"fp8_current", "fp8_block", "mxfp8", "nvfp4", "mxfp8:backward_override=dequantized"}) {
    SCOPED_TRACE(recipe);
    const LayerRequest request = LayerNormMlpCase(ActivationKind::kRelu);
    Trainee layer(request);
    for (const char* weight : {"fc1.weight", "fc2.weight"}) {
      layer.Quantize(weight, *Recipe::Parse(recipe), {true, true});
    }
    auto forward = layer.Forward(request.x, OptionsOf(recipe));
    ASSERT_TRUE(forward.ok()) << forward.status();
    EXPECT_FALSE(Quantizes(layer.records, "fc1.weight"));
    const LayerResult reference = RunCase(request, recipe);
    EXPECT_TRUE(SameBits(forward->y, OutputOf(reference, "y")));
    const auto backward = layer.Backward(std::move(forward->saved), request.grad_output);
    ASSERT_TRUE(backward.ok());
    ExpectSameGradients(*backward, reference);
  }
}

TEST(QuantizedParameter, GetsADirectionThatItLacksWhereItsFormatAllows) {
  const LayerRequest request = LinearCase();
  for (const char* recipe : {"fp8_current", "fp8_block", "nvfp4"}) {
    SCOPED_TRACE(recipe);
    Trainee layer(request);
    layer.Quantize("weight", *Recipe::Parse(recipe), {true, false});
    auto forward = layer.Forward(request.x, OptionsOf(recipe));
    ASSERT_TRUE(forward.ok()) << forward.status();
    EXPECT_EQ(layer.state.parameters.at("weight").quantized.usages(), (Usages{true, true}));
    const auto backward = layer.Backward(std::move(forward->saved), request.grad_output);
    ExpectSameGradients(*backward, RunCase(request, recipe));
  }
  for (const char* recipe :
       {"mxfp8", "nvfp4:disable_2d_quantization=true", "fp8_block:w_block_dim=1"}) {
    Trainee layer(request);
    layer.Quantize("weight", *Recipe::Parse(recipe), {true, false});
    StepOptions options = OptionsOf(recipe);
    const absl::Status status = layer.Forward(request.x, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << recipe;
    EXPECT_TRUE(absl::StartsWith(
        status.message(), "parameters[weight] is without columnwise codes: this step reads them;"))
        << status;
    EXPECT_EQ(layer.state.parameters.at("weight").quantized.usages(), (Usages{true, false}));
    // Evaluation needs no more than it has, and loses nothing.
    options.grad_enabled = false;
    EXPECT_TRUE(layer.Forward(request.x, options).ok());
  }
}

TEST(QuantizedParameter, OfAnotherRuleIsRefused) {
  const LayerRequest request = LinearCase();
  Trainee layer(request);
  layer.Quantize("weight", *Recipe::Parse("fp8_current"), {true, true});
  for (const char* recipe : {"mxfp8", "fp8_current:power_2_scales=true"}) {
    const absl::Status status = layer.Forward(request.x, OptionsOf(recipe)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << recipe;
    EXPECT_TRUE(absl::StartsWith(status.message(), "parameters[weight] is quantized as "))
        << status;
  }
}

TEST(QuantizedParameter, IsDequantizedWhereTheStepReadsHighPrecision) {
  LayerRequest request = LinearCase();
  const Recipe recipe = *Recipe::Parse("mxfp8");
  const Quantizer quantizer = recipe.QuantizerFor(TensorRole::kWeight);
  const QuantizedTensor codes = *QuantizeCpu(request.parameters.at("weight"), quantizer,
                                             {true, false}, {}, ExecutionContext());
  LayerRequest dequantized = request;
  dequantized.parameters["weight"] =
      *DequantizeCpu(codes, Usage::kRowwise, DType::kBF16, ExecutionContext());

  Trainee plain(request);
  plain.Quantize("weight", recipe, {true, true});
  auto forward = plain.Forward(request.x, OptionsOf("bf16"));
  ASSERT_TRUE(forward.ok()) << forward.status();
  const LayerResult reference = RunCase(dequantized, "bf16");
  EXPECT_TRUE(SameBits(forward->y, OutputOf(reference, "y")));
  ExpectSameGradients(*plain.Backward(std::move(forward->saved), request.grad_output), reference);

  Trainee overridden(request);
  overridden.Quantize("weight", recipe, {true, true});
  forward = overridden.Forward(request.x, OptionsOf("mxfp8:backward_override=high_precision"));
  ASSERT_TRUE(forward.ok()) << forward.status();
  std::string saved;
  for (const SavedOperand& operand : overridden.records.saved) {
    absl::StrAppend(&saved, operand.name, "[", operand.content, "] ");
  }
  EXPECT_EQ(saved, "x[bf16 as given] weight[f8_e4m3 rowwise codes] ");
  const auto backward = overridden.Backward(std::move(forward->saved), request.grad_output);
  EXPECT_TRUE(SameBits(backward->dx, OutputOf(reference, "dx")));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
