#include "kernels/base/nearest_word.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"

namespace quantgate {
namespace {

constexpr int kDistanceMax = 3;

}  // namespace

int EditDistance(std::string_view a, std::string_view b) {
  // Three rows of the table of distances between prefixes.
  std::vector<int> before, above(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(above, row);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replaced});
      const bool is_swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string NearestWord(std::string_view word, const std::vector<std::string>& known) {
  const auto letters = std::count_if(word.begin(), word.end(), [](char c) { return c != '-'; });
  int least = std::min<int>(kDistanceMax, static_cast<int>(letters) / 3) + 1;
  std::string nearest;
  const std::string lower = absl::AsciiStrToLower(std::string(word));
  for (const std::string& candidate : known) {
    const int distance = EditDistance(lower, absl::AsciiStrToLower(candidate));
    if (candidate == word || distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace quantgate
