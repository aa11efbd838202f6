#include "kernels/base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

using Extend = uint32_t (*)(uint32_t, std::span<const std::byte>);

class Crc32cTest : public ::testing::TestWithParam<Extend> {
 protected:
  static uint32_t CrcOf(std::span<const uint8_t> bytes, uint32_t before = 0) {
    return GetParam()(before, std::as_bytes(bytes));
  }
};

std::vector<uint8_t> RandomBytes(size_t size) {
  std::mt19937 random(static_cast<uint32_t>(size));
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() >> 24);
  return bytes;
}

// RFC 3720 appendix B.4, whose CRCs are printed as bytes, read as little-endian words.
TEST_P(Crc32cTest, PublishedVectors) {
  std::vector<uint8_t> bytes(32, 0);
  EXPECT_EQ(CrcOf(bytes), 0x8A9136AAu);
  bytes.assign(32, 0xFF);
  EXPECT_EQ(CrcOf(bytes), 0x62A8AB43u);
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<uint8_t>(i);
  EXPECT_EQ(CrcOf(bytes), 0x46DD794Eu);
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<uint8_t>(31 - i);
  EXPECT_EQ(CrcOf(bytes), 0x113FDB5Cu);
  // An iSCSI SCSI Read (10) command.
  bytes.assign(48, 0);
  const std::pair<int, uint8_t> read_command[] = {{0, 0x01},  {1, 0xC0},  {16, 0x14}, {22, 0x04},
                                                  {27, 0x14}, {31, 0x18}, {32, 0x28}, {40, 0x02}};
  for (const auto& [at, byte] : read_command) bytes[at] = byte;
  EXPECT_EQ(CrcOf(bytes), 0xD9963A56u);
  EXPECT_EQ(CrcOf({}), 0u);
}

TEST_P(Crc32cTest, GoesOnFromAnySplit) {
  // Two blocks of three parts of 4096 bytes, and a rest that is no whole word.
  const std::vector<uint8_t> bytes = RandomBytes(2 * 3 * 4096 + 5003);
  const uint32_t whole = CrcOf(bytes);
  for (size_t split = 0; split <= bytes.size(); split += split < 64 ? 1 : 509) {
    const std::span<const uint8_t> all = bytes;
    EXPECT_EQ(CrcOf(all.subspan(split), CrcOf(all.first(split))), whole) << split;
  }
  const std::vector<uint8_t> few = RandomBytes(100);
  for (size_t split = 0; split <= few.size(); ++split) {
    const std::span<const uint8_t> all = few;
    EXPECT_EQ(CrcOf(all.subspan(split), CrcOf(all.first(split))), CrcOf(few)) << split;
  }
}

// The definition, bit by bit: every bit of the message shifts one coefficient in.
uint32_t CrcByDefinition(std::span<const uint8_t> bytes) {
  uint32_t crc = ~0u;
  for (const uint8_t byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool carry = ((crc ^ byte >> bit) & 1) != 0;
      crc = (crc >> 1) ^ (carry ? 0x82F63B78u : 0u);
    }
  }
  return ~crc;
}

TEST_P(Crc32cTest, EqualsTheDefinitionForAnyLengthAndAlignment) {
  const std::vector<uint8_t> bytes = RandomBytes(5 * 3 * 4096);
  std::mt19937 random(3);
  std::vector<size_t> sizes = {
      1, 7, 8, 9, 3 * 4096 - 1, 3 * 4096, 3 * 4096 + 1, 6 * 4096 - 8, 6 * 4096, 6 * 4096 + 8};
  for (int i = 0; i < 40; ++i) sizes.push_back(random() % (bytes.size() - 8));
  for (const size_t size : sizes) {
    const std::span<const uint8_t> part = std::span(bytes).subspan(random() % 8, size);
    EXPECT_EQ(CrcOf(part), CrcByDefinition(part)) << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, Crc32cTest, ::testing::Values(&ExtendCrc32c, &ExtendCrc32cByTable),
                         [](const auto& info) {
                           return std::string(info.index == 0 ? "ThisProcessor" : "Table");
                         });

}  // namespace QG_TEST_FILE
}  // namespace quantgate
