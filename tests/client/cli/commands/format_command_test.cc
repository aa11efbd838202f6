// Every format through the command: what quantize exports, that dequantize reads it back with and
// without its metadata, that gemm on exported files is the layer's GEMM, delayed scaling from step
// to step, every recipe in one comparison.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/client/cli/commands/command_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;
using Arguments = std::vector<std::string>;
using Json = nlohmann::json;

class FormatCommandTest : public CommandTest {
 protected:
  void Quantize(const std::string& tensor, const std::string& role, const std::string& recipe,
                const std::string& path, const Arguments& more = {},
                Where where = Where::kInProcess) {
    const ProcessResult result =
        Quantgate(Arguments{"quantize", tensor, "--recipe", recipe, "--role", role, "--usage",
                            "rowwise,columnwise", "-o", path} +
                      more,
                  where);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }

  /// The bytes of `data`, or the error.
  std::string Dequantize(const Arguments& arguments) {
    const std::string path = Path("values.safetensors");
    const ProcessResult result =
        Quantgate(Arguments{"dequantize"} + arguments + Arguments{"-o", path});
    return result.exit_code == 0 ? BytesOf(path, "data") : result.err;
  }

  /// A copy of a file without its metadata.
  std::string Stripped(const std::string& path) {
    const auto file = ReadSafetensors(path);
    EXPECT_TRUE(file.ok());
    const std::string stripped = Path("stripped.safetensors");
    EXPECT_TRUE(WriteSafetensors(stripped, file->tensors, {}).ok());
    return stripped;
  }
};

struct ExportRow {
  const char* recipe;
  const char* role;
  std::vector<std::string> contents;
};

// The names, types and shapes of docs/file-formats.md section 2, for fc1.x [256][512].
TEST_F(FormatCommandTest, ExportsHaveTheNamesAndShapesOfTheirFormats) {
  const std::vector<ExportRow> rows = {
      {"fp8_block",
       "input",
       {"rowwise_data f8_e4m3[256x512]", "rowwise_scale_inv f32[256x4]",
        "columnwise_data f8_e4m3[512x256]", "columnwise_scale_inv f32[512x2]"}},
      {"fp8_block",
       "weight",
       {"rowwise_data f8_e4m3[256x512]", "rowwise_scale_inv f32[2x4]",
        "columnwise_data f8_e4m3[512x256]", "columnwise_scale_inv f32[4x2]"}},
      {"mxfp8:enable_2d_quantization=true",
       "weight",
       {"rowwise_data f8_e4m3[256x512]", "rowwise_scale_inv f8_e8m0[256x16]",
        "columnwise_data f8_e4m3[256x512]", "columnwise_scale_inv f8_e8m0[8x512]"}},
      {"nvfp4",
       "input",
       {"rowwise_data u8[256x256]", "rowwise_scale_inv f8_e4m3[256x32]", "amax_rowwise f32[1]",
        "columnwise_data u8[512x128]", "columnwise_scale_inv f8_e4m3[512x16]",
        "amax_columnwise f32[1]"}},
      {"nvfp4:disable_rht=true,row_scaled_activation=true",
       "input",
       {"rowwise_data u8[256x256]", "rowwise_scale_inv f8_e4m3[256x32]", "amax_rowwise f32[256]",
        "columnwise_data u8[512x128]", "columnwise_scale_inv f8_e4m3[512x16]",
        "amax_columnwise f32[512]"}},
      {"fp8_delayed:amax_history_len=3",
       "grad_output",
       {"rowwise_data f8_e5m2[256x512]", "rowwise_scale_inv f32[1]",
        "columnwise_data f8_e5m2[512x256]", "columnwise_scale_inv f32[1]", "amax_rowwise f32[1]",
        "amax_columnwise f32[1]", "scale f32[1]", "amax_history f32[3]"}},
  };
  for (const ExportRow& row : rows) {
    SCOPED_TRACE(row.recipe);
    const std::string path = Path("q.safetensors");
    Quantize(Sample("fc1.x"), row.role, row.recipe, path);
    EXPECT_THAT(ContentsOf(path), UnorderedElementsAreArray(row.contents));
  }
}

TEST_F(FormatCommandTest, DequantizeReadsTheMetadataOrInfersWhatIsPlain) {
  for (const char* recipe : {"fp8_current", "fp8_delayed", "fp8_block", "mxfp8",
                             "fp8_block:w_block_dim=1", "nvfp4:scale_rule=single_level"}) {
    for (const char* role : {"input", "weight"}) {
      const std::string path = Path("q.safetensors");
      Quantize(Sample("fc1.x"), role, recipe, path);
      const std::string values = Dequantize({path});
      EXPECT_EQ(values.size(), 256u * 512 * 4) << recipe << values.substr(0, 200);
      EXPECT_EQ(Dequantize({Stripped(path)}), values) << recipe << " " << role;
    }
  }
  // Per-tensor codes and tiles have the same values in both directions.
  for (const char* recipe : {"fp8_current", "fp8_block"}) {
    const std::string path = Path("q.safetensors");
    Quantize(Sample("fc1.x"), "weight", recipe, path);
    EXPECT_EQ(Dequantize({path, "--usage", "columnwise"}), Dequantize({path}));
  }
}

TEST_F(FormatCommandTest, ScalesComeInThreeLayouts) {
  const std::string path = Path("q.safetensors");
  for (const std::string recipe : {"fp8_block", "mxfp8", "nvfp4:disable_rht=true"}) {
    SCOPED_TRACE(recipe);
    Quantize(Sample("fc1.x"), "input", recipe, path);
    const std::string values = Dequantize({path});
    const std::string logical = BytesOf(path, "rowwise_scale_inv");
    for (const std::string layout : {"padded", "swizzled"}) {
      if (recipe == "fp8_block" && layout == "swizzled") continue;
      Quantize(Sample("fc1.x"), "input", recipe, path, {"--scale-layout", layout});
      EXPECT_EQ(Dequantize({path}), values) << layout;
      // 256 x 512 needs no padding: the same bytes in another order, but for padded rows as such.
      const std::string scales = BytesOf(path, "rowwise_scale_inv");
      EXPECT_EQ(scales.size(), logical.size());
      EXPECT_EQ(scales == logical, layout == "padded" && recipe != "fp8_block") << layout;
      EXPECT_TRUE(std::is_permutation(scales.begin(), scales.end(), logical.begin()));
      // A GEMM would take them for logical ones, whose shape they may have.
      const ProcessResult gemm =
          Quantgate({"gemm", "--a", path + ":rowwise_data", "--a-scale-inv",
                     path + ":rowwise_scale_inv", "--b", path + ":rowwise_data"});
      EXPECT_EQ(gemm.exit_code, 2);
      EXPECT_THAT(gemm.err, HasSubstr("its file says that scales are " + layout));
    }
  }
  for (const auto& [recipe, message] :
       {std::pair{"fp8_block", "has no such layout"}, {"fp8_current", "has no block scales"}}) {
    const ProcessResult result = Quantgate({"quantize", Sample("fc1.x"), "--recipe", recipe,
                                            "--role", "input", "--scale-layout", "swizzled"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(message));
  }
}

TEST_F(FormatCommandTest, ABoundThatNothingSaysIsAskedFor) {
  const std::string path = Path("q.safetensors");
  Quantize(Sample("fc1.x"), "weight", "nvfp4:nvfp4_4over6=weights", path);
  const std::string values = Dequantize({path});
  ASSERT_EQ(values.size(), 256u * 512 * 4);
  const std::string stripped = Stripped(path);
  EXPECT_THAT(Dequantize({stripped}), HasSubstr("--format-hint"));
  EXPECT_EQ(Dequantize({stripped, "--format-hint", "nvfp4:e4m3_max=256"}), values);
  EXPECT_NE(Dequantize({stripped, "--format-hint", "nvfp4"}), values);
  EXPECT_THAT(Dequantize({stripped, "--format-hint", "nvfp4:bound=256"}),
              HasSubstr("--format-hint: \"nvfp4:bound=256\": \"bound=256\" is none of"));
  EXPECT_THAT(Dequantize({stripped, "--format-hint", "mxfp8"}), HasSubstr("expected"));
}

// A refused hint was named twice, by the command and by the field that it sets; and a hint was
// blamed for whatever else the server refused.
TEST_F(FormatCommandTest, ErrorsNameTheHintOnceAndOnlyWhereItIsWrong) {
  const auto count = [](const std::string& text) {
    int found = 0;
    for (size_t at = text.find("--format-hint"); at != std::string::npos;
         at = text.find("--format-hint", at + 1)) {
      ++found;
    }
    return found;
  };
  const std::string path = Path("q.safetensors");
  Quantize(Sample("fc1.x"), "weight", "nvfp4:nvfp4_4over6=weights", path);
  for (const std::string hint : {"nope", "nvfp4:element=nope", "nvfp4:block_dim=3", "mxfp8"}) {
    const std::string error = Dequantize({path, "--format-hint", hint});
    EXPECT_EQ(count(error), 1) << error;
    EXPECT_THAT(error, HasSubstr("--format-hint: \"" + hint + "\": "));
  }
  const std::string undecided = Dequantize({Stripped(path)});
  EXPECT_EQ(count(undecided), 1) << undecided;
  const std::string other = Dequantize({path, "--format-hint", "nvfp4", "--out-dtype", "nope"});
  EXPECT_THAT(other, HasSubstr("--out-dtype"));
  EXPECT_EQ(count(other), 0) << other;
}

TEST_F(FormatCommandTest, GemmOfExportedFilesIsTheLayersForwardPass) {
  // Under 4over6 block scales end at 256, which the files say.
  for (const std::string recipe :
       {"fp8_block", "mxfp8", "nvfp4", "nvfp4:disable_rht=true,nvfp4_4over6=all"}) {
    SCOPED_TRACE(recipe);
    Quantize(Sample("fc1.x"), "input", recipe, Path("x.safetensors"));
    Quantize(Sample("fc1.weight"), "weight", recipe, Path("w.safetensors"));
    Arguments arguments = {"gemm", "--bias", Sample("fc1.bias"), "--out-dtype", "bf16"};
    for (const std::string side : {"a", "b"}) {
      const std::string file = Path(side == "a" ? "x.safetensors" : "w.safetensors");
      arguments = arguments + Arguments{"--" + side, file + ":rowwise_data",
                                        "--" + side + "-scale-inv", file + ":rowwise_scale_inv"};
      if (!recipe.starts_with("nvfp4")) continue;
      arguments = arguments + Arguments{"--" + side + "-amax", file + ":amax_rowwise"};
    }
    ProcessResult result = Quantgate(arguments + Arguments{"-o", Path("d.safetensors")});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    if (recipe == "nvfp4") {
      arguments.resize(arguments.size() - 2);
      EXPECT_THAT(Quantgate(arguments).err,
                  HasSubstr("--b-amax: absent; the scales are under that of " +
                            Path("w.safetensors") + ":amax_rowwise"));
    }
    result = Quantgate(Arguments{"run"} + LayerArguments() +
                       Arguments{"--recipe", recipe, "-o", Path("y.safetensors")});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(BytesOf(Path("d.safetensors"), "d"), BytesOf(Path("y.safetensors"), "y"));
  }
}

TEST_F(FormatCommandTest, ASeedIsTheSameSeedEverywhere) {
  const auto codes = [&](const Arguments& seed, Where where) {
    Quantize(Sample("fc1.dy"), "grad_output", "nvfp4", Path("s.safetensors"), seed, where);
    return BytesOf(Path("s.safetensors"), "rowwise_data");
  };
  const std::string first = codes({"--seed", "7"}, Where::kInProcess);
  EXPECT_EQ(codes({"--seed", "7"}, Where::kServer), first);
  EXPECT_NE(codes({"--seed", "8"}, Where::kInProcess), first);
  EXPECT_EQ(codes({}, Where::kInProcess), codes({"--seed", "0"}, Where::kInProcess));
}

TEST_F(FormatCommandTest, DelayedScalingGoesFromStepToStep) {
  const std::string recipe = "fp8_delayed:amax_history_len=4";
  const auto step = [&](const Arguments& more, const std::string& path) {
    const ProcessResult result = Quantgate(Arguments{"run"} + LayerArguments() +
                                           Arguments{"--recipe", recipe, "-o", path} + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return path;
  };
  const std::string first = step({}, Path("1.safetensors"));
  const std::string second = step({"--delayed-state", first}, Path("2.safetensors"));
  // The second step sees the first one's tensors again: its scales are those of fp8_current.
  ASSERT_EQ(Quantgate(Arguments{"run"} + LayerArguments() +
                      Arguments{"--recipe", "fp8_current", "-o", Path("c.safetensors")})
                .exit_code,
            0);
  for (const char* output : {"y", "dx", "dw"}) {
    EXPECT_EQ(BytesOf(second, output), BytesOf(Path("c.safetensors"), output));
    EXPECT_NE(BytesOf(second, output), BytesOf(first, output));
  }
  // By name, as the line that reproduces a run has it.
  Arguments named;
  for (const char* role : {"input", "weight", "grad_output"}) {
    for (const char* part : {".scale", ".amax_history"}) {
      const std::string name = std::string(role) + part;
      named = named + Arguments{"--delayed-state", name + "=" + first + ":" + name};
    }
  }
  EXPECT_EQ(BytesOf(step(named, Path("3.safetensors")), "dw"), BytesOf(second, "dw"));
  // One cast of the next step by hand.
  Quantize(Sample("fc1.x"), "input", recipe, Path("q.safetensors"),
           {"--scale", first + ":input.scale", "--amax-history", first + ":input.amax_history"});
  EXPECT_EQ(BytesOf(Path("q.safetensors"), "scale"), BytesOf(first, "input.scale"));
  // Calibration computes what bf16 does and leaves the scales.
  const std::string calibrated = step({"--calibrate"}, Path("4.safetensors"));
  EXPECT_EQ(BytesOf(calibrated, "input.scale"), std::string("\0\0\x80\x3f", 4));
  ProcessResult refused = Quantgate(Arguments{"run"} + LayerArguments() +
                                    Arguments{"--recipe", "bf16", "--delayed-state", first});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("no variant is fp8_delayed"));
}

TEST_F(FormatCommandTest, OneComparisonOfEveryRecipe) {
  const auto normal = [](const char* seed, const char* shape) {
    return absl::StrCat("gen:normal,dtype=bf16,seed=", seed, ",shape=", shape);
  };
  const Json report =
      QuantgateJson({"compare", "--layer", "linear", "--input", normal("1", "128x256"), "--weight",
                     normal("2", "384x256"), "--grad-output", normal("3", "128x384"), "--recipe",
                     "all", "--recipe", "hybrid:fprop=mxfp8,dgrad=nvfp4,wgrad=nvfp4",
                     "--backward-override", "none,dequantized", "--require", "bound"});
  std::map<std::string, std::set<std::string>> modes;
  for (const Json& variant : report["run"]["variants"]) {
    modes[variant["recipe_name"]].insert(variant["backward_override"].get<std::string>());
  }
  const std::set<std::string> both = {"none", "dequantized"};
  const std::map<std::string, std::set<std::string>> expected = {
      {"bf16", both},      {"fp8_delayed", {"none"}}, {"fp8_current", both}, {"fp8_rowwise", both},
      {"fp8_block", both}, {"mxfp8", both},           {"mxfp6_e2m3", both},  {"mxfp6_e3m2", both},
      {"mxfp4", both},     {"nvfp4", both},           {"hybrid", both}};
  EXPECT_EQ(modes, expected);
  EXPECT_TRUE(report["verdict"]["pass"].get<bool>()) << report["verdict"];
}

TEST_F(FormatCommandTest, TextAndFileAreOneRecipe) {
  const std::string file = Path("r.json");
  WriteFile(file, R"({"name": "hybrid", "knobs": {
      "fprop": {"knobs": {"power_2_scales": true}, "name": "fp8_current"},
      "dgrad": "mxfp8", "backward_override": "default",
      "weight": {"columnwise": {"format": "mxfp8", "block_dim": 1}}}})");
  const auto digest = [&](const std::string& recipe) {
    const Json report =
        QuantgateJson(Arguments{"run"} + LayerArguments() + Arguments{"--recipe", recipe});
    return report["run"]["variants"][0]["recipe_digest"].get<std::string>();
  };
  const std::string expected = digest("@" + file);
  EXPECT_EQ(expected.size(), 64u);
  EXPECT_EQ(digest(R"(hybrid:dgrad=mxfp8,weight={"columnwise":{"format":"mxfp8"}},)"
                   R"(fprop={"name":"fp8_current","knobs":{"power_2_scales":"true"}})"),
            expected);
  EXPECT_NE(digest("hybrid:dgrad=mxfp8,fprop=fp8_current"), expected);
}

TEST_F(FormatCommandTest, AllIsForComparisonsNotForOneOutputFile) {
  const ProcessResult result =
      Quantgate(Arguments{"run"} + LayerArguments() +
                Arguments{"--recipe", "all", "-o", Path("out.safetensors")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("variants; it takes the outputs of one"));
}

TEST_F(FormatCommandTest, InfoListsEveryRecipeWithItsKnobs) {
  const Json info = QuantgateJson({"info"});
  std::vector<std::string> names;
  for (const Json& recipe : info["recipes"]) {
    names.push_back(recipe["name"]);
    EXPECT_EQ(recipe["is_composed"].get<bool>(),
              recipe["name"] == "hybrid" || recipe["name"] == "custom");
    const std::set<std::string> of_codes = {"int8", "int4", "nf4", "bnb_fp4"};
    EXPECT_EQ(recipe["is_codes_only"].get<bool>(), of_codes.contains(recipe["name"]));
    EXPECT_FALSE(recipe["knobs"].empty());
  }
  EXPECT_THAT(names,
              UnorderedElementsAre("bf16", "fp8_delayed", "fp8_current", "fp8_block", "mxfp8",
                                   "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4", "nvfp4", "fp8_rowwise",
                                   "int8", "int4", "nf4", "bnb_fp4", "hybrid", "custom"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
