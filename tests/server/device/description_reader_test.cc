#include "server/device/description_reader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "server/limits.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// Readings have numbers, and the time stands still until it is moved.
class DescriptionReaderTest : public testing::Test {
 protected:
  DeviceDescription Read() {
    DeviceDescription description;
    description.sm_clock_mhz = ++readings_;
    return description;
  }

  std::atomic<int> readings_{0};
  std::atomic<int64_t> now_nanoseconds_{1};
  DescriptionReader reader_{[this] { return Read(); }, /*is_quick=*/false,
                            [this] { return absl::FromUnixNanos(now_nanoseconds_); }};
};

TEST_F(DescriptionReaderTest, ReadsOnceWhileTheReadingIsYoung) {
  EXPECT_EQ(reader_.Get().sm_clock_mhz, 1);
  reader_.Refresh();
  EXPECT_EQ(reader_.Get().sm_clock_mhz, 1);
  now_nanoseconds_ += absl::ToInt64Nanoseconds(kDescriptionAgeMax) - 1;
  EXPECT_EQ(reader_.Get().sm_clock_mhz, 1);
  EXPECT_EQ(readings_, 1);
}

TEST_F(DescriptionReaderTest, ReadsAnewWhatIsTooOld) {
  EXPECT_EQ(reader_.Get().sm_clock_mhz, 1);
  now_nanoseconds_ += absl::ToInt64Nanoseconds(kDescriptionAgeMax);
  EXPECT_EQ(reader_.Get().sm_clock_mhz, 2);
}

TEST_F(DescriptionReaderTest, ARefreshServesTheNextOneToAsk) {
  EXPECT_EQ(reader_.Get().sm_clock_mhz, 1);
  now_nanoseconds_ += absl::ToInt64Nanoseconds(kDescriptionAgeMax);
  reader_.Refresh();
  reader_.Refresh();
  EXPECT_EQ(reader_.Get().sm_clock_mhz, 2);
  EXPECT_EQ(readings_, 2);
}

TEST_F(DescriptionReaderTest, WhatIsQuickIsReadByWhoeverAsks) {
  std::thread::id reader;
  DescriptionReader quick(
      [&] {
        reader = std::this_thread::get_id();
        return Read();
      },
      /*is_quick=*/true, [this] { return absl::FromUnixNanos(now_nanoseconds_); });
  quick.Refresh();
  EXPECT_EQ(readings_, 0);
  EXPECT_EQ(quick.Get().sm_clock_mhz, 1);
  EXPECT_EQ(reader, std::this_thread::get_id());
  now_nanoseconds_ += absl::ToInt64Nanoseconds(kDescriptionAgeMax) - 1;
  EXPECT_EQ(quick.Get().sm_clock_mhz, 1);
  ++now_nanoseconds_;
  EXPECT_EQ(quick.Get().sm_clock_mhz, 2);
}

TEST_F(DescriptionReaderTest, ManyAskAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> answers{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { answers += reader_.Get().sm_clock_mhz == 1 ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answers, 8);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
