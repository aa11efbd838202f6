#include "server/disk_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/temporary_directory.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(DiskWatchTest, IsFullBelowTheReserveAndRecovers) {
  DiskRoom room{1000, 1};
  std::vector<std::string> lines;
  DiskWatch watch(
      "data", 1000, [&room](const std::string&) { return room; },
      [&lines](const std::string& line) { lines.push_back(line); });
  EXPECT_EQ(watch.why_full(), "");
  EXPECT_EQ(watch.free_bytes(), 1000);
  room.bytes = 999;
  EXPECT_EQ(watch.why_full(), "");  // Only a look tells.
  watch.Look();
  watch.Look();
  EXPECT_EQ(watch.why_full(),
            "the disk of the data directory is full: 999 bytes are left, of which 1000 are kept "
            "in reserve");
  room.bytes = 1001;
  watch.Look();
  EXPECT_EQ(watch.why_full(), "");
  room.files = 0;
  watch.Look();
  EXPECT_EQ(watch.why_full(), "the disk of the data directory is full: it takes no more files");
  // One line for each change.
  EXPECT_THAT(lines, ElementsAre(HasSubstr("not ready: the disk"),
                                 HasSubstr("room again: 1001 bytes"), HasSubstr("no more files")));
}

TEST(DiskWatchTest, StartsFull) {
  std::vector<std::string> lines;
  const DiskWatch watch(
      "data", 1,
      [](const std::string&) {
        return DiskRoom{0, 1};
      },
      [&lines](const std::string& line) { lines.push_back(line); });
  EXPECT_NE(watch.why_full(), "");
  EXPECT_THAT(lines, ElementsAre(HasSubstr("not ready")));
}

TEST(DiskWatchTest, ReadsTheFileSystem) {
  const TemporaryDirectory directory;
  const DiskRoom room = ReadDiskRoom(directory.path());
  EXPECT_GT(room.bytes, 0);
  EXPECT_LT(room.bytes, int64_t{1} << 60);
  EXPECT_GT(room.files, 0);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
