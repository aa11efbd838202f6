// One invocation of `quantgate`: the options that every command has, the connection, and the output
// (data on stdout; messages and progress on stderr).
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/channel_connection.h"
#include "client/cli/progress.h"
#include "client/connection.h"
#include "client/in_process.h"

namespace CLI {
class App;
}

namespace quantgate {

struct GlobalOptions {
  std::string server;            ///< --server or $QUANTGATE_SERVER; empty: in process.
  std::string device = "cpu";    ///< cpu | cuda.
  std::string format = "table";  ///< table | json | jsonl.
  std::string timeout;           ///< "30s", "5m", or seconds; empty: none.
  int threads = 0;               ///< Threads of the in-process engine; 0: one per CPU.
  bool quiet = false;            ///< Neither messages nor progress.
};

class Invocation {
 public:
  Invocation(GlobalOptions options, std::vector<std::string> arguments, std::ostream& out,
             std::ostream& err);
  ~Invocation();

  const GlobalOptions& options() const { return options_; }
  absl::Time start() const { return start_; }
  /// The command line, quoted for a shell.
  std::string CommandLine() const;
  /// stdout, for the results of the command. Clears the progress bar first.
  std::ostream& out() {
    progress_.Clear();
    return out_;
  }
  /// Writes a document to stdout: schema_version, kind and the members of `body`; for jsonl on one
  /// line.
  void PrintJson(const std::string& kind, const nlohmann::ordered_json& body);
  /// Writes a message to stderr, unless --quiet.
  void Say(const std::string& text);
  ProgressBar& progress() { return progress_; }
  bool uses_colour() const { return uses_colour_; }
  bool is_json() const { return options_.format == "json"; }
  bool is_jsonl() const { return options_.format == "jsonl"; }
  bool is_table() const { return options_.format == "table"; }

  /// The server of this invocation, connected on first use; without --server, this process, which
  /// keeps tensors in memory only (Connect) or in the local store (ConnectToKeep).
  absl::StatusOr<Connection*> Connect() { return Connect(/*keeps=*/false); }
  absl::StatusOr<Connection*> ConnectToKeep() { return Connect(/*keeps=*/true); }
  /// The server that --server names.
  absl::StatusOr<std::unique_ptr<ChannelConnection>> Dial() const;
  /// Takes the lock of the local store, for commands that work on it directly.
  absl::StatusOr<StoreLock> LockStore();
  /// Computes on `device` in this process, unless --device named another one than the CPU.
  void PreferDevice(const std::string& device) {
    if (options_.device == "cpu") options_.device = device;
  }
  /// Of a command that has forms of its own; empty: what the options for all commands say.
  void PreferFormat(const std::string& format) {
    if (!format.empty()) options_.format = format;
  }

 private:
  absl::StatusOr<Connection*> Connect(bool keeps);
  InProcessOptions StoreOptions();
  absl::StatusOr<ConnectionOptions> MakeConnectionOptions() const;
  absl::Status CheckDevice(Connection& connection) const;

  GlobalOptions options_;
  const std::vector<std::string> arguments_;
  const absl::Time start_;
  std::ostream& out_;
  std::ostream& err_;
  const bool uses_colour_;
  ProgressBar progress_;
  std::unique_ptr<Connection> connection_;
};

/// Runs a command whose options are parsed; returns an exit code or an error.
using Command = std::function<absl::StatusOr<int>(Invocation&)>;

/// "30s", "1m30s", "500ms", or a number of seconds. INVALID_ARGUMENT for anything else or below
/// zero.
absl::StatusOr<absl::Duration> ParseTimeout(const std::string& text);

/// An argument quoted, where it has to be, for pasting into a shell.
std::string ShellQuoted(const std::string& argument);

}  // namespace quantgate
