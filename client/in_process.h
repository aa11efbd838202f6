// A server inside the client's process, for a machine without one. Its store is a local directory
// that survives the process; one process at a time uses it, later ones wait for their turn.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/connection.h"

namespace quantgate {

class Server;

struct InProcessOptions {
  /// Empty: DefaultStoreDirectory().
  std::string store_directory;
  /// Worker threads of the CPU engine; 0: one per CPU.
  int threads = 0;
  /// ServerOptions::devices.
  std::string device = "cpu";
  /// Called once, before waiting for another process that uses the store.
  std::function<void(const std::string& directory)> on_wait;
};

/// $XDG_DATA_HOME/quantgate, or ~/.local/share/quantgate. FAILED_PRECONDITION when neither variable
/// is set.
absl::StatusOr<std::string> DefaultStoreDirectory();

/// A running server and the connection to it; the connection must go first.
class InProcessServer {
 public:
  /// FAILED_PRECONDITION naming the directory when it cannot be written; DEADLINE_EXCEEDED when
  /// another process kept it until connection_options.deadline.
  static absl::StatusOr<std::unique_ptr<InProcessServer>> Start(
      const InProcessOptions& options, const ConnectionOptions& connection_options);
  ~InProcessServer();

  Connection& connection() { return *connection_; }
  const std::string& store_directory() const { return store_directory_; }

 private:
  InProcessServer() = default;

  std::string store_directory_;
  int lock_descriptor_ = -1;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Connection> connection_;
};

}  // namespace quantgate
