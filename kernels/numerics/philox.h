// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC
// 2011. A function of counter and key alone, so any element of a random tensor can be computed by
// itself, on any device.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace quantgate {

struct PhiloxCounter {
  uint32_t word[4];
};
struct PhiloxKey {
  uint32_t word[2];
};

/// The four random words of a counter.
QG_HOST_DEVICE constexpr PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key) {
  constexpr int kRounds = 10;
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;  // Golden ratio, sqrt(3) - 1.
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = kMultiplier0 * counter.word[0];
    const uint64_t product1 = kMultiplier1 * counter.word[2];
    counter = {{uint32_t(product1 >> 32) ^ counter.word[1] ^ key.word[0], uint32_t(product1),
                uint32_t(product0 >> 32) ^ counter.word[3] ^ key.word[1], uint32_t(product0)}};
    key.word[0] += kWeyl0;
    key.word[1] += kWeyl1;
  }
  return counter;
}

/// The random words of block `block` in stream `stream` of a seed. The stream is counter word 2, so
/// streams are independent draws.
QG_HOST_DEVICE constexpr PhiloxCounter PhiloxBlock(uint64_t seed, uint64_t block, uint32_t stream) {
  return Philox4x32({{uint32_t(block), uint32_t(block >> 32), stream, 0}},
                    {{uint32_t(seed), uint32_t(seed >> 32)}});
}

}  // namespace quantgate
