// A verdict in words: what was required, what was found. Every form of a report takes them from
// here.
#pragma once

#include <string>
#include <vector>

#include "quantgate/v1/report.pb.h"

namespace quantgate {

/// "PASS", "FAIL"; "REPORT" where nothing was required.
std::string VerdictWord(const v1::Verdict& verdict);

/// "0 differing elements (bitwise)": what was required, and where that comes from.
std::string RequiredText(const v1::Verdict& verdict);

/// "required: 0 differing elements (bitwise); found: 63,363 in y, 31,623 in dx; inputs: x has 1
/// infinite". For a verdict of an older server, without what was found. Empty where nothing was
/// required.
std::string VerdictLine(const v1::Verdict& verdict);

/// The lines below the verdict's own: the finding, and NaN and infinities.
std::vector<std::string> VerdictDetails(const v1::Verdict& verdict);

}  // namespace quantgate
