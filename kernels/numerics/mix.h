// The mixing step of tensor fingerprints. A fingerprint is a sum of these, so parts can be added in
// any order on any device; it finds accidents (a stale, moved or swapped element), not adversaries.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace quantgate {

/// Two 64-bit lanes, each added modulo 2^64.
struct MixSum {
  uint64_t low = 0;
  uint64_t high = 0;

  QG_HOST_DEVICE constexpr void Add(const MixSum& other) {
    low += other.low;
    high += other.high;
  }
  friend constexpr bool operator==(const MixSum&, const MixSum&) = default;
};

/// Mixes the 8-byte little-endian word at `index`. The multipliers are odd: 2^64 over the golden
/// ratio, which spreads indices so that equal words at two places differ, and three from Stafford's
/// variants of MurmurHash3's finaliser. Each lane ends in a shift-xor after its own multiply:
/// without it both would be multiples of one sum.
QG_HOST_DEVICE constexpr MixSum MixWord(uint64_t index, uint64_t word) {
  uint64_t x = word + (index + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 32)) * 0xBF58476D1CE4E5B9u;
  uint64_t low = (x ^ (x >> 29)) * 0x94D049BB133111EBu;
  uint64_t high = (x ^ (x >> 31)) * 0xFF51AFD7ED558CCDu;
  low ^= low >> 32;
  high ^= high >> 33;
  return {low, high};
}

/// Facts about a tensor (dtype, shape, byte count) are words at indices that no data word has.
inline constexpr uint64_t kMixFactIndex = uint64_t{1} << 63;

}  // namespace quantgate
