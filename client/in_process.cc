#include "client/in_process.h"

#include <fcntl.h>
#include <grpcpp/channel.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/server.h"

namespace quantgate {
namespace {

/// The lock is polled, since a blocking flock has no deadline.
constexpr absl::Duration kLockPollInterval = absl::Milliseconds(20);

absl::Status PathError(const std::string& what, const std::string& path, int error) {
  return absl::FailedPreconditionError(
      absl::StrCat("store: ", what, " ", path, ": ", std::strerror(error)));
}

/// An open descriptor that holds the exclusive lock of `path`.
absl::StatusOr<int> LockFile(const std::string& path, const InProcessOptions& options,
                             absl::Time deadline) {
  const int descriptor = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0) return PathError("cannot open", path, errno);
  bool has_told = false;
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      const int error = errno;
      ::close(descriptor);
      return PathError("cannot lock", path, error);
    }
    if (absl::Now() >= deadline) {
      ::close(descriptor);
      return absl::DeadlineExceededError(
          absl::StrCat("store: another quantgate process uses ", path));
    }
    if (!has_told && options.on_wait) options.on_wait(path);
    has_told = true;
    absl::SleepFor(kLockPollInterval);
  }
  return descriptor;
}

}  // namespace

absl::StatusOr<std::string> DefaultStoreDirectory() {
  const char* data_home = std::getenv("XDG_DATA_HOME");
  if (data_home != nullptr && data_home[0] == '/') return absl::StrCat(data_home, "/quantgate");
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return absl::StrCat(home, "/.local/share/quantgate");
  return absl::FailedPreconditionError(
      "store: neither XDG_DATA_HOME nor HOME names a directory for uploaded tensors");
}

absl::StatusOr<std::unique_ptr<InProcessServer>> InProcessServer::Start(
    const InProcessOptions& options, const ConnectionOptions& connection_options) {
  auto result = std::unique_ptr<InProcessServer>(new InProcessServer());
  result->store_directory_ = options.store_directory;
  if (result->store_directory_.empty()) {
    QG_ASSIGN_OR_RETURN(result->store_directory_, DefaultStoreDirectory());
  }
  const std::string& directory = result->store_directory_;
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return PathError("cannot create", directory, error.value());
  QG_ASSIGN_OR_RETURN(result->lock_descriptor_, LockFile(absl::StrCat(directory, "/client.lock"),
                                                         options, connection_options.deadline));

  ServerOptions server_options;
  server_options.data_dir = absl::StrCat(directory, "/store");
  server_options.devices = {options.device};
  if (options.threads > 0) server_options.engine.threads = options.threads;
  QG_ASSIGN_OR_RETURN(result->server_, Server::Start(server_options));
  result->connection_ = std::make_unique<Connection>(result->server_->InProcessChannel(),
                                                     "in process", connection_options);
  return result;
}

InProcessServer::~InProcessServer() {
  connection_.reset();
  // A rank that is stuck uses the server until the process ends.
  if (server_ != nullptr && !server_->Shutdown(absl::ZeroDuration())) (void)server_.release();
  server_.reset();
  if (lock_descriptor_ >= 0) ::close(lock_descriptor_);
}

}  // namespace quantgate
