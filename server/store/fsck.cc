#include "server/store/fsck.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/store/blob_store.h"
#include "server/store/checked_files.h"
#include "server/store/data_dir.h"
#include "server/store/database.h"
#include "server/store/log_mark.h"
#include "server/store/rewrite.h"
#include "server/store/run_store.h"
#include "server/store/tensor_store.h"

namespace quantgate {
namespace {

constexpr int kRowsAtATime = 100;

class StoreCheck {
 public:
  StoreCheck(const DataDir& data_dir, bool repairs,
             absl::FunctionRef<void(const std::string&)> tell)
      : data_dir_(data_dir), repairs_(repairs), tell_(tell) {}

  absl::Status Check() {
    QG_RETURN_IF_ERROR(CheckDatabase());
    if (database_ != nullptr) {
      QG_RETURN_IF_ERROR(CheckRuns());
      QG_RETURN_IF_ERROR(CheckStrayFiles());
      QG_RETURN_IF_ERROR(CheckTensors());
    }
    return CheckBlobs();
  }
  const FsckResult& result() const { return result_; }

 private:
  /// Reports a problem. Returns whether it is to be mended, as `remedy` says.
  bool Problem(const std::string& what, const std::string& remedy) {
    ++result_.problems;
    const bool mends = repairs_ && !remedy.empty();
    tell_(mends ? absl::StrCat(what, "; ", remedy) : what);
    if (mends) ++result_.mended;
    return mends;
  }

  absl::Status CheckDatabase() {
    const absl::Status history = data_dir_.CheckHistory();
    if (!history.ok()) {
      Problem(std::string(history.message()), "");
      return absl::OkStatus();
    }
    const std::string path = data_dir_.database_path();
    QG_ASSIGN_OR_RETURN(const DatabaseKind kind, KindOfDatabase(path));
    if (kind == DatabaseKind::kAbsent || kind == DatabaseKind::kEmpty) return absl::OkStatus();
    absl::Status opened = Open();
    // Opening moves the log into the file; only then is each page of the file the latest one.
    QG_ASSIGN_OR_RETURN(const auto pages, DamagedPages(path));
    QG_ASSIGN_OR_RETURN(const DatabaseKind now, KindOfDatabase(path));
    if (now == DatabaseKind::kChecked && absl::IsFailedPrecondition(opened)) {
      // A database of another version, which alone knows its tables.
      Problem(std::string(opened.message()), "");
      return absl::OkStatus();
    }
    if (now != DatabaseKind::kChecked && !MostPagesFit(path, pages)) {
      const bool has_head = now == DatabaseKind::kUnchecked;
      Problem(absl::StrCat(has_head ? opened.message()
                                    : "quantgate.db: its head is damaged, or it is no database",
                           "; it cannot be repaired: restore it, or move it away and start once "
                           "with --begin-anew, without its runs and tensors"),
              "");
      return absl::OkStatus();
    }
    bool is_whole = opened.ok() && pages.empty();
    QG_ASSIGN_OR_RETURN(const int64_t wanted, BytesByHead(path));
    const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
    const bool is_cut = !opened.ok() && size < wanted;
    if (is_cut) {
      Problem(absl::StrCat("quantgate.db: the file ends at byte ", size, " of ", wanted),
              "what is left is kept");
    }
    for (const int64_t page : pages) {
      Problem(absl::StrCat("quantgate.db: page ", page, " is damaged"),
              page == 1 ? "no row is on it, and it is made anew" : "what is left is kept");
    }
    if (!opened.ok()) {
      // Where pages are damaged, opening may have failed because of them.
      const absl::Status why = pages.empty() && !is_cut ? opened : CheckLog(path);
      if (!why.ok()) Problem(std::string(why.message()), "what is left is kept");
    } else if (is_whole) {
      QG_ASSIGN_OR_RETURN(is_whole, CheckIndexes());
    }
    if (is_whole) return absl::OkStatus();
    database_ = nullptr;
    if (!repairs_) return absl::OkStatus();
    QG_RETURN_IF_ERROR(SetAnotherLogAside(path));
    QG_RETURN_IF_ERROR(SalvageDatabase(path, data_dir_.quarantine_path() + "/quantgate.db",
                                       !pages.empty() && pages[0] == 1));
    return Open();
  }

  static absl::Status CheckLog(const std::string& path) {
    QG_ASSIGN_OR_RETURN(const LogMark mark, LogMark::Open(path + "-mark"));
    return mark.Check(path + "-wal");
  }

  /// Sets aside a log of another generation, whose pages must not mix with those of the file, under
  /// a name by which SQLite does not take it for the log of a database that was set aside too.
  absl::Status SetAnotherLogAside(const std::string& path) const {
    const auto mark = LogMark::Open(path + "-mark");
    if (!mark.ok()) return absl::OkStatus();
    const auto is_another = mark->IsOfAnother(path + "-wal");
    if (!is_another.ok() || !*is_another) return absl::OkStatus();
    RemoveFile(path + "-shm");
    return RenameFile(path + "-wal", data_dir_.quarantine_path() + "/quantgate.db-another-wal");
  }

  /// Whether most pages have their checksums. By these a database with checksums is recognized when
  /// its head is damaged: in one of version 0.1.0, or in another file, no page has one.
  static bool MostPagesFit(const std::string& path, const std::vector<int64_t>& damaged) {
    return 2 * damaged.size() < std::filesystem::file_size(path) / kDatabasePageBytes;
  }

  absl::Status Open() {
    QG_ASSIGN_OR_RETURN(database_, Database::Open(data_dir_.database_path()));
    return absl::OkStatus();
  }

  absl::StatusOr<bool> CheckIndexes() {
    const std::lock_guard lock(database_->mutex());
    QG_ASSIGN_OR_RETURN(Statement rows, database_->Prepare("PRAGMA integrity_check"));
    bool is_whole = true;
    while (true) {
      QG_ASSIGN_OR_RETURN(const bool found, rows.Step());
      if (!found) return is_whole;
      if (rows.Text(0) == "ok") continue;
      is_whole = false;
      Problem(absl::StrCat("quantgate.db: ", rows.Text(0)), "what is left is kept");
    }
  }

  absl::Status CheckRuns() {
    RunStore runs(*database_);
    for (int64_t before = 0;;) {
      QG_ASSIGN_OR_RETURN(const RunPage page, runs.List(before, kRowsAtATime));
      for (const RunRecord& run : page.records) QG_RETURN_IF_ERROR(CheckRun(runs, run));
      before = page.next_before_id;
      if (before == 0) return absl::OkStatus();
    }
  }

  absl::Status CheckRun(RunStore& runs, const RunRecord& run) {
    ++result_.runs;
    absl::Status damage;
    for (int64_t sequence = 1; sequence <= run.last_sequence; ++sequence, ++result_.events) {
      const absl::Status read = runs.ReadEvent(run.run_id, sequence).status();
      if (!read.ok() && !absl::IsDataLoss(read)) return read;
      damage.Update(read);
    }
    if (damage.ok() || !Problem(std::string(damage.message()), "the run is removed")) {
      return absl::OkStatus();
    }
    (void)RenameFile(data_dir_.side_files_path() + "/" + run.run_id,
                     data_dir_.quarantine_path() + "/" + run.run_id);
    return runs.Remove(run.run_id);
  }

  /// Events of runs that the database does not have, also of those that were on its lost pages.
  absl::Status CheckStrayFiles() {
    RunStore runs(*database_);
    QG_ASSIGN_OR_RETURN(const std::vector<std::string> strays, runs.StrayFiles());
    for (const std::string& name : strays) {
      if (!Problem(absl::StrCat("events of ", name, ": the database has no such run"),
                   "they are set aside")) {
        continue;
      }
      QG_RETURN_IF_ERROR(database_->side_files().SetAside(name, data_dir_.quarantine_path()));
    }
    return absl::OkStatus();
  }

  absl::Status CheckTensors() {
    TensorStore tensors(*database_);
    for (int64_t before = 0;;) {
      QG_ASSIGN_OR_RETURN(const TensorPage page, tensors.List(before, kRowsAtATime));
      result_.tensors += static_cast<int64_t>(page.records.size());
      before = page.next_before_id;
      if (before == 0) return absl::OkStatus();
    }
  }

  absl::Status CheckBlobs() {
    std::error_code code;
    const std::filesystem::recursive_directory_iterator files(data_dir_.blobs_path(), code);
    if (code) return error::FromErrno(code.value(), "listing the blob store");
    for (const auto& entry : files) {
      if (entry.is_regular_file(code)) QG_RETURN_IF_ERROR(CheckBlob(entry.path()));
    }
    return absl::OkStatus();
  }

  absl::Status CheckBlob(const std::filesystem::path& path) {
    const auto name = ParseBlobName(path.filename().string());
    if (!name.ok()) return absl::OkStatus();  // Not a file of the store.
    const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
    ++result_.blobs;
    result_.blob_bytes += size;
    std::string damage;
    if (name->size.has_value() && size != *name->size) {
      damage = absl::StrCat("has ", size, " of ", *name->size, " bytes");
    } else {
      QG_ASSIGN_OR_RETURN(const Sha256 actual, HashOfFile(path.string()));
      if (actual != name->sha256) damage = absl::StrCat("has SHA-256 ", actual.Hex());
    }
    if (damage.empty()) {
      if (!repairs_ || name->size.has_value()) return absl::OkStatus();
      return RenameFile(path.string(), absl::StrCat(path.string(), ".", size));
    }
    if (!Problem(absl::StrCat("blob ", name->sha256.Hex(), ": its file ", damage),
                 "it is set aside, upload it again")) {
      return absl::OkStatus();
    }
    return RenameFile(path.string(), data_dir_.quarantine_path() + "/" + name->sha256.Hex());
  }

  const DataDir& data_dir_;
  const bool repairs_;
  absl::FunctionRef<void(const std::string&)> tell_;
  std::unique_ptr<Database> database_;
  FsckResult result_;
};

}  // namespace

absl::StatusOr<FsckResult> CheckStore(const std::string& data_dir, bool repairs,
                                      absl::FunctionRef<void(const std::string& line)> tell) {
  // DataDir::Open would create it.
  if (!DataDir::Exists(data_dir)) {
    return absl::FailedPreconditionError(
        absl::StrCat("data directory ", data_dir, ": no server has used it"));
  }
  QG_ASSIGN_OR_RETURN(const DataDir opened, DataDir::Open(data_dir));
  StoreCheck check(opened, repairs, tell);
  QG_RETURN_IF_ERROR(check.Check());
  return check.result();
}

}  // namespace quantgate
