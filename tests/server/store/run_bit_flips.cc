// run_bit_flips COUNT [FIRST_SEED]: so many flipped bits, one at a time, in what a server stored.
// Exit code 1 where an answer was altered, or damage was met and not counted.
#include <cstdio>
#include <cstdlib>

#include "tests/server/store/bit_flips.h"

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 1000;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  quantgate::BitFlips flips;
  const quantgate::FlipCounts counts = quantgate::RunFlips(flips, first, count);
  std::printf("%zu answers after each of %d flips\n%s%zu unsound\n", flips.answers().size(), count,
              counts.Text().c_str(), counts.unsound.size());
  return counts.unsound.empty() ? 0 : 1;
}
