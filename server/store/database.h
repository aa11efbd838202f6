// A SQLite database: one connection, used by one caller at a time under Lock(). Write-ahead log; a
// transaction that is committed survives a crash of the process, and, with Durability::kPowerLoss,
// of the machine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace quantgate {

class Database;

/// A prepared statement, which its database keeps for the next call with the same text. Parameters
/// are bound in order, columns read in order.
class Statement {
 public:
  /// Both under the database's mutex.
  Statement(Database& database, sqlite3_stmt* statement)
      : database_(database), statement_(statement) {}
  ~Statement();
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&&) = delete;

  Statement& Bind(int64_t value);
  Statement& Bind(std::string_view text);
  Statement& BindBlob(std::string_view bytes);
  Statement& BindNull();

  /// True when a row is there to be read.
  absl::StatusOr<bool> Step();
  /// Step() for a statement that returns no rows.
  absl::Status Run();

  int64_t Integer(int column) const;
  std::string Text(int column) const;  ///< Of TEXT and BLOB columns.
  bool IsNull(int column) const;

 private:
  Database& database_;
  sqlite3_stmt* statement_;
  int bound_ = 0;
};

enum class Durability { kProcessCrash, kPowerLoss };

class Database {
 public:
  /// Opens or creates. FAILED_PRECONDITION for a file of a newer schema or one that is not a
  /// database.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path);
  ~Database();

  std::mutex& mutex() ABSL_LOCK_RETURNED(mutex_) { return mutex_; }

  /// Translating the text takes longer than most of what is asked, so it is done once.
  absl::StatusOr<Statement> Prepare(std::string_view sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Prepare and Run.
  absl::Status Run(std::string_view sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Any number of statements, which are not kept.
  absl::Status Execute(const std::string& sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t last_row_id() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Of the transactions from here on.
  absl::Status SetDurability(Durability durability) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

 private:
  friend class Statement;

  explicit Database(sqlite3* connection) : connection_(connection) {}
  absl::Status Migrate();
  void Keep(sqlite3_stmt* statement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::mutex mutex_;
  sqlite3* const connection_;
  Durability durability_ ABSL_GUARDED_BY(mutex_) = Durability::kPowerLoss;
  /// Prepared and not in use, by text.
  std::map<std::string, std::vector<sqlite3_stmt*>, std::less<>> idle_ ABSL_GUARDED_BY(mutex_);
};

/// Rolls back unless committed.
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

}  // namespace quantgate
