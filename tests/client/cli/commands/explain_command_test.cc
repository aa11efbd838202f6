// explain and --error-budget through the command, in process and against a server.
#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/client/cli/commands/command_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Arguments = std::vector<std::string>;
using Json = nlohmann::json;

const std::string kFile = std::string(QUANTGATE_SOURCE_DIR) + "/data/bytegpt_block1.safetensors";

class ExplainCommandTest : public CommandTest {
 protected:
  Json Explained(const Arguments& arguments, int exit_code, Where where = Where::kInProcess) {
    const ProcessResult result =
        Quantgate(Arguments{"explain", "--format", "json"} + arguments, where);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    return Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  }
};

TEST_F(ExplainCommandTest, NamesTheArithmeticOfAGemm) {
  const std::string d = Path("d.safetensors");
  ASSERT_EQ(Quantgate({"gemm", "--a", kFile + ":fc1.x", "--b", kFile + ":fc1.weight",
                       "--arithmetic", "sm90", "-o", d},
                      Where::kInProcess)
                .exit_code,
            0);
  const Arguments operands = {"--a", kFile + ":fc1.x", "--b", kFile + ":fc1.weight", "--d", d};
  for (const Where where : {Where::kInProcess, Where::kServer}) {
    const Json json = Explained(operands, 0, where);
    const Json& best = json["gemm"][0];
    EXPECT_THAT(best["arithmetic"].get<std::string>(), HasSubstr("sm90"));
    EXPECT_EQ(best["match_count"], 256 * 2048);
    EXPECT_EQ(best["output_count"], 256 * 2048);
    EXPECT_TRUE(best["first_difference"].is_null());
    EXPECT_TRUE(json["codes"].empty());
  }
  const ProcessResult table = Quantgate(Arguments{"explain"} + operands, Where::kInProcess);
  EXPECT_THAT(table.out, AllOf(HasSubstr("L=16 F=25 out=23"), HasSubstr("exact"),
                               HasSubstr("rules on a sample of 576 outputs")));
}

TEST_F(ExplainCommandTest, EstablishesNoArithmeticWhereEveryOneGivesTheBytes) {
  const std::string zeros = "gen:zero,shape=32x64,dtype=bf16";
  const std::string d = Path("zeros.safetensors");
  ASSERT_EQ(Quantgate({"gemm", "--a", zeros, "--b", zeros, "-o", d}).exit_code, 0);
  const ProcessResult result = Quantgate({"explain", "--a", zeros, "--b", zeros, "--d", d + ":d"});
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.out + result.err, HasSubstr("no rule is established"));
}

TEST_F(ExplainCommandTest, NamesTheRuleOfCodesAndSaysWhenNothingFits) {
  const std::string q = Path("q.safetensors");
  ASSERT_EQ(Quantgate({"quantize", kFile + ":fc1.x", "--recipe", "mxfp8:scale_rule=floor", "--role",
                       "input", "--usage", "rowwise", "-o", q},
                      Where::kInProcess)
                .exit_code,
            0);
  const Arguments right = {"--source",          kFile + ":fc1.x", "--codes",
                           q + ":rowwise_data", "--scale-inv",    q + ":rowwise_scale_inv"};
  const Json best = Explained(right, 0)["codes"][0];
  EXPECT_EQ(best["element"], "f8_e4m3");
  EXPECT_EQ(best["block"], "1x32");
  EXPECT_THAT(best["scale_rule"].get<std::string>(), HasSubstr("floor"));
  EXPECT_EQ(best["code_match_count"], 256 * 512);
  EXPECT_EQ(best["scale_match_count"], 256 * 16);
  EXPECT_TRUE(best["is_established"]);
  EXPECT_GT(best["scale_distinct_count"], 1);
  EXPECT_GT(best["amax_distinct_count"], 100);
  EXPECT_GT(best["tie_count"], 1000);  // bf16 under powers of two.
  // Scales of another tensor: nothing gives all of them.
  const Json other = Explained({"--source", "gen:normal,seed=9,shape=256x512,dtype=bf16", "--codes",
                                q + ":rowwise_data", "--scale-inv", q + ":rowwise_scale_inv"},
                               1)["codes"][0];
  EXPECT_LT(other["code_match_count"], other["code_count"]);
  EXPECT_FALSE(other["first_difference"].is_null());
}

TEST_F(ExplainCommandTest, Names4Over6AndTheHadamardTransform) {
  struct Row {
    std::string recipe, usage, block, scale_rule;
  };
  const std::vector<Row> rows = {
      {"nvfp4:nvfp4_4over6=all,disable_rht=true,nvfp4_4over6_err_mode=mse", "rowwise", "1x16",
       "two_level, nvfp4_4over6_err_mode=mse, nvfp4_4over6_e4m3_max=256"},
      {"nvfp4", "columnwise", "1x16 of the transpose, Hadamard-transformed (disable_rht=false)",
       "two_level: e4m3(amax * (S * f32(1/6))), S = 448 * 6 / tensor amax"},
  };
  for (const auto& [recipe, usage, block, scale_rule] : rows) {
    SCOPED_TRACE(recipe);
    const std::string q = Path(usage + ".safetensors");
    ASSERT_EQ(Quantgate({"quantize", kFile + ":fc1.x", "--recipe", recipe, "--role", "input",
                         "--usage", usage, "-o", q},
                        Where::kInProcess)
                  .exit_code,
              0);
    const Arguments arguments = {"--source",    kFile + ":fc1.x",
                                 "--codes",     q + ":" + usage + "_data",
                                 "--scale-inv", q + ":" + usage + "_scale_inv",
                                 "--amax",      q + ":amax_" + usage};
    for (const Where where : {Where::kInProcess, Where::kServer}) {
      const Json best = Explained(arguments, 0, where)["codes"][0];
      EXPECT_EQ(best["element"], "f4_e2m1");
      EXPECT_EQ(best["block"], block);
      EXPECT_THAT(best["scale_rule"].get<std::string>(), StartsWith(scale_rule));
      EXPECT_EQ(best["code_match_count"], 256 * 512);
      EXPECT_EQ(best["scale_match_count"], 256 * 512 / 16);
    }
  }
}

// The bytes of torchao's two-level NVFP4 under rules that it has not: none gives all of them, and
// what is then certain is said.
TEST_F(ExplainCommandTest, SaysWhatIsCertainWhereNothingFits) {
  const std::string file =
      std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/explain_libraries.safetensors";
  const auto arguments = [&](const std::string& name) -> Arguments {
    return {"--source",    file + ":x.source",
            "--codes",     file + ":" + name + ".codes@f4_e2m1x2",
            "--scale-inv", file + ":" + name + ".scale_inv"};
  };
  const Json named =
      Explained(arguments("torchao_nvfp4") + Arguments{"--amax", file + ":torchao_nvfp4.amax"}, 0);
  EXPECT_TRUE(named["is_established"]);
  EXPECT_EQ(named["codes"][0]["element_rule"],
            "x * ((1 / tensor scale) / block scale) or x * (global scale / block scale), "
            "nearest_even, saturate");
  EXPECT_EQ(named["conclusion"].back(),
            "Of the libraries whose rules are tried, none fits but that of torchao, NVFP4 with a "
            "tensor scale.");
  // One scale: whatever gives it, no rule is established.
  const Json single =
      Explained({"--source", file + ":x.source", "--codes", file + ":fp8_times_reciprocal_x.codes",
                 "--scale-inv", file + ":fp8_times_reciprocal_x.scale_inv"},
                1);
  EXPECT_FALSE(single["is_established"]);
  EXPECT_EQ(single["codes"][0]["scale_origin"], "");
  EXPECT_EQ(single["conclusion"].back(),
            "No rule is established: a single scale is no evidence for a scale rule.");
}

TEST_F(ExplainCommandTest, ReadsScalesInTheLayoutOfTheirFile) {
  struct Row {
    std::string recipe, usage, layout;
  };
  for (const auto& [recipe, usage, layout] : std::vector<Row>{{"mxfp8", "rowwise", "swizzled"},
                                                              {"mxfp8", "columnwise", "swizzled"},
                                                              {"mxfp8", "rowwise", "padded"},
                                                              {"nvfp4", "rowwise", "swizzled"},
                                                              {"nvfp4", "columnwise", "swizzled"},
                                                              {"fp8_block", "rowwise", "padded"}}) {
    SCOPED_TRACE(recipe + " " + usage + " " + layout);
    const std::string q = Path(recipe + usage + layout + ".safetensors");
    ASSERT_EQ(Quantgate({"quantize", kFile + ":fc1.x", "--recipe", recipe, "--role", "input",
                         "--usage", usage, "--scale-layout", layout, "-o", q},
                        Where::kInProcess)
                  .exit_code,
              0);
    Arguments arguments = {"--source",    kFile + ":fc1.x",
                           "--codes",     q + ":" + usage + "_data",
                           "--scale-inv", q + ":" + usage + "_scale_inv"};
    if (recipe == "nvfp4") arguments = arguments + Arguments{"--amax", q + ":amax_" + usage};
    const Json json = Explained(arguments, 0, Where::kServer);
    const Json& best = json["codes"][0];
    EXPECT_EQ(best["scale_match_count"], best["scale_count"]);
    EXPECT_EQ(best["code_match_count"], best["code_count"]);
    // Padding may be none; the order of swizzled scales is another.
    if (layout == "padded") continue;
    const ProcessResult logical =
        Quantgate(Arguments{"explain", "--scale-layout", "logical"} + arguments, Where::kInProcess);
    EXPECT_NE(logical.exit_code, 0) << logical.out;
  }
}

/// A recipe, the roles whose tensors it takes as the blocks say, and what its scale rule is called.
struct WrittenBy {
  std::string recipe;
  Arguments roles;
  std::string scale_rule, rowwise, columnwise;
};

/// The name of a rule without its formula, and those of the others that are one with it.
bool HasRule(const Json& candidate, const std::string& rule) {
  const std::string all = "; also " + candidate["scale_rule"].get<std::string>() + ": ";
  return all.find("; also " + rule + ":") != all.npos ||
         all.find("; also " + rule + ";") != all.npos;
}

// Whatever quantize writes: every recipe, role, usage and layout of scales. kernels/validate walks
// the values of the knobs.
TEST_F(ExplainCommandTest, ExplainsWhateverQuantizeWrites) {
  const Arguments all = {"input", "weight", "grad_output"}, weight = {"weight"},
                  activations = {"input", "grad_output"};
  const std::string power_of_two = "divide or maximum, power of two";
  const std::vector<WrittenBy> rows = {
      {"fp8_delayed", all, "given", "tensor", "tensor of the transpose"},
      {"fp8_current", all, "divide", "tensor", "tensor of the transpose"},
      {"fp8_block:w_block_dim=1", all, power_of_two, "1x128", "1x128 of the transpose"},
      {"fp8_block", weight, power_of_two, "128x128", "128x128 of the transpose"},
      {"mxfp8", all, "round_up", "1x32", "32x1"},
      {"mxfp8:enable_2d_quantization=true", weight, "round_up", "32x32 replicated",
       "32x32 replicated"},
      {"mxfp6_e2m3", {"input"}, "round_up", "1x32", "32x1"},
      {"mxfp6_e3m2", {"weight"}, "round_up", "1x32", "32x1"},
      {"mxfp4", {"grad_output"}, "round_up", "1x32", "32x1"},
      {"fp8_rowwise", activations, "divide", "one per row or 1x256",
       "one per row of the transpose"},
      {"nvfp4", activations, "two_level", "1x16",
       "1x16 of the transpose, Hadamard-transformed (disable_rht=false)"},
      {"nvfp4", weight, "two_level", "16x16 replicated", "16x16 replicated of the transpose"},
      {"nvfp4:disable_2d_quantization=true,disable_rht=true", all, "two_level", "1x16",
       "1x16 of the transpose"},
      {"nvfp4:disable_rht=true,row_scaled_activation=true",
       {"input"},
       "two_level, row_scaled_activation=true",
       "1x16",
       "1x16 of the transpose"},
      {"hybrid:fprop=mxfp8,dgrad=mxfp8,wgrad=mxfp8", all, "round_up", "1x32", "32x1"},
      {R"(custom:rules=[{"quantizer":{"format":"mxfp8","element":"f6_e3m2"}}])", all, "round_up",
       "1x32", "32x1"},
  };
  const std::string scale = Path("scale.safetensors");
  ASSERT_TRUE(WriteSafetensors(scale, {{"scale", *Tensor::FromScalar(24.0f)}}, {}).ok());
  std::set<std::string> unwritten;
  const Json info = QuantgateJson({"info"});
  for (const Json& recipe : info["recipes"]) unwritten.insert(recipe["name"]);
  for (const WrittenBy& row : rows) {
    const std::string name = row.recipe.substr(0, row.recipe.find(':'));
    unwritten.erase(name);
    // Enough tiles of 128 x 128, of amaxes that are not alike.
    const bool has_wide_tiles = row.rowwise == "128x128";
    const std::string source = std::string("gen:lognormal_outliers,seed=5,dtype=bf16,shape=") +
                               (has_wide_tiles ? "32x5120" : "192x256");
    for (const std::string& role : row.roles) {
      for (const std::string layout : {"logical", "padded", "swizzled"}) {
        const bool has_rule = name != "fp8_delayed" && name != "fp8_current";
        const bool has_blocks = has_rule && name != "fp8_rowwise";
        // Layouts of scales are the same for every role.
        if (layout != "logical" && (!has_blocks || role != row.roles.front())) continue;
        if (layout == "swizzled" && name == "fp8_block") continue;
        const std::string q = Path("q.safetensors");
        Arguments quantize = {"quantize",       source, "--recipe", row.recipe,
                              "--role",         role,   "--usage",  "rowwise,columnwise",
                              "--scale-layout", layout, "-o",       q};
        if (role == "grad_output" && name == "nvfp4")
          quantize = quantize + Arguments{"--seed", "3"};
        if (name == "fp8_delayed") {
          quantize = quantize +
                     Arguments{"--scale", scale, "--amax-history", "gen:zero,shape=1024,dtype=f32"};
        }
        SCOPED_TRACE(row.recipe + " " + role + " " + layout);
        const ProcessResult written = Quantgate(quantize);
        ASSERT_EQ(written.exit_code, 0) << written.err;
        for (const std::string usage : {"rowwise", "columnwise"}) {
          SCOPED_TRACE(usage);
          Arguments explain = {"--source",    source,
                               "--codes",     q + ":" + usage + "_data",
                               "--scale-inv", q + ":" + usage + "_scale_inv"};
          if (name == "nvfp4") explain = explain + Arguments{"--amax", q + ":amax_" + usage};
          // A single scale is no evidence for its rule.
          const Json json = Explained(explain, has_rule ? 0 : 1);
          const Json& best = json["codes"][0];
          EXPECT_EQ(json["is_established"], has_rule);
          EXPECT_EQ(best["code_match_count"], best["code_count"]) << best;
          EXPECT_EQ(best["scale_match_count"], best["scale_count"]) << best;
          EXPECT_EQ(best["block"], usage == "rowwise" ? row.rowwise : row.columnwise) << best;
          EXPECT_TRUE(HasRule(best, row.scale_rule)) << best;
        }
      }
    }
  }
  // bf16 writes no codes; those of levels are codes_command_test's.
  const std::set<std::string> others = {"bf16", "int8", "int4", "nf4", "bnb_fp4"};
  EXPECT_EQ(unwritten, others);
}

TEST_F(ExplainCommandTest, RefusesHalfAQuestion) {
  const std::vector<std::pair<Arguments, std::string>> rows = {
      {{}, "give --d with --a and --b"},
      {{"--d", kFile + ":fc1.x"}, "--d needs the operands"},
      {{"--codes", kFile + ":fc1.x"}, "--codes needs --source and --scale-inv"},
      {{"--source", kFile + ":fc1.x", "--codes", kFile + ":fc1.x@u8", "--scale-inv",
        kFile + ":fc1.bias"},
       "--scale-inv is bf16[2048]"},
      {{"--a", kFile + ":fc1.x", "--b", kFile + ":fc1.weight", "--d", kFile + ":fc1.x"},
       "the GEMM's output is 256x2048"},
  };
  for (const auto& [arguments, text] : rows) {
    const ProcessResult result = Quantgate(Arguments{"explain"} + arguments, Where::kInProcess);
    EXPECT_EQ(result.exit_code, 2) << text;
    EXPECT_THAT(result.err, HasSubstr(text));
  }
}

TEST_F(ExplainCommandTest, ErrorBudgetsAddUpInEveryForm) {
  const std::string report = Path("r.html"), json_report = Path("r.json");
  const ProcessResult result =
      Quantgate({"run", "--layer", "linear", "--input", kFile + ":fc1.x", "--weight",
                 kFile + ":fc1.weight", "--grad-output", kFile + ":fc1.dy", "--recipe", "mxfp8",
                 "--error-budget", "--report", report, "--report", json_report},
                Where::kServer);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("error made by"), HasSubstr("weight: scale rule")));
  std::ifstream html(report);
  const std::string page((std::istreambuf_iterator<char>(html)), {});
  EXPECT_THAT(page, HasSubstr("What makes the error"));
  std::ifstream file(json_report);
  const Json json = Json::parse(file);
  const Json& budgets = json["run"]["variants"][0]["error_budgets"];
  ASSERT_EQ(budgets.size(), 3u);
  for (const Json& budget : budgets) {
    double share = 0;
    for (const Json& term : budget["terms"]) share += term["share"].get<double>();
    // Seven fp64 quotients of sums over 2^20 elements, whose terms partly cancel.
    EXPECT_LT(std::fabs(share - 1), 0x1p-30) << budget["tensor"];
    EXPECT_GT(budget["total"]["rms"].get<double>(), 0);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
