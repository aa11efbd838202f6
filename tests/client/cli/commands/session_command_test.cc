// `quantgate session` against a server: a training step, its outputs, and a checkpoint that goes
// on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/client/cli/commands/command_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;

constexpr char kSpec[] = R"({
  "layers": [{"name": "fc", "layer": {"kind": "linear"}}],
  "recipe": {"name": "fp8_current"}, "masters": "f32", "sgd": {"learning_rate": 0.1},
  "parameters": {"fc.weight": "gen:normal,seed=1,shape=32x32,dtype=bf16"}})";

class SessionCommandTest : public CommandTest {
 protected:
  SessionCommandTest() { std::ofstream(Path("mlp.json")) << kSpec; }
  std::string Id(const std::vector<std::string>& arguments) {
    return QuantgateJson(arguments, Where::kServer)["session_id"].get<std::string>();
  }
  std::string Run(const std::vector<std::string>& arguments) {
    const ProcessResult result = Quantgate(arguments, Where::kServer);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }
};

TEST_F(SessionCommandTest, TrainsAndGoesOnFromACheckpoint) {
  const std::string id = Id({"session", "open", Path("mlp.json")});
  const std::string x = "gen:normal,seed=2,shape=32x32,dtype=bf16";
  EXPECT_THAT(Run({"session", "step", id, "train", "--x", x}), HasSubstr("step 1"));
  Run({"session", "step", id, "backward", "--grad-output", x, "-o", Path("g.safetensors")});
  EXPECT_EQ(ContentsOf(Path("g.safetensors")),
            (std::vector<std::string>{"dx bf16[32x32]", "fc.dw bf16[32x32]"}));
  Run({"session", "step", id, "optimize"});
  Run({"session", "checkpoint", id, "-o", Path("c.safetensors")});
  const std::string again = Id({"session", "restore", Path("c.safetensors"), Path("mlp.json")});
  for (const std::string& session : {id, again}) {
    Run({"session", "get", session, "--tensor", "fc.weight.master", "-o",
         Path(session + ".safetensors")});
  }
  EXPECT_EQ(BytesOf(Path(id + ".safetensors"), "fc.weight.master"),
            BytesOf(Path(again + ".safetensors"), "fc.weight.master"));
  EXPECT_FALSE(BytesOf(Path(id + ".safetensors"), "fc.weight.master").empty());
  EXPECT_THAT(Run({"session", "ls"}), HasSubstr(again));
  const nlohmann::json listed = QuantgateJson({"session", "ls"}, Where::kServer);
  ASSERT_EQ(listed["sessions"].size(), 2u) << listed;
  EXPECT_EQ(listed["sessions"][0]["session_id"], again);
  EXPECT_EQ(listed["sessions"][1]["session_id"], id);
  EXPECT_THAT(Run({"session", "close", id}), HasSubstr("closed"));
  const ProcessResult late = Quantgate({"session", "step", id, "train", "--x", x}, Where::kServer);
  EXPECT_EQ(late.exit_code, 2);
  EXPECT_THAT(late.err, HasSubstr("the session is closed"));
}

// bf16 and fp8_current give different y of the same x, and the same recipe the same.
TEST_F(SessionCommandTest, AStepIsHeldAgainstAnotherRecipe) {
  const std::string id = Id({"session", "open", Path("mlp.json")});
  const std::string x = "gen:normal,seed=2,shape=32x32,dtype=bf16";
  const std::string other = Run({"session", "step", id, "train", "--x", x, "--against", "bf16"});
  EXPECT_THAT(other, HasSubstr("Against the session's own recipe"));
  EXPECT_THAT(other, HasSubstr("1 forward"));
  const nlohmann::json backward = QuantgateJson(
      {"session", "step", id, "backward", "--grad-output", x, "--against", "bf16"}, Where::kServer);
  EXPECT_EQ(backward["against"]["label"], "bf16");
  const auto& comparisons = backward["against"]["against_reference"];
  ASSERT_EQ(comparisons.size(), 2u) << backward["against"];
  EXPECT_EQ(comparisons[0]["tensor"], "dx");
  EXPECT_EQ(comparisons[0]["parity"]["equal"], false);
  const nlohmann::json same = QuantgateJson(
      {"session", "step", id, "train", "--x", x, "--against", "fp8_current"}, Where::kServer);
  EXPECT_EQ(same["against"]["against_reference"][0]["parity"]["equal"], true);
  const ProcessResult update =
      Quantgate({"session", "step", id, "optimize", "--against", "bf16"}, Where::kServer);
  EXPECT_EQ(update.exit_code, 2);
  EXPECT_THAT(update.err, HasSubstr("--against: given for a step of kind optimize"));
}

TEST_F(SessionCommandTest, RefusalsOfStepsSayWhatWasTyped) {
  const std::string id = Id({"session", "open", Path("mlp.json")});
  const std::string x = "gen:normal,seed=2,shape=32x32,dtype=bf16";
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"optimize"}, "optimize: no gradient since the last update: run a backward first"},
      {{"wgrad"},
       "wgrad: nothing is deferred: run a forward with --defer-wgrad and its backward first"},
      {{"offload"}, "the default --microbatch is 0: no forward of it is in flight"},
      {{"offload", "--microbatch", "a"}, "--microbatch is a: no forward of it is in flight"},
      {{"train", "--x", x, "--calibrate"}, "--calibrate is true: the recipe is fp8_current, not"},
      {{"recipe"}, "--recipe: none; a step of kind recipe needs it"},
  };
  for (const auto& [arguments, words] : cases) {
    const ProcessResult result =
        Quantgate(std::vector<std::string>{"session", "step", id} + arguments, Where::kServer);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(words));
  }
}

TEST_F(SessionCommandTest, RefusalsOfFilesSayWhere) {
  const std::pair<const char*, const char*> specs[] = {
      {R"({"adam": {"lr": 1}})", "adam: \"lr\" is no field; those are learning_rate, beta1"},
      {R"({"layer": []})", "\"layer\" is no field; those are layers, "},
      {R"({"recipe": "mxfp8"})", "(recipe): invalid value \"mxfp8\" where an object stands"},
  };
  for (const auto& [spec, words] : specs) {
    std::ofstream(Path("bad.json")) << spec;
    const ProcessResult result = Quantgate({"session", "open", Path("bad.json")}, Where::kServer);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(words));
  }
  const std::pair<const char*, const char*> traces[] = {
      {R"({"steps": [{"train": {}}]})", "steps[0]: \"train\" is no field; those are forward, "},
      {R"({"spec": {"layers": [{"name": "fc", "layer": {"kind": "linear"}}]},
           "parameters": {"fc.weight": "gen:normal,shape=32x32"},
           "steps": [{"forward": {}, "x": "missing.npy"}]})",
       "SPEC: steps[0].x: missing.npy: "},
  };
  for (const auto& [trace, words] : traces) {
    std::ofstream(Path("bad.json")) << trace;
    const ProcessResult result =
        Quantgate({"session", "run", Path("bad.json"), "--recipe", "mxfp8"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(words));
  }
}

TEST_F(SessionCommandTest, RefusesOptionsThatNothingReads) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"step", "ID", "optimize", "--x", "x.npy"},
       "--x: given for a step of kind optimize; it is of train, evaluate, recompute"},
      {{"step", "ID", "train", "--grad-output", "x.npy"},
       "--grad-output: given for a step of kind train; it is of backward"},
      {{"step", "ID", "wgrad", "--microbatch", "a"},
       "--microbatch: given for a step of kind wgrad"},
      {{"step", "ID", "backward", "--calibrate"}, "--calibrate: given for a step of kind backward"},
      {{"step", "ID", "evaluate", "--defer-wgrad"},
       "--defer-wgrad: given for a step of kind evaluate; it is of train, recompute"},
      {{"step", "ID", "evaluate", "--requires-grad", "x"},
       "--requires-grad: given for a step of kind evaluate; it is of train, recompute"},
      {{"step", "ID", "backward", "--amax-group", "input=none"},
       "--amax-group: given for a step of kind backward; it is of train, evaluate, recompute"},
      {{"step", "ID", "backward", "--learning-rate", "0"},
       "--learning-rate: given for a step of kind backward; it is of optimize"},
      {{"step", "ID", "train", "--recipe", "bf16"},
       "--recipe: given for a step of kind train; it is of recipe"},
      {{"get", "ID", "-o", "t.safetensors"}, "-o: given without --tensor"},
  };
  for (const auto& [arguments, message] : cases) {
    std::vector<std::string> all = {"session"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const ProcessResult result = Quantgate(all, Where::kServer);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
  }
}

TEST_F(SessionCommandTest, AFrozenWeightHasNoGradientAndJsonSaysWhatAStepDid) {
  const std::string id = Id({"session", "open", Path("mlp.json")});
  const std::string x = "gen:normal,seed=2,shape=32x32,dtype=bf16";
  const std::vector<std::string> train = {"session",         "step", id, "train", "--x", x,
                                          "--requires-grad", "x"};
  const nlohmann::json forward = QuantgateJson(train, Where::kServer);
  EXPECT_EQ(forward["kind"], "session_step");
  EXPECT_EQ(forward["step"], 1);
  EXPECT_EQ(forward["outputs"][0]["name"], "y");
  EXPECT_EQ(forward["gemms"][0]["role"], "fprop");
  EXPECT_EQ(forward["quantizations"][1]["tensor"], "fc.weight");
  const nlohmann::json backward =
      QuantgateJson({"session", "step", id, "backward", "--grad-output", x}, Where::kServer);
  ASSERT_EQ(backward["outputs"].size(), 1u);
  EXPECT_EQ(backward["outputs"][0]["name"], "dx");
  for (const nlohmann::json& saved : backward["saved"]) {
    EXPECT_TRUE(saved["at_use"].is_null() || saved["at_use"] == saved["at_save"]);
  }
  EXPECT_EQ(backward["rank_differences"].size(), 0u);
  const ProcessResult unknown = Quantgate(
      {"session", "step", id, "train", "--x", x, "--requires-grad", "weights"}, Where::kServer);
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("\"weights\" is none of x, w or weight"));
}

TEST_F(SessionCommandTest, NeedsAServer) {
  const ProcessResult result = Quantgate({"session", "open", Path("mlp.json")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("ends with it"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
