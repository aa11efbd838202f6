// run, compare and verify on the sample data: what they write, and that a server and the command
// itself give the same bytes.
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/base/repository_file.h"
#include "tests/client/cli/commands/command_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Arguments = std::vector<std::string>;
using Json = nlohmann::json;

/// Notes are sentences of the engine; all else keeps to a hundred columns.
void ExpectLinesFit(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("note:", 0) == 0) continue;
    EXPECT_LE(line.size(), 100u) << line;
  }
}

class LayerCommandTest : public CommandTest {};

TEST_F(LayerCommandTest, OutputsAreTheSameInProcessAndThroughTheServer) {
  for (const char* recipe : {"bf16", "fp8_current"}) {
    for (const char* mode : {"none", "high_precision", "dequantized"}) {
      SCOPED_TRACE(std::string(recipe) + " " + mode);
      const Arguments arguments =
          Arguments{"run"} + LayerArguments() +
          Arguments{"--recipe", recipe, "--backward-override", mode, "--arithmetic", "sm90", "-o"};
      const std::string local = Path("local.safetensors"), remote = Path("remote.safetensors");
      ProcessResult result = Quantgate(arguments + Arguments{local});
      ASSERT_EQ(result.exit_code, 0) << result.err;
      ExpectLinesFit(result.out);
      result = Quantgate(arguments + Arguments{remote}, Where::kServer);
      ASSERT_EQ(result.exit_code, 0) << result.err;

      const auto file = ReadSafetensors(local);
      ASSERT_TRUE(file.ok()) << file.status();
      std::vector<std::string> outputs;
      for (const NamedTensor& tensor : file->tensors) {
        outputs.push_back(tensor.name + " " + TensorText(tensor.tensor));
        EXPECT_EQ(BytesOf(local, tensor.name), BytesOf(remote, tensor.name)) << tensor.name;
      }
      EXPECT_THAT(outputs, ElementsAre("y bf16[256x2048]", "dx bf16[256x512]", "dw bf16[2048x512]",
                                       "db bf16[2048]"));
      EXPECT_EQ(file->metadata.at("quantgate.backward_override"), mode);
    }
  }
  StopServer();
}

TEST_F(LayerCommandTest, OverridesChangeTheBackwardPassAlone) {
  const auto run = [&](const std::string& recipe, const std::string& mode) {
    const std::string path = Path(recipe + mode + ".safetensors");
    const ProcessResult result =
        Quantgate(Arguments{"run"} + LayerArguments() +
                  Arguments{"--recipe", recipe, "--backward-override", mode, "-o", path});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return path;
  };
  const std::string none = run("fp8_current", "none");
  const std::string high = run("fp8_current", "high_precision");
  const std::string bf16 = run("bf16", "none");
  EXPECT_EQ(BytesOf(none, "y"), BytesOf(high, "y"));
  EXPECT_NE(BytesOf(none, "dx"), BytesOf(high, "dx"));
  // With the original operands the gradients are those of the unquantized recipe
  // (docs/quantizers.md section 9).
  EXPECT_EQ(BytesOf(high, "dx"), BytesOf(bf16, "dx"));
  EXPECT_EQ(BytesOf(high, "dw"), BytesOf(bf16, "dw"));
}

TEST_F(LayerCommandTest, ForwardOnlyAndMainGrad) {
  const std::string path = Path("out.safetensors");
  ProcessResult result =
      Quantgate({"run", "--input", "gen:normal,shape=16x32", "--weight",
                 "gen:normal,seed=1,shape=48x32", "--recipe", "fp8_current", "-o", path});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(ReadSafetensors(path)->tensors.size(), 1u);
  EXPECT_THAT(result.out, HasSubstr("bf16[16x48]"));

  result =
      Quantgate({"run", "--input", "gen:normal,shape=16x32", "--weight",
                 "gen:normal,seed=1,shape=48x32", "--grad-output", "gen:normal,seed=2,shape=16x48",
                 "--main-grad", "gen:uniform,seed=3,shape=48x32,dtype=f32", "--requires-grad", "w",
                 "--recipe", "bf16", "-o", path});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> outputs;
  const TensorFile file = *ReadSafetensors(path);
  for (const NamedTensor& tensor : file.tensors) {
    outputs.push_back(tensor.name + " " + TensorText(tensor.tensor));
  }
  EXPECT_THAT(outputs, ElementsAre("y bf16[16x48]", "main_grad f32[48x32]"));
}

TEST_F(LayerCommandTest, ANormAndALinear) {
  const std::string path = Path("out.safetensors");
  const Arguments layer = {"--layer",
                           "layernorm_linear",
                           "--input",
                           Sample("ln2.x"),
                           "--gamma",
                           Sample("ln2.weight"),
                           "--beta",
                           Sample("ln2.bias"),
                           "--weight",
                           Sample("fc1.weight"),
                           "--bias",
                           Sample("fc1.bias"),
                           "--grad-output",
                           Sample("fc1.dy"),
                           "--return-norm-output"};
  const ProcessResult result =
      Quantgate(Arguments{"run"} + layer + Arguments{"--recipe", "fp8_current", "-o", path});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ExpectLinesFit(result.out);
  EXPECT_THAT(result.out, HasSubstr("dnorm_out *"));
  EXPECT_THAT(result.out, HasSubstr("* no output: what one operation of the layer gave the next"));
  EXPECT_THAT(
      ContentsOf(path),
      ElementsAre("y bf16[256x2048]", "norm_out bf16[256x512]", "dx bf16[256x512]",
                  "dw bf16[2048x512]", "db bf16[2048]", "dgamma bf16[512]", "dbeta bf16[512]"));
  // The model itself put ln2 and fc1 one behind the other: its norm's output lies within the bound
  // derived for ours.
  std::string sample = Sample("");
  sample.pop_back();
  std::vector<NamedTensor> theirs = {{"norm_out", *ReadSafetensors(sample)->Find("fc1.x")}};
  ASSERT_TRUE(WriteSafetensors(Path("theirs.safetensors"), theirs, {}).ok());
  const ProcessResult verified =
      Quantgate(Arguments{"verify", "--subject", Path("theirs.safetensors")} + layer +
                Arguments{"--recipe", "fp8_current", "--require", "bound", "--only", "norm_out"});
  EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
  EXPECT_THAT(verified.out, HasSubstr("norm_out"));
}

TEST_F(LayerCommandTest, AnMlpByNamedOptionsAndByNames) {
  const Arguments common = {"run",
                            "--layer",
                            "layernorm_mlp",
                            "--activation",
                            "swiglu",
                            "--norm",
                            "rmsnorm,eps=1e-6",
                            "--input",
                            "gen:normal,shape=64x32",
                            "--gamma",
                            "gen:normal,seed=1,shape=32",
                            "--grad-output",
                            "gen:normal,seed=4,shape=64x48",
                            "--recipe",
                            "fp8_current",
                            "-o"};
  const std::string fc1 = "gen:normal,seed=2,shape=128x32", fc2 = "gen:normal,seed=3,shape=48x64";
  const std::string named = Path("named.safetensors"), general = Path("general.safetensors");
  ProcessResult result =
      Quantgate(common + Arguments{named, "--fc1-weight", fc1, "--fc2-weight", fc2});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  result = Quantgate(
      common + Arguments{general, "--param", "fc1.weight=" + fc1, "--param", "fc2.weight=" + fc2});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(ContentsOf(named),
              ElementsAre("y bf16[64x48]", "dx bf16[64x32]", "fc1.dw bf16[128x32]",
                          "fc2.dw bf16[48x64]", "dgamma bf16[32]"));
  for (const char* name : {"y", "dx", "fc1.dw", "dgamma"}) {
    EXPECT_EQ(BytesOf(named, name), BytesOf(general, name)) << name;
  }
}

TEST_F(LayerCommandTest, ATransformerLayerByOptionsAndByASpec) {
  const Arguments tensors = {"--input",       "gen:normal,shape=16x2x32",
                             "--param",       "qkv.weight=gen:normal,seed=1,shape=64x32,scale=0.1",
                             "--param",       "proj.weight=gen:normal,seed=2,shape=32x32,scale=0.1",
                             "--param",       "norm1.gamma=gen:normal,seed=3,shape=32",
                             "--param",       "norm2.gamma=gen:normal,seed=4,shape=32",
                             "--fc1-weight",  "gen:normal,seed=5,shape=64x32,scale=0.1",
                             "--fc2-weight",  "gen:normal,seed=6,shape=32x64,scale=0.1",
                             "--grad-output", "gen:normal,seed=7,shape=16x2x32"};
  const std::string by_options = Path("options.safetensors"), by_spec = Path("spec.safetensors");
  ProcessResult result =
      Quantgate(Arguments{"run", "--layer", "transformer_layer", "--heads", "4", "--groups", "2",
                          "--mask", "causal", "--rotary-base", "100", "--recipe", "fp8_current",
                          "--require", "bound", "-o", by_options} +
                tensors);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("core.scores: 8 x (m=16 n=16 k=8"));
  EXPECT_THAT(ContentsOf(by_options),
              ElementsAre("y bf16[16x2x32]", "dx bf16[16x2x32]", "qkv.dw bf16[64x32]",
                          "proj.dw bf16[32x32]", "fc1.dw bf16[64x32]", "fc2.dw bf16[32x64]",
                          "norm1.dgamma bf16[32]", "norm2.dgamma bf16[32]"));
  WriteFile(Path("spec.json"), R"({"step": {"layer": {"kind": "transformer_layer", "attention":
      {"heads": 4, "groups": 2, "mask": "causal", "rotary_base": 100}}},
      "variants": [{"recipe": {"name": "fp8_current"}}]})");
  result = Quantgate(Arguments{"run", "--spec", Path("spec.json"), "-o", by_spec} + tensors);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* name : {"y", "dx", "qkv.dw", "norm1.dgamma"}) {
    EXPECT_EQ(BytesOf(by_options, name), BytesOf(by_spec, name)) << name;
  }
  // Another mask gives another y, and options replace the spec's.
  result = Quantgate(Arguments{"run", "--spec", Path("spec.json"), "--mask", "none", "-o",
                               Path("none.safetensors")} +
                     tensors);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(BytesOf(Path("none.safetensors"), "y"), BytesOf(by_spec, "y"));
}

TEST_F(LayerCommandTest, ExpertsAreLinearLayersOfTheirRows) {
  const std::string path = Path("out.safetensors"), one = Path("one.safetensors");
  const std::string x = "gen:normal,shape=64x32", dy = "gen:normal,seed=9,shape=64x48";
  const std::string weight = "gen:normal,seed=2,shape=48x32";
  const ProcessResult result =
      Quantgate({"run", "--layer", "grouped_linear", "--m-splits", "0,64", "--input", x, "--weight",
                 "gen:normal,seed=1,shape=48x32", "--weight", weight, "--grad-output", dy,
                 "--recipe", "fp8_current", "-o", path});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(ContentsOf(path), ElementsAre("y bf16[64x48]", "dx bf16[64x32]", "dw.0 bf16[48x32]",
                                            "dw.1 bf16[48x32]"));
  ASSERT_EQ(Quantgate({"run", "--input", x, "--weight", weight, "--grad-output", dy, "--recipe",
                       "fp8_current", "-o", one})
                .exit_code,
            0);
  EXPECT_EQ(BytesOf(path, "y"), BytesOf(one, "y"));
  EXPECT_EQ(BytesOf(path, "dw.1"), BytesOf(one, "dw"));
  EXPECT_EQ(BytesOf(path, "dw.0"), std::string(48 * 32 * 2, '\0'));
}

TEST_F(LayerCommandTest, AChainByOptionsAndByASpec) {
  const Arguments tensors = {"--input",       "gen:normal,shape=32x32",
                             "--param",       "fc.weight=gen:normal,seed=1,shape=32x32",
                             "--grad-output", "gen:normal,seed=2,shape=32x32"};
  const std::string by_options = Path("options.safetensors"), by_spec = Path("spec.safetensors");
  ProcessResult result =
      Quantgate(Arguments{"run", "--layer", "chain", "--operation", "fc=basic_linear",
                          "--operation", "act=activation,gelu", "--operation", "sum=add,x",
                          "--recipe", "fp8_current", "-o", by_options} +
                tensors);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(ContentsOf(by_options),
              ElementsAre("y bf16[32x32]", "dx bf16[32x32]", "fc.dw bf16[32x32]"));
  WriteFile(Path("spec.json"), R"({"step": {"layer": {"kind": "chain", "operations": [
      {"name": "fc", "kind": "basic_linear"},
      {"name": "act", "kind": "activation", "activation": {"kind": "gelu"}},
      {"name": "sum", "kind": "add", "addend": "x"}]}},
      "variants": [{"recipe": {"name": "fp8_current"}}]})");
  result = Quantgate(Arguments{"run", "--spec", Path("spec.json"), "-o", by_spec} + tensors);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* name : {"y", "dx", "fc.dw"}) {
    EXPECT_EQ(BytesOf(by_options, name), BytesOf(by_spec, name)) << name;
  }
  // They make variants of recipes; the spec's would stay as they are.
  for (const char* option : {"--backward-override", "--arithmetic"}) {
    result = Quantgate(Arguments{"run", "--spec", Path("spec.json"), option, "exact"} + tensors);
    EXPECT_EQ(result.exit_code, 2) << option;
    EXPECT_THAT(result.err, HasSubstr("--recipe: absent")) << option;
  }
}

TEST_F(LayerCommandTest, ManyOutputsFitAHundredColumns) {
  Arguments arguments = {"compare",
                         "--layer",
                         "grouped_linear",
                         "--m-splits",
                         "16,16,16,16",
                         "--input",
                         "gen:normal,shape=64x32",
                         "--grad-output",
                         "gen:normal,seed=9,shape=64x48",
                         "--recipe",
                         "bf16,fp8_current",
                         "--report",
                         Path("r.html")};
  for (int i = 0; i < 4; ++i) {
    const std::string seed = std::to_string(i + 1);
    arguments = arguments + Arguments{"--weight", "gen:normal,seed=" + seed + ",shape=48x32",
                                      "--bias", "gen:normal,seed=" + seed + ",shape=48"};
  }
  const ProcessResult result = Quantgate(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ExpectLinesFit(result.out);
  for (const char* name : {"dw.0", "db.3"}) {
    EXPECT_THAT(result.out, HasSubstr(name));
    EXPECT_THAT(ReadFile(Path("r.html")), HasSubstr(name));
  }
}

// In process it is what was typed, on a server the run that it keeps.
TEST_F(LayerCommandTest, TheReproduceLineReproduces) {
  const std::vector<Arguments> commands = {{"run", "--input", Sample("fc1.x"), "--weight",
                                            Sample("fc1.weight"), "--recipe", "fp8_current"},
                                           {"run",
                                            "--layer",
                                            "chain",
                                            "--operation",
                                            "ln=norm,rmsnorm,eps=1e-6",
                                            "--operation",
                                            "fc=basic_linear",
                                            "--operation",
                                            "q=quantize,forward=false,backward",
                                            "--operation",
                                            "half=scale,0.3",
                                            "--unfused",
                                            "--input",
                                            "gen:normal,shape=32x32",
                                            "--param",
                                            "ln.gamma=gen:normal,seed=1,shape=32",
                                            "--param",
                                            "fc.weight=gen:normal,seed=2,shape=32x32",
                                            "--main-grad",
                                            "fc.weight=gen:normal,seed=3,shape=32x32,dtype=f32",
                                            "--grad-output",
                                            "gen:normal,seed=4,shape=32x32",
                                            "--requires-grad",
                                            "x,w,n",
                                            "--recipe",
                                            "fp8_current"}};
  for (const Arguments& command : commands) {
    for (const Where where : {Where::kInProcess, Where::kServer}) {
      const Json first = QuantgateJson(command, where);
      const std::string line = first["run"]["reproduce"];
      SCOPED_TRACE(line);
      if (where == Where::kInProcess) {
        EXPECT_EQ(line, first["command"]);
      } else {
        EXPECT_EQ(line, "quantgate --server " + ServerAddress() +
                            " run --spec run:" + first["run"]["run_id"].get<std::string>());
      }
      std::istringstream words(line);
      Arguments arguments;
      for (std::string word; words >> word;) arguments.push_back(word);
      ASSERT_GT(arguments.size(), 2u);
      EXPECT_EQ(arguments[0].substr(arguments[0].rfind('/') + 1), "quantgate");
      arguments.erase(arguments.begin());
      // Of the first, which QuantgateJson adds again.
      if (arguments.back() == "json") arguments.resize(arguments.size() - 2);
      const Json again = QuantgateJson(arguments, where);
      EXPECT_NE(again["run"]["run_id"], first["run"]["run_id"]);
      EXPECT_EQ(again["run"]["request"], first["run"]["request"]);
      const Json &outputs = first["run"]["variants"][0]["outputs"],
                 &outputs_again = again["run"]["variants"][0]["outputs"];
      ASSERT_EQ(outputs.size(), outputs_again.size());
      for (size_t i = 0; i < outputs.size(); ++i) {
        EXPECT_EQ(outputs[i]["tensor"], outputs_again[i]["tensor"]);
      }
    }
  }
}

TEST_F(LayerCommandTest, WhyARunIsNotRepeated) {
  // A run that version 0.1.0 left behind.
  std::filesystem::copy(RepositoryFile("tests/data/v0.1.0/data"), Path("server"),
                        std::filesystem::copy_options::recursive);
  ProcessResult result =
      Quantgate({"run", "--spec", "run:run-5992f14e0ae90efe7986801aa6ff242f"}, Where::kServer);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("kept no requests; this repeats it: quantgate "),
                                HasSubstr("version 0.1.0")));
  result = Quantgate({"run", "--spec", "run:none"}, Where::kServer);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("NOT_FOUND"));
  result = Quantgate({"run", "--spec", "run:none"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("no run is kept without --server"));

  const Json first =
      QuantgateJson(Arguments{"run", "--recipe", "bf16"} + LayerArguments(), Where::kServer)["run"];
  const std::string spec = "run:" + first["run_id"].get<std::string>();
  // Options replace parts.
  const Json other =
      QuantgateJson({"run", "--spec", spec, "--recipe", "fp8_current"}, Where::kServer)["run"];
  EXPECT_EQ(other["variants"][0]["recipe_name"], "fp8_current");
  EXPECT_EQ(other["inputs"], first["inputs"]);
  const std::string digest = first["inputs"][0]["digest"];
  StopServer();
  const std::string name = digest.substr(0, digest.find('/'));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(Path("server/cas"))) {
    if (entry.path().string().find(name.substr(4)) != std::string::npos &&
        entry.is_regular_file()) {
      std::filesystem::remove(entry.path());
    }
  }
  result = Quantgate({"run", "--spec", spec}, Where::kServer);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("the server no longer has x, digest:" + digest));
}

TEST_F(LayerCommandTest, RecipesFromAFile) {
  WriteFile(Path("recipe.json"),
            R"({"name": "fp8_current", "knobs": {"power_2_scales": true, "fp8_format": "e4m3"}})");
  const auto fingerprint = [&](const std::string& recipe) {
    const Json json =
        QuantgateJson(Arguments{"run"} + LayerArguments() + Arguments{"--recipe", recipe});
    return json["run"]["variants"][0]["outputs"][1]["tensor"]["fingerprint"].get<std::string>();
  };
  EXPECT_EQ(fingerprint("@" + Path("recipe.json")),
            fingerprint("fp8_current:power_2_scales=true,fp8_format=e4m3"));
  EXPECT_NE(fingerprint("@" + Path("recipe.json")), fingerprint("fp8_current"));
}

TEST_F(LayerCommandTest, CompareShowsTheMatrixInAHundredColumns) {
  const Arguments arguments = Arguments{"compare"} + LayerArguments() +
                              Arguments{"--recipe",
                                        "bf16,fp8_current",
                                        "--backward-override",
                                        "none,high_precision,dequantized",
                                        "--arithmetic",
                                        "sm90",
                                        "--reference",
                                        "bf16/none",
                                        "--report",
                                        Path("r.html"),
                                        "--report",
                                        Path("r.json")};
  const ProcessResult result = Quantgate(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ExpectLinesFit(result.out);
  const Json json = Json::parse(ReadFile(Path("r.json")));
  ASSERT_EQ(json["run"]["variants"].size(), 6u);
  EXPECT_EQ(json["run"]["pairs"].size(), 15u * 4);
  EXPECT_EQ(json["run"]["reference"], 0);
  EXPECT_EQ(json["run"]["variants"][4]["label"], "fp8_current / high_precision / sm90");
  EXPECT_THAT(ReadFile(Path("r.html")), HasSubstr("fp8_current / dequantized / sm90"));
}

TEST_F(LayerCommandTest, RequirementsDecideTheExitCode) {
  const Arguments compare = Arguments{"compare"} + LayerArguments() +
                            Arguments{"--recipe", "bf16,fp8_current", "--reference", "0"};
  EXPECT_EQ(Quantgate(compare).exit_code, 0);
  EXPECT_EQ(Quantgate(compare + Arguments{"--require", "bound"}).exit_code, 0);
  const ProcessResult result = Quantgate(compare + Arguments{"--require", "bitwise"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("FAIL"));
}

class VerifyTest : public CommandTest {
 protected:
  void SetUp() override {
    const ProcessResult result = Quantgate(Arguments{"run"} + LayerArguments() +
                                           Arguments{"--recipe", "fp8_current", "-o", path_});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  ProcessResult Verify(const std::string& subject, const Arguments& more = {}) {
    return Quantgate(Arguments{"verify", "--subject", subject} + LayerArguments() +
                     Arguments{"--recipe", "fp8_current"} + more);
  }
  /// The outputs with one tensor replaced.
  std::string With(const std::string& name, const Tensor& tensor) {
    std::vector<NamedTensor> tensors = ReadSafetensors(path_)->tensors;
    for (NamedTensor& entry : tensors) {
      if (entry.name == name) entry.tensor = tensor;
    }
    EXPECT_TRUE(WriteSafetensors(Path("changed.safetensors"), tensors, {}).ok());
    return Path("changed.safetensors");
  }
  const std::string path_ = Path("out.safetensors");
};

TEST_F(VerifyTest, TheEnginesOwnOutputsPass) {
  const ProcessResult result = Verify(path_, {"--report", Path("v.html")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("4 tensors equal bit for bit"));
  EXPECT_THAT(ReadFile(Path("v.html")), HasSubstr("<strong>PASS</strong>"));
}

TEST_F(VerifyTest, OneFlippedBitFailsAndIsNamed) {
  const TensorFile file = *ReadSafetensors(path_);
  const Tensor dx = *file.Find("dx");
  Tensor changed = *Tensor::FromBytes(dx.dtype(), dx.shape(), dx.bytes());
  uint16_t& element = changed.as<uint16_t>()[512 * 3 + 5];
  char expected[64];
  std::snprintf(expected, sizeof(expected), "[0x%04x]", element ^ 1);
  element ^= 1;
  const ProcessResult result = Verify(With("dx", changed));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("dx differs in 1 of 131,072 elements, first at (3, 5): "));
  EXPECT_THAT(result.out, HasSubstr(expected));
}

TEST_F(VerifyTest, ABoundTakesAnotherOrderOfSummationAndNoMore) {
  const std::string exact = Path("exact.safetensors");
  ASSERT_EQ(Quantgate(Arguments{"run"} + LayerArguments() +
                      Arguments{"--recipe", "fp8_current", "--arithmetic", "exact", "-o", exact})
                .exit_code,
            0);
  // The exact result differs from the model's in bits, but lies within the model's bound of itself.
  const Arguments by_bound = {"--arithmetic", "sm90", "--require", "bound"};
  EXPECT_EQ(Verify(exact, {"--arithmetic", "sm90"}).exit_code, 1);
  ProcessResult result = Verify(exact, by_bound + Arguments{"--report", Path("b.html")});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("within their bounds"));
  EXPECT_THAT(ReadFile(Path("b.html")), HasSubstr("within its bound"));

  const Tensor y = *ReadSafetensors(path_)->Find("y");
  Tensor changed = *Tensor::FromBytes(y.dtype(), y.shape(), y.bytes());
  changed.as<uint16_t>()[7] ^= 0x8000;  // The sign.
  result = Verify(With("y", changed), by_bound);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.out, HasSubstr("y exceeds its bound in 1 of 524,288 elements"));
  result = Verify(With("y", *y.Reinterpret(DType::kBF16, {2048, 256})), by_bound);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--subject y is "));
  EXPECT_THAT(result.err, HasSubstr("256x2048"));
  result = Verify(exact, {"--arithmetic", "exact", "--require", "bound"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  // What is rounded once has one value.
  const Tensor own = *ReadSafetensors(exact)->Find("y");
  changed = *Tensor::FromBytes(own.dtype(), own.shape(), own.bytes());
  changed.as<uint16_t>()[7] ^= 1;
  result =
      Verify(With("y", changed), {"--arithmetic", "exact", "--require", "bound", "--only", "y"});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.out, HasSubstr("y exceeds its bound in 1 of 524,288 elements"));
}

TEST_F(VerifyTest, AnotherShapeOrDtypeFails) {
  const Tensor db = *ReadSafetensors(path_)->Find("db");
  ProcessResult result = Verify(With("db", *db.Reinterpret(DType::kBF16, {2, 1024})));
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.out, HasSubstr("bf16[2x1024] against bf16[2048]"));
  result = Verify(With("db", *db.Reinterpret(DType::kF16, {2048})));
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.out, HasSubstr("f16[2048] against bf16[2048]"));
}

TEST_F(VerifyTest, AnOutputThatTheSubjectLacksFails) {
  std::vector<NamedTensor> tensors = ReadSafetensors(path_)->tensors;
  ASSERT_EQ(tensors[1].name, "dx");
  tensors[1].name = "dX";
  const std::string renamed = Path("renamed.safetensors");
  ASSERT_TRUE(WriteSafetensors(renamed, tensors, {}).ok());
  for (const char* require : {"bitwise", "bound"}) {
    const ProcessResult result = Verify(renamed, {"--require", require});
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.out, HasSubstr("dx: not in " + renamed));
    EXPECT_THAT(result.out, HasSubstr("no output of this layer: dX"));
  }
  const ProcessResult without = Verify(renamed, {"--only", "y,dw", "--only", "db"});
  EXPECT_EQ(without.exit_code, 0) << without.err;
  EXPECT_THAT(without.out, HasSubstr("3 tensors equal bit for bit"));
  const ProcessResult unknown = Verify(renamed, {"--only", "dX"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("--only: \"dX\" is no output of this layer; it has y, dx"));

  ASSERT_TRUE(WriteSafetensors(Path("none.safetensors"), {tensors[1]}, {}).ok());
  const ProcessResult none = Verify(Path("none.safetensors"));
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("none of this layer's outputs; it has dX"));
}

TEST_F(VerifyTest, OnlyWhatIsAskedForFails) {
  const Tensor y = *ReadSafetensors(path_)->Find("y");
  Tensor changed = *Tensor::FromBytes(y.dtype(), y.shape(), y.bytes());
  changed.as<uint16_t>()[0] ^= 1;
  const std::string subject = With("y", changed);
  EXPECT_EQ(Verify(subject).exit_code, 1);
  EXPECT_EQ(Verify(subject, {"--only", "y"}).exit_code, 1);
  const ProcessResult result = Verify(subject, {"--only", "dx"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("not in --only: y, dw, db"));
}

TEST_F(VerifyTest, TheStateOfDelayedScalingIsChecked) {
  const Arguments layer = {"--input",       "gen:normal,shape=16x32",
                           "--weight",      "gen:normal,seed=1,shape=16x32",
                           "--grad-output", "gen:normal,seed=2,shape=16x16",
                           "--recipe",      "fp8_delayed:amax_history_len=4"};
  const std::string path = Path("delayed.safetensors");
  ASSERT_EQ(Quantgate(Arguments{"run"} + layer + Arguments{"-o", path}).exit_code, 0);
  const Arguments verify = Arguments{"verify"} + layer + Arguments{"--subject"};
  const ProcessResult same = Quantgate(verify + Arguments{path});
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_THAT(same.out, HasSubstr("9 tensors equal bit for bit"));

  const std::vector<NamedTensor> tensors = ReadSafetensors(path)->tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].tensor.dtype() != DType::kF32) continue;
    std::vector<NamedTensor> changed = tensors;
    Tensor& state = changed[i].tensor;
    state = *Tensor::FromBytes(state.dtype(), state.shape(), state.bytes());
    state.as<uint32_t>()[state.element_count() - 1] ^= 1;
    const std::string subject = Path("changed_state.safetensors");
    ASSERT_TRUE(WriteSafetensors(subject, changed, {}).ok());
    for (const char* require : {"bitwise", "bound"}) {
      const ProcessResult result = Quantgate(verify + Arguments{subject, "--require", require});
      EXPECT_EQ(result.exit_code, 1) << tensors[i].name;
      EXPECT_THAT(result.out, HasSubstr(tensors[i].name + " differs in 1 of "));
    }
  }
}

TEST_F(VerifyTest, JunitSaysWhatTheExitCodeSays) {
  const std::string path = Path("v.xml");
  EXPECT_EQ(Verify(path_, {"--junit", path}).exit_code, 0);
  EXPECT_THAT(ReadFile(path), HasSubstr(R"(tests="4" failures="0")"));
  const Tensor db = *ReadSafetensors(path_)->Find("db");
  const std::string subject = With("db", *db.Reinterpret(DType::kF16, {2048}));
  EXPECT_EQ(Verify(subject, {"--junit", path}).exit_code, 1);
  EXPECT_THAT(ReadFile(path), HasSubstr(R"(tests="4" failures="1")"));
  const ProcessResult refused = Verify(path_, {"--junit", path_});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--junit: "));
}

TEST_F(VerifyTest, ASubjectIsOfOneVariant) {
  const ProcessResult result = Quantgate(
      Arguments{"verify", "--subject", path_, "--recipe", "fp8_current,bf16"} + LayerArguments());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--recipe: 2 variants; verify takes one"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
