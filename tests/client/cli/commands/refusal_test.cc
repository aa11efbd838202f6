// What `quantgate` refuses, with which exit code and which words.
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>
#include <thread>

#include <nlohmann/json.hpp>

#include "client/channel_connection.h"
#include "tests/client/cli/commands/command_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// No machine has GPU 4096, and the test's server computes on the CPU.
#if defined(QUANTGATE_HAS_CUDA)
constexpr char kNoSuchDevice[] = "FAILED_PRECONDITION";
#else
constexpr char kNoSuchDevice[] = "UNIMPLEMENTED";
#endif

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Arguments = std::vector<std::string>;

class RefusalTest : public CommandTest {
 protected:
  /// A small valid run, with `more` after it; later options win nothing, so cases bring their own
  /// tensors.
  static Arguments Run(const Arguments& more) {
    return Arguments{"run", "--input", "gen:normal,shape=16x32", "--weight",
                     "gen:normal,seed=1,shape=16x32"} +
           more;
  }
};

struct Case {
  Arguments arguments;
  int exit_code;
  std::string words;
};

TEST_F(RefusalTest, BadInputNamesFieldValueAndRule) {
  const std::string fc1 = Sample("fc1.x");
  const std::vector<Case> cases = {
      {{}, 2, "subcommand"},
      {{"frobnicate"}, 2, "frobnicate"},
      {{"run"}, 2, "--input"},
      {{"run", "--colour", "red"}, 2, "--colour"},
      {Run({}), 2, "--recipe"},
      {Run({"--recipe", "fp9"}), 2, "fp9"},
      {Run({"--recipe", "fp8_current:margin=1"}), 2, "margin"},
      {Run({"--recipe", "fp8_current:amax_epsilon=-1"}), 2, "amax_epsilon"},
      {Run({"--recipe", "bf16:power_2_scales=true"}), 2, "power_2_scales"},
      {Run({"--recipe", "bf16", "--arithmetic", "sm91"}), 2, "sm91"},
      {Run({"--recipe", "bf16", "--arithmetic", "cublaslt"}), 2, "cublaslt"},
      {Run({"--recipe", "bf16", "--backward-override", "maybe"}), 2, "maybe"},
      {Run({"--recipe", "bf16", "--layer", "rnn"}), 2, "--layer: \"rnn\" is none of linear"},
      {Run({"--recipe", "bf16", "--requires-grad", "q"}), 2, "--requires-grad: \"q\""},
      {Run({"--recipe", "bf16", "--requires-grad", "w"}), 2,
       "--requires-grad is w: without --grad-output no gradient is computed"},
      {Run({"--recipe", "bf16", "--requires-grad", "n", "--grad-output", "gen:normal,shape=16x16"}),
       2, "--requires-grad is norm: the layer is given no such parameter"},
      {Run({"--recipe", "bf16", "--weight", "gen:normal,shape=16x32"}), 2, "--weight: 2 given"},
      {Run({"--recipe", "bf16", "--layer", "layernorm_linear"}), 2, "--gamma is absent"},
      {Run({"--recipe", "bf16", "--gamma", "gen:normal,shape=32"}), 2, "--gamma is bf16[32]"},
      {Run({"--recipe", "bf16", "--param", "weight"}), 2, "--param: \"weight\" is no NAME=TENSOR"},
      {Run({"--recipe", "bf16", "--layer", "grouped_linear", "--m-splits", "17"}), 2,
       "has 16 rows"},
      {Run({"--recipe", "bf16", "--m-splits", "8,x"}), 2, "--m-splits: \"8,x\""},
      {Run({"--recipe", "bf16", "--layer", "chain", "--operation", "linear"}), 2, "NAME=KIND"},
      {Run({"--recipe", "bf16", "--layer", "chain", "--operation", "a=conv"}), 2, "\"conv\""},
      {Run({"--recipe", "bf16", "--layer", "layernorm_linear", "--norm", "batchnorm"}), 2,
       "layernorm, rmsnorm"},
      {Run({"--recipe", "bf16", "--layer", "layernorm_mlp", "--activation", "mish"}), 2,
       "clamped_swiglu"},
      {Run({"--recipe", "bf16", "--spec", "/nonexistent/spec.json"}), 2, "spec.json"},
      {Run({"--recipe", "bf16", "--spec", "{]"}), 2, "no RunSpec as JSON"},
      {Run({"--recipe", "bf16", "--require", "close"}), 2, "--require"},
      {Run({"--recipe", "bf16", "-o", "out.bin"}), 2, "must end in .safetensors"},
      {Run({"--recipe", "bf16", "-o", "/nonexistent/out.safetensors"}), 2, "no existing directory"},
      {Run({"--recipe", "bf16", "--report", "report.pdf"}), 2, "must end in .json or .html"},
      {Run({"--recipe", "bf16", "--timeout", "soon"}), 2, "--timeout: \"soon\""},
      {Run({"--recipe", "bf16", "--timeout", "-1s"}), 2, "below zero"},
      {Run({"--recipe", "bf16", "--timeout", "0"}), 124, "DEADLINE_EXCEEDED"},
      {Run({"--recipe", "bf16", "--device", "cuda:4096"}), 2, kNoSuchDevice},
      {Run({"--recipe", "bf16", "--device", "tpu"}), 2, "--device: \"tpu\""},
      {Run({"--recipe", "bf16", "--device", "cuda:x"}), 2, "--device: \"cuda:x\""},
      {Run({"--recipe", "bf16", "--format", "yaml"}), 2, "--format"},
      {Run({"--recipe", "bf16", "--server", "nowhere"}), 2, "host:port"},
      {Run({"--recipe", "bf16", "--server", "unix:/nonexistent/socket"}), 4, "UNAVAILABLE"},
      {Run({"--recipe", "@/nonexistent/recipe.json"}), 2, "recipe.json"},
      {{"run", "--input", "gen:normal,shape=16x31", "--weight", "gen:normal,shape=16x31",
        "--recipe", "fp8_current"},
       2,
       "31"},
      {{"run", "--input", "gen:normal,shape=16x32", "--weight", "gen:normal,shape=16x48",
        "--recipe", "bf16"},
       2,
       "48"},
      {{"run", "--input", "gen:normal,shape=16x0", "--weight", "gen:normal,shape=16x0", "--recipe",
        "bf16"},
       2,
       "0"},
      {{"run", "--input", "gen:normal,shape=4294967296x4294967296", "--weight",
        "gen:normal,shape=16x4294967296", "--recipe", "bf16"},
       2,
       "4294967296"},
      {{"run", "--input", "gen:gauss,shape=16x32", "--weight", "gen:normal,shape=16x32", "--recipe",
        "bf16"},
       2,
       "gauss"},
      {{"run", "--input", "missing.safetensors:x", "--weight", fc1, "--recipe", "bf16"},
       2,
       "missing.safetensors"},
      {{"run", "--input", Sample("fc9.x"), "--weight", fc1, "--recipe", "bf16"}, 2, "fc9.x"},
      {{"run", "--input", "digest:" + std::string(64, '0') + "/8", "--weight", fc1, "--recipe",
        "bf16"},
       2,
       std::string(64, '0')},
      {{"compare", "--input", fc1, "--weight", fc1, "--recipe", "bf16,,bf16"}, 2, "empty"},
      {{"compare", "--input", fc1, "--weight", fc1, "--recipe", "bf16,bf16"}, 2, "bf16"},
      {{"compare", "--input", fc1, "--weight", fc1, "--recipe", "bf16", "--reference", "3"},
       2,
       "--reference: 3"},
      {{"quantize", fc1, "--recipe", "fp8_current", "--role", "bias"}, 2, "--role"},
      {{"quantize", fc1, "--recipe", "fp8_current", "--role", "input", "--usage", "diagonal"},
       2,
       "--usage: \"diagonal\""},
      {{"quantize", fc1, "--recipe", "fp8_current", "--role", "input", "--seed", "1"}, 2, "seed"},
      {{"quantize", fc1, "--recipe", "nvfp4", "--role", "grad_output", "--seed", "-1"},
       2,
       "--seed: \"-1\" is no integer from 0 to 2^64-1"},
      {Run({"--recipe", "nvfp4", "--seed", "18446744073709551616"}), 2, "--seed"},
      {{"run", "--spec", "/"}, 2, "--spec: \"/\": cannot be read"},
      {Run({"--recipe", "bf16", "--timeout", "nan"}), 2, "--timeout: \"nan\""},
      {{"run", "--input", fc1, "--weight", Sample("fc9.w"), "--recipe", "bf16"}, 2, "--weight: "},
      {{"explain", "--source", fc1, "--codes", fc1, "--scale-inv", fc1, "--a", fc1}, 2, "--a"},
      {{"explain", "--a", fc1, "--b", fc1, "--d", fc1, "--amax", fc1}, 2, "--amax"},
      {{"tensor", "get", "gen:normal,shape=4", "-o", "x.npy"}, 2, "is in no store"},
      {{"gemm", "--a", fc1, "--b", fc1, "--out-dtype", "f7"}, 2, "f7"},
      {{"gemm", "--a", fc1, "--b", Sample("fc1.dy")}, 2, "k"},
      {{"gemm", "--a", fc1, "--b", fc1, "--a-scaling", "mx32"}, 2, "mx32"},
      {{"gemm", "--a", fc1, "--b", fc1, "--every-algorithm"}, 2, "cublaslt alone"},
      {{"diff", fc1, "digest:12/3"}, 2, "digest:SHA256/SIZE"},
      {{"verify", "--subject", "none.safetensors", "--input", fc1, "--weight", fc1, "--recipe",
        "bf16"},
       2,
       "none.safetensors"},
      {{"tensor", "frob"}, 2, "frob"},
      {{"tensor", "put", "gen:normal,shape=4"}, 2, "lies in no file"},
      {{"tensor", "get", "digest:" + std::string(64, '0') + "/8", "-o", "x.npz"}, 2, "must end in"},
      {{"completion", "tcsh"}, 2, "tcsh"},
  };
  for (const Case& one : cases) {
    std::string line = "quantgate";
    for (const std::string& argument : one.arguments) line += " " + argument;
    SCOPED_TRACE(line);
    const ProcessResult result = Quantgate(one.arguments);
    EXPECT_EQ(result.exit_code, one.exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(one.words));
    EXPECT_EQ(result.out, "");
  }
}

// What is refused of codes of levels is blamed on what was typed.
TEST_F(RefusalTest, RecipesAndOperandsOfLevelsAreBlamedOnTheirOwnOptions) {
  const std::string x = "gen:normal,shape=16x32", codes = Path("i8.safetensors");
  ASSERT_EQ(
      Quantgate({"quantize", x, "--recipe", "int8", "--role", "weight", "-o", codes}).exit_code, 0);
  struct Row {
    Arguments arguments;
    std::string words, not_words;
  };
  const Row rows[] = {
      {{"quantize", x, "--role", "weight", "--recipe", "int8:element=u8"},
       "--recipe: knobs[\"element\"] is \"u8\"",
       "input"},
      {{"quantize", x, "--role", "weight", "--recipe",
        "int8:scale_rule=modelopt,zero_point=integer"},
       "--recipe: knobs[\"zero_point\"] is \"integer\"",
       "input"},
      {{"quantize", x, "--role", "weight", "--recipe", "nf4", "--usage", "columnwise"},
       "--usage is columnwise",
       "TENSOR"},
      {{"gemm", "--a", codes + ":rowwise_data", "--a-scale-inv", codes + ":rowwise_scale_inv",
        "--a-zero-point", "gen:normal,shape=16,dtype=f32", "--b", x},
       "--a-zero-point",
       "--a is"},
      {{"gemm", "--a", codes + ":rowwise_data", "--a-scale-inv", "gen:normal,shape=5,dtype=f32",
        "--b", x},
       "--a-group is absent",
       "tensors"},
      {{"gemm", "--a", codes + ":rowwise_data", "--a-scale-inv", "gen:normal,shape=5,dtype=f32",
        "--a-group", "row", "--b", x},
       "--a-scale-inv is f32[5]",
       "tensors"}};
  for (const Row& row : rows) {
    const ProcessResult result = Quantgate(row.arguments);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr(row.words));
    EXPECT_THAT(result.err, Not(HasSubstr(row.not_words)));
  }
  // What a hint has to say of codes that nothing describes.
  auto file = ReadSafetensors(codes);
  ASSERT_TRUE(file.ok());
  for (NamedTensor& tensor : file->tensors) {
    if (tensor.name == "rowwise_data") {
      tensor.tensor = *tensor.tensor.Reinterpret(DType::kU8, tensor.tensor.shape());
    }
  }
  ASSERT_TRUE(WriteSafetensors(codes, file->tensors, {}).ok());
  const ProcessResult untold = Quantgate({"dequantize", codes});
  EXPECT_EQ(untold.exit_code, 2);
  EXPECT_THAT(untold.err, HasSubstr("of levels, group"));
}

TEST_F(RefusalTest, TheServerRefusesAlike) {
  const std::vector<Case> cases = {
      {Run({"--recipe", "fp9"}), 2, "fp9"},
      {Run({"--recipe", "fp8_current:margin=1"}), 2, "margin"},
      {Run({"--recipe", "bf16", "--device", "cuda"}), 2, kNoSuchDevice},
      {Run({"--recipe", "bf16", "--timeout", "0"}), 124, "DEADLINE_EXCEEDED"},
  };
  for (const Case& one : cases) {
    const ProcessResult result = Quantgate(one.arguments, Where::kServer);
    EXPECT_EQ(result.exit_code, one.exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(one.words));
  }
  EXPECT_EQ(Quantgate(Run({"--recipe", "bf16"}), Where::kServer).exit_code, 0);
  StopServer();
}

TEST_F(RefusalTest, QuantgatedRefusesAddressesAndSizes) {
  const std::vector<Case> cases = {
      {{"--listen", "127.0.0.1:65536"}, 2, "--listen: \"127.0.0.1:65536\" is no address"},
      {{"--listen", "localhost"}, 2, "--listen: \"localhost\" is no address"},
      {{"--listen", "127.0.0.1:0", "--metrics-listen", "localhost"},
       2,
       "--metrics-listen: \"localhost\" is no address"},
      {{"--listen", "127.0.0.1:0", "--metrics-listen", "0.0.0.0:0"},
       2,
       "--metrics-listen: 0.0.0.0:0 can be reached from other machines"},
      {{"--blob-bytes-max", "-1"}, 2, "--blob-bytes-max: \"-1\" is no size"},
      {{"--tensor-bytes-max", "0"}, 2, "--tensor-bytes-max: 0 bytes; must be from 1"},
      {{"--store-bytes-max", "9223372036854775808"}, 2, "--store-bytes-max: 9223372036854775808"},
  };
  const Arguments quantgated = {QUANTGATED_PROGRAM, "--data-dir", Path("refused")};
  for (const Case& one : cases) {
    const ProcessResult result = RunProcess(quantgated + one.arguments);
    EXPECT_EQ(result.exit_code, one.exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(one.words));
  }
}

TEST_F(RefusalTest, QuantgatedTakesNoSocketFromAnother) {
  const std::string address = "unix:" + Path("q.sock");
  BackgroundProcess first({QUANTGATED_PROGRAM, "--listen", address, "--metrics-listen", "",
                           "--data-dir", Path("first")});
  EXPECT_EQ(first.ReadLine(), "quantgated ready on " + address);
  const ProcessResult second = RunProcess({QUANTGATED_PROGRAM, "--listen", address,
                                           "--metrics-listen", "", "--data-dir", Path("second")});
  EXPECT_EQ(second.exit_code, 4);
  EXPECT_THAT(second.err, HasSubstr(address + ": another process does"));
  EXPECT_EQ(Quantgate({"info", "--server", address}).exit_code, 0);
  // What a server left behind that was killed is nobody's.
  first.Signal(SIGKILL);
  first.Wait();
  BackgroundProcess third({QUANTGATED_PROGRAM, "--listen", address, "--metrics-listen", "",
                           "--data-dir", Path("first")});
  EXPECT_EQ(third.ReadLine(), "quantgated ready on " + address);
  third.Signal(SIGTERM);
  EXPECT_EQ(third.Wait().exit_code, 0);
}

TEST_F(RefusalTest, MalformedFilesAreRefused) {
  const std::pair<std::string, std::string> files[] = {
      {"empty.safetensors", ""},
      {"short.safetensors", "\x10"},
      {"long.safetensors", std::string("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F", 8) + "{}"},
      {"json.safetensors", std::string("\x02\0\0\0\0\0\0\0", 8) + "{]"},
      {"bad.npy", "\x93NUMPY\x01"}};
  for (const auto& [name, bytes] : files) {
    WriteFile(Path(name), bytes);
    const ProcessResult result = Quantgate({"tensor", "put", Path(name)});
    EXPECT_EQ(result.exit_code, 2) << name;
    EXPECT_THAT(result.err, HasSubstr(name));
  }
}

TEST_F(RefusalTest, WhatIsPrintedGoesIntoNoFileWhereStdoutIsClosed) {
  const std::string command =
      "exec '" QUANTGATE_PROGRAM "' -q tensor gen normal,shape=16x32 --name kept";
  const ProcessResult result =
      RunProcess({"/bin/sh", "-c", command + " >&-"}, Environment(Where::kInProcess));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(Path("quantgate"))) {
    if (!entry.is_regular_file()) continue;
    ++files;
    EXPECT_THAT(ReadFile(entry.path()), Not(HasSubstr("digest:"))) << entry.path();
  }
  EXPECT_GT(files, 0);
}

TEST_F(RefusalTest, InputsAreNotOverwritten) {
  const std::string path = Path("x.safetensors");
  ASSERT_EQ(Quantgate({"tensor", "gen", "normal,shape=16x32", "-o", path}).exit_code, 0);
  const std::string before = ReadFile(path);
  std::filesystem::create_hard_link(path, Path("alias.safetensors"));
  for (const std::string& output : {path, Path("./x.safetensors"), Path("alias.safetensors")}) {
    const ProcessResult result =
        Quantgate({"run", "--input", path, "--weight", "gen:normal,shape=16x32", "--recipe", "bf16",
                   "-o", output});
    EXPECT_EQ(result.exit_code, 2) << output;
    EXPECT_THAT(result.err, HasSubstr("is an input of this command"));
  }
  EXPECT_EQ(ReadFile(path), before);
}

TEST_F(RefusalTest, HelpShowsExamplesForEveryCommand) {
  for (const char* command : {"run", "compare", "verify", "diff", "quantize", "dequantize", "gemm",
                              "tensor", "info", "doctor", "bench", "completion"}) {
    const ProcessResult result = Quantgate({command, "--help"});
    EXPECT_EQ(result.exit_code, 0) << command;
    EXPECT_THAT(result.out, HasSubstr("Examples:\n  quantgate " + std::string(command)));
  }
  EXPECT_THAT(Quantgate({"--help"}).out, HasSubstr("Exit codes:"));
  EXPECT_THAT(Quantgate({"--version"}).out, HasSubstr("quantgate 0."));
}

TEST_F(RefusalTest, AnInterruptCancelsTheRunAndExits130) {
  auto connection = *ChannelConnection::Dial(ServerAddress(), {});
  BackgroundProcess command(
      Arguments{QUANTGATE_PROGRAM, "compare", "--input", "gen:normal,shape=2048x4096", "--weight",
                "gen:normal,seed=1,shape=4096x4096", "--recipe", "bf16,fp8_current", "--arithmetic",
                "sm90,sm90:split,exact,fp32"},
      Environment(Where::kServer));
  // Wait until the server has begun the run.
  v1::GetRunRequest request;
  v1::RunState state = v1::RUN_STATE_UNSPECIFIED;
  while (state != v1::RUN_STATE_RUNNING) {
    const auto runs = connection->ListRuns({});
    ASSERT_TRUE(runs.ok()) << runs.status();
    if (runs->runs_size() == 0) continue;
    request.set_run_id(runs->runs(0).run_id());
    state = runs->runs(0).state();
    ASSERT_LE(state, v1::RUN_STATE_RUNNING) << "the run is too short for this test";
  }
  command.Signal(SIGINT);
  const ProcessResult result = command.Wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_THAT(result.err, HasSubstr("interrupted"));
  while (state == v1::RUN_STATE_RUNNING) state = connection->GetRun(request)->state();
  EXPECT_EQ(state, v1::RUN_STATE_CANCELLED);
}

TEST_F(RefusalTest, AnInterruptEndsABenchmarkAndExits130) {
  BackgroundProcess command(
      Arguments{QUANTGATE_PROGRAM, "bench", "--only", "engine", "--seconds", "60"});
  // Its first thread is the one that takes interrupts.
  while (command.ThreadCount() == 1) std::this_thread::yield();
  command.Signal(SIGINT);
  const ProcessResult result = command.Wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_THAT(result.out, IsEmpty());
}

TEST_F(RefusalTest, ATimeoutCancelsTheRunAndExits124) {
  const ProcessResult result =
      Quantgate({"run", "--input", "gen:normal,shape=8192x8192", "--weight",
                 "gen:normal,seed=1,shape=8192x8192", "--recipe", "bf16", "--arithmetic", "exact",
                 "--timeout", "300ms"},
                Where::kServer);
  EXPECT_EQ(result.exit_code, 124) << result.err;
  auto connection = *ChannelConnection::Dial(ServerAddress(), {});
  v1::RunState state = v1::RUN_STATE_RUNNING;
  while (state == v1::RUN_STATE_RUNNING || state == v1::RUN_STATE_QUEUED) {
    const auto runs = connection->ListRuns({});
    ASSERT_TRUE(runs.ok() && runs->runs_size() == 1);
    state = runs->runs(0).state();
  }
  EXPECT_NE(state, v1::RUN_STATE_SUCCEEDED);
}

TEST_F(RefusalTest, TwoCommandsShareOneStore) {
  BackgroundProcess other(Arguments{QUANTGATE_PROGRAM} + Run({"--recipe", "bf16"}),
                          Environment(Where::kInProcess));
  EXPECT_EQ(Quantgate(Run({"--recipe", "bf16"})).exit_code, 0);
  EXPECT_EQ(other.Wait().exit_code, 0);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
