// What commands leave behind on a machine without a server, and whom they wait for.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "tests/client/cli/commands/command_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Arguments = std::vector<std::string>;
using Json = nlohmann::json;

/// Regular files below `path`.
std::vector<std::string> FilesBelow(const std::string& path) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path, error)) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  return files;
}

class LocalStoreTest : public CommandTest {
 protected:
  LocalStoreTest() { std::filesystem::create_directories(Path("tmp")); }

  ProcessEnvironment InTemporary() {
    ProcessEnvironment environment = Environment(Where::kInProcess);
    environment["TMPDIR"] = Path("tmp");
    return environment;
  }
  ProcessResult Local(const Arguments& arguments) {
    return RunProcess(Arguments{QUANTGATE_PROGRAM} + arguments, InTemporary());
  }
  Json LocalJson(const Arguments& arguments) {
    const ProcessResult result = Local(arguments + Arguments{"--format", "json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  }
  /// Of a tensor that is put into the store: "digest:SHA256/SIZE".
  std::string Put(const std::string& tensor) {
    return "digest:" +
           LocalJson({"tensor", "put", tensor})["tensors"][0]["digest"].get<std::string>();
  }
  std::string Store() const { return Path("quantgate"); }
};

TEST_F(LocalStoreTest, CommandsThatKeepNothingLeaveNoFile) {
  const std::string x = Sample("fc1.x"), weight = Sample("fc1.weight");
  for (const Arguments& arguments :
       {Arguments{"run", "--input", x, "--weight", weight, "--recipe", "bf16"},
        Arguments{"gemm", "--a", x, "--b", weight}, Arguments{"diff", x, x},
        Arguments{"quantize", x, "--recipe", "mxfp8", "--role", "input"},
        Arguments{"tensor", "stat", x}, Arguments{"info"}}) {
    const ProcessResult result = Local(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(FilesBelow(Path("")), IsEmpty()) << arguments[0];
  }
}

// Empty entries of a run path are the folder in which a program is started, whoever wrote there.
TEST(ProgramTest, FindsItsLibrariesInNoFolderOfChance) {
  EXPECT_THAT(ReadFile(QUANTGATE_PROGRAM), Not(HasSubstr("::::::")));
}

TEST_F(LocalStoreTest, CommandsThatKeepNothingWaitForNobody) {
  const std::string digest = Put(Sample("fc1.x"));
  // One that keeps its tensor, at work for long.
  BackgroundProcess keeper(
      Arguments{QUANTGATE_PROGRAM, "tensor", "gen", "normal,shape=65536x8192,dtype=f32"},
      InTemporary());
  Arguments probe = {"tensor", "ls", "--timeout", "0.05"};
  while (Local(probe).exit_code == 0) continue;  // Until the keeper has the lock.
  EXPECT_EQ(Local({"diff", digest, Sample("fc1.x")}).exit_code, 0);
  EXPECT_EQ(Local({"tensor", "get", digest, "-o", Path("x.safetensors")}).exit_code, 0);
  EXPECT_EQ(BytesOf(Path("x.safetensors"), "fc1.x"),
            BytesOf(QUANTGATE_SOURCE_DIR "/data/bytegpt_block1.safetensors", "fc1.x"));
  EXPECT_THAT(Local(probe).err, HasSubstr("another quantgate process uses"));
  keeper.Signal(SIGKILL);
  keeper.Wait();
}

TEST_F(LocalStoreTest, AnInterruptEndsTheWaitForAnother) {
  Put(Sample("fc1.x"));
  const int other = ::open((Store() + "/client.lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(other, LOCK_EX | LOCK_NB), 0);
  for (const Arguments& arguments :
       {Arguments{"tensor", "ls"}, Arguments{"tensor", "gc"}, Arguments{"tensor", "rm", "--all"},
        Arguments{"tensor", "gen", "normal,shape=2,dtype=f32"}}) {
    for (const int signal : {SIGINT, SIGTERM}) {
      BackgroundProcess command(Arguments{QUANTGATE_PROGRAM, "--timeout", "60"} + arguments,
                                InTemporary());
      EXPECT_THAT(command.ReadErrorLine(), HasSubstr("waiting for another quantgate"));
      command.Signal(signal);
      const ProcessResult result = command.Wait();
      EXPECT_EQ(result.exit_code, 130) << arguments[1];
      EXPECT_EQ(result.err, "quantgate: interrupted\n");
    }
  }
  ::close(other);
}

TEST_F(LocalStoreTest, CommandsThatOnlyReadMakeNoStore) {
  const std::string none = "digest:" + std::string(64, '0') + "/8";
  const std::pair<Arguments, int> commands[] = {
      {{"tensor", "ls"}, 0},
      {{"tensor", "ls", "--format", "json"}, 0},
      {{"tensor", "rm", "--all"}, 0},
      {{"tensor", "rm", none}, 2},
      {{"tensor", "gc"}, 0},
      {{"tensor", "stat", none}, 2},
      {{"tensor", "get", none, "-o", Path("tmp/x.npy")}, 2},
      {{"info"}, 0},
      {{"doctor"}, 0}};
  for (const auto& [arguments, exit_code] : commands) {
    const ProcessResult result = Local(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << arguments.back() << result.err;
    EXPECT_FALSE(std::filesystem::exists(Store())) << arguments.back();
  }
  EXPECT_TRUE(LocalJson({"tensor", "ls"})["tensors"].empty());
  EXPECT_THAT(Local({"tensor", "ls"}).err, HasSubstr("no local store yet"));
  EXPECT_THAT(Local({"tensor", "ls"}).err, HasSubstr(Store()));
  EXPECT_EQ(LocalJson({"tensor", "gc"})["bytes"], 0);
  EXPECT_THAT(Local({"tensor", "rm", none}).err, HasSubstr(none.substr(7)));
}

TEST_F(LocalStoreTest, WithoutItsDatabaseNothingIsRemoved) {
  Put(Sample("fc1.x"));
  std::filesystem::remove(Store() + "/store/quantgate.db");
  const auto files = FilesBelow(Store() + "/store/cas");
  ASSERT_FALSE(files.empty());
  for (const Arguments& arguments :
       {Arguments{"tensor", "gc"}, Arguments{"tensor", "rm", "--all"}}) {
    const ProcessResult result = Local(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("quantgate.db is gone"));
    EXPECT_EQ(FilesBelow(Store() + "/store/cas"), files);
  }
}

TEST_F(LocalStoreTest, DigestsAreFoundWhereverARequestHasThem) {
  const std::string digest = Put(Sample("fc1.x"));
  const Arguments run = {"run", "--weight", Sample("fc1.weight"), "--recipe", "bf16"};
  EXPECT_EQ(Local(run + Arguments{"--input", digest}).exit_code, 0);
  const std::string sha256 = absl::Base64Escape(absl::HexStringToBytes(digest.substr(7, 64)));
  WriteFile(Path("spec.json"), R"({"step": {"x": {"stored": {"digest": {"sha256": ")" + sha256 +
                                   R"(", "size": 262144}}}}})");
  const ProcessResult by_spec = Local(run + Arguments{"--spec", Path("spec.json")});
  EXPECT_EQ(by_spec.exit_code, 0) << by_spec.err;
  const std::string none = std::string(64, '0') + "/8";
  for (const Arguments& arguments :
       {Arguments{"diff", "digest:" + none + ",dtype=f32,shape=2", "gen:normal,shape=2,dtype=f32"},
        Arguments{"tensor", "stat", "digest:" + none}}) {
    const ProcessResult missing = Local(arguments);
    EXPECT_EQ(missing.exit_code, 2);
    EXPECT_THAT(missing.err, HasSubstr(none));
  }
}

TEST_F(LocalStoreTest, RemoveAndCollect) {
  const std::string x = Put(Sample("fc1.x")), weight = Put(Sample("fc1.weight"));
  const auto is_stored = [&](const std::string& digest) {
    const std::vector<std::string> files = FilesBelow(Store() + "/store/cas");
    return std::any_of(files.begin(), files.end(), [&](const std::string& file) {
      return file.find(digest.substr(7, 64)) != std::string::npos;
    });
  };
  EXPECT_TRUE(is_stored(x));
  // One type of several is not what goes.
  EXPECT_EQ(Local({"tensor", "rm", x + ",dtype=bf16,shape=256x512"}).exit_code, 2);
  EXPECT_TRUE(is_stored(x));
  EXPECT_GT(LocalJson({"info"})["local_store"]["bytes"].get<int64_t>(), 256 * 512 * 2);
  ProcessResult result = Local({"tensor", "rm", x});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("1 tensor, "));
  const Json left = LocalJson({"tensor", "ls"});
  ASSERT_EQ(left["tensors"].size(), 1u);
  EXPECT_EQ("digest:" + left["tensors"][0]["digest"].get<std::string>(), weight);
  EXPECT_EQ(Local({"tensor", "stat", x}).exit_code, 2);
  EXPECT_EQ(Local({"tensor", "stat", weight}).exit_code, 0);
  EXPECT_FALSE(is_stored(x));
  EXPECT_TRUE(is_stored(weight));
  result = Local({"tensor", "rm", x});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr(x.substr(7, 64)));

  // A blob that no tensor names.
  const std::string stray = Store() + "/store/cas/00/11";
  std::filesystem::create_directories(stray);
  const std::string blob = stray + "/0011" + std::string(60, 'a');
  WriteFile(blob, std::string(1 << 20, 'x'));
  const Json cleared = LocalJson({"tensor", "gc"});
  EXPECT_GE(cleared["bytes"].get<int64_t>(), 1 << 20);
  EXPECT_FALSE(std::filesystem::exists(blob));
  EXPECT_EQ(Local({"tensor", "get", weight, "-o", Path("w.npy")}).exit_code, 0);

  EXPECT_EQ(Local({"tensor", "rm"}).exit_code, 2);
  EXPECT_EQ(Local({"tensor", "rm", "--all"}).exit_code, 0);
  EXPECT_TRUE(LocalJson({"tensor", "ls"})["tensors"].empty());
}

TEST_F(LocalStoreTest, AServerRefusesRemovalByName) {
  const std::string digest = "digest:" + std::string(64, '0') + "/8";
  for (const Arguments& arguments :
       {Arguments{"tensor", "rm", digest}, Arguments{"tensor", "gc"}}) {
    const ProcessResult result = Quantgate(arguments, Where::kServer);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("tensor " + arguments[1] + ": --server"));
    EXPECT_THAT(result.err, HasSubstr("a server removes nothing yet"));
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
