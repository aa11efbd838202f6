#include "kernels/validate/diagnosis/row_order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quantgate {
namespace {

constexpr int64_t kNearestLinesMax = 1024;
constexpr int64_t kProbes = 16;

/// Lines of a tensor: its rows, or its columns.
struct Lines {
  const Values& values;
  const bool of_rows;
  int64_t count() const { return of_rows ? values.rows : values.columns; }
  int64_t length() const { return of_rows ? values.columns : values.rows; }
  float operator()(int64_t line, int64_t i) const {
    return of_rows ? values(line, i) : values(i, line);
  }
  /// Of a few elements; equal lines have equal hashes.
  uint64_t Hash(int64_t line) const {
    uint64_t hash = 14695981039346656037u;  // FNV-1a, a word at a time.
    for (int64_t i = 0; i < length(); i += std::max<int64_t>(1, length() / kProbes)) {
      const float value = (*this)(line, i);
      const bool is_nan = std::isnan(value);
      hash = (hash ^ (is_nan ? 0x7FC00000u : std::bit_cast<uint32_t>(value == 0 ? 0.0f : value))) *
             1099511628211u;
    }
    return hash;
  }
  bool IsConstant(int64_t line) const {
    for (int64_t i = 1; i < length(); ++i) {
      if (!SameValue((*this)(line, i), (*this)(line, 0))) return false;
    }
    return true;
  }
};

bool SameLine(const Lines& left, int64_t i, const Lines& right, int64_t j) {
  for (int64_t k = 0; k < left.length(); ++k) {
    if (!SameValue(left(i, k), right(j, k))) return false;
  }
  return true;
}

/// from[i] by equal values, -1 where there is none. A line that is where it was stays there.
std::vector<int64_t> EqualLines(const Lines& expected, const Lines& subject) {
  const auto count = static_cast<size_t>(expected.count());
  std::vector<int64_t> from(count, -1);
  std::vector<bool> is_taken(count);
  for (size_t line = 0; line < count; ++line) {
    if (!SameLine(subject, int64_t(line), expected, int64_t(line))) continue;
    from[line] = static_cast<int64_t>(line);
    is_taken[line] = true;
  }
  struct Group {
    std::vector<int64_t> lines;
    size_t next = 0;  // The lines before are taken.
  };
  std::unordered_map<uint64_t, Group> groups;
  for (size_t line = 0; line < count; ++line) {
    groups[expected.Hash(int64_t(line))].lines.push_back(int64_t(line));
  }
  for (size_t line = 0; line < count; ++line) {
    const auto found = from[line] < 0 ? groups.find(subject.Hash(int64_t(line))) : groups.end();
    if (found == groups.end()) continue;
    Group& group = found->second;
    while (group.next < group.lines.size() && is_taken[size_t(group.lines[group.next])]) {
      ++group.next;
    }
    // Lines of equal hash that are not equal are rare.
    constexpr size_t kLooksMax = 16;
    const size_t end = std::min(group.lines.size(), group.next + kLooksMax);
    for (size_t i = group.next; i < end && from[line] < 0; ++i) {
      const int64_t other = group.lines[i];
      if (is_taken[size_t(other)] || !SameLine(subject, int64_t(line), expected, other)) continue;
      from[line] = other;
      is_taken[size_t(other)] = true;
    }
    const int64_t first = group.lines.front();
    if (from[line] < 0 && !expected.IsConstant(first) &&
        SameLine(subject, int64_t(line), expected, first)) {
      from[line] = first;
    }
  }
  return from;
}

/// from[i] by the least distance of a few elements; nothing where hardly any line is much nearer to
/// another than to the one of its place.
std::vector<int64_t> NearestLines(const Lines& expected, const Lines& subject) {
  const int64_t stride = std::max<int64_t>(1, expected.length() / kProbes);
  const auto distance = [&](int64_t line, int64_t other) {
    double sum = 0;
    for (int64_t k = 0; k < expected.length(); k += stride) {
      sum += std::abs(double(subject(line, k)) - expected(other, k));
    }
    return sum;
  };
  const auto nearest = [&](int64_t line) {
    double least = std::numeric_limits<double>::infinity();
    int64_t place = -1;
    for (int64_t other = 0; other < expected.count(); ++other) {
      const double one = distance(line, other);
      if (one >= least) continue;
      least = one;
      place = other;
    }
    return std::pair(place, least);
  };
  constexpr int64_t kFirstLooks = 16;
  int64_t moved = 0;
  const int64_t step = std::max<int64_t>(1, expected.count() / kFirstLooks);
  for (int64_t line = 0; line < subject.count(); line += step) {
    const auto [place, least] = nearest(line);
    moved += place >= 0 && least <= distance(line, line) / 4 && place != line ? 1 : 0;
  }
  std::vector<int64_t> from(static_cast<size_t>(subject.count()), -1);
  if (4 * moved < kFirstLooks) return from;
  for (int64_t line = 0; line < subject.count(); ++line) {
    from[static_cast<size_t>(line)] = nearest(line).first;
  }
  return from;
}

bool IsPermutation(const std::vector<int64_t>& from) {
  std::vector<bool> is_taken(from.size());
  for (const int64_t place : from) {
    if (is_taken[size_t(place)]) return false;
    is_taken[size_t(place)] = true;
  }
  return true;
}

/// Of an order in which some lines are in several places.
std::string TextOfRepeated(const std::vector<int64_t>& from, bool of_rows) {
  int64_t only = -1;
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] == static_cast<int64_t>(i)) continue;
    if (only >= 0 && only != from[i]) {
      return absl::StrCat("has ", of_rows ? "rows" : "columns",
                          " of the expected in place of others, some more than once");
    }
    only = from[i];
  }
  return absl::StrCat("has ", of_rows ? "row " : "column ", only,
                      " of the expected in place of others");
}

std::string TextOf(const std::vector<int64_t>& from, bool of_rows) {
  const auto count = static_cast<int64_t>(from.size());
  const std::string lines = of_rows ? "rows" : "columns", line = of_rows ? "row" : "column";
  int64_t first = 0, last = count - 1;
  while (from[size_t(first)] == first) ++first;
  while (from[size_t(last)] == last) --last;
  const int64_t length = last - first + 1;
  const auto all = [&](auto rule) {
    for (int64_t i = 0; i < length; ++i) {
      if (from[size_t(first + i)] != first + rule(i)) return false;
    }
    return true;
  };
  const std::string where = first == 0 && last == count - 1 ? ""
                            : last == count - 1
                                ? absl::StrCat(" from ", line, " ", first, " on")
                                : absl::StrCat(" in ", lines, " ", first, " to ", last);
  int64_t shift = from[size_t(first)] - first;
  if (all([&](int64_t i) { return (i + shift + length) % length; })) {
    if (first == 0 && last == count - 1 && 2 * shift == length) {
      return absl::StrCat("has the halves of its ", lines, " swapped",
                          of_rows ? "" : ", as of a gated activation");
    }
    // Row i of the subject is row i + shift of the expected.
    if (2 * shift > length) shift -= length;
    return absl::StrCat("has its ", lines, " permuted", where, ": ", line, " i is ", line, " i ",
                        shift < 0 ? "- " : "+ ", std::abs(shift), " of the expected, rotated");
  }
  if (all([&](int64_t i) { return length - 1 - i; })) {
    return absl::StrCat("has its ", lines, " reversed", where);
  }
  return absl::StrCat("has its ", lines, " permuted", where);
}

bool IsIdentity(const std::vector<int64_t>& from) {
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

}  // namespace

std::optional<RowOrder> FindRowOrder(const Values& expected, const Values& subject, bool of_rows) {
  const Lines e{expected, of_rows}, s{subject, of_rows};
  if (e.count() < 2 || e.length() < 1) return std::nullopt;
  std::vector<int64_t> from = EqualLines(e, s);
  int64_t found = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] >= 0) ++found;
  }
  if (2 * found < e.count()) {
    if (e.count() > kNearestLinesMax || e.length() < kProbes) return std::nullopt;
    from = NearestLines(e, s);
    found = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i] >= 0) ++found;
    }
    if (2 * found < e.count()) return std::nullopt;
  }
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] < 0) from[i] = static_cast<int64_t>(i);
  }
  if (IsIdentity(from)) return std::nullopt;
  const bool is_permutation = IsPermutation(from);
  return RowOrder{is_permutation ? TextOf(from, of_rows) : TextOfRepeated(from, of_rows), from,
                  is_permutation};
}

}  // namespace quantgate
