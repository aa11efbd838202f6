#include "server/store/crc32c.h"

#include <nmmintrin.h>

#include <array>
#include <cstring>

namespace quantgate {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // 0x1EDC6F41 with its bits reversed.

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}

uint32_t ExtendByTable(uint32_t crc, std::span<const std::byte> bytes) {
  static constexpr std::array<uint32_t, 256> kTable = MakeTable();
  for (const std::byte byte : bytes) {
    crc = kTable[(crc ^ static_cast<uint32_t>(byte)) & 0xFF] ^ (crc >> 8);
  }
  return crc;
}

__attribute__((target("sse4.2"))) uint32_t ExtendBySse42(uint32_t crc,
                                                         std::span<const std::byte> bytes) {
  uint64_t wide = crc;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; i < bytes.size(); ++i) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(bytes[i]));
  return crc;
}

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes) {
  static const bool has_sse42 = __builtin_cpu_supports("sse4.2");
  return ~(has_sse42 ? ExtendBySse42(~crc, bytes) : ExtendByTable(~crc, bytes));
}

}  // namespace quantgate
