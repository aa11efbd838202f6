// Forward and backward as steps of their own: several microbatches in flight, wgrads later, cached
// and quantized weights, what is saved and its fingerprints.
#include "kernels/layer/layer_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/layer_cases.h"

namespace quantgate {
namespace {

const char* const kClasses[] = {"bf16",
                                "fp8_current",
                                "fp8_delayed",
                                "fp8_block",
                                "mxfp8",
                                "nvfp4",
                                "fp8_current:backward_override=high_precision",
                                "mxfp8:backward_override=dequantized",
                                "nvfp4:backward_override=high_precision",
                                "hybrid:fprop=mxfp8",
                                "hybrid:fprop=mxfp8,columnwise_source=rowwise_dequantized"};

/// A layer in training: its state, and steps whose records are kept.
class Trainee {
 public:
  explicit Trainee(const LayerRequest& request) : spec_(request.layer) {
    for (const auto& [name, tensor] : request.parameters) state.parameters[name].value = tensor;
    state.main_grads = request.main_grads;
    state.delayed = request.delayed;
  }

  absl::StatusOr<ForwardResult> Forward(const Tensor& x, const StepOptions& options) {
    StepRecorder recorder(*engine_, Arithmetic{}, nullptr);
    auto result = ForwardLayer(recorder, spec_, state, x, options);
    records = *recorder.Finish();
    return result;
  }
  absl::StatusOr<BackwardResult> Backward(std::unique_ptr<LayerSaved> saved, const Tensor& dy) {
    StepRecorder recorder(*engine_, Arithmetic{}, nullptr);
    auto result = BackwardLayer(recorder, spec_, state, std::move(saved), dy);
    records = *recorder.Finish();
    return result;
  }
  absl::StatusOr<std::vector<NamedTensor>> Wgrad(std::unique_ptr<LayerSaved> deferred) {
    StepRecorder recorder(*engine_, Arithmetic{}, nullptr);
    auto result = BackwardWgrad(recorder, spec_, state, std::move(deferred));
    records = *recorder.Finish();
    return result;
  }
  void Update(const Recipe& recipe, UpdatePoint point) {
    StepRecorder recorder(*engine_, Arithmetic{}, nullptr);
    EXPECT_TRUE(UpdateScales(recorder, spec_, state, recipe, point).ok());
  }
  /// Holds a weight quantized by the recipe's quantizer.
  void Quantize(const std::string& weight, const Recipe& recipe, Usages usages) {
    Parameter& parameter = state.parameters.at(weight);
    parameter.quantizer = recipe.QuantizerFor(TensorRole::kWeight);
    parameter.quantized =
        *engine_->Quantize(parameter.value, parameter.quantizer, usages, {}, nullptr);
    parameter.value = Tensor();
  }

  LayerState state;
  StepRecords records;  ///< Of the last step.

 private:
  const std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
  const LayerSpec spec_;
};

StepOptions OptionsOf(const std::string& recipe) {
  return {.recipe = *Recipe::Parse(recipe), .seed = 7};
}

const Tensor& Named(const std::vector<NamedTensor>& tensors, const std::string& name) {
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == name) return tensor.tensor;
  }
  static const Tensor kAbsent;
  ADD_FAILURE() << "no " << name;
  return kAbsent;
}

void ExpectSameGradients(const BackwardResult& subject, const LayerResult& reference) {
  EXPECT_TRUE(SameBits(subject.dx, OutputOf(reference, "dx")));
  for (const NamedTensor& gradient : subject.gradients) {
    EXPECT_TRUE(SameBits(gradient.tensor, OutputOf(reference, gradient.name))) << gradient.name;
  }
}

bool Quantizes(const StepRecords& records, const std::string& tensor) {
  return std::any_of(records.quantizations.begin(), records.quantizations.end(),
                     [&](const QuantizationRecord& record) { return record.tensor == tensor; });
}

/// Bytes of its own.
Tensor Copy(const Tensor& tensor) {
  return *Tensor::FromBytes(tensor.dtype(), tensor.shape(), tensor.bytes());
}

TEST(LayerSteps, AreTheRunOfOneRequest) {
  for (const NamedCase& one : AllLayerCases()) {
    for (const char* recipe : kClasses) {
      SCOPED_TRACE(absl::StrCat(one.name, " ", recipe));
      const LayerResult reference = RunCase(one.request, recipe);
      Trainee layer(one.request);
      auto forward = layer.Forward(one.request.x, OptionsOf(recipe));
      ASSERT_TRUE(forward.ok()) << forward.status();
      EXPECT_TRUE(SameBits(forward->y, OutputOf(reference, "y")));
      auto backward = layer.Backward(std::move(forward->saved), one.request.grad_output);
      ASSERT_TRUE(backward.ok()) << backward.status();
      EXPECT_EQ(backward->gradients.size() + 2, reference.outputs.size());
      ExpectSameGradients(*backward, reference);
    }
  }
}

TEST(LayerSteps, SeveralMicrobatchesInFlightDoNotMeet) {
  for (const NamedCase& one : AllLayerCases()) {
    LayerRequest other = one.request;
    other.x = Generated(Distribution::kLogNormalOutliers, 50, DType::kBF16, one.request.x.shape());
    other.grad_output =
        Generated(Distribution::kNormal, 51, DType::kBF16, one.request.grad_output.shape());
    for (const char* recipe : kClasses) {
      SCOPED_TRACE(absl::StrCat(one.name, " ", recipe));
      Trainee layer(one.request);
      auto first = layer.Forward(one.request.x, OptionsOf(recipe));
      auto second = layer.Forward(other.x, OptionsOf(recipe));
      ASSERT_TRUE(first.ok() && second.ok());
      const auto first_back = layer.Backward(std::move(first->saved), one.request.grad_output);
      const auto second_back = layer.Backward(std::move(second->saved), other.grad_output);
      ASSERT_TRUE(first_back.ok() && second_back.ok());
      ExpectSameGradients(*first_back, RunCase(one.request, recipe));
      ExpectSameGradients(*second_back, RunCase(other, recipe));
    }
  }
}

TEST(LayerSteps, BackwardFollowsTheRecipeOfItsForward) {
  const LayerRequest request = LayerNormMlpCase(ActivationKind::kGelu);
  Trainee layer(request);
  StepOptions options = OptionsOf("fp8_current");
  auto forward = layer.Forward(request.x, options);
  ASSERT_TRUE(forward.ok());
  options.recipe = *Recipe::Parse("mxfp8:backward_override=dequantized");
  EXPECT_EQ(forward->saved->options().recipe.name(), "fp8_current");
  const auto backward = layer.Backward(std::move(forward->saved), request.grad_output);
  ASSERT_TRUE(backward.ok());
  ExpectSameGradients(*backward, RunCase(request, "fp8_current"));
}

TEST(LayerSteps, WithoutGradientsNothingIsSavedAndTheOutputIsTheSame) {
  for (const NamedCase& one : AllLayerCases()) {
    for (const char* recipe : kClasses) {
      Trainee layer(one.request);
      StepOptions options = OptionsOf(recipe);
      options.grad_enabled = false;
      const auto forward = layer.Forward(one.request.x, options);
      ASSERT_TRUE(forward.ok());
      EXPECT_EQ(forward->saved, nullptr);
      EXPECT_TRUE(layer.records.saved.empty());
      EXPECT_TRUE(SameBits(forward->y, OutputOf(RunCase(one.request, recipe), "y")));
    }
  }
}

TEST(DeferredWgrad, HasTheBitsOfTheOneAtOnce) {
  for (const NamedCase& one : AllLayerCases()) {
    for (const char* recipe : kClasses) {
      SCOPED_TRACE(absl::StrCat(one.name, " ", recipe));
      const LayerResult reference = RunCase(one.request, recipe);
      Trainee layer(one.request);
      StepOptions options = OptionsOf(recipe);
      options.defer_wgrad = true;
      auto forward = layer.Forward(one.request.x, options);
      auto backward = layer.Backward(std::move(forward->saved), one.request.grad_output);
      ASSERT_TRUE(backward.ok()) << backward.status();
      ExpectSameGradients(*backward, reference);
      for (const NamedTensor& gradient : backward->gradients) {
        EXPECT_EQ(gradient.name.find("dw"), std::string::npos) << gradient.name;
      }
      ASSERT_NE(backward->deferred, nullptr);
      EXPECT_GT(backward->deferred->bytes(), 0);
      // Another step in between changes nothing.
      ASSERT_TRUE(layer
                      .Forward(one.request.grad_output.shape() == one.request.x.shape()
                                   ? one.request.grad_output
                                   : one.request.x,
                               options)
                      .ok());
      const auto wgrads = layer.Wgrad(std::move(backward->deferred));
      ASSERT_TRUE(wgrads.ok()) << wgrads.status();
      EXPECT_EQ(wgrads->size() + backward->gradients.size() + 2, reference.outputs.size());
      for (const NamedTensor& gradient : *wgrads) {
        EXPECT_TRUE(SameBits(gradient.tensor, OutputOf(reference, gradient.name)));
      }
      for (const SavedOperand& saved : layer.records.saved) {
        EXPECT_EQ(saved.at_save, saved.at_use) << saved.name;
        EXPECT_NE(saved.at_save, Fingerprint()) << saved.name;
      }
    }
  }
}

TEST(DeferredWgrad, KeepsWhatItsGemmReadsAndNoMore) {
  const LayerRequest request = LinearCase();
  const auto names_of = [&](const char* recipe) {
    Trainee layer(request);
    StepOptions options = OptionsOf(recipe);
    options.defer_wgrad = true;
    auto forward = layer.Forward(request.x, options);
    auto backward = layer.Backward(std::move(forward->saved), request.grad_output);
    std::string names;
    for (const SavedPart& part : backward->deferred->parts())
      absl::StrAppend(&names, part.name, " ");
    return names;
  };
  EXPECT_EQ(names_of("mxfp8"),
            "x.columnwise_data x.columnwise_scale_inv grad_output.columnwise_data "
            "grad_output.columnwise_scale_inv ");
  EXPECT_EQ(names_of("mxfp8:backward_override=dequantized"),
            "x.rowwise_data x.rowwise_scale_inv grad_output.original ");
  EXPECT_EQ(names_of("hybrid:dgrad=mxfp8"), "x.original grad_output.original ");
}

TEST(DeferredWgrad, GoesToTheMainGradient) {
  LayerRequest request = LinearCase();
  request.main_grads["weight"] = Generated(Distribution::kNormal, 60, DType::kF32, {96, 64});
  Trainee layer(request);
  StepOptions options = OptionsOf("fp8_current");
  options.defer_wgrad = true;
  auto forward = layer.Forward(request.x, options);
  auto backward = layer.Backward(std::move(forward->saved), request.grad_output);
  EXPECT_TRUE(SameBits(layer.state.main_grads.at("weight"), request.main_grads.at("weight")));
  const auto wgrads = layer.Wgrad(std::move(backward->deferred));
  ASSERT_TRUE(wgrads.ok());
  EXPECT_TRUE(wgrads->empty());
  EXPECT_TRUE(SameBits(layer.state.main_grads.at("weight"),
                       OutputOf(RunCase(request, "fp8_current"), "main_grad")));
}

TEST(WrongOrder, IsRefused) {
  const LayerRequest request = LinearCase();
  Trainee layer(request);
  StepOptions options = OptionsOf("bf16");
  options.defer_wgrad = true;
  auto forward = layer.Forward(request.x, options);
  auto backward = layer.Backward(forward->saved->Clone(), request.grad_output);
  EXPECT_EQ(layer.Wgrad(std::move(forward->saved)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(layer.Backward(std::move(backward->deferred), request.grad_output).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(layer.Backward(nullptr, request.grad_output).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(SavedParts, HoldEverythingThatBackwardReads) {
  for (const NamedCase& one : AllLayerCases()) {
    for (const char* recipe : kClasses) {
      SCOPED_TRACE(absl::StrCat(one.name, " ", recipe));
      Trainee layer(one.request);
      auto forward = layer.Forward(one.request.x, OptionsOf(recipe));
      ASSERT_TRUE(forward.ok());
      int64_t bytes = 0;
      std::vector<std::string> names;
      for (const SavedPart& part : forward->saved->parts()) {
        bytes += part.tensor->byte_size();
        names.push_back(part.name);
        *part.tensor = Copy(*part.tensor);
      }
      EXPECT_EQ(forward->saved->bytes(), bytes);
      std::sort(names.begin(), names.end());
      EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
      const auto backward = layer.Backward(std::move(forward->saved), one.request.grad_output);
      ASSERT_TRUE(backward.ok());
      ExpectSameGradients(*backward, RunCase(one.request, recipe));
      for (const SavedOperand& saved : layer.records.saved) {
        EXPECT_EQ(saved.at_save, saved.at_use) << saved.name;
        EXPECT_NE(saved.at_save, Fingerprint()) << saved.name;
      }
    }
  }
}

// The amax of other formats than nvfp4 is a record, which nothing reads.
bool IsFingerprinted(const SavedPart& part, const std::string& recipe) {
  if (part.tensor->byte_size() == 0) return false;
  return part.name.find(".amax_") == std::string::npos || recipe.substr(0, 5) == "nvfp4";
}

TEST(SavedParts, AWriteToAnyOfThemShows) {
  for (const NamedCase& one : AllLayerCases()) {
    for (const std::string recipe : kClasses) {
      Trainee layer(one.request);
      const auto forward = layer.Forward(one.request.x, OptionsOf(recipe));
      ASSERT_TRUE(forward.ok());
      const size_t count = forward->saved->parts().size();
      for (size_t i = 0; i < count; ++i) {
        std::unique_ptr<LayerSaved> saved = forward->saved->Clone();
        const SavedPart part = saved->parts()[i];
        SCOPED_TRACE(absl::StrCat(one.name, " ", recipe, " ", part.name));
        if (!IsFingerprinted(part, recipe)) continue;
        *part.tensor = Copy(*part.tensor);
        part.tensor->data()[0] ^= std::byte{1};
        ASSERT_TRUE(layer.Backward(std::move(saved), one.request.grad_output).ok());
        size_t differing = 0;
        for (const SavedOperand& operand : layer.records.saved) {
          if (operand.at_save == operand.at_use) continue;
          ++differing;
          EXPECT_EQ(part.name.substr(0, operand.name.size()), operand.name);
        }
        EXPECT_EQ(differing, 1u);
      }
    }
  }
}

TEST(Workspace, IsMadeByTheFirstMicrobatchAndReadByTheLaterOnes) {
  for (const char* recipe : {"fp8_current", "fp8_block", "mxfp8", "nvfp4", "fp8_delayed"}) {
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
       {"fp8_current", "fp8_block", "fp8_block:w_block_dim=1", "mxfp8", "nvfp4"}) {
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
    EXPECT_EQ(status.message().substr(0, 63),
              "parameters[weight]: no columnwise codes, which this step reads;")
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
    EXPECT_EQ(status.message().substr(0, 33), "parameters[weight]: quantized as ") << status;
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

TEST(UpdateScalesStep, IsOfTheWholeLayerWhenTheCallerSays) {
  const LayerRequest request = LayerNormMlpCase(ActivationKind::kGelu);
  const std::string recipe = "fp8_delayed:amax_history_len=4";
  Trainee layer(request);
  const StepOptions options = OptionsOf(recipe);
  auto forward = layer.Forward(request.x, options);
  ASSERT_TRUE(forward.ok());
  EXPECT_EQ(ToValues(layer.state.delayed.at("fc1.input").scale)[0], 1.0f);
  layer.Update(options.recipe, UpdatePoint::kForward);
  ASSERT_TRUE(layer.Backward(std::move(forward->saved), request.grad_output).ok());
  EXPECT_EQ(ToValues(layer.state.delayed.at("fc2.grad_output").scale)[0], 1.0f);
  layer.Update(options.recipe, UpdatePoint::kBackward);
  const LayerResult reference = RunCase(request, recipe);
  EXPECT_EQ(layer.state.delayed.size() * 2, reference.state.size());
  for (const auto& [name, state] : layer.state.delayed) {
    EXPECT_TRUE(SameBits(state.scale, Named(reference.state, name + ".scale"))) << name;
    EXPECT_TRUE(SameBits(state.amax_history, Named(reference.state, name + ".amax_history")));
    EXPECT_NE(ToValues(state.scale)[0], 1.0f) << name;
  }
  layer.Update(*Recipe::Parse("fp8_current"), UpdatePoint::kForward);  // Nothing.
}

TEST(CallIds, AreThreePerLinearUnit) {
  EXPECT_EQ(CallIdsOf(LinearCase().layer), 3u);
  EXPECT_EQ(CallIdsOf(LayerNormLinearCase(NormKind::kRmsNorm).layer), 3u);
  EXPECT_EQ(CallIdsOf(LayerNormMlpCase(ActivationKind::kGelu).layer), 6u);
  EXPECT_EQ(CallIdsOf(GroupedLinearCase().layer), 9u);
  EXPECT_EQ(CallIdsOf(ResidualChainCase().layer), 6u);
}

TEST(CallIds, OfAStepMoveWhatIsRoundedStochasticallyAndNothingElse) {
  const LayerRequest request = LayerNormMlpCase(ActivationKind::kGelu);
  StepOptions options = OptionsOf("nvfp4");
  std::vector<Tensor> ys, dxs;
  for (const uint32_t first : {0u, 6u, 0u}) {
    Trainee layer(request);
    options.first_call_id = first;
    auto forward = layer.Forward(request.x, options);
    ys.push_back(forward->y);
    dxs.push_back(layer.Backward(std::move(forward->saved), request.grad_output)->dx);
  }
  EXPECT_TRUE(SameBits(ys[0], ys[1]));
  EXPECT_FALSE(SameBits(dxs[0], dxs[1]));
  EXPECT_TRUE(SameBits(dxs[0], dxs[2]));
}

}  // namespace
}  // namespace quantgate
