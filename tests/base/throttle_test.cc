#include "kernels/base/throttle.h"

#include <gtest/gtest.h>

namespace quantgate {
namespace QG_TEST_FILE {

using std::chrono::milliseconds;

class ThrottleTest : public testing::Test {
 protected:
  bool PassesAfter(milliseconds time) {
    now_ += time;
    return throttle_.Passes();
  }

  Throttle::Clock::time_point now_{};
  Throttle throttle_{milliseconds(20), [this] { return now_; }};
};

TEST_F(ThrottleTest, TheFirstEventPassesAtOnce) { EXPECT_TRUE(PassesAfter(milliseconds(0))); }

TEST_F(ThrottleTest, OneEventPassesInAnInterval) {
  ASSERT_TRUE(PassesAfter(milliseconds(3)));
  EXPECT_FALSE(PassesAfter(milliseconds(0)));
  EXPECT_FALSE(PassesAfter(milliseconds(19)));
  EXPECT_TRUE(PassesAfter(milliseconds(1)));
  EXPECT_FALSE(PassesAfter(milliseconds(19)));
}

TEST_F(ThrottleTest, AnEventThatDoesNotPassStartsNoInterval) {
  ASSERT_TRUE(PassesAfter(milliseconds(0)));
  EXPECT_FALSE(PassesAfter(milliseconds(10)));
  EXPECT_TRUE(PassesAfter(milliseconds(10)));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
