#include "server/store/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quantgate {
namespace {

absl::Status Unusable(const std::string& path, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("data directory ", path, ": ", why));
}

}  // namespace

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

}  // namespace quantgate
