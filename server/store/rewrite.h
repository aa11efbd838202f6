// Rewrites databases: one of version 0.1.0 with checksums, a damaged one without its lost rows.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace quantgate {

/// Rewrites a database of version 0.1.0 with checksums of what is there now; its runs are marked as
/// unverified for ever. Does nothing where there is no database or one with checksums.
/// FAILED_PRECONDITION for a file that is not a database or has an unknown schema, DATA_LOSS where
/// damage is found; the file then stays as it is.
absl::Status UpgradeDatabase(const std::string& path);

/// Rewrites a damaged database with every row that its undamaged pages have, even where pages
/// around them are lost; the damaged file goes to `aside`, in place of what an earlier call put
/// there, with its log ("-wal") where that has pages still. A lost first page is replaced first, by
/// that of an empty database, since all databases of this version have the same first page but for
/// the list of free pages; the lost page goes to `aside` with "-page-1" behind it. A file that was
/// cut short is filled with zeros up to the size that its head says, without which SQLite does not
/// read it; pages of zeros count as damaged.
absl::Status SalvageDatabase(const std::string& path, const std::string& aside,
                             bool is_first_page_lost);

}  // namespace quantgate
