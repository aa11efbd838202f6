#include "server/report/number_text.h"

#include <array>
#include <charconv>
#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/grouped_digits.h"
#include "kernels/tensor/dtype.h"

namespace quantgate {
namespace {

/// NaN and infinities, which printf spells differently from machine to machine.
const char* SpecialText(double value) {
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

}  // namespace

std::string ShortReal(double value) {
  if (!std::isfinite(value)) return SpecialText(value);
  if (value == 0) return "0";
  const double magnitude = std::fabs(value);
  if (magnitude >= 1e-2 && magnitude < 1e4) return absl::StrFormat("%.3g", value);
  return absl::StrFormat("%.2e", value);
}

std::string BoundShare(double ratio) {
  if (ratio > 0x1p64 && std::isfinite(ratio)) return ">2^64";
  const std::string text = ShortReal(ratio);
  if (text != "1" || ratio == 1) return text;
  const std::string longer = absl::StrFormat("%.5g", ratio);
  if (longer != "1") return longer;
  return ratio < 1 ? "<1" : ">1";
}

std::string ExactReal(double value) {
  if (!std::isfinite(value)) return SpecialText(value);
  std::array<char, 32> buffer;
  const float narrow = static_cast<float>(value);
  const std::to_chars_result end = narrow == value
                                       ? std::to_chars(buffer.begin(), buffer.end(), narrow)
                                       : std::to_chars(buffer.begin(), buffer.end(), value);
  return std::string(buffer.begin(), end.ptr);
}

std::string Decibels(double value) {
  if (!std::isfinite(value)) return SpecialText(value);
  return absl::StrFormat("%.1f", value);
}

std::string Count(int64_t value) { return GroupedDigits(value); }

std::string UlpText(int64_t ulp) {
  // Integers of 64 bits lie up to twice as far apart (CompareBits).
  return absl::StrCat(ulp == INT64_MAX - 1 ? "at least " : "", Count(ulp));
}

std::string Percent(int64_t part, int64_t whole) {
  if (part == 0 || whole == 0) return "0";
  if (part == whole) return "100 %";
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  if (percent < 0.01) return "<0.01 %";
  if (percent > 99.99) return ">99.99 %";
  return absl::StrFormat(percent < 10 || percent > 99.9 ? "%.2f %%" : "%.1f %%", percent);
}

std::string Seconds(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.0f us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.1f ms", seconds * 1e3);
  return absl::StrFormat("%.2f s", seconds);
}

std::string Bytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return absl::StrFormat(unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
}

int ElementBits(std::string_view dtype) {
  for (const DTypeTraits& traits : AllDTypes()) {
    if (traits.name == dtype) return traits.bytes * 8;
  }
  return 0;
}

std::string HexBits(uint64_t bits, std::string_view dtype) {
  int digits = ElementBits(dtype) / 4;
  while (digits < 16 && (bits >> (4 * digits)) != 0) ++digits;
  return absl::StrFormat("0x%0*x", digits == 0 ? 1 : digits, bits);
}

std::string TypeText(const v1::TensorDescriptor& type) {
  std::string text = absl::StrCat(type.dtype(), "[");
  for (int i = 0; i < type.shape_size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "x", type.shape(i));
  }
  return absl::StrCat(text, "]");
}

std::optional<int64_t> IntegerOfBits(uint64_t bits, std::string_view dtype) {
  if (dtype == "u8") return static_cast<int64_t>(bits);
  if (dtype != "i8" && dtype != "i16" && dtype != "i32" && dtype != "i64") return std::nullopt;
  const int unused = 64 - ElementBits(dtype);
  return static_cast<int64_t>(bits << unused) >> unused;
}

std::string ElementText(const v1::ElementPair& pair) {
  const auto side = [](double value, uint64_t bits, const std::string& dtype) {
    const std::optional<int64_t> integer = IntegerOfBits(bits, dtype);
    return absl::StrCat(integer.has_value() ? absl::StrCat(*integer) : ExactReal(value), " [",
                        HexBits(bits, dtype), "]");
  };
  return absl::StrCat(CoordinateText(pair.coordinate()), ": ",
                      side(pair.subject(), pair.subject_bits(), pair.subject_dtype()), " against ",
                      side(pair.reference(), pair.reference_bits(), pair.reference_dtype()));
}

std::string CountsText(const std::map<std::string, int>& counts) {
  return absl::StrJoin(counts, ", ", [](std::string* out, const auto& count) {
    absl::StrAppend(out, count.second, " ", count.first);
  });
}

std::string ShortDigest(std::string_view digest) { return std::string(digest.substr(0, 12)); }

std::string DigestText(const v1::Digest& digest) {
  return absl::StrCat(absl::BytesToHexString(digest.sha256()), "/", digest.size());
}

std::string FingerprintText(const v1::Fingerprint& fingerprint) {
  return absl::StrFormat("%016x%016x", fingerprint.high(), fingerprint.low());
}

}  // namespace quantgate
