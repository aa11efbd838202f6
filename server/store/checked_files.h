// CheckedFiles: how SQLite reaches its files here. Each page of a database carries a CRC32C of its
// bytes and its number, set when it is written to the file and verified whenever it is read from
// there: rows, keys, indexes and what links them alike, so that no damage makes a row vanish or
// another one appear. Pages of the log are held to the checksums that SQLite puts there and reads
// only after a crash. What does not fit is SQLITE_CORRUPT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;

namespace quantgate {

inline constexpr int kDatabasePageBytes = 16384;
/// At the end of each page: the checksum and zeros. Not a power of two, nor zero as in databases of
/// version 0.1.0: no flipped bit makes one of the other.
inline constexpr int kReservedPageBytes = 12;

/// Opens a database through CheckedFiles, and makes one with mode 0600 where there is none.
/// SQLite's code; the connection is to be closed whatever it is.
int OpenChecked(const std::string& path, sqlite3** connection);
/// The same for a database that is there, without writing to it.
int OpenCheckedToRead(const std::string& path, sqlite3** connection);

/// Takes the description of the damage that this thread has found last; "" where there is none.
std::string TakeDamage();

/// Whether this thread's last write that failed was one beyond what a file may have (EFBIG): SQLite
/// says SQLITE_FULL then, as for a full disk.
bool WasFileTooLarge();

enum class DatabaseKind { kAbsent, kEmpty, kUnchecked, kChecked, kDamaged };
/// The kind by the head of the file. kUnchecked: a database of version 0.1.0.
absl::StatusOr<DatabaseKind> KindOfDatabase(const std::string& path);

/// Pages of a file at rest whose checksums do not fit, by their numbers from 1 on.
absl::StatusOr<std::vector<int64_t>> DamagedPages(const std::string& path);

/// The size of a file at rest that its first page says; 0 where that page is damaged.
absl::StatusOr<int64_t> BytesByHead(const std::string& path);

/// Puts the first page of `empty`, a database of the same tables without rows, in the place of that
/// of `path`, which goes to `aside`. There the first page has nothing but the layout; which pages
/// are free it no longer says.
absl::Status ReplaceFirstPage(const std::string& path, const std::string& empty,
                              const std::string& aside);

/// How far the log of a database goes: of one generation, as its head says, the pages written.
struct LogEnd {
  uint64_t generation = 0;
  int64_t pages = 0;
  friend bool operator==(const LogEnd&, const LogEnd&) = default;
};
/// The pages of a log that SQLite would take after a crash: up to the last commit before the first
/// page that does not fit. DATA_LOSS for a head that does not fit; none for an empty file.
absl::StatusOr<LogEnd> ReadLogEnd(const std::string& path);
/// The generation in an open log's head.
uint64_t LogGeneration(int descriptor);

}  // namespace quantgate
