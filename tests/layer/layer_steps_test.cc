// Forward and backward as steps of their own: several microbatches in flight, wgrads later, what is
// saved and its fingerprints.
#include "kernels/layer/layer_step.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/layer/layer_trainee.h"

namespace quantgate {
namespace QG_TEST_FILE {

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

}  // namespace QG_TEST_FILE
}  // namespace quantgate
