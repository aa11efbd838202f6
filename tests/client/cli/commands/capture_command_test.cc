// verify and diff of captures, as processes: tests/data/capture, of which dx of layer b in step 1
// is twice what it should be (tests/vectors/capture_files.py).
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/client/cli/commands/command_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kCapture = std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/capture";
constexpr char kFirst[] =
    "First divergence in execution order: step 1, rank 0, b, call 0: dx (backward): dx exceeds its "
    "bound in ";

class CaptureCommandTest : public CommandTest {
 protected:
  nlohmann::json Json(const std::vector<std::string>& arguments, int exit_code,
                      Where where = Where::kInProcess) {
    const ProcessResult result =
        Quantgate(std::vector<std::string>{"--format", "json"} + arguments, where);
    EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
    return nlohmann::json::parse(result.out);
  }
};

TEST_F(CaptureCommandTest, VerifyNamesTheFirstDivergence) {
  for (const Where where : {Where::kInProcess, Where::kServer}) {
    const nlohmann::json report = Json({"verify", "--capture", kCapture}, 1, where);
    EXPECT_THAT(report["first_divergence"].get<std::string>(), StartsWith(kFirst));
    EXPECT_EQ(report["diagnosis"]["sentence"], "dx is twice the expected");
    ASSERT_EQ(report["layers"].size(), 6u);
    std::string lines;
    for (const nlohmann::json& layer : report["layers"]) {
      lines += layer["module"].get<std::string>() + layer["step"].dump() +
               (layer["passes"] ? " passes " : " fails ") + layer["comparison_count"].dump() + "; ";
    }
    // y, dx, dw; in step 1 main_grad too. Nothing is known of d.
    EXPECT_EQ(lines,
              "b0 passes 3; c0 passes 3; d0 passes 0; b1 fails 4; c1 passes 4; d1 passes 0; ");
    EXPECT_EQ(report["layers"][2]["remark"], "no layer kind known: diff only");
    EXPECT_EQ(report["layers"][0]["variant"], "bf16 / none / sm90");
    EXPECT_THAT(report["remarks"].dump(), AllOf(HasSubstr("2 of 6 captured calls were not judged"),
                                                HasSubstr("step 2, b, call 0: max_bytes is 9")));
    EXPECT_EQ(report["comparisons"][0]["tensor"], "step0/rank0/b.0:y");
  }
}

TEST_F(CaptureCommandTest, VerifyPrintsOneLineForEachLayer) {
  const ProcessResult result = Quantgate({"verify", "--capture", kCapture});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, StartsWith(kFirst));
  int lines = 0;
  for (const char* line : {"\n0        0  b  ", "\n0        0  c  ", "\n0        0  d  ",
                           "\n1        0  b  ", "\n1        0  c  ", "\n1        0  d  "}) {
    lines += result.out.find(line) != std::string::npos;
  }
  EXPECT_EQ(lines, 6) << result.out;
  EXPECT_THAT(result.out, AllOf(HasSubstr("main_grad ="),
                                HasSubstr("note: of 2 calls: no layer kind known: diff only")));
}

TEST_F(CaptureCommandTest, ReportsHaveTheLayers) {
  const ProcessResult result =
      Quantgate({"--format", "jsonl", "verify", "--capture", kCapture, "--junit", Path("c.xml"),
                 "--report", Path("c.html"), "--report", Path("c.json")});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\"kind\":\"captured_layer\",\"module\":\"b\""));
  const auto text = [&](const std::string& name) {
    std::ifstream file(Path(name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  };
  const std::string junit = text("c.xml");
  EXPECT_THAT(junit,
              AllOf(HasSubstr("tests=\"6\" failures=\"1\" errors=\"0\" skipped=\"2\""),
                    HasSubstr("classname=\"quantgate.capture.step1.rank0\" name=\"b call 0\"")));
  EXPECT_THAT(text("c.html"), HasSubstr("First divergence in execution order: step 1"));
  EXPECT_EQ(nlohmann::json::parse(text("c.json"))["layers"].size(), 6u);
}

TEST_F(CaptureCommandTest, LayersAndRecipesAreChosen) {
  const nlohmann::json right = Json({"verify", "--capture", kCapture, "--layers", "c|d"}, 0);
  EXPECT_EQ(right["first_divergence"], "");
  EXPECT_TRUE(right["verdict"]["pass"]);
  EXPECT_EQ(right["layers"].size(), 4u);
  const std::string file = kCapture + "/step1/rank0/b.0.safetensors";
  EXPECT_EQ(Json({"verify", "--capture", file}, 1)["layers"].size(), 1u);
  // What was rounded once has the bits of the exact arithmetic.
  const nlohmann::json bits = Json({"verify", "--capture", kCapture, "--layers", "c", "--require",
                                    "bitwise", "--arithmetic", "exact"},
                                   0);
  EXPECT_EQ(bits["verdict"]["criterion"], "bitwise");
  EXPECT_EQ(bits["layers"][0]["variant"], "bf16 / none / exact");
  for (const nlohmann::json& one : bits["comparisons"]) {
    EXPECT_EQ(one["parity"]["mismatch_count"], 0) << one["tensor"];
    EXPECT_TRUE(one["bound"].is_null());
  }
  // Under another recipe every layer is wrong.
  const nlohmann::json other =
      Json({"verify", "--capture", kCapture, "--recipe", "fp8_current", "--layers", "c"}, 1);
  EXPECT_THAT(other["first_divergence"].get<std::string>(),
              HasSubstr("step 0, rank 0, c, call 0: y (forward)"));
  EXPECT_EQ(other["layers"][0]["variant"], "fp8_current / none / sm90:fast, sm90:split");
}

TEST_F(CaptureCommandTest, WhatCannotBeJudgedIsRefused) {
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& text) {
    const ProcessResult result = Quantgate(std::vector<std::string>{"verify"} + arguments);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr(text));
  };
  refused({"--capture", kCapture, "--layers", "d"},
          "has no layer that can be judged: no layer kind known: diff only");
  refused({"--capture", kCapture, "--layers", "e"},
          "--layers: \"e\" matches no module; there are "
          "b, c, d");
  refused({"--layers", "b"}, "--layers: given without --capture");
  refused({"--capture", kCapture, "--input", "x.npy"},
          "--capture: given with --input; a capture has its layers and their tensors itself");
  refused({"--capture", kCapture, "--recipe", "bf16,mxfp8"}, "--recipe: 2 variants");
  refused({"--capture", kCapture, "--recipe", "nope"}, "--recipe is \"nope\": unknown recipe");
  // Tensors have the names of the capture, which are no options.
  refused({"--capture", kCapture, "--recipe", "mxfp8"}, "--recipe is mxfp8: x is bf16[16x32]: ");
  refused({"--capture", kCapture, "--report", kCapture + "/manifest.rank0.json"},
          "is an input of this command");
}

TEST_F(CaptureCommandTest, DiffNamesTheFirstDivergence) {
  const nlohmann::json same = Json({"diff", "--capture", kCapture, kCapture}, 0);
  EXPECT_TRUE(same["verdict"]["pass"]);
  EXPECT_EQ(same["layers"].size(), 6u);
  const std::string other = Path("other");
  fs::copy(kCapture, other, fs::copy_options::recursive);
  // One bit of the last tensor of c: the file's last byte is of dw's last element.
  const std::string path = other + "/step0/rank0/c.0.safetensors";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char last = static_cast<char>(file.get() ^ 1);
  file.seekp(-1, std::ios::end);
  file.put(last);
  file.close();
  const nlohmann::json report = Json({"diff", "--capture", kCapture, other}, 1);
  EXPECT_THAT(report["first_divergence"].get<std::string>(),
              AllOf(StartsWith("First divergence in execution order: step 0, rank 0, c, call 0: dw "
                               "(backward): dw differs in 1 of 512 elements, first at (15, 31)"),
                    Not(HasSubstr("more"))));
  EXPECT_EQ(report["layers"][1]["passes"], false);
  // A call that one of them lacks.
  std::string manifest;
  {
    std::ifstream in(other + "/manifest.rank0.json");
    manifest.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  const size_t at = manifest.find("\"call\": 0");
  manifest.replace(at, 9, "\"call\": 1");
  std::ofstream(other + "/manifest.rank0.json") << manifest;
  EXPECT_THAT(
      Json({"diff", "--capture", kCapture, other}, 1)["first_divergence"].get<std::string>(),
      HasSubstr("step 0, rank 0, b, call 0: only in "));
  const ProcessResult none = Quantgate({"diff", "--capture", kCapture, Path("none")});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("B: "));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
