// Captures as they are read: tests/data/capture, which tests/vectors/capture_files.py wrote, and
// manifests that are none.
#include "client/capture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/server/temporary_directory.h"

namespace quantgate {
namespace QG_TEST_FILE {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kCapture = std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/capture";

std::string Text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(CaptureTest, CallsComeInTheOrderOfExecution) {
  const absl::StatusOr<Capture> capture = ReadCapture("--capture", kCapture);
  ASSERT_TRUE(capture.ok()) << capture.status();
  std::vector<std::string> names;
  for (const CapturedCall& call : capture->calls) names.push_back(call.Name());
  EXPECT_THAT(names, ElementsAre("step0/rank0/b.0", "step0/rank0/c.0", "step0/rank0/d.0",
                                 "step1/rank0/b.0", "step1/rank0/c.0", "step1/rank0/d.0"));
  EXPECT_THAT(capture->left_out, ElementsAre("step 2, b, call 0: max_bytes is 9"));
  const CapturedCall& call = capture->calls[0];
  EXPECT_EQ(call.kind, "linear");
  EXPECT_EQ(call.backward_order, 5);
  EXPECT_EQ(capture->calls[2].backward_order, std::nullopt);
  EXPECT_THAT(call.parameters, ElementsAre("weight", "bias"));
  EXPECT_EQ(call.tensors.at("x").shape, Shape({16, 32}));
  EXPECT_EQ(call.tensors.at("x").strides, Shape({32, 1}));
  const absl::StatusOr<TensorFile> file = ReadCapturedTensors("--capture", *capture, call);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Find("dw")->shape(), Shape({16, 32}));
}

TEST(CaptureTest, AFileStandsAlone) {
  const std::string path = kCapture + "/step1/rank0/c.0.safetensors";
  const absl::StatusOr<Capture> capture = ReadCapture("--capture", path);
  ASSERT_TRUE(capture.ok()) << capture.status();
  ASSERT_EQ(capture->calls.size(), 1u);
  EXPECT_EQ(capture->calls[0].module, "c");
  EXPECT_EQ(capture->calls[0].step, 1);
  EXPECT_TRUE(ReadCapturedTensors("--capture", *capture, capture->calls[0]).ok());
  const std::string sample = std::string(QUANTGATE_SOURCE_DIR) + "/data/bytegpt_block1.safetensors";
  EXPECT_THAT(std::string(ReadCapture("--capture", sample).status().message()),
              HasSubstr("its metadata has no quantgate.capture; it is no file of a capture"));
}

TEST(CaptureTest, TensorsComeInTheOrderOfExecution) {
  const std::vector<std::string> names = {"x",  "fc1.weight", "y",        "dy",
                                          "dx", "fc1.dw",     "main_grad"};
  for (size_t i = 1; i < names.size(); ++i) {
    EXPECT_LT(ExecutionPlace(names[i - 1]), ExecutionPlace(names[i])) << names[i];
  }
  EXPECT_EQ(ExecutionPlace("dw.3"), ExecutionPlace("dw"));
  EXPECT_FALSE(IsOfBackward("weight"));
  EXPECT_FALSE(IsOfBackward("y"));
  EXPECT_TRUE(IsOfBackward("dy"));
  EXPECT_TRUE(IsOfBackward("fc2.main_grad"));
}

/// A capture whose manifest has `to` in place of the first `from`.
absl::StatusOr<Capture> Changed(const TemporaryDirectory& directory, const std::string& from,
                                const std::string& to) {
  const std::string path = directory.Path("changed");
  fs::remove_all(path);
  fs::copy(kCapture, path, fs::copy_options::recursive);
  std::string text = Text(path + "/manifest.rank0.json");
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  std::ofstream(path + "/manifest.rank0.json", std::ios::binary) << text;
  return ReadCapture("--capture", path);
}

TEST(CaptureTest, BadManifestsAreRefusedByName) {
  const TemporaryDirectory directory;
  const std::vector<std::vector<std::string>> cases = {
      {"\"version\": 1", "\"version\": 2", "version: 2; this program reads version 1"},
      {"\"version\": 1", "\"version\": \"1\"", "version: must be an integer of 0 or more"},
      {"\"rank\": 0", "\"rank\": -1", "rank: must be an integer of 0 or more"},
      {"\"captures\": [", "\"other\": [", "captures: must be a list"},
      {"step0/rank0/b.0.safetensors", "../b.0.safetensors", "captures[0]: file: \"../b.0.safeten"},
      {"step0/rank0/b.0.safetensors", "/b.0.safetensors", "must be a .safetensors file within"},
      {"\"module\": \"b\"", "\"module\": 3", "captures[0]: module: must be text"},
      {"\"step\": 0", "\"step\": -2", "captures[0]: step: must be an integer"},
      {"\"step\": 0", "\"step\": 0.5", "captures[0]: step: must be an integer"},
      {"\"parameters\": [", "\"parameters\": [1,",
       "captures[0]: parameters: must be a list of text"},
      {"\"knobs\": {", "\"knobs\": 1, \"k\": {", "captures[0]: knobs: must be an object"},
      {"\"dtype\": \"bf16\"", "\"dtype\": 4", "captures[0]: tensors[x]: dtype: must be text"},
      {"\"forward_order\": 0", "\"forward_order\": null", "forward_order: must be an integer"},
      {"{", "{\"rank\": 0,", "rank"},
      {"{", "[", "manifest.rank0.json: "}};
  for (const std::vector<std::string>& one : cases) {
    const absl::StatusOr<Capture> capture = Changed(directory, one[0], one[1]);
    EXPECT_EQ(capture.status().code(), absl::StatusCode::kInvalidArgument) << one[1];
    EXPECT_THAT(std::string(capture.status().message()), HasSubstr("--capture: ")) << one[1];
    EXPECT_THAT(std::string(capture.status().message()), HasSubstr(one[2])) << one[1];
  }
  EXPECT_EQ(ReadCapture("--capture", directory.Path("none")).status().code(),
            absl::StatusCode::kNotFound);
  fs::create_directory(directory.Path("empty"));
  EXPECT_THAT(std::string(ReadCapture("--capture", directory.Path("empty")).status().message()),
              HasSubstr("has no manifest.rank0.json"));
}

TEST(CaptureTest, AFileMustHaveWhatItsRecordSays) {
  const TemporaryDirectory directory;
  absl::StatusOr<Capture> capture = Changed(directory, "\"dtype\": \"bf16\"", "\"dtype\": \"f16\"");
  ASSERT_TRUE(capture.ok()) << capture.status();
  EXPECT_THAT(
      std::string(ReadCapturedTensors("--capture", *capture, capture->calls[0]).status().message()),
      HasSubstr("b.0.safetensors: x is bf16[16x32], and its record says f16[16x32]"));
  fs::remove(directory.Path("changed/step0/rank0/b.0.safetensors"));
  EXPECT_EQ(ReadCapturedTensors("--capture", *capture, capture->calls[0]).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
