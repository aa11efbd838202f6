// The options that say what a layer computes, as the RunSpec that they make.
#include "client/cli/options/layer_arguments.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <fstream>

#include "client/cli/options/run_spec.h"
#include "google/protobuf/text_format.h"
#include "tests/client/process.h"
#include "tests/server/temporary_directory.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

template <typename Message>
void ExpectSame(const absl::StatusOr<Message>& found, const std::string& expected) {
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*found, Parse<Message>(expected)))
      << found->DebugString();
}

void ExpectRefused(const absl::Status& status, const std::string& words) {
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

TEST(LayerArgumentsTest, Norms) {
  ExpectSame(ParseNormArgument("rmsnorm"), R"(kind: "rmsnorm")");
  ExpectSame(ParseNormArgument("layernorm,eps=1e-6,zero_centered"),
             R"(kind: "layernorm" epsilon: 1e-6 zero_centered_gamma: true)");
  ExpectSame(ParseNormArgument("rmsnorm,zero_centered=false,epsilon=0"),
             R"(kind: "rmsnorm" epsilon: 0)");
  ExpectRefused(ParseNormArgument("rmsnorm,width=3").status(), "--norm: \"rmsnorm,width=3\"");
  ExpectRefused(ParseNormArgument("rmsnorm,eps=small").status(), "\"small\" is no number");
  ExpectRefused(ParseNormArgument("rmsnorm,eps=1,eps=2").status(), "\"eps\" is given twice");
  ExpectRefused(ParseNormArgument("rmsnorm,").status(), "\"\" is none of");
}

TEST(LayerArgumentsTest, Activations) {
  ExpectSame(ParseActivationArgument("swiglu"), R"(kind: "swiglu")");
  ExpectSame(ParseActivationArgument("clamped_swiglu,limit=6,alpha=1.5,offset=0"),
             R"(kind: "clamped_swiglu" limit: 6 alpha: 1.5 offset: 0)");
  ExpectSame(ParseActivationArgument("gelu,variant=jit_gelu"),
             R"(kind: "gelu" variant: "jit_gelu")");
  ExpectRefused(ParseActivationArgument("gelu,slope=1").status(), "\"slope=1\" is none of limit");
}

TEST(LayerArgumentsTest, Overlaps) {
  EXPECT_FALSE(ParseOverlapArgument("none")->has_value());
  EXPECT_FALSE(ParseOverlapArgument("")->has_value());
  const auto expect_same = [](const std::string& text, const std::string& expected) {
    const auto overlap = ParseOverlapArgument(text);
    ASSERT_TRUE(overlap.ok() && overlap->has_value()) << overlap.status();
    ExpectSame(absl::StatusOr<v1::Overlap>(**overlap), expected);
    EXPECT_EQ(OverlapArgument(**overlap), text);
  };
  expect_same("default", "");
  expect_same("column_fprop=none,row_wgrad=external,aggregate,pieces=2,splits=8",
              R"(column_fprop: "none" row_wgrad: "external" aggregate: true pieces: 2 splits: 8)");
  ExpectRefused(ParseOverlapArgument("fprop=none").status(), "\"fprop=none\" is none of column_");
  ExpectRefused(ParseOverlapArgument("row_fprop").status(), "\"row_fprop\" has no method");
  ExpectRefused(ParseOverlapArgument("pieces=0").status(), "\"0\" is no number from 1 on");
  ExpectRefused(ParseOverlapArgument("column_fprop=none,column_fprop=ring_exchange").status(),
                "\"column_fprop\" is given twice");
  ExpectRefused(ParseOverlapArgument("aggregate,aggregate=false").status(),
                "\"aggregate\" is given twice");
}

TEST(LayerArgumentsTest, Operations) {
  ExpectSame(ParseOperationArgument("fc1=basic_linear"), R"(name: "fc1" kind: "basic_linear")");
  ExpectSame(ParseOperationArgument("ln=norm,rmsnorm,eps=1e-6"),
             R"(name: "ln" kind: "norm" norm { kind: "rmsnorm" epsilon: 1e-6 })");
  ExpectSame(ParseOperationArgument("a=activation,swiglu"),
             R"(name: "a" kind: "activation" activation { kind: "swiglu" })");
  ExpectSame(ParseOperationArgument("q=quantize,forward=false,backward"),
             R"(name: "q" kind: "quantize" quantize_forward: false quantize_backward: true)");
  ExpectSame(ParseOperationArgument("s=add,x"), R"(name: "s" kind: "add" addend: "x")");
  ExpectSame(ParseOperationArgument("h=scale,0.5"), R"(name: "h" kind: "scale" factor: 0.5)");
  ExpectRefused(ParseOperationArgument("basic_linear").status(), "write NAME=KIND");
  ExpectRefused(ParseOperationArgument("=bias").status(), "write NAME=KIND");
  ExpectRefused(ParseOperationArgument("b=bias,3").status(), "\"3\" says nothing to bias");
  ExpectRefused(ParseOperationArgument("h=scale,half").status(), "\"half\" is no number");
  ExpectRefused(ParseOperationArgument("s=add,x,y").status(), "\"y\" says nothing to add");
}

TEST(LayerArgumentsTest, SplitsAndGradients) {
  EXPECT_THAT(*ParseSplitsArgument("128,0,64"), ElementsAre(128, 0, 64));
  ExpectRefused(ParseSplitsArgument("128,,64").status(), "--m-splits: \"128,,64\"");
  ExpectSame(ParseRequiresGradArgument("x,n"), "x: true norm: true");
  ExpectSame(ParseRequiresGradArgument("none"), "");
  ExpectRefused(ParseRequiresGradArgument("x,q").status(), "--requires-grad: \"q\"");
}

TEST(LayerArgumentsTest, NamesBeforeTensors) {
  const auto named = SplitNamedArgument("fc1.weight=gen:normal,seed=1,shape=2x2");
  ASSERT_TRUE(named.has_value());
  EXPECT_EQ(named->name, "fc1.weight");
  EXPECT_EQ(named->tensor, "gen:normal,seed=1,shape=2x2");
  for (const char* tensor : {"gen:normal,seed=1,shape=2x2", "w.npy", "dir/a=b.npy", "=w.npy"}) {
    EXPECT_FALSE(SplitNamedArgument(tensor).has_value()) << tensor;
  }
}

TEST(LayerArgumentsTest, SpecsAreJsonOrText) {
  const std::string layer =
      R"(step { layer { kind: "chain" operations { name: "a" kind: "bias" } } })";
  ExpectSame(ReadRunSpec(R"({"step": {"layer": {"kind": "chain",
                             "operations": [{"name": "a", "kind": "bias"}]}}})"),
             layer);
  const TemporaryDirectory directory;
  const std::string text = directory.Path("spec.textproto"), json = directory.Path("spec.json");
  WriteFile(text, layer);
  WriteFile(json, R"({"step": {"layer": {"kind": "rnn"}}, "seed": 7})");
  ExpectSame(ReadRunSpec(text), layer);
  ExpectSame(ReadRunSpec(json), R"(step { layer { kind: "rnn" } } seed: 7)");
  EXPECT_TRUE(absl::IsNotFound(ReadRunSpec(directory.Path("none.json")).status()));
  WriteFile(text, "step {\n  layer { colour: 3 }\n}");
  ExpectRefused(ReadRunSpec(text).status(), "no RunSpec as protobuf text: 2:");
  WriteFile(json, R"({"step": {"colour": 3}})");
  ExpectRefused(ReadRunSpec(json).status(), "no RunSpec as JSON");
  WriteFile(json, std::string(5 << 20, ' '));
  ExpectRefused(ReadRunSpec(json).status(), "longer than 4 MiB");
}

TEST(RunSpecTest, OptionsGoBeforeTheSpec) {
  LayerOptions options;
  v1::Layer layer;
  ASSERT_TRUE(SetLayer(options, layer).ok());
  EXPECT_EQ(layer.kind(), "linear");
  layer = Parse<v1::Layer>(R"(kind: "chain" operations { name: "a" } m_splits: 3 fused: true)");
  options.operations = {"b=bias", "c=basic_linear"};
  options.unfused = true;
  options.norm = "rmsnorm";
  ASSERT_TRUE(SetLayer(options, layer).ok());
  EXPECT_EQ(layer.kind(), "chain");
  ASSERT_EQ(layer.operations_size(), 2);
  EXPECT_EQ(layer.operations(1).name(), "c");
  EXPECT_EQ(layer.m_splits_size(), 1);
  EXPECT_FALSE(layer.fused());
  EXPECT_EQ(layer.norm().kind(), "rmsnorm");
}

TEST(RunSpecTest, WhatIsWrongWithTheOptionsIsSaidAtOnce) {
  LayerOptions options;
  options.recipes = {"bf16"};
  ExpectRefused(CheckLayerOptions(options, {}), "--input");
  options.input = "gen:normal,shape=4x4";
  EXPECT_TRUE(CheckLayerOptions(options, {}).ok());
  options.weights = {"a.npy", "b.npy"};
  ExpectRefused(CheckLayerOptions(options, {}), "--weight: 2 given");
  options.layer = "grouped_linear";
  EXPECT_TRUE(CheckLayerOptions(options, {}).ok());
  options.parameters = {"weight.1=c.npy"};
  ExpectRefused(CheckLayerOptions(options, {}), "--param: weight.1 is given twice");
  options.parameters = {"c.npy"};
  ExpectRefused(CheckLayerOptions(options, {}), "--param: \"c.npy\" is no NAME=TENSOR");
  options.parameters = {};
  options.recipes = {""};
  ExpectRefused(CheckLayerOptions(options, {}), "--recipe");
  options.spec = R"({"variants": [{"recipe": {"name": "bf16"}}]})";
  EXPECT_TRUE(CheckLayerOptions(options, ReadRunSpec(options.spec).value()).ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
