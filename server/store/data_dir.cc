#include "server/store/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/store/checked_files.h"

namespace quantgate {
namespace {

absl::Status Unusable(const std::string& path, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("data directory ", path, ": ", why));
}

/// Whether a file lies anywhere below a directory.
bool HasFiles(const std::string& directory) {
  std::error_code ended;
  std::filesystem::recursive_directory_iterator entry(directory, ended), end;
  for (; !ended && entry != end; entry.increment(ended)) {
    if (entry->is_regular_file(ended)) return true;
  }
  return false;
}

}  // namespace

bool DataDir::Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path + "/LOCK", error);
}

absl::StatusOr<DataDir> DataDir::Open(const std::string& path) {
  if (path.empty()) return absl::FailedPreconditionError("data directory: no path given");
  for (const char* name : {"/cas", "/partial", "/quarantine"}) {
    const absl::Status made = MakeDirectories(path + name);
    if (!made.ok()) return Unusable(path, std::string(made.message()));
  }
  const int descriptor = ::open((path + "/LOCK").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0) return Unusable(path, std::strerror(errno));
  File lock(descriptor);
  // The kernel drops the lock with the process, however it ends.
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    return Unusable(path, errno == EWOULDBLOCK ? "another server uses it" : std::strerror(errno));
  }
  return DataDir(path, std::move(lock));
}

absl::Status DataDir::CheckHistory() const {
  QG_ASSIGN_OR_RETURN(const DatabaseKind kind, KindOfDatabase(database_path()));
  if (kind != DatabaseKind::kAbsent && kind != DatabaseKind::kEmpty) return absl::OkStatus();
  const bool has_blobs = HasFiles(blobs_path());
  if (!has_blobs && !HasFiles(side_files_path())) return absl::OkStatus();
  return Unusable(
      path_, absl::StrCat("quantgate.db is ", kind == DatabaseKind::kEmpty ? "empty" : "gone",
                          ", but there are ", has_blobs ? "blobs" : "events of runs",
                          "; restore it, or start once with --begin-anew, without the runs and "
                          "tensors that it had"));
}

absl::Status DataDir::BeginAnew() const {
  QG_ASSIGN_OR_RETURN(const DatabaseKind kind, KindOfDatabase(database_path()));
  if (kind != DatabaseKind::kAbsent && kind != DatabaseKind::kEmpty) {
    return Unusable(path_,
                    "--begin-anew is for a quantgate.db that is gone or empty, and this one "
                    "is not; move it away first");
  }
  for (const char* rest : {"-wal", "-shm", "-mark"}) RemoveFile(database_path() + rest);
  return absl::OkStatus();
}

}  // namespace quantgate
