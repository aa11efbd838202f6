#include "server/net/listen_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;

TEST(ListenAddressTest, OnlyThisMachineReachesLoopbackAndUnixSockets) {
  for (const char* address :
       {"127.0.0.1:7470", "127.255.255.254:0", "[::1]:7470", "[::ffff:127.0.0.1]:7470",
        "[::ffff:127.9.9.9]:7470", "localhost:7470", "unix:quantgate.sock"}) {
    EXPECT_TRUE(CheckReach(address, false).ok()) << address << ": " << CheckReach(address, false);
  }
}

TEST(ListenAddressTest, OtherMachinesNeedThatItIsSaid) {
  for (const char* address :
       {"0.0.0.0:7470", "[::]:7470", "192.0.2.1:7470", "128.0.0.1:7470", "[::ffff:192.0.2.1]:7470",
        "[::ffff:0.0.0.0]:7470", "[2001:db8::1]:7470", "[fe80::1]:7470", "[::127.0.0.1]:7470"}) {
    const absl::Status refused = CheckReach(address, false);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << address;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(address));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--insecure"));
    EXPECT_TRUE(CheckReach(address, true).ok()) << address;
  }
}

TEST(ListenAddressTest, AHostWithoutAddressIsNamed) {
  const absl::Status refused = CheckReach("host.invalid:7470", false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("host.invalid"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
