#include "client/in_process.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/blob_transfer.h"
#include "client/memory_connection.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/files/file_bytes.h"
#include "server/runs/memory_store.h"
#include "server/server.h"
#include "server/store/blob_store.h"
#include "server/store/data_dir.h"
#include "server/store/database.h"
#include "server/store/local_store.h"
#include "server/store/tensor_store.h"

namespace quantgate {
namespace {

/// The lock is polled, since a blocking flock has no deadline.
constexpr absl::Duration kLockPollInterval = absl::Milliseconds(20);

absl::Status PathError(const std::string& what, const std::string& path, int error) {
  return absl::FailedPreconditionError(
      absl::StrCat("store: ", what, " ", path, ": ", std::strerror(error)));
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

namespace {

/// A blob of the local store, with its registrations.
absl::StatusOr<MemoryStore::Found> FindKept(const std::string& data_dir, const Digest& digest) {
  QG_ASSIGN_OR_RETURN(const StoredAtRest stored, FindAtRest(data_dir, digest));
  MemoryStore::Found found;
  QG_ASSIGN_OR_RETURN(found.buffer, MapFile(stored.path));
  for (const auto& [type, name] : stored.registrations) {
    found.registrations.emplace_back(type, name);
  }
  return found;
}

/// The local store, opened as a server opens its data directory.
class KeptStore : public ConnectionStore {
 public:
  static absl::StatusOr<std::unique_ptr<KeptStore>> Open(StoreLock lock) {
    const std::string path = DataDirOf(lock.directory());
    QG_ASSIGN_OR_RETURN(DataDir data_dir, DataDir::Open(path));
    QG_RETURN_IF_ERROR(data_dir.CheckHistory());
    std::unique_ptr<KeptStore> store(new KeptStore(std::move(lock), std::move(data_dir)));
    QG_RETURN_IF_ERROR(store->OpenStores());
    return store;
  }
  Blobs& blobs() override { return *blobs_; }
  Tensors& tensors() override { return *tensors_; }
  std::string hardware_checks_path() const { return data_dir_.hardware_checks_path(); }
  absl::StatusOr<bool> Add(const SharedBytes& bytes, const Digest& digest) override {
    if (blobs_->Contains(digest)) return true;
    QG_RETURN_IF_ERROR(blobs_->Put(bytes.bytes).status());
    return false;
  }

 private:
  KeptStore(StoreLock lock, DataDir data_dir)
      : lock_(std::move(lock)), data_dir_(std::move(data_dir)) {}
  absl::Status OpenStores() {
    const ServerOptions limits;
    BlobStoreOptions options;
    options.blobs_path = data_dir_.blobs_path();
    options.partial_path = data_dir_.partial_path();
    options.quarantine_path = data_dir_.quarantine_path();
    options.blob_bytes_max = limits.blob_bytes_max;
    options.store_bytes_max = limits.store_bytes_max;
    QG_ASSIGN_OR_RETURN(blobs_, BlobStore::Open(std::move(options)));
    QG_ASSIGN_OR_RETURN(database_, Database::Open(data_dir_.database_path()));
    tensors_ = std::make_unique<TensorStore>(*database_);
    return absl::OkStatus();
  }

  const StoreLock lock_;
  const DataDir data_dir_;
  std::unique_ptr<BlobStore> blobs_;
  std::unique_ptr<Database> database_;
  std::unique_ptr<TensorStore> tensors_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> ConnectInProcess(
    const InProcessOptions& options, const ConnectionOptions& connection_options) {
  LocalOptions local = options.local;
  if (options.keeps) {
    QG_ASSIGN_OR_RETURN(StoreLock lock, StoreLock::Take(options, connection_options.deadline));
    QG_ASSIGN_OR_RETURN(std::unique_ptr<KeptStore> store, KeptStore::Open(std::move(lock)));
    local.hardware_checks_path = store->hardware_checks_path();
    return LocalConnection::Open(std::move(store), local, connection_options);
  }
  MemoryStore::Elsewhere kept;
  const absl::StatusOr<std::string> directory =
      options.store_directory.empty() ? DefaultStoreDirectory() : options.store_directory;
  if (directory.ok()) {
    kept = [data_dir = DataDirOf(*directory)](const Digest& digest) {
      return FindKept(data_dir, digest);
    };
  }
  return ConnectInMemory(std::move(kept), local, connection_options);
}

}  // namespace quantgate
