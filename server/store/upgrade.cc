#include "server/store/upgrade.h"

#include <sqlite3.h>

#include <filesystem>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/store/checked_files.h"
#include "server/store/disk.h"
#include "server/store/schema.h"
#include "server/store/side_files.h"

namespace quantgate {
namespace {

constexpr char kOldEvents[] =
    "SELECT run, sequence, event, file_offset, file_size, run_id FROM events JOIN runs ON id = run";
constexpr char kNewEvent[] =
    "INSERT INTO events (run, sequence, event, file_offset, file_size, crc) "
    "VALUES (?, ?, ?, ?, ?, ?)";

/// A connection of this thread's own.
struct Connection {
  Connection() = default;
  ~Connection() { sqlite3_close(handle); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  absl::Status Checked(int code) const {
    return code == SQLITE_OK ? absl::OkStatus() : FromSqlite(handle, code, "the database");
  }
  absl::Status Execute(const std::string& sql) const {
    return Checked(sqlite3_exec(handle, sql.c_str(), nullptr, nullptr, nullptr));
  }

  sqlite3* handle = nullptr;
};

/// Each row of a query.
absl::Status ForEachRow(const Connection& from, const char* query,
                        absl::FunctionRef<absl::Status(sqlite3_stmt*)> body) {
  sqlite3_stmt* rows = nullptr;
  absl::Status status = from.Checked(sqlite3_prepare_v2(from.handle, query, -1, &rows, nullptr));
  while (status.ok()) {
    const int code = sqlite3_step(rows);
    if (code == SQLITE_DONE) break;
    status = code == SQLITE_ROW ? body(rows) : FromSqlite(from.handle, code, "the database");
  }
  sqlite3_finalize(rows);
  return status;
}

absl::StatusOr<std::string> TextOf(const Connection& from, const char* query) {
  std::string text;
  QG_RETURN_IF_ERROR(ForEachRow(from, query, [&](sqlite3_stmt* row) {
    const auto* bytes = static_cast<const char*>(sqlite3_column_blob(row, 0));
    text.assign(bytes, bytes + sqlite3_column_bytes(row, 0));
    return absl::OkStatus();
  }));
  return text;
}

/// Inserts every row that a query gives; `last` binds what the insert takes beyond its columns.
absl::Status CopyRows(
    const Connection& from, const char* query, const Connection& to, const char* insert,
    int columns, absl::FunctionRef<absl::Status(sqlite3_stmt* row, sqlite3_stmt* inserted)> last) {
  sqlite3_stmt* inserted = nullptr;
  QG_RETURN_IF_ERROR(to.Checked(sqlite3_prepare_v2(to.handle, insert, -1, &inserted, nullptr)));
  absl::Status status = ForEachRow(from, query, [&](sqlite3_stmt* row) -> absl::Status {
    for (int i = 0; i < columns; ++i) {
      (void)sqlite3_bind_value(inserted, i + 1, sqlite3_column_value(row, i));
    }
    QG_RETURN_IF_ERROR(last(row, inserted));
    (void)sqlite3_step(inserted);
    return to.Checked(sqlite3_reset(inserted));
  });
  sqlite3_finalize(inserted);
  return status;
}

absl::Status CopyEvents(const Connection& from, const SideFiles& files, const Connection& to) {
  return CopyRows(
      from, kOldEvents, to, kNewEvent, 5,
      [&files](sqlite3_stmt* row, sqlite3_stmt* inserted) -> absl::Status {
        const std::string run_id(reinterpret_cast<const char*>(sqlite3_column_text(row, 5)));
        const auto* bytes = static_cast<const char*>(sqlite3_column_blob(row, 2));
        std::string event(bytes, bytes + sqlite3_column_bytes(row, 2));
        if (sqlite3_column_type(row, 3) != SQLITE_NULL) {
          auto read =
              files.Read(run_id, {sqlite3_column_int64(row, 3), sqlite3_column_int64(row, 4)});
          // One that is lost stays so: whoever reads it hears of it.
          const bool is_lost = absl::IsNotFound(read.status()) || absl::IsDataLoss(read.status());
          if (!is_lost) QG_RETURN_IF_ERROR(read.status());
          if (read.ok()) event = *std::move(read);
        }
        const int64_t crc = EventCrc(ContentCrc(event), run_id, sqlite3_column_int64(row, 1));
        (void)sqlite3_bind_int64(inserted, 6, crc);
        return absl::OkStatus();
      });
}

absl::Status CopyAll(const Connection& from, const SideFiles& files, const Connection& to) {
  const auto nothing_more = [](sqlite3_stmt*, sqlite3_stmt*) { return absl::OkStatus(); };
  QG_RETURN_IF_ERROR(CopyRows(
      from, "SELECT id, sha256, size, dtype, shape, name, fingerprint FROM tensors ORDER BY id", to,
      "INSERT INTO tensors VALUES (?, ?, ?, ?, ?, ?, ?)", 7, nothing_more));
  QG_RETURN_IF_ERROR(CopyRows(from, "SELECT request_id, content, tensor_id FROM requests", to,
                              "INSERT INTO requests VALUES (?, ?, ?)", 3, nothing_more));
  QG_RETURN_IF_ERROR(CopyRows(
      from,
      "SELECT id, run_id, request_id, content, state, created, finished, last_sequence, "
      "event_bytes, status_code, status_message, summary FROM runs ORDER BY id",
      to, "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)", 12, nothing_more));
  return CopyEvents(from, files, to);
}

/// Without a journal: a file that is not whole is dropped.
absl::Status WriteAnew(const std::string& path, const std::string& new_path) {
  Connection from;
  QG_RETURN_IF_ERROR(from.Checked(sqlite3_open_v2(
      path.c_str(), &from.handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, "unix")));
  QG_ASSIGN_OR_RETURN(const std::string version, TextOf(from, "PRAGMA user_version"));
  if (version != "2") return UnknownSchema(std::atoll(version.c_str()));
  QG_ASSIGN_OR_RETURN(const std::string finding, TextOf(from, "PRAGMA integrity_check(1)"));
  if (finding != "ok")
    return absl::DataLossError(absl::StrCat("the database is damaged: ", finding));
  QG_ASSIGN_OR_RETURN(const auto files, SideFiles::Open(path + "-files"));
  Connection to;
  QG_RETURN_IF_ERROR(to.Checked(OpenChecked(new_path, &to.handle)));
  QG_RETURN_IF_ERROR(to.Execute(
      "PRAGMA page_size = 16384; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN"));
  QG_RETURN_IF_ERROR(to.Execute(kSchema));
  QG_RETURN_IF_ERROR(CopyAll(from, *files, to));
  QG_RETURN_IF_ERROR(to.Execute("COMMIT"));
  // What is in the old log must not meet the new file.
  return from.Execute("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = DELETE");
}

}  // namespace

absl::Status UpgradeDatabase(const std::string& path) {
  QG_ASSIGN_OR_RETURN(const DatabaseKind kind, KindOfDatabase(path));
  if (kind == DatabaseKind::kDamaged) {
    return absl::FailedPreconditionError("its head is damaged, or it is no database");
  }
  if (kind != DatabaseKind::kUnchecked) return absl::OkStatus();
  const std::string new_path = path + "-new";
  RemoveFile(new_path);  // Of an attempt that a crash ended.
  QG_RETURN_IF_ERROR(WriteAnew(path, new_path));
  {
    QG_ASSIGN_OR_RETURN(File file, File::OpenForWriting(new_path));
    QG_RETURN_IF_ERROR(file.Sync());
  }
  QG_RETURN_IF_ERROR(RenameFile(new_path, path));
  return SyncDirectory(std::filesystem::absolute(path).parent_path().string());
}

}  // namespace quantgate
