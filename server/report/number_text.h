// Numbers as people read them, the same in tables and in HTML.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "quantgate/v1/report.pb.h"
#include "quantgate/v1/tensor.pb.h"

namespace quantgate {

/// Three significant digits: "0.25", "2.61e-02", "nan", "inf".
std::string ShortReal(double value);
/// An error as a part of its bound, where 1 is the limit: "0.179", "0.99987", ">1", ">2^64" where
/// the bound is next to 0. "1" is 1 alone.
std::string BoundShare(double ratio);
/// Shortest decimal that reads back as the same value in fp32 if it is one (every element up to 32
/// bits is), else in fp64: "0.100097656", "nan".
std::string ExactReal(double value);
/// "50.3", "inf" (no error at all), "nan".
std::string Decibels(double value);
/// "1,234,567".
std::string Count(int64_t value);
/// A distance in ulp between numbers, whose count ends at INT64_MAX - 1: "17", "at least
/// 9,223,372,036,854,775,806".
std::string UlpText(int64_t ulp);
/// "0.12 %", "<0.01 %", "0", "100 %".
std::string Percent(int64_t part, int64_t whole);
/// "1.2 ms", "3.4 s".
std::string Seconds(double seconds);
/// "3.4 MiB".
std::string Bytes(int64_t bytes);
/// "0x3fc0": as many digits as an element of `dtype` has; "" as dtype: as many as needed.
std::string HexBits(uint64_t bits, std::string_view dtype);
/// Bits of one element: 8 for "f8_e4m3", 16 for "bf16", 0 for an unknown name.
int ElementBits(std::string_view dtype);
/// "bf16[256x512]".
std::string TypeText(const v1::TensorDescriptor& type);
/// "(3, 17)".
template <typename Coordinate>
std::string CoordinateText(const Coordinate& coordinate) {
  std::string text = "(";
  for (const int64_t index : coordinate) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(index);
  }
  return text + ")";
}
/// An integer of `dtype` by its bits; absent for other dtypes.
std::optional<int64_t> IntegerOfBits(uint64_t bits, std::string_view dtype);
/// "(0, 7): 1.5 [0x3fc0] against 1.5078125 [0x3fc1]".
std::string ElementText(const v1::ElementPair& pair);
/// "3 passed, 1 failed".
std::string CountsText(const std::map<std::string, int>& counts);
/// The first 12 hex digits of a longer digest.
std::string ShortDigest(std::string_view digest);
/// "SHA256/SIZE", the form after "digest:" on the command line.
std::string DigestText(const v1::Digest& digest);
/// 32 hex digits.
std::string FingerprintText(const v1::Fingerprint& fingerprint);

}  // namespace quantgate
