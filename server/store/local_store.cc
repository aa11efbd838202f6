#include "server/store/local_store.h"

#include <sqlite3.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/store/blob_store.h"
#include "server/store/checked_files.h"
#include "server/store/data_dir.h"
#include "server/store/database.h"
#include "server/store/disk.h"

namespace quantgate {
namespace {

namespace fs = std::filesystem;

/// How long a reader waits for a writer's transaction.
constexpr int kBusyMilliseconds = 5'000;

/// The path of a blob's file, whose name is SHA-256 or SHA-256.SIZE; empty where there is none of
/// that size.
std::string FindBlob(const std::string& data_dir, const Digest& digest) {
  const std::string hex = digest.sha256.Hex();
  const std::string path =
      absl::StrCat(data_dir, "/cas/", hex.substr(0, 2), "/", hex.substr(2, 2), "/", hex);
  for (const std::string& name : {absl::StrCat(path, ".", digest.size), path}) {
    std::error_code error;
    const uintmax_t size = fs::file_size(name, error);
    if (!error && size == static_cast<uintmax_t>(digest.size)) return name;
  }
  return "";
}

using Connection = std::unique_ptr<sqlite3, decltype(&sqlite3_close)>;
using Rows = std::unique_ptr<sqlite3_stmt, decltype(&sqlite3_finalize)>;

std::string Text(sqlite3_stmt* rows, int column) {
  const auto* bytes = static_cast<const char*>(sqlite3_column_blob(rows, column));
  return bytes == nullptr ? "" : std::string(bytes, sqlite3_column_bytes(rows, column));
}

/// Does not use Database, which writes: opening one may bring a database to this version.
absl::StatusOr<std::vector<StoredAtRest::Registration>> RegistrationsOf(const std::string& path,
                                                                        const Digest& digest) {
  QG_ASSIGN_OR_RETURN(const DatabaseKind kind, KindOfDatabase(path));
  sqlite3* opened = nullptr;
  int code = kind == DatabaseKind::kUnchecked
                 ? sqlite3_open_v2(path.c_str(), &opened, SQLITE_OPEN_READONLY, nullptr)
                 : OpenCheckedToRead(path, &opened);
  const Connection connection(opened, &sqlite3_close);
  const auto failed = [&] {
    const std::string damage = TakeDamage();
    if (!damage.empty()) return absl::DataLossError(absl::StrCat("reading ", path, ": ", damage));
    return absl::FailedPreconditionError(
        absl::StrCat("reading ", path, ": ", sqlite3_errmsg(connection.get())));
  };
  if (code != SQLITE_OK) return failed();
  sqlite3_busy_timeout(connection.get(), kBusyMilliseconds);
  sqlite3_stmt* prepared = nullptr;
  code = sqlite3_prepare_v2(connection.get(),
                            "SELECT dtype, shape, name FROM tensors "
                            "WHERE sha256 = ? AND size = ? ORDER BY id",
                            -1, &prepared, nullptr);
  const Rows rows(prepared, &sqlite3_finalize);
  if (code != SQLITE_OK) return failed();
  const std::string_view sha256 = digest.sha256.view();
  sqlite3_bind_blob64(rows.get(), 1, sha256.data(), sha256.size(), SQLITE_STATIC);
  sqlite3_bind_int64(rows.get(), 2, digest.size);
  std::vector<StoredAtRest::Registration> registrations;
  while ((code = sqlite3_step(rows.get())) == SQLITE_ROW) {
    StoredAtRest::Registration found;
    QG_ASSIGN_OR_RETURN(found.type.dtype, ParseDType(Text(rows.get(), 0)));
    const std::string shape = Text(rows.get(), 1);
    for (const auto& dim : absl::StrSplit(shape, ',', absl::SkipEmpty())) {
      int64_t value = 0;
      if (!absl::SimpleAtoi(dim, &value)) return absl::DataLossError("a stored shape is no shape");
      found.type.shape.push_back(value);
    }
    found.name = Text(rows.get(), 2);
    registrations.push_back(std::move(found));
  }
  if (code != SQLITE_DONE) return failed();
  return registrations;
}

void RemoveTree(const std::string& path) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) fs::remove_all(entry.path(), error);
}

/// The blobs that a registered tensor names.
absl::StatusOr<std::set<std::string>> NamedBlobs(Database& database) {
  const std::lock_guard lock(database.mutex());
  QG_ASSIGN_OR_RETURN(Statement rows, database.Prepare("SELECT DISTINCT sha256 FROM tensors"));
  std::set<std::string> named;
  while (true) {
    QG_ASSIGN_OR_RETURN(const bool found, rows.Step());
    if (!found) return named;
    named.insert(rows.Text(0));
  }
}

void RemoveBlobs(const std::string& blobs_path,
                 absl::FunctionRef<bool(const std::string& sha256)> is_removed) {
  std::vector<std::string> removed;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(blobs_path, error)) {
    const auto name = ParseBlobName(entry.path().filename().string());
    if (name.ok() && is_removed(std::string(name->sha256.view()))) {
      removed.push_back(entry.path().string());
    }
  }
  for (const std::string& path : removed) RemoveFile(path);
}

/// An open data directory, its size before, and its database.
struct Store {
  static absl::StatusOr<Store> Open(const std::string& data_dir) {
    QG_ASSIGN_OR_RETURN(DataDir directory, DataDir::Open(data_dir));
    QG_RETURN_IF_ERROR(directory.CheckHistory());
    const int64_t bytes = UsageOf(data_dir).bytes;
    auto opened = Database::Open(directory.database_path());
    QG_RETURN_IF_ERROR(RefusedStart(directory.database_path(), opened.status()));
    return Store{std::move(directory), bytes, *std::move(opened)};
  }
  /// Frees the pages of removed rows, closes the database, whose log then goes, and returns by how
  /// many bytes the directory has shrunk.
  absl::StatusOr<int64_t> Shrink() {
    {
      const std::lock_guard lock(database->mutex());
      QG_RETURN_IF_ERROR(database->Execute("VACUUM"));
    }
    database = nullptr;
    return std::max<int64_t>(0, bytes - UsageOf(directory.path()).bytes);
  }

  DataDir directory;
  int64_t bytes = 0;
  std::unique_ptr<Database> database;
};

/// Removes registered tensors by `remove`, which returns their number, and then the blobs that no
/// other registered tensor has. A crash in between leaves blobs to CollectGarbage.
absl::StatusOr<Cleared> RemoveBy(const std::string& data_dir,
                                 absl::FunctionRef<absl::StatusOr<int64_t>(Database&)> remove) {
  if (!HasStore(data_dir)) return Cleared();
  QG_ASSIGN_OR_RETURN(Store store, Store::Open(data_dir));
  Database& database = *store.database;
  QG_ASSIGN_OR_RETURN(const std::set<std::string> before, NamedBlobs(database));
  Cleared cleared;
  {
    const std::lock_guard lock(database.mutex());
    Transaction transaction(database);
    QG_RETURN_IF_ERROR(transaction.Begin());
    QG_ASSIGN_OR_RETURN(cleared.tensors, remove(database));
    QG_RETURN_IF_ERROR(
        database.Run("DELETE FROM requests WHERE tensor_id NOT IN (SELECT id FROM tensors)"));
    QG_RETURN_IF_ERROR(transaction.Commit());
  }
  QG_RETURN_IF_ERROR(database.Flush());
  QG_ASSIGN_OR_RETURN(const std::set<std::string> after, NamedBlobs(database));
  RemoveBlobs(store.directory.blobs_path(), [&](const std::string& sha256) {
    return before.contains(sha256) && !after.contains(sha256);
  });
  QG_ASSIGN_OR_RETURN(cleared.bytes, store.Shrink());
  return cleared;
}

}  // namespace

bool HasStore(const std::string& data_dir) { return DataDir::Exists(data_dir); }

absl::StatusOr<StoredAtRest> FindAtRest(const std::string& data_dir, const Digest& digest) {
  StoredAtRest stored;
  stored.path = FindBlob(data_dir, digest);
  if (stored.path.empty()) return error::BlobNotFound(digest);
  QG_ASSIGN_OR_RETURN(stored.registrations, RegistrationsOf(data_dir + "/quantgate.db", digest));
  return stored;
}

DirectoryUsage UsageOf(const std::string& path) {
  DirectoryUsage usage;
  std::error_code error;
  auto entry = fs::recursive_directory_iterator(path, error);
  // Another process may remove files while they are listed.
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code gone;
    if (!entry->is_regular_file(gone)) continue;
    const uintmax_t size = entry->file_size(gone);
    if (gone) continue;
    usage.bytes += static_cast<int64_t>(size);
    ++usage.files;
  }
  return usage;
}

absl::StatusOr<Cleared> RemoveTensors(const std::string& data_dir,
                                      std::span<const Digest> digests) {
  const auto not_stored = [](const Digest& digest) {
    return absl::NotFoundError(absl::StrCat("no tensor ", digest.Text(), " is stored"));
  };
  if (!HasStore(data_dir) && !digests.empty()) return not_stored(digests[0]);
  return RemoveBy(data_dir, [&](Database& database) -> absl::StatusOr<int64_t> {
    int64_t removed = 0;
    for (const Digest& digest : digests) {
      QG_ASSIGN_OR_RETURN(Statement tensors,
                          database.Prepare("DELETE FROM tensors WHERE sha256 = ? AND size = ?"));
      QG_RETURN_IF_ERROR(tensors.BindBlob(digest.sha256.view()).Bind(digest.size).Run());
      if (database.rows_changed() == 0) return not_stored(digest);
      removed += database.rows_changed();
    }
    return removed;
  });
}

absl::StatusOr<Cleared> RemoveAllTensors(const std::string& data_dir) {
  return RemoveBy(data_dir, [](Database& database) -> absl::StatusOr<int64_t> {
    QG_RETURN_IF_ERROR(database.Run("DELETE FROM tensors"));
    return database.rows_changed();
  });
}

absl::StatusOr<Cleared> CollectGarbage(const std::string& data_dir) {
  if (!HasStore(data_dir)) return Cleared();
  QG_ASSIGN_OR_RETURN(Store store, Store::Open(data_dir));
  Database& database = *store.database;
  {
    const std::lock_guard lock(database.mutex());
    QG_RETURN_IF_ERROR(database.Run("DELETE FROM runs"));
  }
  QG_RETURN_IF_ERROR(database.Flush());
  for (const std::string& name : database.side_files().Names()) database.side_files().Remove(name);
  QG_ASSIGN_OR_RETURN(const std::set<std::string> named, NamedBlobs(database));
  RemoveBlobs(store.directory.blobs_path(),
              [&](const std::string& sha256) { return !named.contains(sha256); });
  RemoveTree(store.directory.partial_path());
  RemoveTree(store.directory.quarantine_path());
  Cleared cleared;
  QG_ASSIGN_OR_RETURN(cleared.bytes, store.Shrink());
  return cleared;
}

}  // namespace quantgate
