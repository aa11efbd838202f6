// CheckedFiles: the way in which SQLite reaches its files here. Each page of a database carries a
// CRC32C of its bytes and its number, which is set when the page is written to the file and
// verified whenever it is read from there. It covers rows, keys, indexes and the links between
// pages alike, so that no damage makes a row vanish or another one appear. Pages of the log are
// verified by the checksums that SQLite stores there and itself reads only after a crash. A
// mismatch is SQLITE_CORRUPT.
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
/// Bytes at the end of each page, for the checksum and zeros. The number is neither a power of two
/// nor zero, as in databases of version 0.1.0, so that no flipped bit turns one of the two into the
/// other.
inline constexpr int kReservedPageBytes = 12;

/// Opens a database through CheckedFiles, and creates one with mode 0600 where there is none.
/// Returns SQLite's code. The connection must be closed whatever the code is.
int OpenChecked(const std::string& path, sqlite3** connection);
/// Opens an existing database through CheckedFiles, without writing to it.
int OpenCheckedToRead(const std::string& path, sqlite3** connection);

/// Takes the description of the damage that this thread has found last; "" where there is none.
std::string TakeDamage();

/// Whether this thread's last failed write was one beyond the size that a file may have (EFBIG).
/// SQLite says SQLITE_FULL then, as for a full disk.
bool WasFileTooLarge();

enum class DatabaseKind { kAbsent, kEmpty, kUnchecked, kChecked, kDamaged };
/// The kind by the head of the file. kUnchecked: a database of version 0.1.0.
absl::StatusOr<DatabaseKind> KindOfDatabase(const std::string& path);

/// The numbers, from 1 on, of the pages of a file at rest whose checksums do not match.
absl::StatusOr<std::vector<int64_t>> DamagedPages(const std::string& path);

/// The size in bytes that the first page of a file at rest states; 0 where that page is damaged.
absl::StatusOr<int64_t> BytesByHead(const std::string& path);

/// Replaces the first page of `path` by that of `empty`, a database of the same tables without
/// rows, and writes the old page to `aside`. In these databases the first page has only the layout
/// and the list of free pages, and the list is lost.
absl::Status ReplaceFirstPage(const std::string& path, const std::string& empty,
                              const std::string& aside);

/// How far the log of a database goes: the generation in its head, and the number of its pages.
struct LogEnd {
  uint64_t generation = 0;
  int64_t pages = 0;
  friend bool operator==(const LogEnd&, const LogEnd&) = default;
};
/// The end of what SQLite would take from a log after a crash: the last commit before the first
/// page whose checksum does not match. DATA_LOSS for a damaged head; zeros for an empty file.
absl::StatusOr<LogEnd> ReadLogEnd(const std::string& path);
/// The generation in an open log's head.
uint64_t LogGeneration(int descriptor);

}  // namespace quantgate
