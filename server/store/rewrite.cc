#include "server/store/rewrite.h"

#include <sqlite3.h>

#include <filesystem>
#include <system_error>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/store/checked_files.h"
#include "server/store/disk.h"
#include "server/store/log_mark.h"
#include "server/store/schema.h"
#include "server/store/side_files.h"

namespace quantgate {
namespace {

/// Row numbers that are tried in a table whose largest row number cannot be read.
constexpr int64_t kRowsTried = 1'000'000;

/// A connection to a database, which its destructor closes.
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

/// What is copied of a table. `values` are the placeholders of the insert.
struct Table {
  const char* name;
  const char* columns;
  int column_count;
  const char* values;
};
constexpr Table kTensors = {"tensors", "id, sha256, size, dtype, shape, name, fingerprint", 7,
                            "?, ?, ?, ?, ?, ?, ?"};
constexpr Table kRequests = {"requests", "request_id, content, tensor_id", 3, "?, ?, ?"};
constexpr Table kOldRuns = {"runs",
                            "id, run_id, request_id, content, state, created, finished, "
                            "last_sequence, event_bytes, status_code, status_message, summary",
                            12, "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1"};
constexpr Table kRuns = {"runs",
                         "id, run_id, request_id, content, state, created, finished, "
                         "last_sequence, event_bytes, status_code, status_message, summary, "
                         "unverified",
                         13, "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?"};
/// After the columns comes the id of the event's run, which the insert does not take.
constexpr Table kOldEvents = {"events",
                              "run, sequence, event, file_offset, file_size, "
                              "(SELECT run_id FROM runs WHERE id = run)",
                              5, "?, ?, ?, ?, ?, ?"};
constexpr Table kEvents = {"events", "run, sequence, event, file_offset, file_size, crc", 6,
                           "?, ?, ?, ?, ?, ?"};

using OnRow = absl::FunctionRef<absl::Status(sqlite3_stmt* row)>;

/// Calls `body` for each row of a prepared statement, until a call fails.
absl::Status Rows(const Connection& from, sqlite3_stmt* rows, OnRow body) {
  while (true) {
    const int code = sqlite3_step(rows);
    if (code == SQLITE_DONE) return absl::OkStatus();
    if (code != SQLITE_ROW) return FromSqlite(from.handle, code, "the database");
    QG_RETURN_IF_ERROR(body(rows));
  }
}

absl::Status ForEachRow(const Connection& from, const std::string& query, OnRow body) {
  sqlite3_stmt* rows = nullptr;
  absl::Status status =
      from.Checked(sqlite3_prepare_v2(from.handle, query.c_str(), -1, &rows, nullptr));
  if (status.ok()) status = Rows(from, rows, body);
  sqlite3_finalize(rows);
  return status;
}

/// Calls `body` for each row by its number, one at a time. Rows on damaged pages are left out.
absl::Status ForEachRowLeft(const Connection& from, const Table& table, OnRow body) {
  int64_t last = kRowsTried;
  const absl::Status counted =
      ForEachRow(from, absl::StrCat("SELECT max(rowid) FROM ", table.name), [&](auto* row) {
        last = sqlite3_column_int64(row, 0);
        return absl::OkStatus();
      });
  if (!counted.ok() && !absl::IsDataLoss(counted)) return counted;
  sqlite3_stmt* rows = nullptr;
  const std::string query =
      absl::StrCat("SELECT ", table.columns, " FROM ", table.name, " WHERE rowid = ?");
  absl::Status status =
      from.Checked(sqlite3_prepare_v2(from.handle, query.c_str(), -1, &rows, nullptr));
  for (int64_t id = 1; status.ok() && id <= last; ++id) {
    (void)sqlite3_reset(rows);
    (void)sqlite3_bind_int64(rows, 1, id);
    status = Rows(from, rows, body);
    if (absl::IsDataLoss(status)) status = absl::OkStatus();
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

enum class Take { kAll, kWhatIsLeft };
using OnInsert = absl::FunctionRef<absl::Status(sqlite3_stmt* row, sqlite3_stmt* insert)>;

/// `last` binds the values that the insert takes beyond the columns.
absl::Status CopyRows(const Connection& from, const Table& table, const Connection& to, Take take,
                      OnInsert last) {
  sqlite3_stmt* insert = nullptr;
  QG_RETURN_IF_ERROR(to.Checked(sqlite3_prepare_v2(
      to.handle, absl::StrCat("INSERT INTO ", table.name, " VALUES (", table.values, ")").c_str(),
      -1, &insert, nullptr)));
  const auto copy = [&](sqlite3_stmt* row) -> absl::Status {
    for (int i = 0; i < table.column_count; ++i) {
      (void)sqlite3_bind_value(insert, i + 1, sqlite3_column_value(row, i));
    }
    QG_RETURN_IF_ERROR(last(row, insert));
    (void)sqlite3_step(insert);
    return to.Checked(sqlite3_reset(insert));
  };
  const absl::Status status =
      take == Take::kAll
          ? ForEachRow(from, absl::StrCat("SELECT ", table.columns, " FROM ", table.name), copy)
          : ForEachRowLeft(from, table, copy);
  sqlite3_finalize(insert);
  return status;
}

absl::Status NothingMore(sqlite3_stmt*, sqlite3_stmt*) { return absl::OkStatus(); }

/// Binds the checksum of an event that has none.
absl::Status BindCrc(const SideFiles& files, sqlite3_stmt* row, sqlite3_stmt* insert) {
  const std::string run_id(reinterpret_cast<const char*>(sqlite3_column_text(row, 5)));
  const auto* bytes = static_cast<const char*>(sqlite3_column_blob(row, 2));
  std::string event(bytes, bytes + sqlite3_column_bytes(row, 2));
  if (sqlite3_column_type(row, 3) != SQLITE_NULL) {
    auto read = files.Read(run_id, {sqlite3_column_int64(row, 3), sqlite3_column_int64(row, 4)});
    // A lost event stays lost: its readers get the error.
    const bool is_lost = absl::IsNotFound(read.status()) || absl::IsDataLoss(read.status());
    if (!is_lost) QG_RETURN_IF_ERROR(read.status());
    if (read.ok()) event = *std::move(read);
  }
  const int64_t crc = EventCrc(ContentCrc(event), run_id, sqlite3_column_int64(row, 1));
  (void)sqlite3_bind_int64(insert, 6, crc);
  return absl::OkStatus();
}

/// Begins a new database. It has no journal, since an incomplete file is dropped.
absl::Status BeginNew(const std::string& path, Connection& to) {
  RemoveFile(path);  // Left by an attempt that a crash ended.
  QG_RETURN_IF_ERROR(to.Checked(OpenChecked(path, &to.handle)));
  QG_RETURN_IF_ERROR(to.Execute(
      "PRAGMA page_size = 16384; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN"));
  return to.Execute(kSchema);
}

absl::Status SyncFile(const std::string& path) {
  QG_ASSIGN_OR_RETURN(File file, File::OpenForWriting(path));
  return file.Sync();
}

std::string FolderOf(const std::string& path) {
  return std::filesystem::absolute(path).parent_path().string();
}

absl::Status WriteUpgraded(const std::string& path, const std::string& new_path) {
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
  QG_RETURN_IF_ERROR(BeginNew(new_path, to));
  for (const Table& table : {kTensors, kRequests, kOldRuns}) {
    QG_RETURN_IF_ERROR(CopyRows(from, table, to, Take::kAll, NothingMore));
  }
  QG_RETURN_IF_ERROR(CopyRows(
      from, kOldEvents, to, Take::kAll,
      [&](sqlite3_stmt* row, sqlite3_stmt* insert) { return BindCrc(*files, row, insert); }));
  QG_RETURN_IF_ERROR(to.Execute("COMMIT"));
  // The pages of the old log must not mix with the new file.
  return from.Execute("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = DELETE");
}

/// Replaces the first page by that of an empty database.
absl::Status MakeFirstPage(const std::string& path, const std::string& new_path,
                           const std::string& aside) {
  {
    Connection to;
    QG_RETURN_IF_ERROR(BeginNew(new_path, to));
    QG_RETURN_IF_ERROR(to.Execute("COMMIT"));
  }
  return ReplaceFirstPage(path, new_path, aside);
}

absl::Status GrowToHead(const std::string& path) {
  QG_ASSIGN_OR_RETURN(const int64_t wanted, BytesByHead(path));
  QG_ASSIGN_OR_RETURN(File file, File::OpenForWriting(path));
  QG_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  return size < wanted ? file.Truncate(wanted) : absl::OkStatus();
}

absl::Status WriteSalvaged(const std::string& path, const std::string& new_path) {
  Connection from, to;
  QG_RETURN_IF_ERROR(from.Checked(OpenChecked(path, &from.handle)));
  QG_RETURN_IF_ERROR(BeginNew(new_path, to));
  for (const Table& table : {kTensors, kRequests, kRuns, kEvents}) {
    QG_RETURN_IF_ERROR(CopyRows(from, table, to, Take::kWhatIsLeft, NothingMore));
  }
  // What belongs to a lost row is lost with it: the row's number is given out again.
  QG_RETURN_IF_ERROR(to.Execute("DELETE FROM events WHERE run NOT IN (SELECT id FROM runs)"));
  QG_RETURN_IF_ERROR(
      to.Execute("DELETE FROM requests WHERE tensor_id NOT IN (SELECT id FROM tensors)"));
  return to.Execute("COMMIT");
}

}  // namespace

absl::Status UpgradeDatabase(const std::string& path) {
  QG_ASSIGN_OR_RETURN(const DatabaseKind kind, KindOfDatabase(path));
  if (kind == DatabaseKind::kDamaged) {
    return absl::FailedPreconditionError(
        "its head is damaged, or it is no database; restore it, or keep what it has with "
        "quantgated --fsck --repair");
  }
  if (kind != DatabaseKind::kUnchecked) return absl::OkStatus();
  const std::string new_path = path + "-new";
  QG_RETURN_IF_ERROR(WriteUpgraded(path, new_path));
  QG_RETURN_IF_ERROR(SyncFile(new_path));
  QG_RETURN_IF_ERROR(RenameFile(new_path, path));
  return SyncDirectory(FolderOf(path));
}

absl::Status SalvageDatabase(const std::string& path, const std::string& aside,
                             bool is_first_page_lost) {
  const std::string new_path = path + "-new";
  if (is_first_page_lost) {
    QG_RETURN_IF_ERROR(MakeFirstPage(path, new_path, aside + "-page-1"));
  }
  QG_RETURN_IF_ERROR(GrowToHead(path));
  QG_RETURN_IF_ERROR(WriteSalvaged(path, new_path));
  QG_RETURN_IF_ERROR(SyncFile(new_path));
  // What was set aside before has the same names, and its log must not mix with this database.
  for (const char* rest : {"", "-wal", "-shm"}) RemoveFile(aside + rest);
  std::error_code failed;
  std::filesystem::create_hard_link(path, aside, failed);
  if (failed) return error::FromErrno(failed.value(), "setting a database aside");
  // No log of the damaged database may mix with the new one. One that could not be moved into the
  // database goes with it.
  const std::string log = path + "-wal";
  if (std::filesystem::exists(log, failed)) QG_RETURN_IF_ERROR(RenameFile(log, aside + "-wal"));
  for (const char* rest : {"-shm", "-mark"}) RemoveFile(path + rest);
  QG_RETURN_IF_ERROR(LogMark::Begin(path + "-mark").status());
  QG_RETURN_IF_ERROR(RenameFile(new_path, path));
  return SyncDirectory(FolderOf(path));
}

}  // namespace quantgate
