// quantgated as a process: its signals, and whom it listens to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/client/process.h"
#include "tests/server/temporary_directory.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class QuantgatedTest : public testing::Test {
 protected:
  std::vector<std::string> Quantgated(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {QUANTGATED_PROGRAM, "--data-dir",
                                          directory_.Path("data")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  TemporaryDirectory directory_;
};

TEST_F(QuantgatedTest, IgnoresHangupsAndSaysSo) {
  BackgroundProcess server(Quantgated({"--listen", "127.0.0.1:0", "--metrics-listen", ""}));
  EXPECT_THAT(server.ReadLine(), StartsWith("quantgated ready on 127.0.0.1:"));
  // Also while it drains, a hangup is no second signal.
  for (const int signal : {SIGHUP, SIGHUP, SIGTERM, SIGHUP}) server.Signal(signal);
  const ProcessResult result = server.Wait();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("SIGHUP is ignored: there is nothing to reload"),
                                HasSubstr("draining")));
}

TEST_F(QuantgatedTest, AsksWhetherAMisspeltOptionIsAnotherOne) {
  for (const auto& [given, meant] :
       std::vector<std::pair<std::string, std::string>>{{"--lisen", "--listen"},
                                                        {"--devise=cuda", "--device"},
                                                        {"--qeue-capacity", "--queue-capacity"}}) {
    BackgroundProcess refused(Quantgated({given, "8"}));
    ASSERT_EQ(refused.ReadLine(), "");
    const ProcessResult result = refused.Wait();
    EXPECT_EQ(result.exit_code, 2) << given;
    EXPECT_THAT(result.err, HasSubstr("did you mean " + meant + "?\n"));
  }
  BackgroundProcess other(Quantgated({"--colour", "8"}));
  ASSERT_EQ(other.ReadLine(), "");
  EXPECT_THAT(other.Wait().err, Not(HasSubstr("did you mean")));
}

TEST_F(QuantgatedTest, ListensToOtherMachinesOnlyWhereThatIsSaid) {
  const std::vector<std::vector<std::string>> open = {
      {"--listen", "0.0.0.0:0", "--metrics-listen", ""},
      {"--listen", "127.0.0.1:0", "[::]:0", "--metrics-listen", ""},
      {"--listen", "127.0.0.1:0", "--metrics-listen", "0.0.0.0:0"},
  };
  for (const std::vector<std::string>& arguments : open) {
    BackgroundProcess refused(Quantgated(arguments));
    ASSERT_EQ(refused.ReadLine(), "");
    const ProcessResult result = refused.Wait();
    EXPECT_EQ(result.exit_code, 2) << arguments[1];
    EXPECT_THAT(result.err,
                AllOf(HasSubstr("can be reached from other machines"), HasSubstr("--insecure")));
    EXPECT_FALSE(std::filesystem::exists(directory_.Path("data")));
  }
  // As the image does, whose last --grace counts.
  BackgroundProcess server(Quantgated({"--listen", "0.0.0.0:0", "--metrics-listen", "0.0.0.0:0",
                                       "--insecure", "--grace", "8", "--grace", "30"}));
  EXPECT_THAT(server.ReadLine(), StartsWith("quantgated ready on 0.0.0.0:"));
  server.Signal(SIGTERM);
  const ProcessResult result = server.Wait();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("--insecure: whoever reaches a listener"));
}

TEST_F(QuantgatedTest, SaysNothingOfReachOnLoopback) {
  BackgroundProcess server(Quantgated({"--listen", "127.0.0.1:0", "--metrics-listen", ""}));
  EXPECT_THAT(server.ReadLine(), StartsWith("quantgated ready on 127.0.0.1:"));
  server.Signal(SIGTERM);
  EXPECT_THAT(server.Wait().err, Not(HasSubstr("insecure")));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
