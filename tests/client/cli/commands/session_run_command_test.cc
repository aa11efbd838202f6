// `quantgate session run`: what it says of a trace against `quantgate compare` of the same step,
// against counts taken from the operands themselves, and from step to step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/client/cli/commands/command_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using nlohmann::json;
using testing::HasSubstr;

std::vector<float> Bf16Values(const std::string& bytes) {
  std::vector<float> values;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const uint32_t bits = static_cast<uint8_t>(bytes[i]) | static_cast<uint8_t>(bytes[i + 1]) << 8;
    values.push_back(std::bit_cast<float>(bits << 16));
  }
  return values;
}

class SessionRunTest : public CommandTest {
 protected:
  /// One linear layer fc without bias, `steps` as JSON.
  std::string Trace(const std::string& weight, const std::string& more, const std::string& steps) {
    const std::string path = Path("trace.json");
    WriteFile(path, R"({"spec": {"layers": [{"name": "fc", "layer": {"kind": "linear"}}],)"
                    R"( "masters": "f32", "sgd": {"learning_rate": 0.5}},)"
                    R"( "parameters": {"fc.weight": ")" +
                        weight + "\"}, " + more + "\"steps\": [" + steps + "]}");
    return path;
  }
  static std::string Forward(const std::string& x) {
    return R"({"forward": {}, "x": ")" + x + "\"}";
  }
  static std::string Backward(const std::string& dy) {
    return R"({"backward": {}, "grad_output": ")" + dy + "\"}";
  }
  static json Find(const json& rows, int step, const std::string& tensor, int variant) {
    for (const json& row : rows) {
      if (row["step"] == step && row["tensor"] == tensor && row["variant"] == variant) return row;
    }
    ADD_FAILURE() << "no " << tensor << " of variant " << variant << " in step " << step;
    return {};
  }
};

// One forward and backward is the linear layer that `compare` runs.
TEST_F(SessionRunTest, TheFirstStepsCompareAsOneLayerDoes) {
  const std::string trace =
      Trace(Sample("fc1.weight"), "",
            Forward(Sample("fc1.x")) + "," + Backward(Sample("fc1.dy")) + R"(, {"optimize": {}})");
  const json report = QuantgateJson({"session", "run", trace, "--recipe", "bf16,fp8_current",
                                     "--backward-override", "none,dequantized", "--report",
                                     Path("trace.html"), "--report", Path("trace.json.json")});
  const json pairs =
      QuantgateJson({"compare", "--input", Sample("fc1.x"), "--weight", Sample("fc1.weight"),
                     "--grad-output", Sample("fc1.dy"), "--recipe", "bf16,fp8_current",
                     "--backward-override", "none,dequantized"})["run"]["pairs"];
  int compared = 0;
  for (const json& pair : pairs) {
    if (pair["reference"] != 0) continue;
    const std::string name = pair["tensor"];
    const json row = Find(report["tensors"], name == "y" ? 1 : 2, name == "dw" ? "fc.dw" : name,
                          pair["subject"]);
    EXPECT_EQ(row["parity"]["mismatch_count"], pair["mismatch_count"]) << pair;
    EXPECT_EQ(row["error"]["relative_frobenius"], pair["relative_frobenius"]) << pair;
    ++compared;
  }
  EXPECT_EQ(compared, 9);  // y, dx, dw of three variants
  // bf16 has no quantizer to override; fp8 gradients differ, and the weights after them.
  EXPECT_EQ(Find(report["tensors"], 3, "fc.weight", 1)["parity"]["equal"], true);
  EXPECT_EQ(Find(report["tensors"], 3, "fc.weight", 2)["parity"]["equal"], false);
  EXPECT_EQ(json::parse(ReadFile(Path("trace.json.json"))), report);
  EXPECT_THAT(ReadFile(Path("trace.html")), HasSubstr("<h3>fc.dw</h3>"));
}

// Delayed scaling begins with scale 1: E4M3 codes of x end at 448 and begin at 2^-9, so that what
// is at most 2^-10 rounds to zero (a tie to even there) and the one huge element saturates.
TEST_F(SessionRunTest, RatesAreThoseOfTheOperand) {
  const std::string x = "gen:one_huge,seed=3,shape=32x64,dtype=bf16";
  Quantgate({"tensor", "gen", x, "-o", Path("x.safetensors")});
  const std::string entry = ContentsOf(Path("x.safetensors")).at(0);  // "NAME bf16[32x64]"
  const std::vector<float> values =
      Bf16Values(BytesOf(Path("x.safetensors"), entry.substr(0, entry.find(' '))));
  ASSERT_EQ(values.size(), 32u * 64);
  int flushed = 0, saturated = 0;
  for (const float value : values) {
    if (value != 0 && std::fabs(value) <= 0x1p-10f) ++flushed;
    if (std::fabs(value) > 1000) ++saturated;
  }
  EXPECT_EQ(saturated, 1);
  EXPECT_GT(flushed, 1000);  // Two of three elements of a normal distribution.
  const json report = QuantgateJson(
      {"session", "run", Trace("gen:normal,seed=1,shape=32x64,dtype=bf16", "", Forward(x)),
       "--recipe", "fp8_delayed"});
  const json row = Find(report["quantizations"], 1, "fc.x", 0);
  EXPECT_EQ(row["underflow_rate"], flushed / 2048.0);
  EXPECT_EQ(row["saturation_rate"], 1 / 2048.0);
  EXPECT_EQ(row["scale"], 1.0);
}

// The second round's scale is that of the first round's amax: 448 / amax in fp32.
TEST_F(SessionRunTest, ScalesDriftFromRoundToRound) {
  const std::string x = "gen:normal,seed=5,shape=32x64,dtype=bf16";
  const json report = QuantgateJson(
      {"session", "run",
       Trace("gen:normal,seed=1,shape=32x64,dtype=bf16", R"("rounds": 2, )",
             Forward(x) + ", " + Backward("gen:normal,seed=6,shape=32x32,dtype=bf16") +
                 R"(, {"optimize": {}})"),
       "--recipe", "fp8_delayed"});
  ASSERT_EQ(report["steps"].size(), 6u);
  // x [32][64] columnwise and the weight [32][64] in both directions, a byte each, and their
  // scales.
  const json& memories = report["memories"];
  ASSERT_EQ(memories.size(), 6u);
  const int saved = 32 * 64 + 4 + 2 * 32 * 64 + 4;
  for (const int step : {0, 3}) {
    EXPECT_EQ(memories[step]["saved_bytes"], saved);
    EXPECT_EQ(memories[step + 1]["saved_bytes"], 0);
    EXPECT_EQ(memories[step + 1]["peak_bytes"], saved);
    EXPECT_EQ(memories[step + 1]["peak_step"], 1);
  }
  const json first = Find(report["quantizations"], 1, "fc.x", 0);
  const json second = Find(report["quantizations"], 4, "fc.x", 0);
  const float scale = 448.0f / first["amax"].get<float>();
  EXPECT_EQ(second["scale"].get<float>(), scale);
  EXPECT_EQ(second["scale_drift_log2"].get<double>(), std::log2(double{scale}));
  EXPECT_EQ(first["scale_drift_log2"], 0.0);
  EXPECT_TRUE(report["tensors"].empty());  // One variant has nothing to be compared with.
}

TEST_F(SessionRunTest, TextAndJsonInProcessAndOnAServerAreTheSame) {
  const std::string steps = Forward("gen:normal,seed=2,shape=32x32,dtype=bf16");
  const std::string trace = Trace("gen:normal,seed=1,shape=32x32,dtype=bf16",
                                  R"("variants": [{"recipe": {"name": "bf16"}},
                                     {"recipe": {"name": "mxfp8"}}], "reference": 1, )",
                                  steps);
  WriteFile(Path("trace.txtpb"), R"(
      spec { layers { name: "fc" layer { kind: "linear" } }
             masters: "f32" sgd { learning_rate: 0.5 } }
      parameters { key: "fc.weight" value: "gen:normal,seed=1,shape=32x32,dtype=bf16" }
      variants { recipe { name: "bf16" } } variants { recipe { name: "mxfp8" } } reference: 1
      steps { forward {} x: "gen:normal,seed=2,shape=32x32,dtype=bf16" })");
  json as_json = QuantgateJson({"session", "run", trace});
  json as_text = QuantgateJson({"session", "run", Path("trace.txtpb")});
  json served = QuantgateJson({"session", "run", trace}, Where::kServer);
  for (json* report : {&as_json, &as_text, &served}) report->erase("command");
  EXPECT_EQ(as_json, as_text);
  EXPECT_EQ(as_json, served);
  EXPECT_EQ(as_json["tensors"][0]["variant"], 0);
  EXPECT_EQ(as_json["tensors"][0]["parity"]["equal"], false);
  // Its sessions are closed.
  const ProcessResult sessions = Quantgate({"session", "ls", "--format", "jsonl"}, Where::kServer);
  EXPECT_EQ(sessions.exit_code, 0);
  EXPECT_EQ(sessions.out.find("\"open\""), std::string::npos) << sessions.out;
}

/// A safetensors file of one bf16 tensor.
std::string SafetensorsOf(const std::string& name, const std::string& shape,
                          const std::string& bytes) {
  const std::string head = "{\"" + name + "\":{\"dtype\":\"BF16\",\"shape\":" + shape +
                           ",\"data_offsets\":[0," + std::to_string(bytes.size()) + "]}}";
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(head.size() >> (8 * i) & 0xFF);
  return file + head + bytes;
}

// The subject is what `run` gives of the same layer; then that with one bit flipped.
TEST_F(SessionRunTest, SubjectsAreHeldAgainstTheirVariantsOutput) {
  const std::string x = "gen:normal,seed=2,shape=32x32,dtype=bf16";
  const std::string weight = "gen:normal,seed=1,shape=32x32,dtype=bf16";
  Quantgate({"run", "--input", x, "--weight", weight, "--recipe", "fp8_current", "-o",
             Path("run.safetensors")});
  std::string y = BytesOf(Path("run.safetensors"), "y");
  ASSERT_EQ(y.size(), 32u * 32 * 2);
  const std::string trace = Trace(weight, "", Forward(x));
  const auto command = [&](const std::string& requirement) {
    return std::vector<std::string>{"session",
                                    "run",
                                    trace,
                                    "--recipe",
                                    "fp8_current",
                                    "--subject",
                                    Path("mine.safetensors"),
                                    "--require-subject",
                                    requirement};
  };
  WriteFile(Path("mine.safetensors"), SafetensorsOf("step1.y", "[32,32]", y));
  for (const char* requirement : {"bitwise", "bound"}) {
    json here = QuantgateJson(command(requirement));
    json there = QuantgateJson(command(requirement), Where::kServer);
    EXPECT_EQ(here["verdict"]["pass"], true) << here["verdict"];
    ASSERT_EQ(here["subjects"].size(), 1u);
    EXPECT_EQ(here["subjects"][0]["parity"]["equal"], true);
    EXPECT_EQ(here["diagnoses"], json::array());
    EXPECT_EQ(here["subjects"][0]["bound"].is_null(), std::string(requirement) == "bitwise");
    for (json* report : {&here, &there}) report->erase("command");
    EXPECT_EQ(here, there);
  }
  y[2 * 40] = static_cast<char>(y[2 * 40] ^ 1);
  WriteFile(Path("mine.safetensors"), SafetensorsOf("step1.y", "[32,32]", y));
  const ProcessResult wrong = Quantgate(command("bitwise"));
  EXPECT_EQ(wrong.exit_code, 1) << wrong.err;
  EXPECT_THAT(wrong.out, HasSubstr("the subject's y of fp8_current / none / auto differs in 1 of "
                                   "1,024 elements, first at (1, 8)"));
  EXPECT_THAT(wrong.out, HasSubstr("step 1 forward of fp8_current / none / auto: "));
  // All signs flipped: the cause in text, JSON and HTML, and none of what passed.
  std::string negated = BytesOf(Path("run.safetensors"), "y");
  for (size_t i = 1; i < negated.size(); i += 2) negated[i] = static_cast<char>(negated[i] ^ 0x80);
  WriteFile(Path("mine.safetensors"), SafetensorsOf("step1.y", "[32,32]", negated));
  std::vector<std::string> reported = command("bitwise");
  reported.insert(reported.end(), {"--report", Path("trace.html")});
  EXPECT_THAT(Quantgate(reported).out, HasSubstr("none / auto: y is negated\n"));
  EXPECT_THAT(ReadFile(Path("trace.html")), HasSubstr("<strong>y is negated</strong>"));
  std::vector<std::string> as_json = command("bitwise");
  as_json.insert(as_json.end(), {"--format", "json"});
  const ProcessResult red = Quantgate(as_json, Where::kServer);
  EXPECT_EQ(red.exit_code, 1) << red.err;
  EXPECT_EQ(json::parse(red.out)["diagnoses"][0]["sentence"], "y is negated");
  WriteFile(Path("mine.safetensors"), SafetensorsOf("step1.y", "[32,32]", y));
  // Without a requirement it informs.
  const json informed = QuantgateJson(
      {"session", "run", trace, "--recipe", "fp8_current", "--subject", Path("mine.safetensors")});
  EXPECT_EQ(informed["subjects"][0]["parity"]["mismatch_count"], 1);
  EXPECT_TRUE(informed["verdict"].is_null());
  // A name of no step, and an output that the step does not give.
  WriteFile(Path("mine.safetensors"), SafetensorsOf("step2.y", "[32,32]", y));
  const ProcessResult no_step = Quantgate(command("bitwise"));
  EXPECT_EQ(no_step.exit_code, 2);
  EXPECT_THAT(no_step.err, HasSubstr("step2.y is of no step"));
  WriteFile(Path("mine.safetensors"), SafetensorsOf("step1.dx", "[32,32]", y));
  const ProcessResult no_output = Quantgate(command("bitwise"));
  EXPECT_EQ(no_output.exit_code, 2);
  EXPECT_THAT(no_output.err, HasSubstr(R"(trace.steps[0].subjects["dx"])"));
}

TEST_F(SessionRunTest, ARefusedStepNamesVariantAndStep) {
  const std::string trace = Trace("gen:normal,seed=1,shape=32x32,dtype=bf16", "",
                                  Forward("gen:normal,seed=2,shape=32x32,dtype=bf16") + ", " +
                                      Backward("gen:normal,seed=2,shape=32x32,dtype=bf16") + ", " +
                                      Backward("gen:normal,seed=2,shape=32x32,dtype=bf16"));
  const ProcessResult result = Quantgate({"session", "run", trace, "--recipe", "bf16,mxfp8"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("bf16 / none / auto, step 3 (backward): "));
  const ProcessResult overwrite =
      Quantgate({"session", "run", trace, "--recipe", "bf16", "--report", trace});
  EXPECT_EQ(overwrite.exit_code, 2);
  const ProcessResult alone = Quantgate({"session", "run", trace, "--arithmetic", "sm90"});
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.err, HasSubstr("--recipe: absent"));
}

// What a variant says of its ranks is not left out where it is wrong.
TEST_F(SessionRunTest, RanksThatCannotBeAreRefused) {
  const auto error_of = [&](const std::string& parallel) {
    const std::string trace =
        Trace("gen:normal,seed=1,shape=32x32,dtype=bf16",
              R"("variants": [{"recipe": {"name": "bf16"}, "parallel": {)" + parallel + "}}], ",
              Forward("gen:normal,seed=2,shape=32x32,dtype=bf16"));
    const ProcessResult result = Quantgate({"session", "run", trace});
    EXPECT_EQ(result.exit_code, 2) << parallel;
    return result.err;
  };
  EXPECT_THAT(error_of(R"("tensor_parallel": -2)"),
              HasSubstr("trace.variants[0].parallel.tensor_parallel is -2: from 1 to 8"));
  EXPECT_THAT(error_of(R"("data_parallel": -1)"),
              HasSubstr("trace.variants[0].parallel.data_parallel is -1: from 1 to 8"));
  EXPECT_THAT(error_of(R"("tensor_parallel": 1, "sequence_parallel": true)"),
              HasSubstr("trace.variants[0].parallel is tp1 sp: tensor_parallel or expert_parallel, "
                        "times data_parallel"));
}

// Rows of y do not depend on which rank has them; sums of gradients over copies have other bits.
TEST_F(SessionRunTest, SeveralRanksAreHeldAgainstOne) {
  const std::string forward = Forward("gen:normal,seed=2,shape=64x32,dtype=bf16");
  const std::string weight = "gen:normal,seed=1,shape=32x32,dtype=bf16";
  const std::vector<std::string> ranks = {"--recipe", "mxfp8", "--dp", "2", "--require", "bitwise"};
  const json same =
      QuantgateJson(std::vector<std::string>{"session", "run", Trace(weight, "", forward)} + ranks);
  EXPECT_EQ(same["variants"], json({"mxfp8 / none / auto", "mxfp8 / none / auto / tp1 dp2"}));
  EXPECT_EQ(same["verdict"]["pass"], true);
  ASSERT_EQ(same["tensors"].size(), 1u);
  EXPECT_EQ(same["tensors"][0]["tensor"], "y");
  std::vector<int> of_rank;
  for (const json& row : same["quantizations"]) {
    of_rank.push_back(row["rank"].is_null() ? -1 : row["rank"].get<int>());
  }
  EXPECT_EQ(of_rank, std::vector<int>({-1, -1, 0, 0, 1, 1}));

  const std::string backward = Backward("gen:normal,seed=3,shape=64x32,dtype=bf16");
  const ProcessResult differs = Quantgate(
      std::vector<std::string>{"session", "run", Trace(weight, "", forward + "," + backward)} +
      ranks);
  EXPECT_EQ(differs.exit_code, 1) << differs.err;
  EXPECT_THAT(differs.out, HasSubstr("FAIL  required: 0 differing elements (bitwise); found: "));
  EXPECT_THAT(differs.out, HasSubstr("step 2: fc.dw of mxfp8 / none / auto / tp1 dp2 differs in"));

  const auto refusal = [&](const std::vector<std::string>& more) {
    const ProcessResult result = Quantgate(
        std::vector<std::string>{"session", "run", Path("trace.json"), "--recipe", "bf16"} + more);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(refusal({"--require", "bitwise"}), HasSubstr("there is one variant"));
  EXPECT_THAT(refusal({"--sequence-parallel"}), HasSubstr("given without --tp"));
  EXPECT_THAT(refusal({"--fsdp"}), HasSubstr("--fsdp: given without --dp"));
  EXPECT_THAT(refusal({"--tp", "2", "--fsdp"}), HasSubstr("--fsdp: given without --dp"));
  EXPECT_THAT(refusal({"--dp", "2", "--no-reshard"}), HasSubstr("given without --fsdp"));
  EXPECT_THAT(refusal({"--tp", "2"}), HasSubstr("no layer has a parallel_mode"));
}

// One rank's bits need the amax of all copies' rows; a step of the trace names another group.
TEST_F(SessionRunTest, AmaxesOfCopiesAreReducedAsAsked) {
  const std::string x = "gen:normal,seed=2,shape=64x32,dtype=bf16";
  const std::string weight = "gen:normal,seed=1,shape=32x32,dtype=bf16";
  const std::vector<std::string> command = {"session",
                                            "run",
                                            "--recipe",
                                            "fp8_current",
                                            "--dp",
                                            "2",
                                            "--amax-group",
                                            "input=world",
                                            "--require",
                                            "bitwise",
                                            "--report",
                                            Path("amax.html"),
                                            Trace(weight, "", Forward(x))};
  const json same = QuantgateJson(command);
  EXPECT_EQ(same["variants"][1], "fp8_current / none / auto / tp1 dp2 amax:input=world");
  EXPECT_EQ(same["verdict"]["pass"], true);
  EXPECT_EQ(same["quantizations"][2]["amax_group"], "world (ranks 0, 1)");
  EXPECT_THAT(ReadFile(Path("amax.html")), HasSubstr("world (ranks 0, 1)"));
  Trace(weight, "", R"({"forward": {"amax_groups": {"input": "none"}}, "x": ")" + x + "\"}");
  const ProcessResult refused = Quantgate(command);
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("forward.amax_groups[input] is none: a session on one rank"));
}

// Copies that divide masters by elements have the bits of whole ones, and so their checkpoint goes
// on without that.
TEST_F(SessionRunTest, ADistributedOptimizerIsHeldAgainstWholeMasters) {
  const std::string weight = "gen:normal,seed=1,shape=32x32,dtype=bf16";
  const std::string steps = Forward("gen:normal,seed=2,shape=64x32,dtype=bf16") + "," +
                            Backward("gen:normal,seed=3,shape=64x32,dtype=bf16") +
                            R"(, {"optimize": {}})";
  const std::string whole = R"({"recipe": {"name": "mxfp8"}, "parallel": {"dataParallel": 2}})";
  const std::string divided =
      R"({"recipe": {"name": "mxfp8"}, "parallel": {"dataParallel": 2, "distributedOptimizer": true}})";
  const std::string restart =
      R"(, {"restart": {"variants": [1], "parallel": {"dataParallel": 2}}}, )";
  const json same = QuantgateJson(
      {"session", "run",
       Trace(weight, "\"variants\": [" + whole + ", " + divided + "], ", steps + restart + steps),
       "--require", "bitwise"});
  EXPECT_EQ(same["variants"][1], "mxfp8 / none / auto / tp1 dp2 distopt");
  EXPECT_EQ(same["verdict"]["pass"], true);

  Trace(weight, "", steps);
  const auto refusal = [&](const std::vector<std::string>& more) {
    const ProcessResult result = Quantgate(
        std::vector<std::string>{"session", "run", Path("trace.json"), "--recipe", "bf16"} + more);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(refusal({"--distributed-optimizer"}),
              HasSubstr("--distributed-optimizer: given without --dp"));
  EXPECT_THAT(refusal({"--dp", "2", "--fsdp", "--distributed-optimizer"}),
              HasSubstr("--distributed-optimizer is true: fully_sharded copies divide"));
}

TEST_F(SessionRunTest, DrawsWhatOverlaps) {
  const std::string path = Path("overlap.json");
  WriteFile(path, R"({"spec": {"layers": [{"name": "fc", "layer":
      {"kind": "linear", "parallel_mode": "row"}}]}, "rounds": 2,
      "parameters": {"fc.weight": "gen:normal,seed=1,shape=128x64,dtype=bf16"},
      "steps": [)" + Forward("gen:normal,seed=2,shape=64x64,dtype=bf16") +
                      "," + Backward("gen:normal,seed=3,shape=64x128,dtype=bf16") + "]}");
  QuantgateJson({"session", "run", path, "--recipe", "bf16", "--tp", "2", "--sequence-parallel",
                 "--overlap", "default", "--report", Path("overlap.html")});
  const std::string page = ReadFile(Path("overlap.html"));
  EXPECT_THAT(page, testing::AllOf(HasSubstr("Communication beside GEMMs: fc.fprop, step 3"),
                                   HasSubstr("Communication beside GEMMs: fc.dgrad, step 4"),
                                   testing::Not(HasSubstr("fc.fprop, step 1")),
                                   HasSubstr("title=\"rank 1, compute, ")));
}

// Whole copies, copies with rows each, and ones that keep what they gathered: every bit, over
// restarts on 2 copies, on 1 and on 4 again.
TEST_F(SessionRunTest, ShardedWeightsAreHeldAgainstWholeOnes) {
  const std::string path = Path("sharded.json");
  const std::string sharded = R"("parallel": {"fully_sharded": true, "data_parallel": )";
  const auto write = [&](const std::string& variants) {
    WriteFile(path, R"({"spec": {"layers": [{"name": "fc", "layer": {"kind": "linear"}}],
        "weights": "quantized", "masters": "f32", "adam": {"learning_rate": 0.1}},
        "parameters": {"fc.weight": "gen:normal,seed=1,shape=128x64,dtype=bf16"}, )" +
                        variants + R"( "steps": [)" +
                        Forward("gen:normal,seed=2,shape=128x64,dtype=bf16") + "," +
                        Backward("gen:normal,seed=3,shape=128x128,dtype=bf16") +
                        R"(, {"optimize": {}}, {"restart": {"variants": [1], )" + sharded +
                        R"( 2}}}, {"restart": {"variants": [1], "parallel": {}}},
                        {"restart": {"variants": [1], )" +
                        sharded + R"( 4}}}]})");
  };
  const std::string recipe = R"({"recipe": {"name": "mxfp8"}, )";
  write(R"("rounds": 2, "variants": [)" + recipe + R"("parallel": {"data_parallel": 4}}, )" +
        recipe + sharded + "4}}, " + recipe + sharded + R"(4, "reshard_after_forward": false}}],)");
  const json report = QuantgateJson({"session", "run", path, "--require", "bitwise"});
  EXPECT_EQ(report["verdict"]["pass"], true);
  EXPECT_EQ(report["variants"],
            json({"mxfp8 / none / auto / tp1 dp4", "mxfp8 / none / auto / tp1 dp4 fsdp",
                  "mxfp8 / none / auto / tp1 dp4 fsdp:keep"}));
  // y; dx and dw; the weight after the update and after each restart: twice, of two subjects.
  EXPECT_EQ(report["tensors"].size(), 2u * 2 * (1 + 2 + 4));

  // By options: the twin of one rank, which has the same y.
  write("");
  json twins = QuantgateJson(
      {"session", "run", path, "--recipe", "mxfp8", "--dp", "4", "--fsdp", "--no-reshard"},
      Where::kServer);
  EXPECT_EQ(twins["variants"][1], "mxfp8 / none / auto / tp1 dp4 fsdp:keep");
  EXPECT_EQ(Find(twins["tensors"], 1, "y", 1)["parity"]["equal"], true);
}

// Experts on 3 ranks, on 2, on 1 and on 3 again against all on one: every bit.
TEST_F(SessionRunTest, DividedExpertsAreHeldAgainstOneRank) {
  const std::string path = Path("experts.json");
  WriteFile(path, R"({"spec": {"layers": [{"name": "moe", "layer":
      {"kind": "grouped_linear", "m_splits": [64, 0, 96, 32]}}], "masters": "f32",
      "adam": {"learning_rate": 0.1}}, "rounds": 2,
      "parameters": {"moe.weight.0": "gen:normal,seed=1,shape=64x32,dtype=bf16",
                     "moe.weight.1": "gen:normal,seed=2,shape=64x32,dtype=bf16",
                     "moe.weight.2": "gen:normal,seed=3,shape=64x32,dtype=bf16",
                     "moe.weight.3": "gen:normal,seed=4,shape=64x32,dtype=bf16"},
      "steps": [)" + Forward("gen:normal,seed=5,shape=192x32,dtype=bf16") +
                      "," + Backward("gen:normal,seed=6,shape=192x64,dtype=bf16") +
                      R"(, {"optimize": {}},
      {"restart": {"variants": [1], "parallel": {"expert_parallel": 2}}},
      {"restart": {"variants": [1], "parallel": {}}},
      {"restart": {"variants": [1], "parallel": {"expert_parallel": 3}}}]})");
  for (const char* recipe : {"mxfp8", "fp8_delayed"}) {
    const json report = QuantgateJson(
        {"session", "run", path, "--ep", "3", "--recipe", recipe, "--require", "bitwise"},
        Where::kServer);
    EXPECT_EQ(report["variants"][1], std::string(recipe) + " / none / auto / ep3");
    EXPECT_EQ(report["verdict"]["pass"], true);
    // y; dx and four dw; four weights after the update and after each restart: twice.
    EXPECT_EQ(report["tensors"].size(), 2u * (1 + 5 + 4 * 4));
  }
  // Each expert's rows are those of both copies: x and its gradients are whole, and dw a sum.
  json copies = QuantgateJson(
      {"session", "run", path, "--ep", "2", "--dp", "2", "--recipe", "bf16"}, Where::kServer);
  EXPECT_EQ(copies["variants"][1], "bf16 / none / auto / ep2 dp2");
  EXPECT_EQ(Find(copies["tensors"], 1, "y", 1)["parity"]["equal"], true);
  EXPECT_EQ(Find(copies["tensors"], 2, "dx", 1)["parity"]["equal"], true);
  // Whole or in rows: the same beside one rank, the label aside.
  json sharded = QuantgateJson(
      {"session", "run", path, "--ep", "2", "--dp", "2", "--fsdp", "--recipe", "bf16"},
      Where::kServer);
  EXPECT_EQ(sharded["variants"][1], "bf16 / none / auto / ep2 dp2 fsdp");
  for (json* const report : {&copies, &sharded}) {
    for (json& row : (*report)["tensors"]) {
      row.erase("label");
      row.erase("subject");
    }
  }
  EXPECT_TRUE(sharded["tensors"] == copies["tensors"]);
  const ProcessResult refused =
      Quantgate({"session", "run", path, "--recipe", "bf16", "--ep", "5"});
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  EXPECT_THAT(refused.err, HasSubstr("each of the 5 ranks has an expert at least"));
}

// Copies of experts, on two ranks each, with all of them, with rows of the weights, and with
// elements of masters and moments: every bit, over restarts on two copies, on one rank and on four
// again.
TEST_F(SessionRunTest, PiecesOfExpertsAreHeldAgainstWholeOnes) {
  const std::string path = Path("pieces.json");
  const std::string ranks = R"({"expert_parallel": 2, "data_parallel": 2)";
  const std::string sharded = R"("fully_sharded": true)";
  const std::string elements = R"("distributed_optimizer": true)";
  const auto variant = [&](const std::string& division) {
    return R"({"recipe": {"name": "mxfp8"}, "parallel": )" + ranks + division + "}}";
  };
  const auto restart = [&](int number, const std::string& parallel) {
    return R"(, {"restart": {"variants": [)" + std::to_string(number) + R"(], "parallel": )" +
           parallel + "}}";
  };
  WriteFile(path,
            R"({"spec": {"layers": [{"name": "moe", "layer":
      {"kind": "grouped_linear", "m_splits": [128, 0, 64]}}], "weights": "quantized",
      "masters": "f32", "adam": {"learning_rate": 0.1}}, "rounds": 2, "variants": [)" +
                variant("") + "," + variant("," + sharded) + "," + variant("," + elements) +
                R"(], "parameters": {"moe.weight.0": "gen:normal,seed=1,shape=64x32,dtype=bf16",
                     "moe.weight.1": "gen:normal,seed=2,shape=64x32,dtype=bf16",
                     "moe.weight.2": "gen:normal,seed=3,shape=64x32,dtype=bf16"},
      "steps": [)" +
                Forward("gen:normal,seed=5,shape=192x32,dtype=bf16") + "," +
                Backward("gen:normal,seed=6,shape=192x64,dtype=bf16") + R"(, {"optimize": {}})" +
                restart(1, R"({"data_parallel": 2, )" + sharded + "}") +
                restart(2, R"({"data_parallel": 2, )" + elements + "}") + restart(1, "{}") +
                restart(2, "{}") + restart(1, ranks + "," + sharded + "}") +
                restart(2, ranks + "," + elements + "}") + "]}");
  const json report =
      QuantgateJson({"session", "run", path, "--require", "bitwise"}, Where::kServer);
  EXPECT_EQ(report["verdict"]["pass"], true);
  EXPECT_EQ(report["variants"],
            json({"mxfp8 / none / auto / ep2 dp2", "mxfp8 / none / auto / ep2 dp2 fsdp",
                  "mxfp8 / none / auto / ep2 dp2 distopt"}));
  // y; dx and three dw; three weights after the update and after each restart: twice, of two
  // subjects.
  EXPECT_EQ(report["tensors"].size(), 2u * 2 * (1 + 4 + 3 * (1 + 6)));
}

// Parts of all experts' weights on 4 ranks, on 2, on 1 and on 4 again against whole ones: every bit
// of what is no sum over the ranks.
TEST_F(SessionRunTest, DividedExpertWeightsAreHeldAgainstOneRank) {
  const std::string path = Path("expert_weights.json");
  const auto write = [&](const std::string& restarts) {
    WriteFile(path, R"({"spec": {"layers": [{"name": "moe", "layer": {"kind": "grouped_linear",
        "m_splits": [64, 0, 128], "parallel_mode": "column"}}], "weights": "quantized",
        "masters": "f32", "adam": {"learning_rate": 0.1}}, "rounds": 2,
        "parameters": {"moe.weight.0": "gen:normal,seed=1,shape=128x32,dtype=bf16",
                       "moe.weight.1": "gen:normal,seed=2,shape=128x32,dtype=bf16",
                       "moe.weight.2": "gen:normal,seed=3,shape=128x32,dtype=bf16"},
        "steps": [)" + Forward("gen:normal,seed=5,shape=192x32,dtype=bf16") +
                        "," + Backward("gen:normal,seed=6,shape=192x128,dtype=bf16") +
                        R"(, {"optimize": {}})" + restarts + "]}");
  };
  write(R"(, {"restart": {"variants": [1], "parallel": {"tensor_parallel": 2}}},
           {"restart": {"variants": [1], "parallel": {}}},
           {"restart": {"variants": [1], "parallel": {"tensor_parallel": 4}}})");
  const json report = QuantgateJson(
      {"session", "run", path, "--tp", "4", "--sequence-parallel", "--recipe", "mxfp8"},
      Where::kServer);
  EXPECT_EQ(report["variants"][1], "mxfp8 / none / auto / tp4 sp");
  int compared = 0;
  for (const json& row : report["tensors"]) {
    if (row["tensor"] == "dx") continue;  // A sum over ranks.
    EXPECT_EQ(row["parity"]["equal"], true) << row;
    ++compared;
  }
  // y; three dw; three weights after the update and after each restart: twice.
  EXPECT_EQ(compared, 2 * (1 + 3 + 3 * 4));

  // Per-tensor scales too, where each expert's parts have the amaxes of the whole: the weights',
  // which are held quantized, after every update.
  write("");
  const std::vector<std::string> by_tensor = {
      "session",           "run", path, "--tp", "4", "--recipe", "fp8_current", "--amax-group",
      "grad_output=tensor"};
  const auto count_equal = [&](const std::vector<std::string>& more) {
    int equal = 0;
    const json of_groups = QuantgateJson(by_tensor + more, Where::kServer);
    for (const json& row : of_groups["tensors"]) {
      equal += row["tensor"] != "dx" && row["parity"]["equal"] == true ? 1 : 0;
    }
    return equal;
  };
  EXPECT_EQ(count_equal({"--amax-group", "weight=tensor"}), 2 * (1 + 3 + 3));
  EXPECT_LT(count_equal({}), 2 * (1 + 3 + 3));

  // Two copies, each of half of every expert's rows.
  const json copies = QuantgateJson({"session", "run", path, "--tp", "2", "--dp", "2",
                                     "--sequence-parallel", "--recipe", "mxfp8"},
                                    Where::kServer);
  EXPECT_EQ(copies["variants"][1], "mxfp8 / none / auto / tp2 dp2 sp");
  EXPECT_EQ(Find(copies["tensors"], 1, "y", 1)["parity"]["equal"], true);
  const ProcessResult refused =
      Quantgate({"session", "run", path, "--recipe", "mxfp8", "--tp", "3"});
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  EXPECT_THAT(refused.err,
              HasSubstr("[moe.weight.0] is bf16[128x32]: its dim 0 must be a multiple of 3"));
}

// tp 4, 2, 1 and 4 again beside a session on one rank that never stops: the parameters of every
// update are the same, and so is every checkpoint.
TEST_F(SessionRunTest, GoesOnFromCheckpointsOnOtherRanks) {
  const std::string x = "gen:normal,seed=2,shape=64x64,dtype=bf16";
  const auto steps = [&](const std::string& restarts) {
    return Forward(x) + "," + Backward("gen:normal,seed=3,shape=64x128,dtype=bf16") +
           R"(, {"optimize": {}}, )" + restarts;
  };
  const auto trace = [&](const std::string& restarts) {
    const std::string path = Path("restarts.json");
    WriteFile(path, R"({"spec": {"layers": [{"name": "fc", "layer":
        {"kind": "linear", "parallel_mode": "column"}}], "weights": "quantized", "masters": "f32",
        "adam": {"learning_rate": 0.1}},
        "parameters": {"fc.weight": "gen:normal,seed=1,shape=128x64,dtype=bf16"},
        "rounds": 2, "steps": [)" +
                        steps(restarts) + "]}");
    return path;
  };
  const std::vector<std::string> command = {"session", "run", "--recipe",           "mxfp8",
                                            "--tp",    "4",   "--sequence-parallel"};
  const json report = QuantgateJson(command + std::vector<std::string>{trace(R"(
          {"restart": {"variants": [1], "parallel": {"tensor_parallel": 2}}},
          {"restart": {"variants": [1], "parallel": {}}},
          {"restart": {"variants": [0, 1], "parallel": {"tensor_parallel": 4}}},
          {"restart": {"variants": [0], "parallel": {}}})")});
  std::vector<std::string> digests;
  for (const json& note : report["notes"]) {
    const std::string text = note.get<std::string>();
    const size_t at = text.find("from checkpoint ");
    if (at != std::string::npos) digests.push_back(text.substr(at));
  }
  ASSERT_EQ(digests.size(), 10u);  // 5 a round.
  for (size_t i = 1; i < 5; ++i) EXPECT_EQ(digests[i], digests[0]);
  EXPECT_NE(digests[5], digests[0]);
  for (size_t i = 6; i < 10; ++i) EXPECT_EQ(digests[i], digests[5]);
  int weights = 0;
  for (const json& row : report["tensors"]) {
    if (row["tensor"] == "dx") continue;  // A sum over ranks.
    EXPECT_EQ(row["parity"]["equal"], true) << row;
    weights += row["tensor"] == "fc.weight" ? 1 : 0;
  }
  EXPECT_EQ(weights, 10);

  const auto refusal = [&](const std::string& restart) {
    const ProcessResult result = Quantgate(command + std::vector<std::string>{trace(restart)});
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(refusal(R"({"restart": {"variants": [2]}})"),
              HasSubstr("trace.steps[3].restart.variants is 2: there are 2 variants"));
  EXPECT_THAT(refusal(R"({"restart": {"parallel": {"tensor_parallel": 3}}})"),
              testing::AllOf(HasSubstr("step 4 (restart): "),
                             HasSubstr("checkpoint: fc.weight: [128x64]; dim 0 must be a multiple "
                                       "of 3")));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
