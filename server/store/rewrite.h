// Writing a database anew: one of version 0.1.0 with checksums, a damaged one without what is lost.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace quantgate {

/// Writes a database of version 0.1.0 anew, with checksums of what is there now; its runs are
/// marked as unverified for ever. Does nothing where there is none or it has them.
/// FAILED_PRECONDITION for what is no database or of a schema that is not known, DATA_LOSS where
/// damage shows: the file stays as it is.
absl::Status UpgradeDatabase(const std::string& path);

/// Writes a damaged database anew with every row that its undamaged pages have, even where pages
/// around them are lost; the damaged file goes to `aside`. A lost first page is made anew first,
/// since every database of this version has the same one; the file with the lost page goes to
/// `aside` with "-page-1" behind it. A file that was cut short is filled with zeros up to the size
/// that its head says, without which SQLite does not read it; pages of zeros count as damaged.
absl::Status SalvageDatabase(const std::string& path, const std::string& aside,
                             bool is_first_page_lost);

}  // namespace quantgate
