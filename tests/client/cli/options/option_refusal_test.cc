// For every option of the commands that compute, a bad value: the refusal names the option as it
// was typed, and no path of the API.
#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tests/client/cli/commands/command_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;
using Arguments = std::vector<std::string>;

const std::string kX = "gen:normal,shape=16x32", kOut = "gen:normal,shape=16x16",
                  kRow = "gen:normal,shape=32", kOther = "gen:normal,shape=16";

/// Tensors that no option takes: no file, no such generator, three dims, bytes.
const Arguments kBadTensors = {"missing.npy",
                               "missing.safetensors:x",
                               "gen:gauss,shape=16x32",
                               "gen:normal,shape=3x5x7x9",
                               "gen:normal,shape=16x32,dtype=i64",
                               "gen:normal,shape=16x32,dtype=f9"};

struct Case {
  std::string option;
  Arguments values;       ///< Each is bad; one empty text: a flag, with nothing behind it.
  Arguments beside = {};  ///< What the option needs, or what makes it bad.
};

class OptionRefusalTest : public CommandTest {
 protected:
  /// `base` without `option`, and each value in its place.
  void ExpectNamed(const Arguments& command,
                   const std::vector<std::pair<std::string, std::string>>& base,
                   const std::vector<Case>& cases, Where where = Where::kInProcess) {
    for (const Case& one : cases) {
      covered_.insert(one.option);
      for (const std::string& value : one.values) {
        Arguments arguments = command;
        for (const auto& [option, given] : base) {
          const bool is_replaced =
              option == one.option ||
              std::find(one.beside.begin(), one.beside.end(), option) != one.beside.end();
          if (!is_replaced) arguments = arguments + Arguments{option, given};
        }
        // What stands beside an option replaces what the base says of it.
        arguments = arguments + one.beside + Arguments{one.option};
        if (!value.empty()) arguments.push_back(value);
        ExpectRefused(arguments, one.option, where);
      }
    }
  }

  void ExpectRefused(const Arguments& arguments, const std::string& option,
                     Where where = Where::kInProcess) {
    std::string line = "quantgate";
    for (const std::string& argument : arguments) line += " " + argument;
    SCOPED_TRACE(line);
    const ProcessResult result = Quantgate(arguments, where);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(option));
    static const std::regex path(
        R"((^|[^A-Za-z0-9_/-])(spec|step|forward|backward|change_recipe|optimize|description|parameters|)"
        R"(variants|delayed|delayed_state|main_grads|tensors|layer|generate|stored|inline|subjects))"
        R"((\.[a-z_]|\[))");
    std::string said = result.err;
    // What was typed is no path.
    for (const std::string& argument : arguments) {
      const size_t at = argument.size() > 8 ? said.find(argument) : said.npos;
      if (at != said.npos) said.erase(at, argument.size());
    }
    EXPECT_FALSE(std::regex_search(said, path)) << result.err;
  }

  /// That every option of the command's help is among the cases.
  void ExpectCovered(const Arguments& command, const std::set<std::string>& always_right = {}) {
    const std::string help = Quantgate(command + Arguments{"--help"}).out;
    static const std::regex option(R"(\n  (?:-[a-z],)?(--[a-z0-9-]+))");
    int count = 0;
    for (std::sregex_iterator at(help.begin(), help.end(), option), end; at != end; ++at) {
      const std::string name = (*at)[1];
      if (name == "--help" || always_right.count(name) != 0) continue;
      ++count;
      const bool is_covered =
          covered_.count(name) + (name == "--output" ? covered_.count("-o") : 0);
      EXPECT_TRUE(is_covered) << name << " of " << command[0];
    }
    EXPECT_GT(count, 0) << help;
    covered_.clear();
  }

  /// Of run, compare and verify.
  void ExpectLayerOptionsNamed(const Arguments& command);

  std::set<std::string> covered_;
};

void OptionRefusalTest::ExpectLayerOptionsNamed(const Arguments& command) {
  ExpectNamed(command,
              {{"--input", kX},
               {"--weight", kX},
               {"--bias", kOther},
               {"--grad-output", kOut},
               {"--recipe", "bf16"}},
              {{"--input", kBadTensors},
               {"--weight", kBadTensors},
               {"--bias", kBadTensors},
               {"--grad-output", kBadTensors},
               {"--gamma", {kRow, "missing.npy"}},
               {"--beta", {kRow, "missing.npy"}},
               {"--fc1-weight", {kX, "missing.npy"}},
               {"--fc1-bias", {kRow, "missing.npy"}},
               {"--fc2-weight", {kX, "missing.npy"}},
               {"--fc2-bias", {kRow, "missing.npy"}},
               {"--param", {"weight", "nope=" + kX, "gamma=missing.npy"}},
               {"--main-grad", {"missing.npy", kOut, "nope=" + kX, "weight=gen:normal,shape=3"}},
               {"--delayed-state",
                {"missing.safetensors", "input.scale=missing.npy",
                 "input.scale=gen:normal,shape=1,dtype=f32"}},
               {"--delayed-state",
                {"input.scale=gen:normal,shape=3x5", "nope.scale=gen:uniform,shape=1,dtype=f32"},
                {"--recipe", "fp8_delayed"}},
               {"--layer", {"nope", "LINEAR"}},
               {"--layer-name", {"a b", "\n", std::string(65, 'x')}},
               {"--norm", {"nope", "rmsnorm,eps=x", "rmsnorm,nope=1"}},
               {"--activation", {"nope", "clamped_swiglu,limit=x", "gelu,nope=1"}},
               {"--heads", {"x", "-1", "2"}},
               {"--groups", {"x", "1"}},
               {"--mask", {"diagonal", "causal"}},
               {"--rotary-base", {"x", "100"}},
               {"--m-splits", {"x", "16"}},
               {"--operation", {"x", "a=conv", "a=scale,x", "a=basic_linear,diagonal"}},
               {"--spec", {"missing.json", "/", "{]", R"({"nope": 1})"}},
               {"--requires-grad", {"q", "x,,weight"}},
               {"--return-norm-output", {""}},
               {"--calibrate", {""}},
               {"--seed", {"-1", "x", "18446744073709551616"}},
               {"--backward-override", {"nope"}},
               {"--arithmetic", {"nope", "sm90:nope", "sm90:splitk=0", "cublaslt"}},
               {"--tp", {"1", "9", "x"}},
               {"--ep", {"1", "9", "2"}},
               {"--dp", {"1", "x", "2"}},
               {"--sequence-parallel", {""}},
               {"--parallel-mode", {"diagonal", "row"}},
               {"--reduction-profile", {"nope"}, {"--tp", "2", "--parallel-mode", "column"}},
               {"--reduction-profile", {"nccl"}},
               {"--parallel-backend", {"nope", "local"}},
               {"--overlap",
                {"nope=1", "column_fprop=nope", "pieces=0"},
                {"--tp", "2", "--parallel-mode", "column", "--sequence-parallel"}},
               {"--amax-group",
                {"nope", "nope=world", "input=nope"},
                {"--tp", "2", "--parallel-mode", "column"}},
               {"--require", {"nope"}},
               {"--report", {"x.pdf", "/nonexistent/x.json"}},
               {"--junit", {"x.txt", "/nonexistent/x.xml"}}});
  ExpectNamed(command, {{"--input", kX}, {"--weight", kX}},
              {{"--recipe",
                {"nope", "bf16:nope=1", "mxfp8:scale_rule=nope", "@missing.json", "custom:rules=[]",
                 "hybrid:fprop=mxfp8"}}});
  ExpectNamed(command,
              {{"--layer", "layernorm_linear"},
               {"--input", kX},
               {"--weight", kX},
               {"--gamma", kRow},
               {"--beta", kRow},
               {"--recipe", "bf16"}},
              {{"--gamma", kBadTensors}, {"--beta", kBadTensors}});
  ExpectNamed(command,
              {{"--layer", "layernorm_mlp"},
               {"--input", kX},
               {"--gamma", kRow},
               {"--fc1-weight", kX},
               {"--fc2-weight", kOut},
               {"--recipe", "bf16"}},
              {{"--fc1-weight", kBadTensors},
               {"--fc1-bias", kBadTensors},
               {"--fc2-weight", kBadTensors},
               {"--fc2-bias", kBadTensors}});
  ExpectNamed(command,
              {{"--layer", "attention"},
               {"--input", kX},
               {"--heads", "2"},
               {"--param", "qkv.weight=gen:normal,shape=96x32"},
               {"--param", "proj.weight=gen:normal,shape=32x32"},
               {"--recipe", "bf16"}},
              {{"--heads", {"0", "-2"}},
               {"--groups", {"3", "-1"}},
               {"--rotary-base", {"0", "-1", "inf"}},
               {"--parallel-mode", {"row"}, {"--tp", "2"}}});
  ExpectNamed(command,
              {{"--layer", "grouped_linear"},
               {"--m-splits", "16"},
               {"--input", kX},
               {"--weight", kX},
               {"--recipe", "mxfp8"}},
              {{"--m-splits", {"-1", "15", "16"}}});
}

TEST_F(OptionRefusalTest, OfRun) {
  ExpectLayerOptionsNamed({"run"});
  ExpectNamed({"run"}, {{"--input", kX}, {"--weight", kX}, {"--recipe", "bf16"}},
              {{"-o", {"x.bin", "/nonexistent/x.safetensors"}}});
  ExpectCovered({"run"}, {"--unfused", "--error-budget", "--tried"});
}

TEST_F(OptionRefusalTest, OfCompare) {
  ExpectLayerOptionsNamed({"compare"});
  ExpectNamed({"compare"}, {{"--input", kX}, {"--weight", kX}, {"--recipe", "bf16"}},
              {{"--reference", {"9", "nope"}}, {"--recipe", {"bf16,bf16", "bf16,,"}}});
  ExpectCovered({"compare"}, {"--unfused", "--error-budget", "--tried"});
}

TEST_F(OptionRefusalTest, OfVerify) {
  const std::string subject = Path("subject.safetensors");
  const Arguments layer = {"--input", kX, "--weight", kX, "--recipe", "bf16"};
  ASSERT_EQ(Quantgate(Arguments{"run", "-o", subject} + layer).exit_code, 0);
  // The other options are those of run.
  ExpectNamed({"verify"},
              {{"--subject", subject}, {"--input", kX}, {"--weight", kX}, {"--recipe", "bf16"}},
              {{"--subject", {"missing.safetensors", "/", Path("")}},
               {"--only", {"nope"}},
               {"--input", kBadTensors},
               {"--require", {"nope"}}});
  const std::string capture = std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/capture";
  ExpectNamed({"verify"}, {{"--capture", capture}},
              {{"--capture", {"missing", "missing.safetensors", "/", Path("")}},
               {"--layers", {"(", "nope"}},
               {"--recipe", {"nope", "bf16,mxfp8", "bf16:nope=1"}},
               {"--backward-override", {"nope"}},
               {"--arithmetic", {"nope"}},
               {"--require", {"nope"}},
               {"--report", {"x.txt", capture + "/manifest.rank0.json"}},
               {"--junit", {"x.txt"}},
               {"--input", {kX}},
               {"--tp", {"2"}}});
}

TEST_F(OptionRefusalTest, OfDiff) {
  ExpectNamed({"diff", kX, kX}, {},
              {{"--max-ulp", {"-1", "x"}}, {"--report", {"x.txt"}}, {"--junit", {"x.txt"}}});
  ExpectNamed({"diff", "missing", "missing"}, {}, {{"--capture", {""}}});
  ExpectCovered({"diff"}, {"--tried"});
}

TEST_F(OptionRefusalTest, OfGemm) {
  const std::string q = Path("q.safetensors"), a = "gen:normal,shape=64x64";
  ASSERT_EQ(Quantgate({"quantize", a, "--recipe", "mxfp8", "--role", "input", "-o", q}).exit_code,
            0);
  std::vector<Case> cases;
  for (const std::string side : {"--a", "--b"}) {
    cases.push_back({side, kBadTensors});
    cases.push_back({side + "-scale-inv", kBadTensors, {side, q + ":rowwise_data"}});
    cases.push_back({side + "-amax", kBadTensors});
    cases.push_back({side + "-zero-point", kBadTensors});
    cases.push_back({side + "-group", {"nope", "0"}});
    cases.push_back({side + "-scaling", {"nope", "mx32", "outer"}});
    cases.push_back({side + "-e4m3-max", {"x", "300"}});
  }
  for (const std::string tensor : {"--c", "--bias"}) cases.push_back({tensor, kBadTensors});
  cases.insert(cases.end(), {{"--alpha", {"x", "nan"}},
                             {"--beta", {"x", "nan", "1"}},
                             {"--d-scale", {"x", "nan", "2"}},
                             {"--layout", {"nope"}},
                             {"--in-place", {""}}});
  const std::vector<std::pair<std::string, std::string>> operands = {{"--a", a}, {"--b", a}};
  const auto without = [&](const std::string& side) {
    return std::vector<std::pair<std::string, std::string>>{side == "--a" ? operands[1]
                                                                          : operands[0]};
  };
  for (const Case& one : cases) {
    const bool has_own = !one.beside.empty();
    const auto base = has_own ? without(one.beside[0]) : operands;
    ExpectNamed({"gemm"}, base, {one});
    ExpectNamed({"explain", "--d", "gen:normal,shape=64x64,dtype=f32"}, base, {one});
  }
  ExpectNamed({"gemm"}, operands,
              {{"--arithmetic", {"nope", "sm90:nope", "cublaslt"}},
               {"--out-dtype", {"nope", "f64"}},
               {"--every-algorithm", {""}},
               {"-o", {"x.bin", "/nonexistent/x.safetensors"}}});
  ExpectNamed({"explain"}, operands, {{"--d", kBadTensors}});
  ExpectNamed({"explain"},
              {{"--source", a},
               {"--codes", q + ":rowwise_data"},
               {"--scale-inv", q + ":rowwise_scale_inv"}},
              {{"--codes", kBadTensors},
               {"--scale-inv", kBadTensors},
               {"--amax", kBadTensors},
               {"--zero-point", kBadTensors},
               {"--scale-layout", {"nope"}}});
  // What fits no codes may be the source or the codes.
  ExpectNamed(
      {"explain"},
      {{"--source", a},
       {"--codes", q + ":rowwise_data"},
       {"--scale-inv", q + ":rowwise_scale_inv"}},
      {{"--source", {"missing.npy", "gen:gauss,shape=64x64", "gen:normal,shape=64x64,dtype=i64"}}});
  const std::set<std::string> all = covered_;
  ExpectCovered({"gemm"});
  covered_ = all;
  ExpectCovered({"explain"});
}

TEST_F(OptionRefusalTest, OfQuantizeAndDequantize) {
  const std::string tensor = "gen:normal,shape=64x64", q = Path("q.safetensors");
  const std::string scale = "gen:one_huge,shape=1,dtype=f32",
                    history = "gen:uniform,shape=1024,dtype=f32";
  const std::vector<std::pair<std::string, std::string>> base = {{"--recipe", "mxfp8"},
                                                                 {"--role", "input"}};
  for (const std::string& bad : kBadTensors) {
    ExpectRefused({"quantize", bad, "--recipe", "mxfp8", "--role", "input"}, "TENSOR");
  }
  ExpectNamed({"quantize", tensor}, base,
              {{"--recipe", {"nope", "mxfp8:nope=1", "bf16:scale_rule=nope", "@missing.json"}},
               {"--role", {"nope"}},
               {"--usage", {"nope", "rowwise,,"}},
               {"--seed", {"-1", "x", "3"}},
               {"--scale-layout", {"nope"}},
               {"--scale", {scale}},
               {"--amax-history", {history}},
               {"-o", {"x.bin", "/nonexistent/x.safetensors"}}});
  ExpectNamed({"quantize", tensor},
              {{"--recipe", "fp8_delayed"},
               {"--role", "input"},
               {"--scale", scale},
               {"--amax-history", history}},
              {{"--scale", kBadTensors}, {"--amax-history", kBadTensors}});
  ExpectCovered({"quantize"});
  ASSERT_EQ(
      Quantgate({"quantize", tensor, "--recipe", "mxfp8", "--role", "input", "-o", q}).exit_code,
      0);
  for (const std::string& bad : {std::string("missing.safetensors"), std::string("/")}) {
    ExpectRefused({"dequantize", bad}, "FILE");
  }
  ExpectNamed({"dequantize", q}, {},
              {{"--usage", {"nope", "columnwise"}},
               {"--format-hint", {"nope", "mxfp8:nope=1", "nvfp4", "mxfp8:block_dim=3"}},
               {"--scale-layout", {"nope"}},
               {"--out-dtype", {"nope", "i64"}},
               {"-o", {"x.bin", "/nonexistent/x.safetensors", q}}});
  ExpectCovered({"dequantize"});
  for (const std::string& bad : {std::string("missing.safetensors"), std::string("/")}) {
    ExpectRefused({"update-usage", bad}, "FILE");
  }
  ExpectNamed({"update-usage", q}, {},
              {{"--rowwise", {"nope", "false"}},
               {"--columnwise", {"nope", "true"}},
               {"-o", {"x.bin", "/nonexistent/x.safetensors", q}}});
  ExpectCovered({"update-usage"});
}

constexpr char kSession[] =
    R"({"layers": [{"name": "fc1", "layer": {"kind": "linear"}}], "recipe": {"name": "fp8_delayed"},
        "masters": "f32", "sgd": {"learning_rate": 0.01},
        "parameters": {"fc1.weight": "gen:normal,shape=32x32"}})";

TEST_F(OptionRefusalTest, OfSessions) {
  const std::string spec = Path("session.json"), file = Path("checkpoint.safetensors");
  WriteFile(spec, kSession);
  const std::string id = QuantgateJson({"session", "open", spec}, Where::kServer)["session_id"];
  ASSERT_EQ(Quantgate({"session", "checkpoint", id, "-o", file}, Where::kServer).exit_code, 0);
  const auto expect = [&](const Arguments& command,
                          const std::vector<std::pair<std::string, std::string>>& base,
                          const std::vector<Case>& cases) {
    ExpectNamed(Arguments{"session"} + command, base, cases, Where::kServer);
  };
  const std::string x = "gen:normal,shape=32x32";
  expect({"step", id, "train"}, {{"--x", x}},
         {{"--x", kBadTensors},
          {"--microbatch", {"a b", std::string(65, 'x')}},
          {"--is-first", {"nope"}},
          {"--requires-grad", {"q"}},
          {"--amax-group", {"nope", "nope=world"}},
          {"--overlap", {"nope=1", "column_fprop=nope", "column_fprop=ring_exchange"}},
          {"--learning-rate", {"x", "1"}},
          {"--recipe", {"bf16"}},
          {"--grad-output", {x}},
          {"--against", {"nope", "bf16:nope=1", "@missing.json", "mxfp8:scale_rule=nope"}},
          {"-o", {"x.bin"}}});
  expect({"step", id, "evaluate"}, {{"--x", x}}, {{"--defer-wgrad", {""}}});
  expect({"step", id, "optimize"}, {}, {{"--calibrate", {""}}});
  expect({"step", id, "recipe"}, {},
         {{"--recipe", {"nope", "bf16:nope=1", "@missing.json", "mxfp8:scale_rule=nope"}}});
  ASSERT_EQ(
      Quantgate({"session", "step", id, "train", "--x", x, "--microbatch", "m"}, Where::kServer)
          .exit_code,
      0);
  expect({"step", id, "backward"}, {{"--microbatch", "m"}},
         {{"--grad-output", kBadTensors}, {"--microbatch", {"other"}, {"--grad-output", x}}});
  expect({"step", id, "offload"}, {}, {{"--microbatch", {"other"}}});
  ExpectRefused({"session", "step", id, "wgrad"}, "wgrad: nothing is deferred", Where::kServer);
  ExpectRefused({"session", "step", id, "optimize"}, "optimize: no gradient", Where::kServer);
  ExpectRefused({"session", "step", id, "nope"}, "KIND", Where::kServer);
  ExpectCovered({"session", "step"});
  for (const char* command : {"get", "close"}) {
    ExpectRefused({"session", command, "nope"}, "ID", Where::kServer);
  }
  expect({"get", id}, {}, {{"--tensor", {"nope"}}, {"-o", {"x.bin", "x.safetensors"}}});
  ExpectCovered({"session", "get"}, {"--tensors"});
  expect({"checkpoint", id}, {}, {{"-o", {"x.bin", "/nonexistent/x.safetensors"}}});
  expect({"open", spec}, {}, {{"--lease", {"-1", "x", "1000000"}}});
  ExpectCovered({"session", "open"});
  for (const std::string& bad : {std::string("missing.json"), std::string("/")}) {
    ExpectRefused({"session", "open", bad}, "SPEC", Where::kServer);
    ExpectRefused({"session", "restore", file, bad}, "SPEC", Where::kServer);
    ExpectRefused({"session", "restore", bad, spec}, "CHECKPOINT", Where::kServer);
  }
  ASSERT_EQ(Quantgate({"tensor", "gen", "normal,shape=4", "-o", Path("no.safetensors")}).exit_code,
            0);
  ExpectRefused({"session", "restore", Path("no.safetensors"), spec}, "CHECKPOINT", Where::kServer);
  expect({"restore", file, spec}, {}, {{"--lease", {"-1", "x"}}});
  // Who plays a trace says so in options too.
  WriteFile(Path("trace.json"),
            R"({"spec": {"layers": [{"name": "fc1", "layer": {"kind": "linear"}}], "masters": "f32",
                "sgd": {"learning_rate": 0.01}}, "parameters": {"fc1.weight": "gen:normal,shape=32x32"},
                "variants": [{"recipe": {"name": "bf16"}}], "rounds": 1,
                "steps": [{"forward": {}, "x": "gen:normal,shape=32x32"}]})");
  const Arguments run = {"session", "run", Path("trace.json")};
  ExpectNamed(run, {},
              {{"--recipe", {"nope", "bf16:nope=1", "@missing.json"}},
               {"--backward-override", {"nope"}, {"--recipe", "bf16"}},
               {"--arithmetic", {"nope", "cublaslt"}, {"--recipe", "bf16"}},
               {"--reference", {"9", "nope"}},
               {"--tp", {"1", "x", "2"}},
               {"--ep", {"9", "2"}},
               {"--dp", {"1", "x"}},
               {"--sequence-parallel", {""}},
               {"--reduction-profile", {"nope"}, {"--dp", "2"}},
               {"--parallel-backend", {"nope", "local"}},
               {"--overlap", {"nope=1", "column_fprop=nope"}, {"--dp", "2"}},
               {"--amax-group", {"nope", "nope=world"}, {"--dp", "2"}},
               {"--fsdp", {""}},
               {"--distributed-optimizer", {""}},
               {"--no-reshard", {""}},
               {"--require", {"nope", "bitwise"}},
               {"--subject", {"missing.safetensors", "/", Path("no.safetensors")}},
               {"--require-subject", {"nope", "bitwise"}},
               {"--report", {"x.pdf", "/nonexistent/x.json"}}});
  ExpectCovered({"session", "run"}, {"--tried"});
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
