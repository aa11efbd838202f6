// Database: a SQLite database with one connection, used by one caller at a time under mutex(). It
// has a write-ahead log: a committed transaction survives a crash of the process, and one that was
// committed before a call of Flush survives a crash of the machine, too, once Flush has succeeded.
// All that is read is verified (checked_files.h). No transaction waits for the disk: the database's
// own thread moves the log into the database file. Large values are in files beside it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/store/disk.h"
#include "server/store/log_mark.h"
#include "server/store/side_files.h"

struct sqlite3;
struct sqlite3_stmt;

namespace quantgate {

class Database;

/// A prepared statement, which its database keeps for the next call with the same text. Parameters
/// are bound in order, columns read in order.
class Statement {
 public:
  /// The constructor and the destructor run under the database's mutex.
  Statement(Database& database, sqlite3_stmt* statement)
      : database_(database), statement_(statement) {}
  ~Statement();
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&&) = delete;

  Statement& Bind(int64_t value);
  Statement& Bind(std::string_view text);
  /// `bytes` must stay unchanged until the statement has run.
  Statement& BindBlob(std::string_view bytes);
  Statement& BindNull();

  /// True when a row is there to be read.
  absl::StatusOr<bool> Step();
  /// Step() for a statement that returns no rows.
  absl::Status Run();

  int64_t Integer(int column) const;
  std::string Text(int column) const;  ///< For TEXT and BLOB columns.
  bool IsNull(int column) const;

 private:
  Database& database_;
  sqlite3_stmt* statement_;
  int bound_ = 0;
};

class Database {
 public:
  /// Called when something is found damaged. `what`: "database" or "event".
  using OnCorruption = std::function<void(std::string_view what)>;

  /// Opens or creates a database; one of version 0.1.0 is rewritten with checksums.
  /// FAILED_PRECONDITION for a file of a newer schema or one that is not a database, DATA_LOSS for
  /// a damaged database; each names the path.
  static absl::StatusOr<std::unique_ptr<Database>> Open(
      const std::string& path, OnCorruption on_corruption = [](std::string_view) {});
  ~Database();

  std::mutex& mutex() ABSL_LOCK_RETURNED(mutex_) { return mutex_; }

  /// Statements are kept by their text, since preparing one takes longer than most queries.
  absl::StatusOr<Statement> Prepare(std::string_view sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Prepare and Run.
  absl::Status Run(std::string_view sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Any number of statements, which are not kept.
  absl::Status Execute(const std::string& sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Rows changed by the last statement that inserted, updated or deleted.
  int64_t rows_changed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t last_row_id() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  /// DATA_LOSS with `text`; counts damage of `what` ("database" or "event").
  absl::Status Corrupted(std::string_view what, const std::string& text) const;

  /// Large values, whose places are named in rows. They are not part of a transaction: a value is
  /// added before the transaction that adds its row, and removed after the one that drops it.
  SideFiles& side_files() { return *side_files_; }

  /// Waits until the disk has every transaction that was committed before the call, and the values
  /// in side files that these name. One wait serves all who wait. Called without the mutex, so that
  /// others can use the database meanwhile.
  absl::Status Flush() ABSL_LOCKS_EXCLUDED(mutex_);
  /// Lets the database's own thread call Flush soon; returns at once.
  void FlushSoon();

 private:
  friend class Statement;

  Database(sqlite3* connection, OnCorruption on_corruption)
      : connection_(connection), on_corruption_(std::move(on_corruption)) {}
  static absl::StatusOr<std::unique_ptr<Database>> OpenUnnamed(const std::string& path,
                                                               OnCorruption on_corruption);
  absl::Status CheckSchema() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Opens the files and the connection that Flush and the keeper use.
  absl::Status OpenLog(const std::string& path, LogMark mark) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// A failure of SQLite as status; counts damage.
  absl::Status Failed(int code, const std::string& what) const;
  void Keep(sqlite3_stmt* statement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Called by SQLite when a transaction is in the log, which then has `log_pages` pages.
  static int OnCommit(void* database, sqlite3*, const char*, int log_pages) noexcept;
  void KeepLog();
  /// Moves the log into the database file, so that the next transaction begins it anew.
  void MoveLog() ABSL_LOCKS_EXCLUDED(flush_mutex_);

  std::mutex mutex_;
  std::unique_ptr<SideFiles> side_files_;
  sqlite3* const connection_;
  const OnCorruption on_corruption_;
  std::atomic<int64_t> committed_{0};  ///< Transactions committed.
  std::atomic<int> log_pages_{0};
  int log_descriptor_ = -1;  ///< Descriptor of log_.
  std::mutex log_end_mutex_;
  /// End of the log after the last committed transaction.
  LogEnd log_end_ ABSL_GUARDED_BY(log_end_mutex_);

  std::mutex flush_mutex_;
  File log_ ABSL_GUARDED_BY(flush_mutex_);
  /// The transactions of committed_ that are flushed.
  int64_t flushed_ ABSL_GUARDED_BY(flush_mutex_) = 0;
  LogMark log_mark_ ABSL_GUARDED_BY(flush_mutex_);
  /// The generation of the log that is being moved or was moved last, which may be begun anew at
  /// any moment; 0 if there is none.
  uint64_t moved_generation_ ABSL_GUARDED_BY(flush_mutex_) = 0;
  /// The first failure to flush, kept since the kernel reports a page that it could not write only
  /// once.
  absl::Status flush_failure_ ABSL_GUARDED_BY(flush_mutex_);

  sqlite3* log_keeper_connection_ = nullptr;  ///< The keeper's own connection.
  std::mutex keeper_mutex_;
  std::condition_variable keeper_has_work_;
  bool must_flush_ ABSL_GUARDED_BY(keeper_mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(keeper_mutex_) = false;
  std::thread keeper_;

  /// Prepared statements that are not in use, by text.
  std::map<std::string, std::vector<sqlite3_stmt*>, std::less<>> idle_ ABSL_GUARDED_BY(mutex_);
};

/// Adds to the error of a start that found the database at `path` damaged what to do about it.
absl::Status RefusedStart(const std::string& path, const absl::Status& status);

/// A transaction, which its destructor rolls back unless it was committed.
class Transaction {
 public:
  explicit Transaction(Database& database) : database_(database) {}
  ~Transaction();
  absl::Status Begin() ABSL_EXCLUSIVE_LOCKS_REQUIRED(database_.mutex());
  absl::Status Commit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(database_.mutex());

 private:
  Database& database_;
  bool open_ = false;
};

/// A page of the rows of `table`, newest first: at most `page_size` records with ids below
/// `before_id` (0: from the newest on). `read` makes a record of a row with `columns`; `Page` has
/// `records` and `next_before_id`.
template <typename Page, typename Read>
absl::StatusOr<Page> ReadRecordPage(Database& database, std::string_view table,
                                    std::string_view columns, int64_t before_id, int page_size,
                                    Read read) ABSL_EXCLUSIVE_LOCKS_REQUIRED(database.mutex()) {
  using Record = typename decltype(Page::records)::value_type;
  QG_ASSIGN_OR_RETURN(Statement rows, database.Prepare(absl::StrCat("SELECT ", std::string(columns),
                                                                    " FROM ", std::string(table),
                                                                    " WHERE ?1 = 0 OR id < ?1 "
                                                                    "ORDER BY id DESC LIMIT ?2")));
  rows.Bind(before_id).Bind(int64_t{page_size} + 1);
  Page page;
  while (true) {
    QG_ASSIGN_OR_RETURN(const bool found, rows.Step());
    if (!found) return page;
    if (static_cast<int>(page.records.size()) == page_size) {
      page.next_before_id = page.records.back().id;
      return page;
    }
    absl::StatusOr<Record> record = read(rows);
    if (!record.ok()) return record.status();
    page.records.push_back(*std::move(record));
  }
}

}  // namespace quantgate
