#include "kernels/base/non_finite.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/grouped_digits.h"

namespace quantgate {

std::string NonFiniteCountsText(const NonFiniteCounts& counts) {
  std::vector<std::string> parts;
  if (counts.nan > 0) parts.push_back(absl::StrCat(GroupedDigits(counts.nan), " NaN"));
  if (counts.infinite > 0) {
    parts.push_back(absl::StrCat(GroupedDigits(counts.infinite), " infinite"));
  }
  return parts.empty() ? "none" : absl::StrJoin(parts, " and ");
}

void NonFiniteSides::Add(const NonFiniteSides& other) {
  const auto add = [](NonFiniteCounts& to, const NonFiniteCounts& more) {
    to.nan += more.nan;
    to.infinite += more.infinite;
  };
  add(subject, other.subject);
  add(reference, other.reference);
  add(shared, other.shared);
  element_count += other.element_count;
}

std::string NonFiniteText(const NonFiniteSides& sides, std::string_view reference) {
  const NonFiniteCounts more = {sides.reference.nan - sides.shared.nan,
                                sides.reference.infinite - sides.shared.infinite};
  const int64_t subject = sides.subject.count(), shared = sides.shared.count();
  std::string text =
      absl::StrCat(NonFiniteCountsText(sides.subject), " of ", GroupedDigits(sides.element_count),
                   " elements, ", std::string(reference), " has ");
  if (subject == 0) return absl::StrCat(text, NonFiniteCountsText(more));
  if (shared == 0) {
    absl::StrAppend(&text, "none of them");
  } else {
    absl::StrAppend(&text, shared == subject ? "all" : GroupedDigits(shared), " of them too");
  }
  if (more.count() > 0) absl::StrAppend(&text, " and ", NonFiniteCountsText(more), " more");
  return text;
}

std::string NonFiniteLine(const NonFiniteSides& sides, std::string_view reference) {
  return absl::StrCat("not finite: ", NonFiniteCountsText(sides.subject), ", in ",
                      std::string(reference), " ", NonFiniteCountsText(sides.reference));
}

}  // namespace quantgate
