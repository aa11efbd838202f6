#include "server/store/database.h"

#include <sqlite3.h>

#include <chrono>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"

namespace quantgate {
namespace {

constexpr int kSchemaVersion = 2;
// A run's largest event is written as a few pages, in memory and in the log, rather than as
// hundreds; and a transaction of the largest events stays in memory until it is committed.
constexpr char kOptions[] =
    "PRAGMA page_size = 16384; PRAGMA cache_size = -16384; PRAGMA journal_mode = WAL; "
    "PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;";
/// The log is moved into the database file when it is this long: 16 MiB of these pages.
constexpr int kLogPagesMax = 1024;
/// How long what was committed may wait for the disk when nobody asks for it.
constexpr std::chrono::milliseconds kFlushDelay{100};
// A run's events are rows, so that a stream can read one at a time from wherever it is. Not by
// their key: large ones would be copied once more.
constexpr char kSchema[] = R"sql(
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
  summary TEXT NOT NULL
);
CREATE TABLE events (
  run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  sequence INTEGER NOT NULL,
  event BLOB NOT NULL,
  PRIMARY KEY (run, sequence)
);
PRAGMA user_version = 1;
)sql";
// A large event is empty in its row, which names its place in the run's side file.
constexpr char kSchemaFrom1[] = R"sql(
ALTER TABLE events ADD COLUMN file_offset INTEGER;
ALTER TABLE events ADD COLUMN file_size INTEGER;
PRAGMA user_version = 2;
)sql";

absl::Status FromSqlite(sqlite3* connection, int code, const std::string& what) {
  const std::string text = absl::StrCat(what, ": ", sqlite3_errmsg(connection));
  switch (code & 0xFF) {
    case SQLITE_FULL:
      return error::DiskFull(what);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(text);
    case SQLITE_CONSTRAINT:
      return absl::AlreadyExistsError(text);
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
      return absl::FailedPreconditionError(text);
    default:
      return absl::InternalError(text);
  }
}

}  // namespace

Statement::Statement(Statement&& other) noexcept
    : database_(other.database_),
      statement_(std::exchange(other.statement_, nullptr)),
      bound_(other.bound_) {}

Statement::~Statement() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (statement_ != nullptr) database_.Keep(statement_);
}

Statement& Statement::Bind(int64_t value) {
  sqlite3_bind_int64(statement_, ++bound_, value);
  return *this;
}

Statement& Statement::Bind(std::string_view text) {
  sqlite3_bind_text64(statement_, ++bound_, text.data(), text.size(), SQLITE_TRANSIENT,
                      SQLITE_UTF8);
  return *this;
}

Statement& Statement::BindBlob(std::string_view bytes) {
  sqlite3_bind_blob64(statement_, ++bound_, bytes.data(), bytes.size(), SQLITE_STATIC);
  return *this;
}

Statement& Statement::BindNull() {
  sqlite3_bind_null(statement_, ++bound_);
  return *this;
}

absl::StatusOr<bool> Statement::Step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return FromSqlite(sqlite3_db_handle(statement_), code, "the database");
}

absl::Status Statement::Run() { return Step().status(); }

int64_t Statement::Integer(int column) const { return sqlite3_column_int64(statement_, column); }

std::string Statement::Text(int column) const {
  const auto* bytes = static_cast<const char*>(sqlite3_column_blob(statement_, column));
  const int size = sqlite3_column_bytes(statement_, column);
  return bytes == nullptr ? std::string() : std::string(bytes, static_cast<size_t>(size));
}

bool Statement::IsNull(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& path) {
  sqlite3* connection = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &connection,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  auto database = std::unique_ptr<Database>(new Database(connection));
  if (code != SQLITE_OK) return FromSqlite(connection, code, absl::StrCat("opening ", path));
  const std::lock_guard lock(database->mutex_);
  QG_RETURN_IF_ERROR(database->Execute(kOptions));
  const absl::Status migrated = database->Migrate();
  if (!migrated.ok())
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", migrated.message()));
  QG_ASSIGN_OR_RETURN(database->side_files_, SideFiles::Open(path + "-files"));
  QG_RETURN_IF_ERROR(database->OpenLog(path));
  return database;
}

absl::Status Database::OpenLog(const std::string& path) {
  {
    const std::lock_guard lock(flush_mutex_);
    QG_ASSIGN_OR_RETURN(log_, File::OpenForReading(path + "-wal"));
    // The log stays the same file while a connection is open; what is synced must be found again.
    QG_RETURN_IF_ERROR(log_.Sync());
    QG_RETURN_IF_ERROR(SyncDirectory(std::filesystem::absolute(path).parent_path().string()));
  }
  const int code = sqlite3_open_v2(path.c_str(), &log_keeper_connection_,
                                   SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  if (code != SQLITE_OK) return FromSqlite(log_keeper_connection_, code, "opening the database");
  // A connection knows of the log once it has read.
  const int read = sqlite3_exec(log_keeper_connection_,
                                "PRAGMA synchronous = NORMAL; SELECT count(*) FROM sqlite_schema;",
                                nullptr, nullptr, nullptr);
  if (read != SQLITE_OK) return FromSqlite(log_keeper_connection_, read, "reading the database");
  // In place of SQLite's own hook, which moves the log within a commit.
  sqlite3_wal_hook(connection_, &Database::OnCommit, this);
  keeper_ = std::thread([this] { KeepLog(); });
  return absl::OkStatus();
}

int Database::OnCommit(void* database, sqlite3*, const char*, int log_pages) {
  auto& self = *static_cast<Database*>(database);
  ++self.committed_;
  self.log_pages_ = log_pages;
  if (log_pages >= kLogPagesMax) self.FlushSoon();
  return SQLITE_OK;
}

absl::Status Database::Flush() {
  const int64_t wanted = committed_;
  const std::lock_guard lock(flush_mutex_);
  QG_RETURN_IF_ERROR(flush_failure_);
  if (flushed_ >= wanted) return absl::OkStatus();
  const int64_t in_log = committed_;
  // First what the log's rows name.
  flush_failure_ = side_files_->Sync();
  if (flush_failure_.ok()) flush_failure_ = log_.Sync();
  if (flush_failure_.ok()) flushed_ = in_log;
  return flush_failure_;
}

void Database::FlushSoon() {
  const std::lock_guard lock(keeper_mutex_);
  must_flush_ = true;
  keeper_has_work_.notify_one();
}

void Database::KeepLog() {
  std::unique_lock lock(keeper_mutex_);
  while (true) {
    keeper_has_work_.wait(lock, [this] { return stopping_ || must_flush_; });
    // One flush for all that is committed meanwhile: writers wait for the file while it is synced.
    keeper_has_work_.wait_for(lock, kFlushDelay,
                              [this] { return stopping_ || log_pages_ >= kLogPagesMax; });
    if (stopping_) return;
    must_flush_ = false;
    lock.unlock();
    // Whoever needs the disk calls Flush and hears of its failure there.
    (void)Flush();
    // Beside writers and readers. What it leaves in the log, the next one moves.
    if (log_pages_ >= kLogPagesMax) {
      (void)sqlite3_wal_checkpoint_v2(log_keeper_connection_, nullptr, SQLITE_CHECKPOINT_PASSIVE,
                                      nullptr, nullptr);
    }
    lock.lock();
  }
}

Database::~Database() {
  {
    const std::lock_guard lock(keeper_mutex_);
    stopping_ = true;
    keeper_has_work_.notify_one();
  }
  if (keeper_.joinable()) keeper_.join();
  sqlite3_close(log_keeper_connection_);
  for (const auto& [sql, statements] : idle_) {
    for (sqlite3_stmt* statement : statements) sqlite3_finalize(statement);
  }
  sqlite3_close(connection_);
}

absl::Status Database::Migrate() {
  QG_ASSIGN_OR_RETURN(Statement version, Prepare("PRAGMA user_version"));
  QG_RETURN_IF_ERROR(version.Step().status());
  const int64_t found = version.Integer(0);
  if (found == kSchemaVersion) return absl::OkStatus();
  if (found < 0 || found > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the database has schema version ", found,
                                                      " and this server knows ", kSchemaVersion,
                                                      "; use the server that wrote it"));
  }
  Transaction transaction(*this);
  QG_RETURN_IF_ERROR(transaction.Begin());
  if (found == 0) QG_RETURN_IF_ERROR(Execute(kSchema));
  QG_RETURN_IF_ERROR(Execute(kSchemaFrom1));
  return transaction.Commit();
}

absl::StatusOr<Statement> Database::Prepare(std::string_view sql) {
  const auto idle = idle_.find(sql);
  if (idle != idle_.end() && !idle->second.empty()) {
    sqlite3_stmt* const known = idle->second.back();
    idle->second.pop_back();
    return Statement(*this, known);
  }
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(connection_, sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) return FromSqlite(connection_, code, "the database");
  return Statement(*this, statement);
}

void Database::Keep(sqlite3_stmt* statement) {
  // What its last step said was seen then. Bound bytes may be many.
  (void)sqlite3_reset(statement);
  (void)sqlite3_clear_bindings(statement);
  idle_[sqlite3_sql(statement)].push_back(statement);
}

absl::Status Database::Run(std::string_view sql) {
  QG_ASSIGN_OR_RETURN(Statement statement, Prepare(sql));
  return statement.Run();
}

absl::Status Database::Execute(const std::string& sql) {
  const int code = sqlite3_exec(connection_, sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : FromSqlite(connection_, code, "the database");
}

int64_t Database::rows_changed() const { return sqlite3_changes64(connection_); }

int64_t Database::last_row_id() const { return sqlite3_last_insert_rowid(connection_); }

Transaction::~Transaction() {
  if (!open_) return;
  (void)database_.Run("ROLLBACK");
}

absl::Status Transaction::Begin() {
  QG_RETURN_IF_ERROR(database_.Run("BEGIN IMMEDIATE"));
  open_ = true;
  return absl::OkStatus();
}

absl::Status Transaction::Commit() {
  QG_RETURN_IF_ERROR(database_.Run("COMMIT"));
  open_ = false;
  return absl::OkStatus();
}

}  // namespace quantgate
