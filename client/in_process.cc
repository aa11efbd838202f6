#include "client/in_process.h"

#include <fcntl.h>
#include <grpcpp/channel.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/upload.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/file_bytes.h"
#include "server/server.h"

namespace quantgate {
namespace {

/// The lock is polled, since a blocking flock has no deadline.
constexpr absl::Duration kLockPollInterval = absl::Milliseconds(20);

absl::Status PathError(const std::string& what, const std::string& path, int error) {
  return absl::FailedPreconditionError(
      absl::StrCat("store: ", what, " ", path, ": ", std::strerror(error)));
}

/// Names of ThrowAwayDirectory, and of the lock within, which is there once it is held. Nobody else
/// has both.
constexpr char kTemporaryPrefix[] = "quantgate-command-";
constexpr char kTemporaryLock[] = "/quantgate-command.lock";

/// Removes what processes left behind that were killed: directories whose lock nobody holds.
void RemoveAbandoned(const std::string& parent) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
    const std::string path = entry.path().string();
    if (!absl::StartsWith(entry.path().filename().string(), kTemporaryPrefix)) continue;
    struct stat status {};
    const bool is_own = ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                        status.st_uid == ::geteuid();
    if (!is_own) continue;
    const int lock = ::open((path + kTemporaryLock).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (lock < 0) continue;
    std::error_code ignored;
    if (::flock(lock, LOCK_EX | LOCK_NB) == 0) std::filesystem::remove_all(path, ignored);
    ::close(lock);
  }
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

absl::StatusOr<StoreLock> StoreLock::Take(const InProcessOptions& options, absl::Time deadline) {
  std::string directory = options.store_directory;
  if (directory.empty()) {
    QG_ASSIGN_OR_RETURN(directory, DefaultStoreDirectory());
  }
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return PathError("cannot create", directory, error.value());
  const std::string path = absl::StrCat(directory, "/client.lock");
  const int descriptor = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0) return PathError("cannot open", path, errno);
  StoreLock lock(directory, descriptor);
  bool has_told = false;
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return PathError("cannot lock", path, errno);
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("store: another quantgate process uses ", path));
    }
    if (options.is_cancelled && options.is_cancelled()) {
      return absl::CancelledError(
          absl::StrCat("store: interrupted while another quantgate uses ", path));
    }
    if (!has_told && options.on_wait) options.on_wait(path);
    has_told = true;
    absl::SleepFor(kLockPollInterval);
  }
  return lock;
}

StoreLock::StoreLock(StoreLock&& other) noexcept
    : directory_(std::move(other.directory_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

StoreLock::~StoreLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string DataDirOf(const std::string& store_directory) {
  return absl::StrCat(store_directory, "/store");
}

absl::StatusOr<std::unique_ptr<ThrowAwayDirectory>> ThrowAwayDirectory::Create() {
  std::error_code error;
  const std::string parent = std::filesystem::temp_directory_path(error).string();
  if (error) return PathError("no directory for temporary files:", parent, error.value());
  RemoveAbandoned(parent);
  std::string path = absl::StrCat(parent, "/", kTemporaryPrefix, "XXXXXX");
  if (::mkdtemp(path.data()) == nullptr) return PathError("cannot create", path, errno);
  // Under its name only once it is locked: others remove what is not.
  const std::string lock = path + kTemporaryLock, unlocked = lock + ".new";
  const int descriptor = ::open(unlocked.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0 || ::flock(descriptor, LOCK_EX | LOCK_NB) != 0 ||
      ::rename(unlocked.c_str(), lock.c_str()) != 0) {
    const absl::Status failed = PathError("cannot lock", lock, errno);
    if (descriptor >= 0) ::close(descriptor);
    std::filesystem::remove_all(path, error);
    return failed;
  }
  return std::unique_ptr<ThrowAwayDirectory>(new ThrowAwayDirectory(path, descriptor));
}

ThrowAwayDirectory::~ThrowAwayDirectory() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  ::close(lock_descriptor_);
}

absl::StatusOr<std::unique_ptr<InProcessServer>> InProcessServer::Start(
    const InProcessOptions& options, const ConnectionOptions& connection_options) {
  auto result = std::unique_ptr<InProcessServer>(new InProcessServer());
  ServerOptions server_options;
  if (options.keeps) {
    QG_ASSIGN_OR_RETURN(StoreLock lock, StoreLock::Take(options, connection_options.deadline));
    server_options.data_dir = DataDirOf(lock.directory());
    result->lock_.emplace(std::move(lock));
  } else {
    QG_ASSIGN_OR_RETURN(result->temporary_, ThrowAwayDirectory::Create());
    server_options.data_dir = DataDirOf(result->temporary_->path());
    server_options.fsync = false;
  }
  server_options.devices = {options.device};
  if (options.threads > 0) server_options.engine.threads = options.threads;
  QG_ASSIGN_OR_RETURN(result->server_, Server::Start(server_options));
  result->connection_ = std::make_unique<Connection>(result->server_->InProcessChannel(),
                                                     "in process", connection_options);
  const absl::StatusOr<std::string> kept =
      options.store_directory.empty() ? DefaultStoreDirectory() : options.store_directory;
  if (!options.keeps && kept.ok()) {
    result->connection_->SetSupplier(
        [server = result.get(), data_dir = DataDirOf(*kept)](const v1::Digest& digest) {
          return server->SupplyBlob(data_dir, digest);
        });
  }
  return result;
}

/// A blob of the kept store, and what is registered of it.
absl::Status InProcessServer::SupplyBlob(const std::string& data_dir, const v1::Digest& proto) {
  QG_ASSIGN_OR_RETURN(const Sha256 sha256, Sha256::FromHex(absl::BytesToHexString(proto.sha256())));
  QG_ASSIGN_OR_RETURN(const StoredAtRest stored, FindAtRest(data_dir, {sha256, proto.size()}));
  QG_ASSIGN_OR_RETURN(auto buffer, MapFile(stored.path));
  QG_ASSIGN_OR_RETURN(const Tensor bytes, Tensor::View(DType::kU8, {proto.size()}, buffer));
  QG_RETURN_IF_ERROR(UploadBlob(*connection_, SharedBytesOf(bytes), proto).status());
  for (const auto& [type, name] : stored.registrations) {
    v1::PutTensorRequest request;
    v1::StoredTensor& tensor = *request.mutable_tensor()->mutable_stored();
    *tensor.mutable_digest() = proto;
    tensor.mutable_type()->set_dtype(std::string(DTypeName(type.dtype)));
    tensor.mutable_type()->mutable_shape()->Add(type.shape.begin(), type.shape.end());
    request.set_name(name);
    request.set_request_id(NewRequestId());
    QG_RETURN_IF_ERROR(connection_->PutTensor(request).status());
  }
  return absl::OkStatus();
}

InProcessServer::~InProcessServer() {
  connection_.reset();
  // A rank that is stuck uses the server until the process ends.
  if (server_ != nullptr && !server_->Shutdown(absl::ZeroDuration())) (void)server_.release();
  server_.reset();
}

}  // namespace quantgate
