// Delayed scaling within hybrid and custom recipes, by direction: the bits and states of
// fp8_delayed where every direction has it, of the other recipes' GEMMs where only some have, and
// states by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/layer_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;
using Floats = std::vector<float>;
using States = std::map<std::string, DelayedScalingState>;

constexpr char kDelayed[] = R"({"name":"fp8_delayed","knobs":{"amax_history_len":3}})";

std::string Hybrid(const std::string& fprop, const std::string& dgrad, const std::string& wgrad) {
  return absl::StrCat("hybrid:fprop=", fprop, ",dgrad=", dgrad, ",wgrad=", wgrad);
}

float AmaxOf(const Tensor& tensor) {
  float amax = 0;
  for (const float value : ToValues(tensor)) amax = std::max(amax, std::abs(value));
  return amax;
}

States NextStates(const LayerResult& result) {
  States states;
  for (const NamedTensor& tensor : result.state) {
    const size_t dot = tensor.name.rfind('.');
    DelayedScalingState& state = states[tensor.name.substr(0, dot)];
    (tensor.name.substr(dot) == ".scale" ? state.scale : state.amax_history) = tensor.tensor;
  }
  return states;
}

std::vector<std::string> NamesOf(const States& states) {
  std::vector<std::string> names;
  for (const auto& [name, state] : states) names.push_back(name);
  return names;
}

Floats HistoryOf(const States& states, const std::string& name) {
  return ToValues(states.at(name).amax_history);
}
float ScaleOf(const States& states, const std::string& name) {
  return *states.at(name).scale.as<float>();
}

void ExpectSameStates(const States& subject, const States& reference) {
  ASSERT_EQ(NamesOf(subject), NamesOf(reference));
  for (const auto& [name, state] : reference) {
    EXPECT_TRUE(SameBits(subject.at(name).scale, state.scale)) << name;
    EXPECT_TRUE(SameBits(subject.at(name).amax_history, state.amax_history)) << name;
  }
}

/// A linear whose operands change from step to step, so that scales of the past matter.
LayerRequest StepOf(uint64_t step) {
  LayerRequest request = LinearCase();
  request.x = Generated(Distribution::kLogNormalOutliers, 100 + step, DType::kBF16, {2, 32, 64});
  request.grad_output =
      Generated(Distribution::kLogNormalOutliers, 200 + step, DType::kBF16, {2, 32, 96});
  return request;
}

TEST(NestedDelayed, EveryDirectionOfAHybridIsFp8Delayed) {
  const std::string custom = absl::StrCat("custom:rules=[{\"quantizer\":", kDelayed, "}]");
  for (const std::string& nested : {Hybrid(kDelayed, kDelayed, kDelayed), custom}) {
    SCOPED_TRACE(nested);
    States subject, reference;
    for (uint64_t step = 0; step < 4; ++step) {
      LayerRequest request = StepOf(step);
      request.delayed = subject;
      const LayerResult result = RunCase(request, nested);
      request.delayed = reference;
      const LayerResult plain = RunCase(request, "fp8_delayed:amax_history_len=3");
      ExpectSameOutputs(result, plain);
      subject = NextStates(result);
      reference = NextStates(plain);
      ExpectSameStates(subject, reference);
    }
  }
}

// Between operations nothing is handed on unrounded but under fp8_delayed itself, so an MLP of
// separate operations is the one to compare with.
TEST(NestedDelayed, AnMlpIsTheOneOfUnfusedOperations) {
  LayerRequest mlp = LayerNormMlpCase(ActivationKind::kGelu);
  const LayerResult fused = RunCase(mlp, "fp8_delayed:amax_history_len=3");
  const LayerResult nested = RunCase(mlp, Hybrid(kDelayed, kDelayed, kDelayed));
  EXPECT_FALSE(SameBits(OutputOf(nested, "y"), OutputOf(fused, "y")));
  mlp.layer.fused = false;
  const LayerResult unfused = RunCase(mlp, "fp8_delayed:amax_history_len=3");
  ExpectSameOutputs(RunCase(mlp, Hybrid(kDelayed, kDelayed, kDelayed)), unfused);
  ExpectSameStates(NextStates(RunCase(mlp, Hybrid(kDelayed, kDelayed, kDelayed))),
                   NextStates(unfused));
}

TEST(NestedDelayed, OneGemmIsThatOfFp8DelayedAndTheOthersAreTheirRecipes) {
  States states;
  for (uint64_t step = 0; step < 3; ++step) {
    LayerRequest request = StepOf(step);
    // The states of fprop's operands from earlier steps; grad_output of fp8_delayed is fresh.
    request.delayed = states;
    const LayerResult delayed = RunCase(request, "fp8_delayed:amax_history_len=3");
    const LayerResult result = RunCase(request, Hybrid(kDelayed, "fp8_current", "mxfp8"));
    EXPECT_TRUE(SameBits(OutputOf(result, "y"), OutputOf(delayed, "y")));
    request.delayed.clear();
    EXPECT_TRUE(SameBits(OutputOf(result, "dx"), OutputOf(RunCase(request, "fp8_current"), "dx")));
    EXPECT_TRUE(SameBits(OutputOf(result, "dw"), OutputOf(RunCase(request, "mxfp8"), "dw")));
    states = NextStates(result);
    EXPECT_THAT(NamesOf(states), ::testing::ElementsAre("input", "weight"));
    const States others = NextStates(delayed);
    for (const char* name : {"input", "weight"}) {
      EXPECT_TRUE(SameBits(states.at(name).scale, others.at(name).scale)) << name;
    }
  }
}

// dgrad alone: the weight's columnwise codes and grad_output's rowwise ones have scales of their
// own, E4M3 and E5M2.
TEST(NestedDelayed, AColumnwiseDirectionHasAStateOfItsOwn) {
  const std::string recipe = Hybrid("fp8_current", kDelayed, "fp8_current");
  const LayerRequest request = StepOf(1);
  const float w = AmaxOf(request.parameters.at("weight")), dy = AmaxOf(request.grad_output);
  const LayerResult first = RunCase(request, recipe);
  States states = NextStates(first);
  ASSERT_THAT(NamesOf(states), ::testing::ElementsAre("grad_output", "weight_columnwise"));
  EXPECT_EQ(HistoryOf(states, "weight_columnwise"), (Floats{0, 0, w}));
  EXPECT_EQ(HistoryOf(states, "grad_output"), (Floats{0, 0, dy}));
  EXPECT_EQ(ScaleOf(states, "weight_columnwise"), 448.0f / w);
  EXPECT_EQ(ScaleOf(states, "grad_output"), 57344.0f / dy);
  const LayerResult current = RunCase(request, "fp8_current");
  EXPECT_TRUE(SameBits(OutputOf(first, "y"), OutputOf(current, "y")));
  EXPECT_TRUE(SameBits(OutputOf(first, "dw"), OutputOf(current, "dw")));
  // The first step casts with scale 1, as fp8_delayed does; the second by the amaxes of the same
  // tensors, as fp8_current does.
  EXPECT_TRUE(SameBits(OutputOf(first, "dx"), OutputOf(RunCase(request, "fp8_delayed"), "dx")));
  LayerRequest again = request;
  again.delayed = states;
  EXPECT_TRUE(SameBits(OutputOf(RunCase(again, recipe), "dx"), OutputOf(current, "dx")));
  for (const QuantizationRecord& record : first.quantizations) {
    if (record.tensor != "weight") continue;
    EXPECT_THAT(record.quantizer, HasSubstr("columnwise f8_e4m3 per tensor, scale delayed"));
  }
}

TEST(NestedDelayed, CalibrationNotesTheAmaxesOfItsDirections) {
  LayerRequest request = StepOf(2);
  request.calibrate = true;
  const LayerResult result = RunCase(request, Hybrid("mxfp8", kDelayed, "fp8_block"));
  ExpectSameOutputs(result, RunCase(StepOf(2), "bf16"));
  const States states = NextStates(result);
  ASSERT_THAT(NamesOf(states), ::testing::ElementsAre("grad_output", "weight_columnwise"));
  EXPECT_EQ(HistoryOf(states, "weight_columnwise"),
            (Floats{AmaxOf(request.parameters.at("weight")), 0, 0}));
  EXPECT_EQ(HistoryOf(states, "grad_output"), (Floats{AmaxOf(request.grad_output), 0, 0}));
  EXPECT_EQ(ScaleOf(states, "grad_output"), 1.0f);
}

// The columnwise codes are made from the values of rowwise ones, which are cast, under their scale,
// also where no GEMM reads them.
TEST(NestedDelayed, ARowwiseCastThatOnlyColumnwiseCodesNeedIsNoted) {
  const std::string recipe = absl::StrCat(Hybrid("fp8_current", kDelayed, "mxfp8"),
                                          ",columnwise_source=rowwise_dequantized");
  LayerRequest request = StepOf(3);
  request.requires_grad = {.x = false, .weight = true, .bias = true};
  const LayerResult result = RunCase(request, recipe);
  const float dy = AmaxOf(request.grad_output);
  EXPECT_EQ(HistoryOf(NextStates(result), "grad_output"), (Floats{0, 0, dy}));
  EXPECT_EQ(ScaleOf(NextStates(result), "grad_output"), 57344.0f / dy);
  // dw is that of a step whose dgrad reads them too.
  request.requires_grad.x = true;
  EXPECT_TRUE(SameBits(OutputOf(result, "dw"), OutputOf(RunCase(request, recipe), "dw")));
}

TEST(NestedDelayed, ModulesByName) {
  LayerRequest mlp = LayerNormMlpCase(ActivationKind::kGelu);
  const std::string recipe =
      absl::StrCat("custom:rules=[{\"module_path\":\"fc2\",\"quantizer\":", kDelayed,
                   "},{\"quantizer\":\"mxfp8\"}]");
  const States states = NextStates(RunCase(mlp, recipe));
  EXPECT_THAT(NamesOf(states),
              ::testing::ElementsAre("fc2.grad_output", "fc2.input", "fc2.weight"));
  EXPECT_EQ(ScaleOf(states, "fc2.weight"), 448.0f / AmaxOf(mlp.parameters.at("fc2.weight")));
  mlp.delayed["fc1.input"] = *FreshDelayedScaling(3);
  const absl::Status status = CheckLayer(mlp, *Recipe::Parse(recipe));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("delayed_state[fc1.input] is no such state: the layer's are fc2.input, "
                        "fc2.weight, fc2.grad_output"));
}

// A quantize operation's state is its own, of the rule of the linear that reads what it makes.
TEST(NestedDelayed, AQuantizeOperationKeepsTheStateOfWhatItMakes) {
  LayerRequest chain = ResidualChainCase();
  OperationSpec quantize;
  quantize.kind = OperationKind::kQuantize;
  quantize.name = "q";
  chain.layer.operations.insert(chain.layer.operations.begin() + 1, quantize);
  const std::string recipe = absl::StrCat(
      "custom:rules=[{\"module_path\":\"up\",\"tensor_type\":\"input\",\"quantizer\":", kDelayed,
      "},{\"module_path\":\"up\",\"quantizer\":\"fp8_current\"},{\"quantizer\":\"bf16\"}]");
  const LayerResult result = RunCase(chain, recipe);
  const States states = NextStates(result);
  ASSERT_THAT(NamesOf(states), ::testing::ElementsAre("q.input", "up.input"));
  EXPECT_NE(HistoryOf(states, "q.input")[2], 0);
  EXPECT_EQ(HistoryOf(states, "up.input"), (Floats{0, 0, 0}));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
