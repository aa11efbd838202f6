// Which words of a refusal become options, on messages as servers write them.
#include "client/cli/options/option_names.h"

#include <gtest/gtest.h>

#include <list>
#include <string>

#include "client/status.h"

namespace quantgate {
namespace QG_TEST_FILE {

class OptionNamesTest : public ::testing::Test {
 protected:
  OptionNamesTest() {
    app_.require_subcommand(1);
    CLI::App* run = app_.add_subcommand("run");
    for (const char* name : {"--input", "--gamma", "--recipe", "--spec", "--tp"}) {
      run->add_option(name, values_.emplace_back());
    }
    run->add_option("--param", values_.emplace_back());
    run->add_flag("--unfused");
    CLI::App* step = app_.add_subcommand("session-step");
    for (const char* name : {"--overlap", "--x"}) step->add_option(name, values_.emplace_back());
    for (const char* name : {"update-usage", "dequantize"}) {
      app_.add_subcommand(name)->add_option("FILE", values_.emplace_back());
    }
    CLI::App* gemm = app_.add_subcommand("gemm");
    gemm->add_option("--a", values_.emplace_back());
    CLI::App* tensor = app_.add_subcommand("tensor");
    tensor->add_subcommand("stat")->add_option("TENSOR", values_.emplace_back());
    CLI::App* trace = app_.add_subcommand("session")->add_subcommand("run");
    for (const char* name : {"SPEC", "--recipe"}) trace->add_option(name, values_.emplace_back());
  }

  std::string Named(const std::string& line, const std::string& message) {
    app_.parse(line);
    const absl::Status named =
        NameOptions(absl::InvalidArgumentError(message), ChosenCommand(app_));
    EXPECT_EQ(named.code(), absl::StatusCode::kInvalidArgument);
    return std::string(named.message());
  }

  CLI::App app_;
  std::list<std::string> values_;
};

TEST_F(OptionNamesTest, PathsBecomeOptions) {
  EXPECT_EQ(Named("run --input x", "spec.step.x.generate.type.dtype is \"f9\": known"),
            "--input: dtype is \"f9\": known");
  EXPECT_EQ(Named("run --input x", "spec.step.xs is 1"), "spec.step.xs is 1");
  EXPECT_EQ(Named("run", "spec.variants[12].recipe.knobs[\"a\"] is \"b\": no"),
            "--recipe: knobs[\"a\"] is \"b\": no");
  EXPECT_EQ(Named("run", "x: spec.step.parameters[\"gamma\"], spec.step.x names blobs"),
            "x: --gamma, --input names blobs");
}

TEST_F(OptionNamesTest, AFlagThatMakesAFieldFalseIsGiven) {
  EXPECT_EQ(Named("run --unfused", "spec.variants[0].recipe is r: step.layer.fused is false: no"),
            "--recipe is r: --unfused is given: no");
}

TEST_F(OptionNamesTest, AnOverlapOfTheStepOrOfTheSession) {
  const std::string of_layer = "forward.layers[fc1].parallel.";
  EXPECT_EQ(Named("session-step --overlap o", of_layer + "overlap.column_fprop is bulk: no"),
            "--overlap: layer fc1: column_fprop is bulk: no");
  EXPECT_EQ(Named("session-step", of_layer + "overlap.column_fprop is bulk: no"),
            "the session's overlap: layer fc1: column_fprop is bulk: no");
  EXPECT_EQ(Named("session-step", of_layer + "reduction_profile is nccl: no"),
            "the session's reduction_profile: layer fc1 is nccl: no");
}

TEST_F(OptionNamesTest, AFileIsNamedAsItWasTyped) {
  for (const std::string command : {"update-usage", "dequantize"}) {
    const std::string of_file = command == "dequantize" ? "" : "tensor.";
    EXPECT_EQ(Named(command + " my/codes.safetensors", of_file + "tensors[rowwise_data] is absent: "
                                                                 "its rowwise codes"),
              "my/codes.safetensors:rowwise_data is absent: its rowwise codes");
    EXPECT_EQ(Named(command + " 1*2", of_file + "tensors[amax] is f32[2]: one"),
              "1*2:amax is f32[2]: one");
    EXPECT_EQ(Named(command + " a.npy", of_file + "tensors is absent: no codes"),
              "a.npy is absent: no codes");
  }
}

TEST_F(OptionNamesTest, TheInputOfALayerOfASession) {
  EXPECT_EQ(Named("session-step --x x",
                  "forward.layers[fc].x is bf16[0x8]: its last dim must be "
                  "K = 32"),
            "--x at layer fc is bf16[0x8]: its last dim must be K = 32");
}

TEST_F(OptionNamesTest, OfSeveralOptionsTheOneThatWasTyped) {
  EXPECT_EQ(Named("run", "spec.step.parameters[gamma]: absent"), "--gamma: absent");
  EXPECT_EQ(Named("run --param gamma=g", "spec.step.parameters[gamma]: bad"), "--param gamma: bad");
  EXPECT_EQ(Named("run --param fc9.weight=g", "spec.step.parameters[fc9.weight]: bad"),
            "--param fc9.weight: bad");
}

// Nothing was typed and the file says nothing either: both ways to say it are named.
TEST_F(OptionNamesTest, ATraceWithoutRecipesNamesOptionAndField) {
  EXPECT_EQ(
      Named("session run t.json", "trace.variants is absent: and there is no spec.recipe either"),
      "--recipe is absent, and so is trace.variants: and there is no spec.recipe either");
  EXPECT_EQ(Named("session run t.json", "trace.variants[1].recipe.name is \"x\": unknown"),
            "trace.variants[1].recipe.name is \"x\": unknown");
}

TEST_F(OptionNamesTest, WhatASpecFileSaidKeepsItsPath) {
  EXPECT_EQ(Named("run --spec s --input x", "spec.step.x: bad"), "--input: bad");
  EXPECT_EQ(Named("run --spec s", "spec.step.x: bad"), "spec.step.x: bad");
}

TEST_F(OptionNamesTest, WordsStayWords) {
  EXPECT_EQ(Named("gemm --a x", "a is f32[2]: its k differs from b's"),
            "--a is f32[2]: its k differs from b's");
  EXPECT_EQ(Named("gemm --a x", "a tensor has at most 8 bytes"), "a tensor has at most 8 bytes");
  EXPECT_EQ(Named("gemm --a x", "--a: \"x\": no tensor"), "--a: \"x\": no tensor");
  EXPECT_EQ(Named("tensor stat x", "tensor.generate.scale is inf: a scale is finite"),
            "TENSOR: scale is inf: a scale is finite");
  // Another command's field.
  EXPECT_EQ(Named("tensor stat x", "a.tensor is f32[2]: no"), "a.tensor is f32[2]: no");
}

TEST_F(OptionNamesTest, TheDetailSaysTheSame) {
  app_.parse("gemm --a x");
  absl::Status status = absl::InvalidArgumentError("a.tensor is f32[2]: operands are 2-D");
  v1::ErrorDetail detail;
  detail.set_field("a.tensor");
  detail.set_rule("a tensor is 2-D");
  SetErrorDetail(detail, status);
  const absl::Status named = NameOptions(status, ChosenCommand(app_));
  EXPECT_EQ(ErrorDetailOf(named)->field(), "--a");
  EXPECT_EQ(ErrorDetailOf(named)->rule(), "a tensor is 2-D");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
