#include "server/store/database.h"

#include <sqlite3.h>

#include <chrono>
#include <filesystem>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/store/checked_files.h"
#include "server/store/rewrite.h"
#include "server/store/schema.h"

namespace quantgate {
namespace {

// Pages are large, so that a run's largest event is written as a few of them, in memory and in the
// log, rather than as hundreds. A transaction stays in memory until it is committed, so that the
// log has no page of it before.
constexpr char kOptions[] =
    "PRAGMA page_size = 16384; PRAGMA cache_size = -16384; PRAGMA cache_spill = OFF; "
    "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;";
/// The log is moved into the database file when it is this long: 16 MiB of these pages.
constexpr int kLogPagesMax = 1024;
/// How long FlushSoon lets a committed transaction wait for the disk.
constexpr std::chrono::milliseconds kFlushDelay{100};

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
  return database_.Failed(code, "the database");
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

absl::Status RefusedStart(const std::string& path, const absl::Status& status) {
  if (!absl::IsDataLoss(status)) return status;
  return absl::DataLossError(
      absl::StrCat(status.message(), "; restore ", path,
                   ", or keep what it still has with quantgated --fsck --repair"));
}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& path,
                                                         OnCorruption on_corruption) {
  auto opened = OpenUnnamed(path, std::move(on_corruption));
  if (opened.ok()) return opened;
  // Keeps the payload, which says what kind of limit is exhausted.
  absl::Status named(opened.status().code(), absl::StrCat(path, ": ", opened.status().message()));
  opened.status().ForEachPayload(
      [&](auto type, const absl::Cord& payload) { named.SetPayload(type, payload); });
  return named;
}

absl::StatusOr<std::unique_ptr<Database>> Database::OpenUnnamed(const std::string& path,
                                                                OnCorruption on_corruption) {
  // A database with checksums has had a mark from its first moment on.
  QG_ASSIGN_OR_RETURN(const DatabaseKind kind, KindOfDatabase(path));
  const bool has_mark = kind == DatabaseKind::kChecked || kind == DatabaseKind::kDamaged;
  auto mark = has_mark ? LogMark::Open(path + "-mark") : LogMark::Begin(path + "-mark");
  QG_RETURN_IF_ERROR(UpgradeDatabase(path));
  QG_RETURN_IF_ERROR(mark.ok() ? mark->Check(path + "-wal") : mark.status());
  sqlite3* connection = nullptr;
  const int code = OpenChecked(path, &connection);
  auto database = std::unique_ptr<Database>(new Database(connection, std::move(on_corruption)));
  if (code != SQLITE_OK) return database->Failed(code, "opening the database");
  const std::lock_guard lock(database->mutex_);
  QG_RETURN_IF_ERROR(database->Execute(kOptions));
  QG_RETURN_IF_ERROR(database->CheckSchema());
  QG_ASSIGN_OR_RETURN(database->side_files_, SideFiles::Open(path + "-files"));
  QG_RETURN_IF_ERROR(database->OpenLog(path, *std::move(mark)));
  return database;
}

absl::Status Database::OpenLog(const std::string& path, LogMark mark) {
  {
    const std::lock_guard lock(flush_mutex_);
    QG_ASSIGN_OR_RETURN(log_, File::OpenForReading(path + "-wal"));
    // The log stays the same file while a connection is open. Its directory entry is synced too, so
    // that what is synced can be found after a crash.
    QG_RETURN_IF_ERROR(log_.Sync());
    QG_RETURN_IF_ERROR(SyncDirectory(std::filesystem::absolute(path).parent_path().string()));
    log_descriptor_ = log_.descriptor();
    log_mark_ = std::move(mark);
    QG_RETURN_IF_ERROR(log_mark_.Lift());
  }
  const int code = OpenChecked(path, &log_keeper_connection_);
  if (code != SQLITE_OK) return Failed(code, "opening the database");
  // A connection knows of the log only once it has read. What a crash left in the log is moved at
  // once.
  const int read = sqlite3_exec(log_keeper_connection_,
                                "PRAGMA synchronous = NORMAL; SELECT count(*) FROM sqlite_schema; "
                                "PRAGMA wal_checkpoint(TRUNCATE)",
                                nullptr, nullptr, nullptr);
  if (read != SQLITE_OK) return Failed(read, "reading the database");
  // Replaces SQLite's own hook, which would move the log within a commit.
  sqlite3_wal_hook(connection_, &Database::OnCommit, this);
  keeper_ = std::thread([this] { KeepLog(); });
  return absl::OkStatus();
}

int Database::OnCommit(void* database, sqlite3*, const char*, int log_pages) noexcept {
  auto& self = *static_cast<Database*>(database);
  {
    const std::lock_guard lock(self.log_end_mutex_);
    self.log_end_ = {LogGeneration(self.log_descriptor_), log_pages};
  }
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
  LogEnd end;
  {
    const std::lock_guard end_lock(log_end_mutex_);
    end = log_end_;
  }
  // Syncs the side files first, since rows in the log name values in them.
  flush_failure_ = side_files_->Sync();
  if (flush_failure_.ok()) flush_failure_ = log_.Sync();
  QG_RETURN_IF_ERROR(flush_failure_);
  // A full disk may refuse the mark; the next flush writes it again.
  if (end.generation != moved_generation_) QG_RETURN_IF_ERROR(log_mark_.Set(end));
  flushed_ = in_log;
  return absl::OkStatus();
}

void Database::MoveLog() {
  {
    const std::lock_guard lock(flush_mutex_);
    if (!log_mark_.Set({}).ok()) return;
    moved_generation_ = LogGeneration(log_descriptor_);
    flush_failure_.Update(log_mark_.Sync());
    if (!flush_failure_.ok()) return;
  }
  int pages = 0, moved = 0;
  // Does not wait for writers and readers. Pages that it leaves in the log are moved the next time.
  const int code = sqlite3_wal_checkpoint_v2(log_keeper_connection_, nullptr,
                                             SQLITE_CHECKPOINT_PASSIVE, &pages, &moved);
  if (code == SQLITE_OK && pages == moved) return;
  if ((code & 0xFF) == SQLITE_CORRUPT) on_corruption_("database");
  const std::lock_guard lock(flush_mutex_);
  moved_generation_ = 0;
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
    // One flush serves all that is committed meanwhile: writers wait for the file while it is
    // synced.
    keeper_has_work_.wait_for(lock, kFlushDelay,
                              [this] { return stopping_ || log_pages_ >= kLogPagesMax; });
    if (stopping_) return;
    must_flush_ = false;
    lock.unlock();
    // Callers that need the disk call Flush themselves and learn of its failure there.
    (void)Flush();
    if (log_pages_ >= kLogPagesMax) MoveLog();
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
  {
    // The last connection to close moves the log and removes it.
    const std::lock_guard lock(flush_mutex_);
    (void)log_mark_.Lift();
  }
  sqlite3_close(log_keeper_connection_);
  for (const auto& [sql, statements] : idle_) {
    for (sqlite3_stmt* statement : statements) sqlite3_finalize(statement);
  }
  sqlite3_close(connection_);
}

absl::Status Database::CheckSchema() {
  QG_ASSIGN_OR_RETURN(Statement version, Prepare("PRAGMA user_version"));
  QG_RETURN_IF_ERROR(version.Step().status());
  const int64_t found = version.Integer(0);
  if (found == kSchemaVersion) return absl::OkStatus();
  if (found != 0) return UnknownSchema(found);
  Transaction transaction(*this);
  QG_RETURN_IF_ERROR(transaction.Begin());
  QG_RETURN_IF_ERROR(Execute(kSchema));
  return transaction.Commit();
}

absl::Status Database::Corrupted(std::string_view what, const std::string& text) const {
  on_corruption_(what);
  return absl::DataLossError(text);
}

absl::Status Database::Failed(int code, const std::string& what) const {
  const absl::Status status = FromSqlite(connection_, code, what);
  if (absl::IsDataLoss(status)) on_corruption_("database");
  return status;
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
  if (code != SQLITE_OK) return Failed(code, "the database");
  return Statement(*this, statement);
}

void Database::Keep(sqlite3_stmt* statement) {
  // The result of its last step was handled then. Its bindings may hold many bytes.
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
  return code == SQLITE_OK ? absl::OkStatus() : Failed(code, "the database");
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
