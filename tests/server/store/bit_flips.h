// Single flipped bits in a server's data directory, and what becomes of its answers: each is as it
// was, or refused and counted. An answer that is another is what must not be.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/store/exchanges.h"
#include "tests/server/temporary_directory.h"

namespace quantgate {

class BitFlips {
 public:
  /// Fills a data directory and keeps it as a server leaves it that ends, and one that is killed.
  BitFlips();

  struct Outcome {
    std::string where;     ///< "event file, byte 17, bit 3, at rest".
    bool refused = false;  ///< The server did not start.
    int lost = 0;          ///< Answers that were DATA_LOSS, or followed from what was set aside.
    double counted = 0;    ///< By the metrics of damage.
    std::vector<std::string> altered;  ///< Answers that were something else.
    bool IsSound() const { return altered.empty() && (lost == 0 || counted > 0); }
  };
  /// One bit of one file, as the seed says.
  Outcome Flip(uint64_t seed) const;

  const std::vector<Exchange>& answers() const { return answers_; }

 private:
  TemporaryDirectory images_;
  std::vector<Exchange> answers_;
};

/// Flips with seeds from `first` on; a line for each that is not sound, and how many were refused,
/// lost and without effect by kind of file.
struct FlipCounts {
  std::map<std::string, int> by_outcome;
  std::vector<std::string> unsound;
  std::string Text() const;
};
FlipCounts RunFlips(const BitFlips& flips, uint64_t first, int count);

}  // namespace quantgate
