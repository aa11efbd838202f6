// The tables of the database, their checksums, and SQLite's failures as status.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

struct sqlite3;

namespace quantgate {

/// The schema of this version; that of version 0.1.0 is 2.
inline constexpr int64_t kSchemaVersion = 3;
extern const char kSchema[];

absl::Status UnknownSchema(int64_t found);
/// The status of a call of SQLite that failed with `code`.
absl::Status FromSqlite(sqlite3* connection, int code, const std::string& what);

/// The CRC of an event's bytes, and the CRC that is stored with the event, which covers its run and
/// its number too: an event of another run, or with another number, does not fit.
uint32_t ContentCrc(std::string_view bytes);
uint32_t EventCrc(uint32_t content_crc, std::string_view run_id, int64_t sequence);

}  // namespace quantgate
