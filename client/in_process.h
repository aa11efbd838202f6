// A server inside the client's process, for a machine without one, and the store that such servers
// keep. Most commands keep nothing: their server has a store of its own, which goes with it, waits
// for nobody and finds in the kept one what a request names by its digest. What keeps tensors has
// the kept store, a local directory that survives the process; one process at a time uses it, later
// ones wait for their turn.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "server/store/local_store.h"

namespace quantgate {

class Server;

struct InProcessOptions {
  /// Empty: DefaultStoreDirectory().
  std::string store_directory;
  /// False: a store that goes with the server.
  bool keeps = true;
  /// Worker threads of the CPU engine; 0: one per CPU.
  int threads = 0;
  /// ServerOptions::devices.
  std::string device = "cpu";
  /// Called once, before waiting for another process that uses the store.
  std::function<void(const std::string& directory)> on_wait;
  /// Asked while that waits: whether it is to end, with CANCELLED.
  std::function<bool()> is_cancelled;
};

/// $XDG_DATA_HOME/quantgate, or ~/.local/share/quantgate. FAILED_PRECONDITION when neither variable
/// is set.
absl::StatusOr<std::string> DefaultStoreDirectory();

/// The lock of the kept store.
class StoreLock {
 public:
  /// FAILED_PRECONDITION naming the directory when it cannot be written; DEADLINE_EXCEEDED when
  /// another process kept it until `deadline`, CANCELLED when options.is_cancelled came first.
  static absl::StatusOr<StoreLock> Take(const InProcessOptions& options, absl::Time deadline);
  StoreLock(StoreLock&& other) noexcept;
  StoreLock& operator=(StoreLock&&) = delete;
  ~StoreLock();

  /// Of options.store_directory or the default one.
  const std::string& directory() const { return directory_; }

 private:
  StoreLock(std::string directory, int descriptor)
      : directory_(std::move(directory)), descriptor_(descriptor) {}
  std::string directory_;
  int descriptor_;
};

/// Where below the kept store's directory its server has its data.
std::string DataDirOf(const std::string& store_directory);

/// A directory for temporary files that goes with this object. One that a process left which was
/// killed goes when the next one begins.
class ThrowAwayDirectory {
 public:
  /// In $TMPDIR, or /tmp.
  static absl::StatusOr<std::unique_ptr<ThrowAwayDirectory>> Create();
  ~ThrowAwayDirectory();
  const std::string& path() const { return path_; }

 private:
  ThrowAwayDirectory(std::string path, int lock_descriptor)
      : path_(std::move(path)), lock_descriptor_(lock_descriptor) {}
  const std::string path_;
  const int lock_descriptor_;
};

/// A running server and the connection to it; the connection must go first.
class InProcessServer {
 public:
  /// As StoreLock::Take, where options.keeps.
  static absl::StatusOr<std::unique_ptr<InProcessServer>> Start(
      const InProcessOptions& options, const ConnectionOptions& connection_options);
  ~InProcessServer();

  Connection& connection() { return *connection_; }

 private:
  InProcessServer() = default;
  absl::Status SupplyBlob(const std::string& data_dir, const v1::Digest& digest);

  std::optional<StoreLock> lock_;
  std::unique_ptr<ThrowAwayDirectory> temporary_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Connection> connection_;
};

}  // namespace quantgate
