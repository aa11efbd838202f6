#include "kernels/validate/explain/changed_scales.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "kernels/base/grouped_digits.h"
#include "kernels/numerics/cast.h"
#include "kernels/quantize/scale_grid.h"
#include "kernels/validate/explain/explain_scale_rules.h"

namespace quantgate {
namespace {

float ValueOf(DType dtype, uint32_t bits) {
  if (dtype == DType::kF8E8M0) return std::ldexp(1.0f, static_cast<int>(bits) - 127);
  if (dtype == DType::kF8E4M3) return DecodeFloat<E4M3>(static_cast<uint8_t>(bits));
  return std::bit_cast<float>(bits);
}

/// The bits of a value that the dtype holds, or that is rounded to it.
uint32_t BitsOf(DType dtype, float value) {
  if (dtype == DType::kF8E8M0) {
    const int code = std::ilogb(value) + 127;
    return static_cast<uint32_t>(std::clamp(code, 0, 254));
  }
  if (dtype == DType::kF8E4M3) return EncodeFloat<E4M3>(std::min(value, 448.0f));
  return std::bit_cast<uint32_t>(value);
}

/// The power of two at or below a positive value; at or above: twice that unless it is one.
float PowerBelow(float value) { return std::ldexp(1.0f, std::ilogb(value)); }
float PowerAbove(float value) {
  const float below = PowerBelow(value);
  return below == value ? value : 2 * below;
}

class Comparison {
 public:
  Comparison(const OwnScaleArray& own, const GivenScaleArray& given) : own_(own), given_(given) {}

  bool has_same_shape() const { return own_.rows == given_.rows && own_.columns == given_.columns; }
  bool has_same_count() const { return own_.bits.size() == given_.bits->size(); }

  /// Whether each scale became what `change` makes of its value.
  bool IsEach(const std::function<float(float)>& change) const {
    if (!has_same_shape()) return false;
    return IsEachAt([&](int64_t i, int64_t j) {
      return BitsOf(own_.dtype, change(ValueOf(own_.dtype, own_.bits[i * own_.columns + j])));
    });
  }
  /// Whether the given scale at each place is that of another place.
  bool IsFrom(const std::function<int64_t(int64_t row, int64_t column)>& index) const {
    if (!has_same_shape()) return false;
    return IsEachAt([&](int64_t i, int64_t j) { return own_.bits[index(i, j)]; });
  }
  /// Whether each own scale lies at an index of the given ones.
  bool LiesAt(const std::function<int64_t(int64_t row, int64_t column)>& index) const {
    for (int64_t i = 0; i < own_.rows; ++i) {
      for (int64_t j = 0; j < own_.columns; ++j) {
        if ((*given_.bits)[index(i, j)] != own_.bits[i * own_.columns + j]) return false;
      }
    }
    return true;
  }
  /// Whether the given ones are rows padded with zeros to `columns`, cut off where theirs end.
  bool IsPaddedAndCut(int64_t columns) const {
    for (int64_t at = 0; at < static_cast<int64_t>(given_.bits->size()); ++at) {
      const int64_t i = at / columns, j = at % columns;
      const uint32_t expected =
          i < own_.rows && j < own_.columns ? own_.bits[i * own_.columns + j] : 0;
      if ((*given_.bits)[at] != expected) return false;
    }
    return true;
  }
  int64_t Matches() const {
    int64_t matches = 0;
    for (size_t i = 0; i < own_.bits.size(); ++i) matches += own_.bits[i] == (*given_.bits)[i];
    return matches;
  }
  /// Whether both have the same scales, in whatever order.
  bool IsPermuted() const {
    std::vector<uint32_t> a = own_.bits, b = *given_.bits;
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    return a == b;
  }
  /// How many would agree by chance, and its standard deviation.
  std::pair<double, double> ByChance() const {
    std::map<uint32_t, std::pair<double, double>> counts;
    for (const uint32_t bits : own_.bits) counts[bits].first += 1;
    for (const uint32_t bits : *given_.bits) counts[bits].second += 1;
    const auto n = static_cast<double>(own_.bits.size());
    double share = 0;
    for (const auto& [bits, count] : counts) share += count.first / n * count.second / n;
    return {n * share, std::sqrt(n * share * (1 - share))};
  }

 private:
  template <typename Expected>
  bool IsEachAt(Expected expected) const {
    for (int64_t i = 0; i < given_.rows; ++i) {
      for (int64_t j = 0; j < given_.columns; ++j) {
        if ((*given_.bits)[i * given_.columns + j] != expected(i, j)) return false;
      }
    }
    return true;
  }

  const OwnScaleArray& own_;
  const GivenScaleArray& given_;
};

bool AreAllZeroOutside(const OwnScaleArray& own, const GivenScaleArray& given) {
  for (int64_t i = 0; i < given.rows; ++i) {
    for (int64_t j = 0; j < given.columns; ++j) {
      if ((i >= own.rows || j >= own.columns) && (*given.bits)[i * given.columns + j] != 0) {
        return false;
      }
    }
  }
  return true;
}

std::optional<ChangedScales> Rearranged(const OwnScaleArray& own, const GivenScaleArray& given,
                                        const Comparison& comparison) {
  const int64_t rows = own.rows, columns = own.columns;
  // One line of scales lies alike in every order.
  if (rows > 1 && columns > 1 && comparison.IsFrom([&](int64_t i, int64_t j) {
        const int64_t at = i * columns + j;
        return at % rows * columns + at / rows;
      })) {
    return ChangedScales{"scales lie K-major", "the given ones lie column after column"};
  }
  if (rows > 1 && columns > 1 && rows != columns && given.rows == columns &&
      given.columns == rows &&
      comparison.LiesAt([&](int64_t i, int64_t j) { return j * rows + i; })) {
    return ChangedScales{"scales are transposed", "the given ones are their transpose"};
  }
  const int64_t padded_rows = (rows + 127) / 128 * 128, padded_columns = (columns + 3) / 4 * 4;
  const ScaleGrid grid = {.outer = rows, .blocks = columns};
  if (own.dtype != DType::kF32 && rows * columns > 1 &&
      static_cast<int64_t>(given.bits->size()) == padded_rows * padded_columns &&
      comparison.LiesAt([&](int64_t i, int64_t j) { return grid.SwizzledIndex(i, j); })) {
    return ChangedScales{"scales are swizzled as tensor cores read them",
                         "the given ones lie in tiles of 128 x 4"};
  }
  const bool is_larger =
      given.rows >= rows && given.columns >= columns && given.rows * given.columns > rows * columns;
  if (is_larger && AreAllZeroOutside(own, given) &&
      comparison.LiesAt([&](int64_t i, int64_t j) { return i * given.columns + j; })) {
    return ChangedScales{"scales are padded", absl::StrCat("the given ones are padded to ",
                                                           given.rows, " x ", given.columns)};
  }
  if (comparison.has_same_shape() && rows > 1) {
    for (int64_t padded = columns + 1; padded <= columns + 64; ++padded) {
      if (comparison.IsPaddedAndCut(padded)) {
        return ChangedScales{
            "scales are padded",
            absl::StrCat("the given ones are rows of ", padded, " under a shape without padding")};
      }
    }
  }
  for (const int64_t by : {-1, 1}) {
    if (columns > 1 && comparison.IsFrom([&](int64_t i, int64_t j) {
          return i * columns + (j - by + columns) % columns;
        })) {
      return ChangedScales{"scales are shifted by one block", "along K"};
    }
    if (rows > 1 && comparison.IsFrom([&](int64_t i, int64_t j) {
          return (i - by + rows) % rows * columns + j;
        })) {
      return ChangedScales{"scales are shifted by one block", "along M"};
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<ChangedScales> ChangeOfScales(const OwnScaleArray& own,
                                            const GivenScaleArray& given) {
  const Comparison comparison(own, given);
  if (comparison.has_same_shape() && own.bits == *given.bits) return std::nullopt;
  // The value of a scale that multiplies is no scale_inv.
  if (!own.keeps_scale) {
    if (own.dtype == DType::kF32 &&
        comparison.IsEach([](float s) { return RoundedTo(DType::kBF16, s); })) {
      return ChangedScales{"scales were rounded to bf16", "the given ones are these in bf16"};
    }
    if (own.dtype != DType::kF8E4M3 && comparison.IsEach([](float s) { return 1.0f / s; })) {
      return ChangedScales{"scales are reciprocals: scale in place of scale_inv",
                           "the given ones are one over these"};
    }
    for (const bool up : {false, true}) {
      if (own.dtype == DType::kF8E8M0) continue;
      if (comparison.IsEach([&](float s) {
            const float positive = std::max(s, 0x1p-30f);
            return up ? PowerAbove(positive) : PowerBelow(positive);
          })) {
        return ChangedScales{"scales were coerced to powers of two",
                             absl::StrCat("the given ones are the powers of two at or ",
                                          up ? "above" : "below", " these")};
      }
    }
    for (const float factor : {0.5f, 2.0f}) {
      if (comparison.IsEach([&](float s) { return s * factor; })) {
        return ChangedScales{"scales are half or twice what they should be",
                             absl::StrCat("the given ones are these times ", factor)};
      }
    }
    if (auto rearranged = Rearranged(own, given, comparison)) return rearranged;
  }
  return std::nullopt;
}

std::optional<ChangedScales> ScalesOfAnother(const OwnScaleArray& own,
                                             const GivenScaleArray& given) {
  const Comparison comparison(own, given);
  if (!comparison.has_same_shape() || comparison.IsPermuted()) return std::nullopt;
  const auto [expected, deviation] = comparison.ByChance();
  const auto matches = static_cast<double>(comparison.Matches());
  if (matches > expected + 4 * deviation + 0.5) return std::nullopt;
  return ChangedScales{
      "scales are the other operand's",
      absl::StrCat(
          "of the given ones ", GroupedDigits(comparison.Matches()), " of ",
          GroupedDigits(static_cast<int64_t>(own.bits.size())),
          " agree, no more than those of another tensor, such as the other operand, would")};
}

}  // namespace quantgate
