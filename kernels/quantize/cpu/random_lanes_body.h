// StochasticBits on lanes: Philox4x32-10 with a counter per lane. Included by block_kernels_*.cc
// after their lanes.
#pragma once

#include "kernels/quantize/cpu/block_kernels.h"

namespace quantgate {
namespace {

/// Counters as 64-bit lanes whose lower halves count: even lanes of 32 bits, then odd ones. What
/// stands in the upper halves is of no use and no harm.
struct PhiloxLanes {
  Ints word[4];
};

inline void DrawRounds(const Nvfp4Random& random, PhiloxLanes& c) {
  uint32_t key0 = random.key[0], key1 = random.key[1];
  const Ints multiplier0 = AllInts(static_cast<int>(0xD2511F53));
  const Ints multiplier1 = AllInts(static_cast<int>(0xCD9E8D57));
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const Ints product0 = WideTimes(c.word[0], multiplier0);
    const Ints product1 = WideTimes(c.word[2], multiplier1);
    c.word[0] = Xor3(UpperHalf(product1), c.word[1], AllInts(static_cast<int>(key0)));
    c.word[1] = product1;
    c.word[2] = Xor3(UpperHalf(product0), c.word[3], AllInts(static_cast<int>(key1)));
    c.word[3] = product0;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

/// words[i] lane j: word i of the draw of (block[j], line[j]).
inline void DrawLanes(const Nvfp4Random& random, Ints block, Ints line, Ints* words) {
  const Ints call_id = AllInts(static_cast<int>(random.call_id));
  const Ints usage = AllInts(static_cast<int>(random.usage));
  PhiloxLanes even = {{block, line, call_id, usage}};
  PhiloxLanes odd = {{UpperHalf(block), UpperHalf(line), call_id, usage}};
  DrawRounds(random, even);
  DrawRounds(random, odd);
  for (int i = 0; i < 4; ++i) words[i] = JoinHalves(even.word[i], odd.word[i]);
}

}  // namespace
}  // namespace quantgate
