#include "server/store/schema.h"

#include <sqlite3.h>

#include <cerrno>
#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/base/crc32c.h"
#include "server/errors.h"
#include "server/store/checked_files.h"

namespace quantgate {

// A run's events are rows, so that a stream can read one at a time, from any number on. The table
// is not clustered by its key, since large events would be copied once more then. A large event is
// empty in its row, which names its place in the run's side file. Each event has its own checksum
// (EventCrc); other rows are protected by the checksums of their pages.
const char kSchema[] = R"sql(
CREATE TABLE tensors (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  sha256 BLOB NOT NULL,
  size INTEGER NOT NULL,
  dtype TEXT NOT NULL,
  shape TEXT NOT NULL,
  name TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  UNIQUE (sha256, size, dtype, shape, name)
);
CREATE TABLE requests (
  request_id TEXT PRIMARY KEY,
  content BLOB NOT NULL,
  tensor_id INTEGER NOT NULL
);
CREATE TABLE runs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  run_id TEXT NOT NULL UNIQUE,
  request_id TEXT UNIQUE,
  content BLOB NOT NULL,
  state INTEGER NOT NULL,
  created INTEGER NOT NULL,
  finished INTEGER,
  last_sequence INTEGER NOT NULL DEFAULT 0,
  event_bytes INTEGER NOT NULL DEFAULT 0,
  status_code INTEGER NOT NULL DEFAULT 0,
  status_message TEXT NOT NULL DEFAULT '',
  summary TEXT NOT NULL,
  unverified INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE events (
  run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  sequence INTEGER NOT NULL,
  event BLOB NOT NULL,
  file_offset INTEGER,
  file_size INTEGER,
  crc INTEGER NOT NULL,
  PRIMARY KEY (run, sequence)
);
PRAGMA user_version = 3;
)sql";

absl::Status UnknownSchema(int64_t found) {
  return absl::FailedPreconditionError(absl::StrCat("the database has schema version ", found,
                                                    " and this server knows ", kSchemaVersion,
                                                    "; use the server that wrote it"));
}

absl::Status FromSqlite(sqlite3* connection, int code, const std::string& what) {
  const std::string text = absl::StrCat(what, ": ", sqlite3_errmsg(connection));
  switch (code & 0xFF) {
    case SQLITE_FULL:
      return WasFileTooLarge() ? error::FromErrno(EFBIG, what) : error::DiskFull(what);
    case SQLITE_IOERR:  // Also for the log's index, whose file SQLite itself enlarges.
      if (sqlite3_system_errno(connection) == EFBIG) return error::FromErrno(EFBIG, what);
      return absl::InternalError(text);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: {
      const std::string damage = TakeDamage();
      return absl::DataLossError(absl::StrCat(
          what, " is damaged: ", damage.empty() ? sqlite3_errmsg(connection) : damage));
    }
    case SQLITE_CONSTRAINT:
      return absl::AlreadyExistsError(text);
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
      return absl::FailedPreconditionError(text);
    default:
      return absl::InternalError(text);
  }
}

uint32_t ContentCrc(std::string_view bytes) {
  return ExtendCrc32c(0, std::as_bytes(std::span(bytes)));
}

uint32_t EventCrc(uint32_t content_crc, std::string_view run_id, int64_t sequence) {
  const uint32_t crc = ExtendCrc32c(content_crc, std::as_bytes(std::span(run_id)));
  return ExtendCrc32c(crc, std::as_bytes(std::span(&sequence, 1)));
}

}  // namespace quantgate
