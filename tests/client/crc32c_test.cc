#include "client/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quantgate {
namespace {

uint32_t CrcOf(const std::vector<uint8_t>& bytes) {
  return Crc32c(std::as_bytes(std::span(bytes)));
}

TEST(Crc32cTest, PublishedVectors) {
  // RFC 3720 section B.4, read as little-endian words.
  std::vector<uint8_t> bytes(32, 0);
  EXPECT_EQ(CrcOf(bytes), 0x8A9136AAu);
  bytes.assign(32, 0xFF);
  EXPECT_EQ(CrcOf(bytes), 0x62A8AB43u);
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<uint8_t>(i);
  EXPECT_EQ(CrcOf(bytes), 0x46DD794Eu);
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<uint8_t>(31 - i);
  EXPECT_EQ(CrcOf(bytes), 0x113FDB5Cu);
  EXPECT_EQ(CrcOf({'1', '2', '3', '4', '5', '6', '7', '8', '9'}), 0xE3069283u);
  EXPECT_EQ(CrcOf({}), 0u);
}

}  // namespace
}  // namespace quantgate
