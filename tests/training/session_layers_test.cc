// Every kind of layer in a session: what one step gives is what the layers give one by one, and
// all that the session does with parameters reaches each of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/layer/layer.h"
#include "tests/training/layer_network.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

const ExecutionContext kContext;

constexpr char kPlain[] = "nvfp4:disable_stochastic_rounding=true";
constexpr char kCustom[] =
    R"(custom:rules=[{"module_type":"grouped_linear","quantizer":"mxfp8"},)"
    R"({"quantizer":{"name":"nvfp4","knobs":{"disable_stochastic_rounding":true}}}])";

constexpr char kByName[] =
    R"(custom:rules=[{"layer_name":"qkv","quantizer":"mxfp8"},)"
    R"({"module_path":"mlp.fc?","quantizer":"fp8_block"},)"
    R"({"layer_name":"m*","module_type":"linear","quantizer":"bf16"},)"
    R"({"layer_name":"moe","quantizer":"mxfp8"},)"
    R"({"quantizer":{"name":"nvfp4","knobs":{"disable_stochastic_rounding":true}}}])";

/// The recipe that a layer follows; of kCustom and kByName the one that their rules name for the
/// layer's modules.
Recipe FollowedBy(const SessionLayer& layer, const Recipe& recipe) {
  if (recipe.name() != "custom") return recipe;
  if (layer.spec.kind == LayerKind::kGroupedLinear) return *Recipe::Parse("mxfp8");
  const bool is_by_name = recipe.CanonicalText() == Recipe::Parse(kByName)->CanonicalText();
  if (is_by_name && layer.name == "qkv") return *Recipe::Parse("mxfp8");
  if (is_by_name && layer.name == "mlp") {
    return *Recipe::Parse(R"(custom:rules=[{"quantizer":"fp8_block"}])");
  }
  return *Recipe::Parse(kPlain);
}

class SessionLayers : public ::testing::TestWithParam<const char*> {
 protected:
  /// One layer by itself, forward and backward.
  LayerResult Run(const SessionLayer& layer, const Recipe& recipe, const Tensor& x,
                  const Tensor& grad_output) {
    LayerRequest request;
    request.layer = layer.spec;
    request.x = x;
    request.grad_output = grad_output;
    for (const auto& [name, tensor] : ParametersOfLayers()) {
      const std::string prefix = layer.name + ".";
      if (name.find(prefix) == 0) request.parameters[name.substr(prefix.size())] = tensor;
    }
    auto result = RunLayer(*engine_, request, FollowedBy(layer, recipe), Arithmetic{}, nullptr);
    EXPECT_TRUE(result.ok()) << layer.name << ": " << result.status();
    return result.ok() ? *std::move(result) : LayerResult{};
  }
  static Quantizer WeightQuantizer(const SessionSpec& spec, const std::string& parameter) {
    for (const SessionLayer& layer : spec.layers) {
      if (parameter.find(layer.name + ".") != 0) continue;
      return FollowedBy(layer, spec.recipe).QuantizerFor(TensorRole::kWeight);
    }
    ADD_FAILURE() << parameter;
    return {};
  }
  static Tensor Output(const LayerResult& result, const std::string& name) {
    for (const NamedTensor& output : result.outputs) {
      if (output.name == name) return output.tensor;
    }
    return Tensor();
  }

  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 2});
};

TEST_P(SessionLayers, AStepIsThatOfTheLayersOneByOne) {
  const SessionSpec spec = SpecOfLayers(GetParam());
  const auto session = OneRankSession::Open(*engine_, spec, ParametersOfLayers(), nullptr);
  ASSERT_TRUE(session.ok()) << session.status();
  ForwardStep forward;
  forward.x = Normal(50, {64, kWidth});
  BackwardStep backward;
  backward.grad_output = Normal(51, {64, kWidth});
  const auto forwarded = (*session)->Forward(forward, nullptr);
  ASSERT_TRUE(forwarded.ok()) << forwarded.status();
  const auto backwarded = (*session)->Backward(backward, nullptr);
  ASSERT_TRUE(backwarded.ok()) << backwarded.status();

  std::vector<Tensor> inputs = {forward.x};
  for (const SessionLayer& layer : spec.layers) {
    const LayerResult alone = Run(layer, spec.recipe, inputs.back(), Tensor());
    inputs.push_back(Output(alone, "y"));
    if (layer.spec.return_norm_output) {
      EXPECT_TRUE(
          SameBits(OutputOf(forwarded, layer.name + ".norm_out"), Output(alone, "norm_out")));
    }
  }
  EXPECT_TRUE(SameBits(OutputOf(forwarded, "y"), inputs.back()));
  Tensor gradient = backward.grad_output;
  size_t compared = 0;
  for (size_t i = spec.layers.size(); i-- > 0;) {
    const LayerResult alone = Run(spec.layers[i], spec.recipe, inputs[i], gradient);
    for (const NamedTensor& output : alone.outputs) {
      if (output.name == "y" || output.name == "dx" || output.name == "norm_out") continue;
      const std::string name = spec.layers[i].name + "." + output.name;
      EXPECT_TRUE(SameBits(OutputOf(backwarded, name), output.tensor)) << name;
      ++compared;
    }
    gradient = Output(alone, "dx");
  }
  EXPECT_TRUE(SameBits(OutputOf(backwarded, "dx"), gradient));
  EXPECT_EQ(compared, ParametersOfLayers().size());
  EXPECT_EQ(backwarded->outputs.size(), compared + 1);
}

TEST_P(SessionLayers, EveryParameterIsUpdatedAndEveryExpertIsFresh) {
  SessionSpec spec = SpecOfLayers(GetParam());
  if (spec.recipe.is_quantized()) spec.weights = WeightStorage::kQuantized;
  const auto opened = OneRankSession::Open(*engine_, spec, ParametersOfLayers(), nullptr);
  ASSERT_TRUE(opened.ok()) << opened.status();
  OneRankSession& session = **opened;
  for (uint64_t step = 0; step < 2; ++step) {
    ForwardStep forward;
    forward.x = Normal(60 + step, {64, kWidth});
    forward.recompute = step == 1;
    BackwardStep backward;
    backward.grad_output = Normal(70 + step, {64, kWidth});
    ASSERT_TRUE(session.Forward(forward, nullptr).ok());
    const auto done = session.Backward(backward, nullptr);
    ASSERT_TRUE(done.ok()) << done.status();
    for (const SavedOperand& saved : done->saved) EXPECT_EQ(saved.at_save, saved.at_use);
    ASSERT_TRUE(session.Optimize({}, nullptr).ok());
  }
  for (const auto& [name, given] : ParametersOfLayers()) {
    const Tensor master = *session.Find(name + ".master", nullptr);
    const bool has_rows = name != "moe.weight.1";
    EXPECT_EQ(SameBits(master, *CastTensor(given, DType::kF32, kContext)), !has_rows) << name;
    if (name.find("weight") == std::string::npos || !spec.recipe.is_quantized()) continue;
    if (spec.recipe.is_delayed()) continue;
    const QuantizedTensor fresh =
        *QuantizeCpu(master, WeightQuantizer(spec, name), {true, true}, {}, kContext);
    EXPECT_TRUE(
        SameBits(*session.Find(name + ".quantized.rowwise_data", nullptr), fresh.rowwise->data))
        << name;
    EXPECT_TRUE(SameBits(*session.Find(name + ".quantized.columnwise_data", nullptr),
                         fresh.columnwise->data))
        << name;
  }
  const auto checkpoint = session.Checkpoint(nullptr);
  ASSERT_TRUE(checkpoint.ok());
  const auto restored = OneRankSession::Restore(*engine_, spec, *checkpoint, nullptr);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(DigestsOf(**restored), DigestsOf(session));
}

INSTANTIATE_TEST_SUITE_P(Recipes, SessionLayers,
                         ::testing::Values("bf16", "fp8_current", "fp8_delayed", "fp8_block",
                                           "mxfp8", kPlain, kCustom, kByName));

TEST(SessionRules, AreJudgedForTheLayersThatItHas) {
  const auto engine = MakeCpuEngine({});
  const auto open = [&](const char* recipe) {
    return OneRankSession::Open(*engine, TwoLayerSpec(recipe), TwoLayerParameters(), nullptr);
  };
  const auto missing = open(R"(custom:rules=[{"layer_name":"fc1","quantizer":"mxfp8"}])");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(missing.status().message()),
              HasSubstr("layers[fc2].recipe is custom: no rule fits input of a linear \"fc2\""));
  const auto opened = open(R"(custom:rules=[{"layer_name":"fc1","quantizer":"mxfp8"},)"
                           R"({"layer_name":"fc2","quantizer":"fp8_current"},)"
                           R"({"layer_name":"fc3","tensor_type":"input","quantizer":"nvfp4"}])");
  ASSERT_TRUE(opened.ok()) << opened.status();
  OneRankSession& session = **opened;
  const auto result = session.Forward(ForwardOf(1), nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  for (const QuantizationRecord& record : result->quantizations) {
    const bool is_first = record.tensor.starts_with("fc1.");
    EXPECT_THAT(record.quantizer, HasSubstr(is_first ? "mxfp8" : "per tensor")) << record.tensor;
  }
  // A change of the recipe is judged in the same way, and changes nothing where it is refused.
  const absl::Status change =
      session.ChangeRecipe(*Recipe::Parse(R"(custom:rules=[{"layer_name":"fc2",)"
                                          R"("quantizer":"mxfp8"}])"));
  EXPECT_THAT(std::string(change.message()), HasSubstr("no rule fits input of a linear \"fc1\""));
  EXPECT_TRUE(session.Backward(BackwardOf(2), nullptr).ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
