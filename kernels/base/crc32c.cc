#include "kernels/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace quantgate {
namespace {

// 0x1EDC6F41 with its bits reversed: bit 31 of a remainder is the coefficient of x^0.
constexpr uint32_t kPolynomial = 0x82F63B78;

constexpr uint32_t TimesX(uint32_t remainder) {
  return (remainder >> 1) ^ ((remainder & 1) != 0 ? kPolynomial : 0);
}

constexpr std::array<uint32_t, 256> MakeByteTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = TimesX(remainder);
    table[byte] = remainder;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kByteTable = MakeByteTable();

#if defined(__x86_64__)

// The instruction takes one word per cycle and answers after three (Intel, AMD), so three
// independent parts of a block are summed at a time.
constexpr size_t kPartBytes = 4096;
constexpr size_t kLineBytes = 64;  // Of the cache.

/// A remainder times x^(8 * kPartBytes), that is the remainder after so many zero bytes, by the
/// four bytes of the remainder: multiplying is linear over GF(2).
using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

constexpr ShiftTable MakeShiftTable() {
  // What becomes of each single bit. Bit 31 stands for x^0, so its image is x^(8 * kPartBytes)
  // itself, and each lower bit's is x times the one above.
  std::array<uint32_t, 32> image{};
  uint32_t power = uint32_t{1} << 31;
  for (size_t byte = 0; byte < kPartBytes; ++byte) {
    power = (power >> 8) ^ kByteTable[power & 0xFF];
  }
  for (int bit = 31; bit >= 0; --bit, power = TimesX(power)) image[bit] = power;
  ShiftTable table{};
  for (int byte = 0; byte < 4; ++byte) {
    for (uint32_t value = 1; value < 256; ++value) {
      for (int bit = 0; bit < 8; ++bit) {
        if ((value >> bit & 1) != 0) table[byte][value] ^= image[8 * byte + bit];
      }
    }
  }
  return table;
}
constexpr ShiftTable kShiftTable = MakeShiftTable();

uint32_t ShiftByPart(uint32_t crc) {
  return kShiftTable[0][crc & 0xFF] ^ kShiftTable[1][crc >> 8 & 0xFF] ^
         kShiftTable[2][crc >> 16 & 0xFF] ^ kShiftTable[3][crc >> 24];
}

__attribute__((target("sse4.2"))) uint64_t ExtendByWord(uint64_t crc, const std::byte* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return _mm_crc32_u64(crc, word);
}

__attribute__((target("sse4.2"))) uint32_t ExtendBySse42(uint32_t crc,
                                                         std::span<const std::byte> bytes) {
  const std::byte* data = bytes.data();
  size_t left = bytes.size();
  for (; left >= 3 * kPartBytes; left -= 3 * kPartBytes, data += 3 * kPartBytes) {
    uint64_t first = crc, second = 0, third = 0;
    for (size_t line = 0; line < kPartBytes; line += kLineBytes) {
      // The next block, since three streams that end with a page each are nothing that processors
      // foresee. Beyond the end it does nothing.
      for (size_t part = 3; part < 6; ++part) {
        _mm_prefetch(reinterpret_cast<const char*>(data) + part * kPartBytes + line, _MM_HINT_T0);
      }
      for (size_t i = line; i < line + kLineBytes; i += 8) {
        first = ExtendByWord(first, data + i);
        second = ExtendByWord(second, data + kPartBytes + i);
        third = ExtendByWord(third, data + 2 * kPartBytes + i);
      }
    }
    crc = ShiftByPart(static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
    crc = ShiftByPart(crc) ^ static_cast<uint32_t>(third);
  }
  uint64_t wide = crc;
  for (; left >= 8; left -= 8, data += 8) wide = ExtendByWord(wide, data);
  crc = static_cast<uint32_t>(wide);
  for (; left > 0; --left, ++data) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(*data));
  return crc;
}

#endif

}  // namespace

uint32_t ExtendCrc32cByTable(uint32_t crc, std::span<const std::byte> bytes) {
  crc = ~crc;
  for (const std::byte byte : bytes) {
    crc = kByteTable[(crc ^ static_cast<uint32_t>(byte)) & 0xFF] ^ (crc >> 8);
  }
  return ~crc;
}

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  static const bool has_sse42 = __builtin_cpu_supports("sse4.2");
  if (has_sse42) return ~ExtendBySse42(~crc, bytes);
#endif
  return ExtendCrc32cByTable(crc, bytes);
}

}  // namespace quantgate
