// Counts of NaN and infinities on both sides of a comparison, and the words that verdicts have for
// them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quantgate {

struct NonFiniteCounts {
  int64_t nan = 0, infinite = 0;

  int64_t count() const { return nan + infinite; }
};

/// What is said of inputs none of which has NaN or infinities.
inline constexpr std::string_view kNoInputHasAny = "no input has any";

/// "3 NaN and 1 infinite"; "none".
std::string NonFiniteCountsText(const NonFiniteCounts& counts);

/// The counts of a subject and of the reference that it is compared with.
struct NonFiniteSides {
  NonFiniteCounts subject, reference;
  /// Elements that are NaN on both sides, or the same infinity on both sides.
  NonFiniteCounts shared;
  int64_t element_count = 0;

  bool any() const { return subject.count() + reference.count() > 0; }
  void Add(const NonFiniteSides& other);
};

/// The long form: "3 NaN of 4,096 elements, exact has all of them too and 1 NaN more"; "none of 8
/// elements, exact has 1 NaN". `reference` is the name of the reference.
std::string NonFiniteText(const NonFiniteSides& sides, std::string_view reference);

/// The short form, for one line of a verdict: "not finite: 3 NaN, in exact 4 NaN".
std::string NonFiniteLine(const NonFiniteSides& sides, std::string_view reference);

}  // namespace quantgate
