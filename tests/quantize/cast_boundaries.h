// The casts of tests/data/cast_boundaries.txt, found with ml_dtypes: the first binary32 magnitude
// of every code.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace quantgate {

struct Boundary {
  uint32_t first_bits;
  uint32_t code;
};

struct CastBoundaries {
  std::map<std::string, std::vector<Boundary>> formats;
  std::map<std::string, std::string> digests;  ///< SHA-256 of the lines, for formats with too many.
};

inline CastBoundaries LoadCastBoundaries() {
  CastBoundaries boundaries;
  std::ifstream file(std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/cast_boundaries.txt");
  std::vector<Boundary>* list = nullptr;
  for (std::string line; std::getline(file, line);) {
    std::stringstream words(line);
    std::string first, name, count, digest;
    words >> first >> name;
    if (first == "#") continue;
    if (first == "format") {
      list = &boundaries.formats[name];
    } else if (first == "digest") {
      words >> count >> boundaries.digests[name];
    } else {
      list->push_back({static_cast<uint32_t>(std::stoul(first, nullptr, 16)),
                       static_cast<uint32_t>(std::stoul(name, nullptr, 16))});
    }
  }
  return boundaries;
}

/// Expected FP8 codes of the binary32 patterns [begin, begin + count): NaN is 0x7F, the sign is
/// bit 7.
inline void ExpectedCodes(const std::vector<Boundary>& boundaries, uint32_t begin, int64_t count,
                          std::vector<uint8_t>& codes) {
  codes.resize(static_cast<size_t>(count));
  size_t next = 0;
  uint32_t last_magnitude = UINT32_MAX;
  uint8_t code = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = begin + static_cast<uint32_t>(i);
    const uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude < last_magnitude) next = 0;  // The first pattern, or the first negative one.
    last_magnitude = magnitude;
    while (next < boundaries.size() && boundaries[next].first_bits <= magnitude) {
      code = static_cast<uint8_t>(boundaries[next++].code);
    }
    const bool is_nan = magnitude > 0x7F800000 || code == 0x7F;
    codes[static_cast<size_t>(i)] =
        is_nan ? 0x7F : static_cast<uint8_t>(code | (bits >> 24 & 0x80));
  }
}

}  // namespace quantgate
