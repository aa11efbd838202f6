// `quantgate` run as a process on the sample data, in process or against a quantgated of the test's
// own.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/tensor/files/tensor_file.h"
#include "tests/client/process.h"
#include "tests/server/temporary_directory.h"

namespace quantgate {

enum class Where { kInProcess, kServer };

/// One quantgated per fixture object, on a free loopback port, with a store of its own.
class CommandTest : public ::testing::Test {
 protected:
  /// Runs `quantgate` with these arguments.
  ProcessResult Quantgate(const std::vector<std::string>& arguments,
                          Where where = Where::kInProcess);
  /// The same, expecting exit code 0, and stdout as JSON.
  nlohmann::json QuantgateJson(std::vector<std::string> arguments, Where where = Where::kInProcess);
  ProcessEnvironment Environment(Where where);
  /// "host:port" of the quantgated, started on first use.
  const std::string& ServerAddress();
  /// The next use starts another one on the same store.
  void StopServer();

  /// A path in the test's directory.
  std::string Path(const std::string& name) const { return directory_.Path(name); }
  /// "FILE:fc1.x" of the sample data.
  static std::string Sample(const std::string& name);
  /// --input ... --grad-output of fc1, with its bias.
  static std::vector<std::string> LayerArguments();

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<BackgroundProcess> server_;
  std::string address_;
};

std::vector<std::string> operator+(std::vector<std::string> left,
                                   const std::vector<std::string>& right);

/// "NAME DTYPE[SHAPE]" of every tensor in a safetensors file.
std::vector<std::string> ContentsOf(const std::string& path);

/// Bytes of a tensor in a safetensors file, "" when it is not there.
std::string BytesOf(const std::string& path, const std::string& tensor);

}  // namespace quantgate
