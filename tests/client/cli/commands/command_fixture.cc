#include "tests/client/cli/commands/command_fixture.h"

#include <signal.h>

#include <nlohmann/json.hpp>

namespace quantgate {

ProcessEnvironment CommandTest::Environment(Where where) {
  return {{"XDG_DATA_HOME", directory_.path()},
          {"NO_COLOR", "1"},
          {"QUANTGATE_SERVER", where == Where::kServer ? ServerAddress() : ""}};
}

ProcessResult CommandTest::Quantgate(const std::vector<std::string>& arguments, Where where) {
  return RunProcess(std::vector<std::string>{QUANTGATE_PROGRAM} + arguments, Environment(where));
}

nlohmann::json CommandTest::QuantgateJson(std::vector<std::string> arguments, Where where) {
  const ProcessResult result =
      Quantgate(arguments + std::vector<std::string>{"--format", "json"}, where);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
}

const std::string& CommandTest::ServerAddress() {
  if (server_ != nullptr) return address_;
  server_ = std::make_unique<BackgroundProcess>(
      std::vector<std::string>{QUANTGATED_PROGRAM, "--listen", "127.0.0.1:0", "--metrics-listen",
                               "127.0.0.1:0", "--data-dir", Path("server")});
  const std::string ready = server_->ReadLine();
  const std::string prefix = "quantgated ready on ";
  EXPECT_EQ(ready.rfind(prefix, 0), 0u) << ready;
  address_ = ready.substr(prefix.size(), ready.find(',') - prefix.size());
  return address_;
}

void CommandTest::StopServer() {
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->Wait().exit_code, 0);
  server_.reset();
}

std::string CommandTest::Sample(const std::string& name) {
  return QUANTGATE_SOURCE_DIR "/data/bytegpt_block1.safetensors:" + name;
}

std::vector<std::string> CommandTest::LayerArguments() {
  return {"--input", Sample("fc1.x"),    "--weight",      Sample("fc1.weight"),
          "--bias",  Sample("fc1.bias"), "--grad-output", Sample("fc1.dy")};
}

std::vector<std::string> operator+(std::vector<std::string> left,
                                   const std::vector<std::string>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

std::vector<std::string> ContentsOf(const std::string& path) {
  std::vector<std::string> contents;
  const auto file = ReadSafetensors(path);
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return {};
  for (const NamedTensor& tensor : file->tensors) {
    contents.push_back(tensor.name + " " + TensorText(tensor.tensor));
  }
  return contents;
}

std::string BytesOf(const std::string& path, const std::string& tensor) {
  const absl::StatusOr<TensorFile> file = ReadSafetensors(path);
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return "";
  const absl::StatusOr<Tensor> found = file->Find(tensor);
  EXPECT_TRUE(found.ok()) << found.status();
  if (!found.ok()) return "";
  return std::string(reinterpret_cast<const char*>(found->data()), found->byte_size());
}

}  // namespace quantgate
