#include "kernels/validate/diagnosis/row_order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_map>

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
  uint64_t Hash(int64_t line) const {
    uint64_t hash = 14695981039346656037u;  // FNV-1a, a word at a time.
    for (int64_t i = 0; i < length(); ++i) {
      const float value = (*this)(line, i);
      hash = (hash ^ std::bit_cast<uint32_t>(value == 0 ? 0.0f : value)) * 1099511628211u;
    }
    return hash;
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
  std::unordered_multimap<uint64_t, int64_t> places;
  for (int64_t line = 0; line < expected.count(); ++line) places.emplace(expected.Hash(line), line);
  std::vector<int64_t> from(static_cast<size_t>(subject.count()), -1);
  for (int64_t line = 0; line < subject.count(); ++line) {
    int64_t& place = from[static_cast<size_t>(line)];
    if (SameLine(subject, line, expected, line)) {
      place = line;
      continue;
    }
    const auto [begin, end] = places.equal_range(subject.Hash(line));
    for (auto found = begin; found != end; ++found) {
      if (SameLine(subject, line, expected, found->second)) place = found->second;
    }
  }
  return from;
}

/// from[i] by the least distance of a few elements.
std::vector<int64_t> NearestLines(const Lines& expected, const Lines& subject) {
  const int64_t stride = std::max<int64_t>(1, expected.length() / kProbes);
  std::vector<int64_t> from(static_cast<size_t>(subject.count()), -1);
  for (int64_t line = 0; line < subject.count(); ++line) {
    double least = std::numeric_limits<double>::infinity();
    for (int64_t other = 0; other < expected.count(); ++other) {
      double distance = 0;
      for (int64_t k = 0; k < expected.length(); k += stride) {
        distance += std::abs(double(subject(line, k)) - expected(other, k));
      }
      if (distance < least) {
        least = distance;
        from[static_cast<size_t>(line)] = other;
      }
    }
  }
  return from;
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
  }
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] < 0) from[i] = static_cast<int64_t>(i);
  }
  if (IsIdentity(from)) return std::nullopt;
  RowOrder order{TextOf(from, of_rows), std::vector<float>(expected.at.size()), from};
  for (int64_t line = 0; line < e.count(); ++line) {
    for (int64_t i = 0; i < e.length(); ++i) {
      const int64_t index = of_rows ? line * expected.columns + i : i * expected.columns + line;
      order.predicted[static_cast<size_t>(index)] = e(from[static_cast<size_t>(line)], i);
    }
  }
  return order;
}

}  // namespace quantgate
