// Codes as operands through the command: a run, a session and a trace of the files that quantize
// writes against those of the tensors that they were made from, and the directions of a file.
#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/base/repository_file.h"
#include "tests/client/cli/commands/command_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Arguments = std::vector<std::string>;
using Json = nlohmann::json;

class CodesCommandTest : public CommandTest {
 protected:
  /// The file of the tensor's codes.
  std::string Codes(const std::string& tensor, const std::string& role, const std::string& recipe,
                    const Arguments& more = {"--usage", "rowwise,columnwise"}) {
    const std::string path = Path(tensor + "." + role + ".codes.safetensors");
    const ProcessResult result = Quantgate(
        Arguments{"quantize", Sample(tensor), "--recipe", recipe, "--role", role, "-o", path} +
        more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return path;
  }

  Json Run(const Arguments& operands, const std::string& recipe, const std::string& output,
           Where where = Where::kInProcess) {
    return QuantgateJson(Arguments{"run", "--recipe", recipe, "-o", Path(output)} + operands,
                         where);
  }
};

struct FormatRow {
  const char* recipe;
  std::vector<Arguments> layouts;  ///< More arguments of quantize.
};

TEST_F(CodesCommandTest, ARunOfCodesHasTheBitsOfTheTensorsThatTheyWereMadeFrom) {
  const Arguments both = {"--usage", "rowwise,columnwise"};
  const Arguments padded = both + Arguments{"--scale-layout", "padded"};
  const Arguments swizzled = both + Arguments{"--scale-layout", "swizzled"};
  const Arguments packed = both + Arguments{"--scale-layout", "packed_ue8m0"};
  const Arguments aligned = both + Arguments{"--scale-layout", "tma_aligned"};
  const std::vector<FormatRow> rows = {
      {"fp8_current", {both}},
      {"fp8_block", {both, padded, packed}},
      {"fp8_block:group_size=64", {both, aligned, packed}},
      {"mxfp8", {both, padded, swizzled}},
      {"nvfp4:disable_stochastic_rounding=true", {both, padded, swizzled}}};
  for (const FormatRow& row : rows) {
    Run({"--input", Sample("fc1.x"), "--weight", Sample("fc1.weight"), "--grad-output",
         Sample("fc1.dy")},
        row.recipe, "plain.safetensors");
    for (const Arguments& layout : row.layouts) {
      for (const Where where : {Where::kInProcess, Where::kServer}) {
        // Of one layout: behind the requests the path is the same.
        if (where == Where::kServer && &layout != &row.layouts.front()) continue;
        SCOPED_TRACE(std::string(row.recipe) + " " + layout.back());
        const Json report = Run({"--input", Codes("fc1.x", "input", row.recipe, layout), "--weight",
                                 Codes("fc1.weight", "weight", row.recipe, layout), "--grad-output",
                                 Codes("fc1.dy", "grad_output", row.recipe, layout)},
                                row.recipe, "codes.safetensors", where);
        for (const char* output : {"y", "dx", "dw"}) {
          EXPECT_EQ(BytesOf(Path("codes.safetensors"), output),
                    BytesOf(Path("plain.safetensors"), output))
              << output;
        }
        const std::string text = report.dump();
        EXPECT_THAT(text,
                    AllOf(HasSubstr("x.rowwise_data"), HasSubstr("parameters[weight].rowwise"),
                          HasSubstr("the unquantized reference reads its values")));
      }
    }
  }
}

// Codes, scales and sums by numpy (tests/vectors/given_codes_reference.py).
TEST_F(CodesCommandTest, ARunOfCodesMadeElsewhereGivesTheirExactSums) {
  const std::pair<const char*, const char*> formats[] = {
      {"fp8_tensor", "fp8_current:power_2_scales=true"},
      {"fp8_block", "fp8_block"},
      {"mxfp8", "mxfp8"},
      {"nvfp4", "nvfp4:scale_rule=single_level,disable_rht=true,disable_stochastic_rounding=true"}};
  for (const auto& [format, recipe] : formats) {
    SCOPED_TRACE(format);
    const auto file = [format = std::string(format)](const std::string& operand) {
      return RepositoryFile("tests/data/given_codes/" + format + "." + operand + ".safetensors");
    };
    Run({"--input", file("x"), "--weight", file("weight"), "--grad-output", file("grad_output"),
         "--arithmetic", "exact"},
        recipe, "sums.safetensors");
    for (const char* output : {"y", "dx", "dw"}) {
      EXPECT_EQ(BytesOf(Path("sums.safetensors"), output), BytesOf(file("expected"), output))
          << output;
      EXPECT_NE(BytesOf(file("expected"), output), "");
    }
  }
}

TEST_F(CodesCommandTest, WhatDoesNotFitIsRefusedByTheNameOfItsOption) {
  const std::string mx = Codes("fc1.x", "input", "mxfp8");
  const std::string mx_rows = Codes("fc1.weight", "weight", "mxfp8", {});
  const auto refused = [&](const Arguments& arguments) {
    const ProcessResult result = Quantgate(Arguments{"run"} + arguments);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(refused({"--input", mx, "--weight", Sample("fc1.weight"), "--recipe", "fp8_current"}),
              AllOf(HasSubstr("--input"), HasSubstr("given as mxfp8 (f8_e4m3, block_dim 1)"),
                    HasSubstr("as fp8_tensor (f8_e4m3)")));
  EXPECT_THAT(refused({"--input", Sample("fc1.x"), "--weight", mx_rows, "--grad-output",
                       Sample("fc1.dy"), "--recipe", "mxfp8"}),
              AllOf(HasSubstr("--weight"), HasSubstr("without columnwise codes"),
                    HasSubstr("dgrad reads them")));
  EXPECT_THAT(
      refused({"--input", mx, "--weight", Sample("fc1.weight"), "--grad-output", Sample("fc1.dy"),
               "--recipe", "mxfp8", "--backward-override", "high_precision"}),
      AllOf(HasSubstr("--input"), HasSubstr("wgrad reads the original")));
  EXPECT_THAT(refused({"--input", mx, "--weight", Sample("fc1.weight"), "--recipe", "mxfp8",
                       "--error-budget"}),
              HasSubstr("--error-budget"));
  EXPECT_THAT(refused({"--input", Sample("fc1.x"), "--weight", Sample("fc1.weight"), "--bias", mx,
                       "--recipe", "mxfp8"}),
              AllOf(HasSubstr("--bias"), HasSubstr("only weights are read as codes")));
}

TEST_F(CodesCommandTest, UsagesAreSaidDerivedAndDropped) {
  const std::string rows = Codes("fc1.weight", "weight", "fp8_block", {});
  const Json query = QuantgateJson({"update-usage", rows});
  EXPECT_EQ(query["rowwise"]["present"], true);
  EXPECT_EQ(query["columnwise"]["derivable"], true);
  const std::string both = Path("both.safetensors");
  ASSERT_EQ(Quantgate({"update-usage", rows, "--columnwise", "true", "-o", both}).exit_code, 0);
  // The transpose of rows and of the grid of tiles, written out here.
  const std::string codes = BytesOf(rows, "rowwise_data");
  const std::string turned = BytesOf(both, "columnwise_data");
  const size_t columns = 512, lines = codes.size() / columns;
  ASSERT_GT(lines, 0u);
  ASSERT_EQ(turned.size(), codes.size());
  bool is_transpose = true;
  for (size_t row = 0; row < lines; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      is_transpose &= turned[column * lines + row] == codes[row * columns + column];
    }
  }
  EXPECT_TRUE(is_transpose);
  // One fp32 for each tile of 128 x 128.
  const std::string scales = BytesOf(rows, "rowwise_scale_inv");
  const std::string turned_scales = BytesOf(both, "columnwise_scale_inv");
  const size_t tiles_down = lines / 128, tiles_across = columns / 128;
  ASSERT_EQ(scales.size(), tiles_down * tiles_across * 4);
  ASSERT_EQ(turned_scales.size(), scales.size());
  for (size_t row = 0; row < tiles_down; ++row) {
    for (size_t column = 0; column < tiles_across; ++column) {
      EXPECT_EQ(turned_scales.substr((column * tiles_down + row) * 4, 4),
                scales.substr((row * tiles_across + column) * 4, 4))
          << row << " " << column;
    }
  }
  EXPECT_EQ(BytesOf(both, "rowwise_data"), codes);
  const std::string columnwise = Path("columnwise.safetensors");
  ASSERT_EQ(Quantgate({"update-usage", both, "--rowwise", "false", "-o", columnwise}).exit_code, 0);
  EXPECT_EQ(QuantgateJson({"update-usage", columnwise})["rowwise"]["present"], false);
  EXPECT_EQ(BytesOf(columnwise, "columnwise_data"), turned);

  const std::string mx = Codes("fc1.weight", "weight", "mxfp8", {});
  const Json refused = QuantgateJson({"update-usage", mx});
  EXPECT_EQ(refused["columnwise"].value("derivable", false), false);
  EXPECT_THAT(refused["columnwise"]["reason"].get<std::string>(),
              HasSubstr("columnwise codes of mxfp8 cannot be made from rowwise ones"));
  const ProcessResult neither = Quantgate({"update-usage", mx, "--columnwise", "maybe"});
  EXPECT_EQ(neither.exit_code, 2);
  EXPECT_THAT(neither.err, HasSubstr("--columnwise: maybe not in {true,false}"));
  const ProcessResult result = Quantgate({"update-usage", mx, "--columnwise", "true"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("--columnwise"), HasSubstr("only from the source")));

  // E4M3 for dgrad says nothing of the E5M2 that wgrad reads.
  const std::string two_rules = Codes(
      "fc1.dy", "grad_output",
      R"(hybrid:dgrad={"name":"fp8_current","knobs":{"fp8_format":"e4m3"}},wgrad=fp8_current)", {});
  const ProcessResult other = Quantgate({"update-usage", two_rules, "--columnwise", "true"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, AllOf(HasSubstr("--columnwise: true: " + two_rules),
                               HasSubstr("rules that differ by direction")));
}

TEST_F(CodesCommandTest, ASessionTakesCodesInOpenAndInSteps) {
  WriteFile(Path("session.json"), R"({"layers": [{"name": "fc1", "layer": {"kind": "linear"}}],
      "recipe": {"name": "mxfp8"}, "weights": "quantized", "masters": "f32",
      "adam": {"learning_rate": 0.001},
      "parameters": {"fc1.weight": ")" +
                                      Codes("fc1.weight", "weight", "mxfp8") + "\"}}");
  const Json opened = QuantgateJson({"session", "open", Path("session.json")}, Where::kServer);
  const std::string id = opened["session_id"];
  const auto step = [&](const Arguments& arguments) {
    const ProcessResult result =
        Quantgate(Arguments{"session", "step", id} + arguments, Where::kServer);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  };
  step({"train", "--x", Codes("fc1.x", "input", "mxfp8"), "-o", Path("forward.safetensors")});
  step({"backward", "--grad-output", Codes("fc1.dy", "grad_output", "mxfp8"), "-o",
        Path("backward.safetensors")});
  Run({"--input", Sample("fc1.x"), "--weight", Sample("fc1.weight"), "--grad-output",
       Sample("fc1.dy")},
      "mxfp8", "plain.safetensors");
  EXPECT_EQ(BytesOf(Path("forward.safetensors"), "y"), BytesOf(Path("plain.safetensors"), "y"));
  EXPECT_EQ(BytesOf(Path("backward.safetensors"), "dx"), BytesOf(Path("plain.safetensors"), "dx"));
  EXPECT_EQ(BytesOf(Path("backward.safetensors"), "fc1.dw"),
            BytesOf(Path("plain.safetensors"), "dw"));
}

TEST_F(CodesCommandTest, ATraceTakesCodesAsParametersAndInSteps) {
  const std::string plain = Path("plain.safetensors");
  Run({"--input", Sample("fc1.x"), "--weight", Sample("fc1.weight"), "--grad-output",
       Sample("fc1.dy")},
      "mxfp8", "plain.safetensors");
  WriteFile(Path("trace.json"), R"({"spec": {"layers": [{"name": "fc1", "layer":
      {"kind": "linear"}}], "weights": "quantized", "masters": "f32",
      "adam": {"learning_rate": 0.001}},
      "parameters": {"fc1.weight": ")" +
                                    Codes("fc1.weight", "weight", "mxfp8") + R"("},
      "steps": [{"forward": {}, "x": ")" +
                                    Codes("fc1.x", "input", "mxfp8") + R"(",
                 "subjects": {"y": ")" +
                                    plain + R"(:y"}},
                {"backward": {}, "grad_output": ")" +
                                    Codes("fc1.dy", "grad_output", "mxfp8") + R"(",
                 "subjects": {"dx": ")" +
                                    plain + R"(:dx", "fc1.dw": ")" + plain + ":dw\"}}]}");
  for (const Where where : {Where::kInProcess, Where::kServer}) {
    const Json report = QuantgateJson(
        {"session", "run", Path("trace.json"), "--recipe", "mxfp8", "--require-subject", "bitwise"},
        where);
    EXPECT_EQ(report["verdict"]["pass"], true) << report["verdict"];
    EXPECT_EQ(report["subjects"].size(), 3u);
    // The codes were read as they are: nothing was quantized again.
    EXPECT_EQ(report["quantizations"].size(), 0u) << report["quantizations"];
  }
}

// Integers and places in a table by the command: quantize, dequantize by the file's metadata and by
// a hint, explain, and a GEMM beside the tensor itself, which is that of the dequantized values.
TEST_F(CodesCommandTest, CodesOfLevelsAreDequantizedExplainedAndMultiplied) {
  struct Row {
    const char* recipe;
    const char* element;
    const char* hint;
    bool has_zero_point;
  };
  const Row rows[] = {
      {"int8:scale_rule=modelopt", "i8", "int8:group=row", false},
      {"int8:zero_point=integer", "i8", "int8:group=row", true},
      {"int4:scale_rule=compressed_tensors,group=32", "i4x2", "int4:element=i4x2,group=32", false},
      {"int4:scale_rule=quanto,group=64", "u4x2", "int4:element=u4x2,group=64", true},
      {"nf4", "nf4x2", "nf4:group=64", false}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.recipe);
    const std::string codes = Codes("fc1.weight", "weight", row.recipe, {});
    const Arguments values = {"dequantize", codes, "--out-dtype", "bf16", "-o"};
    EXPECT_EQ(Quantgate(values + Arguments{Path("values.safetensors")}).exit_code, 0);
    EXPECT_EQ(Quantgate(values + Arguments{Path("hinted.safetensors"), "--format-hint", row.hint})
                  .exit_code,
              0);
    EXPECT_EQ(BytesOf(Path("values.safetensors"), "data"),
              BytesOf(Path("hinted.safetensors"), "data"));
    const ProcessResult result =
        Quantgate({"explain", "--source", Sample("fc1.weight"), "--codes",
                   absl::StrCat(codes, ":rowwise_data@", row.element), "--scale-inv",
                   codes + ":rowwise_scale_inv", "--format", "json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const Json explained = Json::parse(result.out);
    // The zero points are found beside the scales.
    const Json& best = explained["codes"][0];
    EXPECT_EQ(best["code_match_count"], best["code_count"]) << explained;
    EXPECT_EQ(best["scale_match_count"], best["scale_count"]) << explained;
    EXPECT_EQ(best["zero_point_match_count"], best["zero_point_count"]) << explained;
    EXPECT_EQ(best.value("zero_point_count", Json(0)) != Json(0), row.has_zero_point) << explained;
    EXPECT_EQ(explained.value("cause", ""), "");
    Arguments gemm = {"gemm", "--a", Sample("fc1.x"), "--out-dtype", "f32", "--arithmetic", "fp32"};
    Arguments of_codes = {"--b", absl::StrCat(codes, ":rowwise_data@", row.element),
                          "--b-scale-inv", codes + ":rowwise_scale_inv"};
    if (row.has_zero_point) {
      of_codes = of_codes + Arguments{"--b-zero-point", codes + ":rowwise_zero_point"};
    }
    EXPECT_EQ(Quantgate(gemm + of_codes + Arguments{"-o", Path("d.safetensors")}).exit_code, 0);
    EXPECT_EQ(Quantgate(gemm + Arguments{"--b", Path("values.safetensors") + ":data", "-o",
                                         Path("plain.safetensors")})
                  .exit_code,
              0);
    EXPECT_EQ(BytesOf(Path("d.safetensors"), "d"), BytesOf(Path("plain.safetensors"), "d"));
    if (!row.has_zero_point) continue;
    // Zero points that lie beside the scales need not be named, and are not left out.
    const Arguments unnamed = {"--b", absl::StrCat(codes, ":rowwise_data@", row.element),
                               "--b-scale-inv", codes + ":rowwise_scale_inv"};
    EXPECT_EQ(Quantgate(gemm + unnamed + Arguments{"-o", Path("e.safetensors")}).exit_code, 0);
    EXPECT_EQ(BytesOf(Path("e.safetensors"), "d"), BytesOf(Path("plain.safetensors"), "d"));
  }
}

/// Integer codes of rows, less their zero points.
struct CodedRows {
  DType dtype;
  int64_t columns;
  std::vector<int> steps;
  std::vector<float> scales;  ///< One per row.
};

CodedRows ReadCodedRows(const std::string& path) {
  const auto file = ReadSafetensors(path);
  EXPECT_TRUE(file.ok()) << file.status();
  const Tensor codes = *file->Find("rowwise_data"), scales = *file->Find("rowwise_scale_inv");
  const auto zeros = file->Find("rowwise_zero_point");
  const auto number = [](const Tensor& tensor, int64_t i) -> int {
    return tensor.dtype() == DType::kI8 ? tensor.as<int8_t>()[i] : tensor.as<uint8_t>()[i];
  };
  CodedRows read = {codes.dtype(), codes.columns(), {}, {}};
  for (int64_t i = 0; i < codes.element_count(); ++i) {
    const int zero = zeros.ok() ? number(*zeros, i / read.columns) : 0;
    read.steps.push_back(number(codes, i) - zero);
  }
  read.scales.assign(scales.as<float>(), scales.as<float>() + scales.element_count());
  return read;
}

// u8 codes are operands of int32 by what their file says of them: the products of the integers, by
// hand (docs/quantizers.md section 11.4).
TEST_F(CodesCommandTest, UnsignedCodesAreAddedAsIntegers) {
  const std::string a = Codes("fc1.x", "input", "int8:element=u8,zero_point=integer", {});
  const std::string b = Codes("fc1.weight", "weight", "int8", {});
  const ProcessResult result =
      Quantgate({"gemm", "--a", a + ":rowwise_data", "--a-scale-inv", a + ":rowwise_scale_inv",
                 "--b", b + ":rowwise_data", "--b-scale-inv", b + ":rowwise_scale_inv",
                 "--out-dtype", "f32", "-o", Path("d.safetensors")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("int32"));
  const CodedRows of_a = ReadCodedRows(a), of_b = ReadCodedRows(b);
  ASSERT_EQ(of_a.dtype, DType::kU8);
  const Tensor d = *ReadSafetensors(Path("d.safetensors"))->Find("d");
  const int64_t columns = d.columns(), length = of_a.columns;
  int64_t wrong = 0;
  for (int64_t i = 0; i < d.element_count(); ++i) {
    const int64_t row = i / columns, column = i % columns;
    const int* const left = of_a.steps.data() + row * length;
    const int* const right = of_b.steps.data() + column * length;
    const int64_t sum = std::inner_product(left, left + length, right, int64_t{0});
    const float scaled = static_cast<float>(sum) * of_a.scales[size_t(row)];
    wrong += d.as<float>()[i] != scaled * of_b.scales[size_t(column)];
  }
  EXPECT_EQ(wrong, 0) << "of " << d.element_count();
}

// Without the metadata of its file u8 beside zero points may be bytes or pairs of codes.
TEST_F(CodesCommandTest, BytesBesideZeroPointsNeedAGroup) {
  const std::string codes = Codes("fc1.weight", "weight", "int8:element=u8,zero_point=integer", {});
  auto file = ReadSafetensors(codes);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(WriteSafetensors(codes, file->tensors, {}).ok());
  const Arguments gemm = {"gemm",
                          "--a",
                          Sample("fc1.x"),
                          "--b",
                          codes + ":rowwise_data",
                          "--b-scale-inv",
                          codes + ":rowwise_scale_inv"};
  const ProcessResult refused = Quantgate(gemm);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("--b-group is absent"), HasSubstr("append @u4x2"),
                                 Not(HasSubstr("f8_e4m3"))));
  EXPECT_EQ(Quantgate(gemm + Arguments{"--b-group", "row"}).exit_code, 0);
}

// Zero points are held to what the description of the codes says, and to what their format has.
TEST_F(CodesCommandTest, ZeroPointsThatTheCodesDoNotHaveAreRefused) {
  struct Row {
    const char* recipe;
    const char* changed;  ///< "none", "f32", "77".
    const char* rule;
  };
  const Row rows[] = {
      {"int8:zero_point=integer", "none", "zero_point=integer"},
      {"int4:zero_point=integer,group=32", "none", "zero_point=integer"},
      {"int4:scale_rule=tinygemm,group=32", "none", "zero_point=float"},
      {"int8:zero_point=integer", "f32", "zero_point"},
      {"int4:zero_point=integer,group=32", "f32", "zero_point=integer"},
      {"int4:zero_point=integer,group=32", "77", "i4x2 from -8 to 7"},
      {"int4:scale_rule=quanto,zero_point=integer,group=32", "77", "u4x2 from 0 to 15"}};
  for (const Row& row : rows) {
    SCOPED_TRACE(absl::StrCat(row.recipe, " ", row.changed));
    const std::string codes = Codes("fc1.weight", "weight", row.recipe, {});
    auto file = ReadSafetensors(codes);
    ASSERT_TRUE(file.ok());
    const std::string changed = row.changed;
    if (changed == "none") {
      std::erase_if(file->tensors,
                    [](const NamedTensor& tensor) { return tensor.name == "rowwise_zero_point"; });
    }
    for (NamedTensor& tensor : file->tensors) {
      if (tensor.name != "rowwise_zero_point") continue;
      if (changed == "f32") tensor.tensor = *Tensor::Allocate(DType::kF32, tensor.tensor.shape());
      if (changed == "77") tensor.tensor.as<uint8_t>()[3] = 77;
    }
    ASSERT_TRUE(WriteSafetensors(codes, file->tensors, file->metadata).ok());
    const ProcessResult dequantized = Quantgate({"dequantize", codes});
    EXPECT_EQ(dequantized.exit_code, 2) << dequantized.out;
    EXPECT_THAT(dequantized.err, AllOf(HasSubstr("rowwise_zero_point"), HasSubstr(row.rule)));
    const ProcessResult multiplied =
        Quantgate({"gemm", "--a", Sample("fc1.x"), "--b", codes + ":rowwise_data", "--b-scale-inv",
                   codes + ":rowwise_scale_inv"});
    EXPECT_EQ(multiplied.exit_code, 2) << multiplied.out;
    EXPECT_THAT(multiplied.err, AllOf(HasSubstr("--b-zero-point"), HasSubstr(row.rule)));
  }
}

// The zero points of every matrix of a stack are its own.
TEST_F(CodesCommandTest, StacksOfCodesWithZeroPointsAreDequantizedMatrixByMatrix) {
  Tensor experts = *Tensor::Allocate(DType::kF32, {2, 4, 8});
  for (int64_t i = 0; i < experts.element_count(); ++i) {
    experts.as<float>()[i] = static_cast<float>(i * i % 23) - (i < 32 ? 20.0f : 3.0f);
  }
  const std::string source = Path("experts.safetensors"), codes = Path("codes.safetensors"),
                    values = Path("values.safetensors");
  ASSERT_TRUE(WriteSafetensors(source, {{"w", experts}}, {}).ok());
  for (const std::string group : {"row", "tensor"}) {
    ASSERT_EQ(Quantgate({"quantize", source + ":w", "--recipe",
                         "int8:zero_point=integer,group=" + group, "--role", "weight", "-o", codes})
                  .exit_code,
              0);
    ASSERT_EQ(Quantgate({"dequantize", codes, "-o", values}).exit_code, 0);
    const auto file = ReadSafetensors(codes);
    const Tensor data = *ReadSafetensors(values)->Find("data");
    const Tensor numbers = *file->Find("rowwise_data"), scales = *file->Find("rowwise_scale_inv"),
                 zeros = *file->Find("rowwise_zero_point");
    const int64_t per_scale = data.element_count() / scales.element_count();
    for (int64_t i = 0; i < data.element_count(); ++i) {
      const int steps = numbers.as<int8_t>()[i] - zeros.as<int8_t>()[i / per_scale];
      EXPECT_EQ(data.as<float>()[i], static_cast<float>(steps) * scales.as<float>()[i / per_scale]);
    }
  }
}

TEST_F(CodesCommandTest, LayersRefuseRecipesOfLevels) {
  for (const char* recipe : {"int8", "int4", "nf4", "bnb_fp4"}) {
    const ProcessResult result =
        Quantgate({"run", "--recipe", recipe, "--input", Sample("fc1.x"), "--weight",
                   Sample("fc1.weight"), "--grad-output", Sample("fc1.dy")});
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr("layers and sessions have no such codes"));
  }
}

// Two copies of per-tensor FP8 by different rules: each has its scale, in one file, alone, and back
// in a request. Expected are f32(448 / 3) and f32(57344 / 3), rounded by hand, and a fresh delayed
// scale, 1.
TEST_F(CodesCommandTest, EachCopyKeepsTheScaleThatItWasMadeUnder) {
  const std::string of_e4m3("\x55\x55\x15\x43", 4), of_e5m2("\x55\x55\x95\x46", 4),
      one("\0\0\x80\x3f", 4);
  Tensor x = *Tensor::Allocate(DType::kF32, {32, 32});
  for (int64_t i = 0; i < x.element_count(); ++i) x.as<float>()[i] = i % 7 == 0 ? -3.0f : 0.5f;
  const std::string source = Path("x.safetensors"), codes = Path("codes.safetensors"),
                    alone = Path("alone.safetensors");
  ASSERT_TRUE(WriteSafetensors(source, {{"x", x}}, {}).ok());
  struct Row {
    const char* role;
    const char* recipe;
    std::string rowwise, columnwise;  ///< Empty for codes that have none.
  };
  const Row rows[] = {
      {"grad_output",
       R"(hybrid:dgrad={"name":"fp8_current","knobs":{"fp8_format":"e4m3"}},wgrad=fp8_current)",
       of_e4m3, of_e5m2},
      {"weight", "hybrid:fprop=fp8_delayed,dgrad=fp8_current", one, of_e4m3},
      {"weight", "hybrid:fprop=mxfp8,dgrad=fp8_current", "", of_e4m3},
      {"weight", "fp8_current", of_e4m3, of_e4m3}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.recipe);
    const bool has_two = !row.rowwise.empty() && row.rowwise != row.columnwise;
    const auto scales = [&](const std::string& path) {
      std::map<std::string, std::string> found;
      const auto file = ReadSafetensors(path);
      EXPECT_TRUE(file.ok());
      for (const NamedTensor& tensor : file->tensors) {
        if (tensor.name.ends_with("scale")) found[tensor.name] = BytesOf(path, tensor.name);
      }
      return found;
    };
    using Scales = std::map<std::string, std::string>;
    const Scales expected =
        has_two ? Scales{{"rowwise_scale", row.rowwise}, {"columnwise_scale", row.columnwise}}
                : Scales{{"scale", row.columnwise}};
    ASSERT_EQ(Quantgate({"quantize", source + ":x", "--recipe", row.recipe, "--role", row.role,
                         "--usage", "rowwise,columnwise", "-o", codes})
                  .exit_code,
              0);
    EXPECT_EQ(scales(codes), expected);
    const auto update = [&](const Arguments& arguments) {
      const ProcessResult result =
          Quantgate(Arguments{"update-usage", codes, "-o", alone} + arguments);
      EXPECT_EQ(result.exit_code, 0) << result.err;
      return scales(alone);
    };
    EXPECT_EQ(update({"--rowwise", "true"}), expected);
    EXPECT_EQ(update({"--rowwise", "false"}), (Scales{{"scale", row.columnwise}}));
    EXPECT_EQ(update({"--columnwise", "false"}),
              (row.rowwise.empty() ? Scales{} : Scales{{"scale", row.rowwise}}));
    if (!has_two) continue;
    // As files had it before: the scale of the rowwise copy alone, whatever the formats.
    auto file = ReadSafetensors(codes);
    ASSERT_TRUE(file.ok());
    std::erase_if(file->tensors,
                  [](const NamedTensor& tensor) { return tensor.name == "columnwise_scale"; });
    for (NamedTensor& tensor : file->tensors) {
      if (tensor.name == "rowwise_scale") tensor.name = "scale";
    }
    ASSERT_TRUE(WriteSafetensors(codes, file->tensors, file->metadata).ok());
    EXPECT_EQ(update({"--rowwise", "false"}), Scales{});
    EXPECT_EQ(update({"--columnwise", "false"}), (Scales{{"scale", row.rowwise}}));
    // Two statements of one scale.
    file->tensors.push_back({"columnwise_scale", *Tensor::FromScalar(1)});
    ASSERT_TRUE(WriteSafetensors(codes, file->tensors, file->metadata).ok());
    const ProcessResult refused = Quantgate({"update-usage", codes, "--rowwise", "false"});
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, HasSubstr("give one scale of both, or one of each"));
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
