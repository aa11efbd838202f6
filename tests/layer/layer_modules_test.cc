// Modules of a layer under rules of their own: each has the bits of a linear layer by itself under
// the recipe that its rule names, and a layer that no rule fits is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/layer_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

constexpr char kNvfp4[] =
    R"({"name":"nvfp4","knobs":{"disable_stochastic_rounding":true,"disable_rht":true}})";

std::string Quoted(const std::string& name) { return absl::StrCat("\"", name, "\""); }

/// A custom recipe of these rules.
std::string Rules(const std::vector<std::string>& rules, const std::string& mode = "none") {
  std::string list;
  for (const std::string& rule : rules) absl::StrAppend(&list, list.empty() ? "" : ",", rule);
  return absl::StrCat("custom:backward_override=", mode, ",rules=[", list, "]");
}

/// {"module_path":"fc1","quantizer":...}
std::string Rule(const std::string& key, const std::string& pattern, const std::string& quantizer) {
  return absl::StrCat("{\"", key, "\":\"", pattern, "\",\"quantizer\":", quantizer, "}");
}
std::string ForAll(const std::string& quantizer) {
  return absl::StrCat("{\"quantizer\":", quantizer, "}");
}

const Tensor& Find(const LayerResult& result, const std::string& name) {
  for (const std::vector<NamedTensor>* tensors : {&result.outputs, &result.intermediates}) {
    for (const NamedTensor& tensor : *tensors) {
      if (tensor.name == name) return tensor.tensor;
    }
  }
  static const Tensor& none = *new Tensor();
  ADD_FAILURE() << "no " << name;
  return none;
}

/// One linear of an MLP by itself, on the tensors that the MLP's own result has at its ends.
LayerResult ByItself(const LayerRequest& mlp, const LayerResult& result, const std::string& linear,
                     const std::string& quantizer, const std::string& mode) {
  const bool is_first = linear == "fc1";
  LayerRequest request;
  request.x = Find(result, is_first ? "norm_out" : "fc2.x");
  request.grad_output = is_first ? Find(result, "fc1.grad_output") : mlp.grad_output;
  request.parameters["weight"] = mlp.parameters.at(linear + ".weight");
  request.parameters["bias"] = mlp.parameters.at(linear + ".bias");
  return RunCase(request, Rules({ForAll(quantizer)}, mode));
}

TEST(LayerModules, EachLinearOfAnMlpIsThatOfItsRule) {
  const std::pair<std::string, std::string> cases[] = {
      {Quoted("mxfp8"), Quoted("fp8_block")}, {Quoted("fp8_current"), Quoted("bf16")},
      {Quoted("bf16"), Quoted("mxfp8")},      {kNvfp4, Quoted("mxfp8")},
      {Quoted("fp8_block"), kNvfp4},
  };
  for (const ActivationKind activation : {ActivationKind::kGelu, ActivationKind::kSwiglu}) {
    const LayerRequest mlp = LayerNormMlpCase(activation);
    for (const auto& [fc1, fc2] : cases) {
      for (const std::string mode : {"none", "high_precision", "dequantized"}) {
        SCOPED_TRACE(absl::StrCat(fc1, " ", fc2, " ", mode));
        const LayerResult result =
            RunCase(mlp, Rules({Rule("module_path", "fc1", fc1), ForAll(fc2)}, mode));
        const LayerResult first = ByItself(mlp, result, "fc1", fc1, mode);
        EXPECT_TRUE(SameBits(Find(result, "fc1.y"), Find(first, "y")));
        EXPECT_TRUE(SameBits(Find(result, "dnorm_out"), Find(first, "dx")));
        EXPECT_TRUE(SameBits(Find(result, "fc1.dw"), Find(first, "dw")));
        EXPECT_TRUE(SameBits(Find(result, "fc1.db"), Find(first, "db")));
        const LayerResult second = ByItself(mlp, result, "fc2", fc2, mode);
        EXPECT_TRUE(SameBits(Find(result, "y"), Find(second, "y")));
        EXPECT_TRUE(SameBits(Find(result, "fc2.dx"), Find(second, "dx")));
        EXPECT_TRUE(SameBits(Find(result, "fc2.dw"), Find(second, "dw")));
        EXPECT_TRUE(SameBits(Find(result, "fc2.db"), Find(second, "db")));
      }
    }
  }
}

// The four linears of a transformer layer, by the values on both sides of each.
TEST(LayerModules, EachLinearOfATransformerLayerIsThatOfItsRule) {
  const LayerRequest block = TransformerLayerCase(NormKind::kLayerNorm, ActivationKind::kGelu);
  const std::pair<std::string, std::string> modules[] = {{"qkv", Quoted("mxfp8")},
                                                         {"proj", Quoted("fp8_block")},
                                                         {"fc1", Quoted("bf16")},
                                                         {"fc2", kNvfp4}};
  for (const std::string mode : {"none", "high_precision", "dequantized"}) {
    std::vector<std::string> rules;
    for (const auto& [name, quantizer] : modules) {
      rules.push_back(Rule("module_path", name, quantizer));
    }
    const LayerResult result = RunCase(block, Rules(rules, mode));
    for (const auto& [name, quantizer] : modules) {
      SCOPED_TRACE(absl::StrCat(name, " ", mode));
      LayerRequest linear;
      linear.x = Find(result, name + ".x");
      linear.grad_output = Find(result, name + ".grad_output");
      linear.parameters["weight"] = block.parameters.at(name + ".weight");
      linear.parameters["bias"] = block.parameters.at(name + ".bias");
      const LayerResult alone = RunCase(linear, Rules({ForAll(quantizer)}, mode));
      for (const char* output : {"y", "dx", "dw", "db"}) {
        EXPECT_TRUE(SameBits(Find(result, absl::StrCat(name, ".", output)), Find(alone, output)))
            << output;
      }
    }
  }
}

TEST(LayerModules, ARuleForOneTensorOfOneModule) {
  const LayerRequest mlp = LayerNormMlpCase(ActivationKind::kGelu);
  const LayerResult result = RunCase(mlp, Rules({R"({"module_path":"fc2","tensor_type":"weight",)"
                                                 R"("quantizer":{"format":"mxfp8","block_dim":2}})",
                                                 ForAll(Quoted("mxfp8"))}));
  for (const QuantizationRecord& record : result.quantizations) {
    EXPECT_THAT(record.quantizer, HasSubstr(record.tensor == "fc2.weight" ? "32x32" : "1x32"))
        << record.tensor;
  }
}

TEST(LayerModules, TheNameOfTheLayerCounts) {
  LayerRequest request = LinearCase();
  const std::string recipe =
      Rules({Rule("layer_name", "decoder.*.mlp", Quoted("mxfp8")),
             Rule("module_path", "head", Quoted("fp8_block")), ForAll(Quoted("bf16"))});
  const std::pair<std::string, std::string> cases[] = {{"decoder.0.mlp", "mxfp8"},
                                                       {"decoder.11.mlp", "mxfp8"},
                                                       {"encoder.0.mlp", "bf16"},
                                                       {"head", "fp8_block"},
                                                       {"", "bf16"}};
  for (const auto& [name, same] : cases) {
    SCOPED_TRACE(name);
    request.layer.name = name;
    ExpectSameOutputs(RunCase(request, recipe), RunCase(request, Rules({ForAll(Quoted(same))})));
  }
}

// A rule of one direction quantizes as hybrid does for the GEMM that reads it.
TEST(LayerModules, ADirectionAloneIsThatOfHybrid) {
  const std::pair<std::string, std::string> cases[] = {
      {Rules({R"({"tensor_type":"grad_output","quantizer":"bf16"})", R"({"rowwise":"mxfp8"})"}),
       "hybrid:fprop=mxfp8"},
      {Rules({R"({"tensor_type":"grad_output","quantizer":"bf16"})",
              R"({"rowwise":"fp8_block","columnwise_source":"rowwise_dequantized"})"}),
       "hybrid:fprop=fp8_block,input={\"columnwise_source\":\"rowwise_dequantized\"},"
       "weight={\"columnwise_source\":\"rowwise_dequantized\"}"},
      {Rules({R"({"tensor_type":"weight","quantizer":"bf16"})", R"({"columnwise":"mxfp8"})"}),
       "hybrid:wgrad=mxfp8"},
      {Rules({R"({"tensor_type":"weight","columnwise":"mxfp8"})",
              R"({"tensor_type":"grad_output","rowwise":"mxfp8"})", ForAll(Quoted("bf16"))}),
       "hybrid:dgrad=mxfp8"},
  };
  for (const auto& [custom, hybrid] : cases) {
    SCOPED_TRACE(hybrid);
    for (const LayerRequest& request : {LinearCase(), LayerNormMlpCase(ActivationKind::kSwiglu)}) {
      ExpectSameOutputs(RunCase(request, custom), RunCase(request, hybrid));
    }
  }
}

LayerRequest QuantizedChain() {
  LayerRequest request = ResidualChainCase();
  OperationSpec quantize;
  quantize.kind = OperationKind::kQuantize;
  quantize.name = "q";
  request.layer.operations.insert(request.layer.operations.begin() + 1, quantize);
  return request;
}

// x -> norm -> q -> up: what q makes for up is quantized as up reads it, whatever fits q itself.
TEST(LayerModules, AQuantizeOperationFollowsTheLinearThatItFeeds) {
  const LayerRequest chain = QuantizedChain();
  const LayerResult all = RunCase(chain, Rules({ForAll(Quoted("mxfp8"))}));
  ExpectSameOutputs(
      RunCase(chain, Rules({Rule("module_path", "q", Quoted("bf16")), ForAll(Quoted("mxfp8"))})),
      all);
  const LayerResult up =
      RunCase(chain, Rules({Rule("module_path", "up", Quoted("mxfp8")), ForAll(Quoted("bf16"))}));
  EXPECT_TRUE(SameBits(Find(up, "up_bias.y"), Find(all, "up_bias.y")));
  EXPECT_FALSE(SameBits(Find(up, "y"), Find(all, "y")));
  for (const QuantizationRecord& record : up.quantizations) {
    EXPECT_NE(record.tensor, "down.weight");
  }
}

TEST(LayerModules, RefusalsNameTheModuleAndTheRole) {
  LayerRequest request = LayerNormMlpCase(ActivationKind::kGelu);
  request.layer.name = "block.3";
  const auto message = [&](const std::string& recipe) {
    const absl::Status status = CheckLayer(request, *Recipe::Parse(recipe));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(Rules({Rule("module_path", "*.fc1", Quoted("mxfp8"))})),
              HasSubstr("custom: no rule fits input of a linear \"block.3.fc2\"; end with one that "
                        "fits everything, such as {\"quantizer\": \"bf16\"}"));
  EXPECT_THAT(
      message(Rules({R"({"module_path":"*.fc1","tensor_type":"weight","quantizer":"bf16"})",
                     ForAll(Quoted("mxfp8"))})),
      HasSubstr("custom: linear \"block.3.fc1\": fprop reads input rowwise (mxfp8) and weight "
                "rowwise (not quantized)"));
  // Only what is present is judged.
  request.layer.name = "head";
  EXPECT_TRUE(CheckLayer(request, *Recipe::Parse(Rules(
                                      {R"({"layer_name":"block.*","tensor_type":"weight",)"
                                       R"("quantizer":"nvfp4"})",
                                       Rule("module_type", "grouped_linear", Quoted("fp8_block")),
                                       Rule("module_path", "head.fc?", Quoted("mxfp8"))})))
                  .ok());
  request.layer.name = "a b";
  EXPECT_THAT(message("bf16"), HasSubstr("layer.name is \"a b\""));
}

std::vector<std::string> Notes(const std::vector<LayerSpec>& layers, const std::string& recipe) {
  std::vector<const LayerSpec*> pointers;
  for (const LayerSpec& layer : layers) pointers.push_back(&layer);
  return NotesOfRules(pointers, *Recipe::Parse(recipe), layers.size() == 1 ? "layer" : "session");
}

TEST(LayerModules, RulesThatDecideNothingAreNamed) {
  using ::testing::ElementsAre;
  using ::testing::IsEmpty;
  const LayerSpec mlp = LayerNormMlpCase(ActivationKind::kGelu).layer;
  const std::string by_path = Rules({Rule("module_path", "fc1", Quoted("mxfp8")),
                                     Rule("module_path", "fc2", Quoted("mxfp8")),
                                     Rule("module_path", "fc3", Quoted("mxfp8"))});
  EXPECT_THAT(Notes({mlp}, by_path), ElementsAre(HasSubstr("fits no module of the layer")));
  // Of a session the rule is another layer's.
  LayerSpec first = mlp, second = mlp;
  first.name = "a";
  second.name = "b";
  const std::string by_layer =
      Rules({Rule("layer_name", "b", Quoted("mxfp8")),
             Rule("module_type", "grouped_linear", Quoted("bf16")), ForAll(Quoted("bf16"))});
  EXPECT_THAT(Notes({first, second}, by_layer),
              ElementsAre(HasSubstr("rules[1] of the recipe, "
                                    "{\"module_type\":\"grouped_linear\",\"quantizer\":\"bf16\"}, "
                                    "fits no module of the session")));
  EXPECT_THAT(Notes({GroupedLinearCase().layer}, by_layer),
              ElementsAre(HasSubstr("rules[0]"), HasSubstr("rules[2]")));
  EXPECT_THAT(Notes({mlp}, "mxfp8"), IsEmpty());
}

// A quantize operation follows the rules of the linear that reads what it makes, and its own where
// none does.
TEST(LayerModules, OnlyAQuantizeOperationThatNoLinearReadsHasRules) {
  LayerRequest chain = ResidualChainCase();
  OperationSpec quantize;
  quantize.kind = OperationKind::kQuantize;
  quantize.name = "q";
  quantize.quantize_backward = false;
  const std::string recipe =
      Rules({Rule("module_path", "q", Quoted("mxfp8")), ForAll(Quoted("bf16"))});
  auto& operations = chain.layer.operations;
  operations.insert(operations.begin() + 1, quantize);
  EXPECT_THAT(Notes({chain.layer}, recipe),
              ::testing::ElementsAre(HasSubstr("fits no module of the layer")));
  operations.erase(operations.begin() + 1);
  operations.push_back(quantize);
  EXPECT_THAT(Notes({chain.layer}, recipe), ::testing::IsEmpty());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
