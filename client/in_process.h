// Connections of commands that compute in their own process. Most commands keep their tensors in
// memory only, wait for nobody, and look up in the local store what a request names by its digest.
// Commands that keep tensors use the local store, a directory that outlives the process; one
// process at a time writes there, and later ones wait for their turn.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/local_connection.h"
#include "server/store/local_store.h"

namespace quantgate {

struct InProcessOptions {
  /// Empty: DefaultStoreDirectory().
  std::string store_directory;
  /// Whether tensors go to the local store; false: they stay in memory.
  bool keeps = true;
  LocalOptions local;  ///< Except hardware_checks_path, which is in the local store.
  /// Called once, before waiting for another process that uses the store.
  std::function<void(const std::string& directory)> on_wait;
  /// Called during that wait: true ends it with CANCELLED.
  std::function<bool()> is_cancelled;
};

/// $XDG_DATA_HOME/quantgate, or ~/.local/share/quantgate. FAILED_PRECONDITION when neither variable
/// is set.
absl::StatusOr<std::string> DefaultStoreDirectory();

/// The lock of the local store.
class StoreLock {
 public:
  /// FAILED_PRECONDITION naming the directory when it cannot be written; DEADLINE_EXCEEDED when
  /// another process had the lock until `deadline`, CANCELLED when options.is_cancelled came first.
  static absl::StatusOr<StoreLock> Take(const InProcessOptions& options, absl::Time deadline);
  StoreLock(StoreLock&& other) noexcept;
  StoreLock& operator=(StoreLock&&) = delete;
  ~StoreLock();

  /// options.store_directory, or the default one.
  const std::string& directory() const { return directory_; }

 private:
  StoreLock(std::string directory, int descriptor)
      : directory_(std::move(directory)), descriptor_(descriptor) {}
  std::string directory_;
  int descriptor_;
};

/// The data directory of the local store, laid out as a server's.
std::string DataDirOf(const std::string& store_directory);

/// Errors as LocalConnection::Open, and as StoreLock::Take and a server's start
/// (FAILED_PRECONDITION) where options.keeps.
absl::StatusOr<std::unique_ptr<Connection>> ConnectInProcess(
    const InProcessOptions& options, const ConnectionOptions& connection_options);

}  // namespace quantgate
