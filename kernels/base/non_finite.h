// NaN and infinities on both sides of a comparison, in the words of verdicts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quantgate {

struct NonFiniteCounts {
  int64_t nan = 0, infinite = 0;

  int64_t count() const { return nan + infinite; }
};

/// "3 NaN and 1 infinite"; "none".
std::string CountsText(const NonFiniteCounts& counts);

struct NonFiniteSides {
  NonFiniteCounts subject, reference;
  /// Of both: elements that are NaN, or the same infinity, on both sides.
  NonFiniteCounts shared;
  int64_t element_count = 0;

  bool any() const { return subject.count() + reference.count() > 0; }
  void Add(const NonFiniteSides& other);
};

/// "3 NaN of 4,096 elements, exact has all of them too and 1 NaN more"; "none of 8 elements, exact
/// has 1 NaN".
std::string SidesText(const NonFiniteSides& sides, std::string_view reference);

/// What a verdict's line says of all: "not finite: 3 NaN, in exact 4 NaN".
std::string SidesLine(const NonFiniteSides& sides, std::string_view reference);

}  // namespace quantgate
