// Delayed scaling in a layer: which scale each cast takes, what the histories get, when the scales
// are updated, calibration.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "kernels/layer/layer.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

const std::string kInput = "input", kWeight = "weight", kGrad = "grad_output";

LayerRequest MakeRequest() {
  LayerRequest request;
  request.x = Generated(Distribution::kNormal, 1, DType::kBF16, {32, 64});
  request.parameters["weight"] = Generated(Distribution::kNormal, 2, DType::kBF16, {48, 64});
  request.grad_output = Generated(Distribution::kNormal, 3, DType::kBF16, {32, 48});
  return request;
}

LayerResult RunStep(const LayerRequest& request, const std::string& recipe) {
  const auto engine = MakeCpuEngine({});
  auto result = RunLayer(*engine, request, *Recipe::Parse(recipe), Arithmetic{}, nullptr);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : LayerResult{};
}

float AmaxOf(const Tensor& tensor) {
  float amax = 0;
  for (const float value : ToValues(tensor)) amax = std::max(amax, std::abs(value));
  return amax;
}

std::vector<float> StateOf(const LayerResult& result, const std::string& name) {
  for (const NamedTensor& tensor : result.state) {
    if (tensor.name == name) return ToValues(tensor.tensor);
  }
  ADD_FAILURE() << name;
  return {};
}

std::map<std::string, DelayedScalingState> NextState(const LayerResult& result) {
  std::map<std::string, DelayedScalingState> states;
  for (const std::string& name : {kInput, kWeight, kGrad}) {
    for (const NamedTensor& tensor : result.state) {
      if (tensor.name == name + ".scale") states[name].scale = tensor.tensor;
      if (tensor.name == name + ".amax_history") states[name].amax_history = tensor.tensor;
    }
  }
  return states;
}

bool SameOutputs(const LayerResult& a, const LayerResult& b) {
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    if (!SameBits(a.outputs[i].tensor, b.outputs[i].tensor)) return false;
  }
  return a.outputs.size() == b.outputs.size();
}

using Floats = std::vector<float>;

TEST(LinearDelayed, AFreshStateCastsWithScaleOneAndUpdatesAtTheEnd) {
  const LayerRequest request = MakeRequest();
  const LayerResult result = RunStep(request, "fp8_delayed:amax_history_len=3");
  ASSERT_EQ(result.quantizations.size(), 3u);
  for (const QuantizationRecord& record : result.quantizations) EXPECT_EQ(record.scale, 1.0f);
  const float x = AmaxOf(request.x), w = AmaxOf(request.parameters.at("weight")),
              dy = AmaxOf(request.grad_output);
  EXPECT_EQ(StateOf(result, "input.scale"), (Floats{448.0f / x}));
  EXPECT_EQ(StateOf(result, "weight.scale"), (Floats{448.0f / w}));
  EXPECT_EQ(StateOf(result, "grad_output.scale"), (Floats{57344.0f / dy}));
  EXPECT_EQ(StateOf(result, "input.amax_history"), (Floats{0, 0, x}));
  EXPECT_EQ(StateOf(result, "grad_output.amax_history"), (Floats{0, 0, dy}));
}

TEST(LinearDelayed, TheNextStepTakesTheScalesOfTheLast) {
  LayerRequest request = MakeRequest();
  request.delayed = NextState(RunStep(request, "fp8_delayed:amax_history_len=4"));
  const LayerResult second = RunStep(request, "fp8_delayed:amax_history_len=4");
  // The same tensors again: the amaxes of the past are those of the present, as in fp8_current.
  EXPECT_TRUE(SameOutputs(second, RunStep(request, "fp8_current")));
  EXPECT_EQ(second.quantizations[0].scale, 448.0f / AmaxOf(request.x));
  const float x = AmaxOf(request.x);
  EXPECT_EQ(StateOf(second, "input.amax_history"), (Floats{0, 0, x, x}));
}

TEST(LinearDelayed, TheCallersStateIsLeftAlone) {
  LayerRequest request = MakeRequest();
  request.delayed[kInput] = *FreshDelayedScaling(1024);
  RunStep(request, "fp8_delayed");
  EXPECT_EQ(*request.delayed[kInput].scale.as<float>(), 1.0f);
  EXPECT_EQ(request.delayed[kInput].amax_history.as<float>()[1023], 0.0f);
}

TEST(LinearDelayed, AForwardPassAloneNotesTheAmaxAndUpdatesNothing) {
  LayerRequest request = MakeRequest();
  request.grad_output = Tensor();
  const LayerResult result = RunStep(request, "fp8_delayed:amax_history_len=3");
  EXPECT_EQ(StateOf(result, "input.scale"), (Floats{1}));
  EXPECT_EQ(StateOf(result, "input.amax_history"), (Floats{AmaxOf(request.x), 0, 0}));
  EXPECT_EQ(StateOf(result, "grad_output.amax_history"), (Floats{0, 0, 0}));
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_EQ(result.notes[0],
            "forward only: scales are not updated, row 0 of each history has the amax");
}

TEST(LinearDelayed, AFrozenLayerWithoutGradientsOfCodesLeavesTheGradientsState) {
  LayerRequest request = MakeRequest();
  request.parameters["bias"] = Generated(Distribution::kNormal, 4, DType::kBF16, {48});
  request.requires_grad = {false, false, true};
  const LayerResult result = RunStep(request, "fp8_delayed:amax_history_len=2");
  EXPECT_EQ(StateOf(result, "grad_output.amax_history"), (Floats{0, 0}));
  EXPECT_EQ(StateOf(result, "input.amax_history"), (Floats{0, AmaxOf(request.x)}));
}

TEST(LinearDelayed, CalibrationIsTheHighPrecisionLayerWithAmaxes) {
  LayerRequest request = MakeRequest();
  request.calibrate = true;
  request.delayed[kInput] = *FreshDelayedScaling(2);
  request.delayed[kInput].amax_history.as<float>()[0] = 1000;  // Assigned, not merged.
  const LayerResult result = RunStep(request, "fp8_delayed:amax_history_len=2");
  EXPECT_TRUE(SameOutputs(result, RunStep(request, "bf16")));
  EXPECT_TRUE(result.quantizations.empty());
  for (const auto& [name, source] : {std::pair{"input", &request.x},
                                     {"weight", &request.parameters.at("weight")},
                                     {"grad_output", &request.grad_output}}) {
    EXPECT_EQ(StateOf(result, std::string(name) + ".scale"), (Floats{1}));
    EXPECT_EQ(StateOf(result, std::string(name) + ".amax_history"), (Floats{AmaxOf(*source), 0}));
  }
  // A step that starts from it scales at its end by what was calibrated.
  request.calibrate = false;
  request.delayed = NextState(result);
  const LayerResult step = RunStep(request, "fp8_delayed:amax_history_len=2");
  EXPECT_EQ(StateOf(step, "input.scale"), (Floats{448.0f / AmaxOf(request.x)}));
}

TEST(LinearDelayed, AnotherHistoryLengthIsCutOrFilledAndSaid) {
  LayerRequest request = MakeRequest();
  request.delayed[kWeight] = *FreshDelayedScaling(5);
  const LayerResult result = RunStep(request, "fp8_delayed:amax_history_len=2");
  EXPECT_EQ(StateOf(result, "weight.amax_history").size(), 2u);
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_EQ(result.notes[0], "weight.amax_history of 5 rows cut to 2");
  EXPECT_EQ(RunStep(request, "fp8_delayed:amax_history_len=9").notes[0],
            "weight.amax_history of 5 rows filled with zeros to 9");
}

TEST(LinearDelayed, OtherRecipesHaveNoState) {
  LayerRequest request = MakeRequest();
  request.delayed[kInput] = *FreshDelayedScaling(3);
  EXPECT_TRUE(RunStep(request, "fp8_current").state.empty());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
