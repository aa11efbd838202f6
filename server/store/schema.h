// The tables of the database, and what SQLite's failures are as status.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

struct sqlite3;

namespace quantgate {

/// That of version 0.1.0 is 2.
inline constexpr int64_t kSchemaVersion = 3;
extern const char kSchema[];

absl::Status UnknownSchema(int64_t found);
/// By the code of a call that failed.
absl::Status FromSqlite(sqlite3* connection, int code, const std::string& what);

/// Of an event, over its bytes and then where it belongs: an event that is another run's, or has
/// another number, does not fit.
uint32_t ContentCrc(std::string_view bytes);
uint32_t EventCrc(uint32_t content_crc, std::string_view run_id, int64_t sequence);

}  // namespace quantgate
