// A report made by hand, with everything a renderer can meet: NaN, infinities, names full of
// markup, bytes that are no UTF-8 where the wire allows them, absent parts.
#pragma once

#include "server/report/report_document.h"

namespace quantgate {

/// Two variants of a linear layer: 0 passes its bounds, 1 misses one, and its y is compared with
/// variant 0.
ReportDocument SampleCompare();
/// One comparison that differs, one that is equal, one that cannot be made.
ReportDocument SampleDiff();

/// Text that must never reach a page unescaped.
inline constexpr char kHostileText[] = "<script>alert('1')</script>&\"";

}  // namespace quantgate
