// Commands without a server, and the store that they keep. Most keep nothing: their tensors are in
// memory, they wait for nobody and find in the kept store what a request names by its digest. What
// keeps tensors has the kept store, a local directory that survives the process; one process at a
// time uses it, later ones wait for their turn.
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
  /// False: in memory.
  bool keeps = true;
  LocalOptions local;  ///< But for where the hardware check is remembered: in the kept store.
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

/// Where below the kept store's directory its data is, as a server's.
std::string DataDirOf(const std::string& store_directory);

/// Errors as LocalConnection::Open, and as StoreLock::Take and a server's start
/// (FAILED_PRECONDITION) where options.keeps.
absl::StatusOr<std::unique_ptr<Connection>> ConnectInProcess(
    const InProcessOptions& options, const ConnectionOptions& connection_options);

}  // namespace quantgate
