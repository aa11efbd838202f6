// Listener: the sockets that clients connect to, and the thread that accepts connections and hands
// them on. gRPC's own listener stops for ever at the first accept that finds no free descriptor;
// this one refuses connections beyond a bound below the limit, resumes once descriptors are free
// again, and says whether it accepts. Thread-safe except for Start and Stop.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quantgate {

struct ListenerUsage {
  int64_t connections = 0;
  int64_t connections_max = 0;
  // Totals since the server's start.
  int64_t accepted = 0;
  int64_t refused = 0;   ///< Closed at once, being beyond connections_max.
  int64_t failures = 0;  ///< Attempts to accept for which descriptors or memory were lacking.
};

class Listener {
 public:
  /// Binds every address (CheckListenAddress), with the longest backlog that the kernel allows.
  /// A name stands for all its addresses, "[::]" for IPv4 too; the socket file of an earlier
  /// process is replaced. UNAVAILABLE naming the address that cannot be bound.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::vector<std::string>& addresses);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// The ports that are bound, in the order of the addresses; 0 for Unix sockets.
  const std::vector<int>& ports() const { return ports_; }

  /// Accepts from now on. `take` owns the descriptor and closes it when the connection ends;
  /// `log` gets a line when connections begin to be refused, and when they no longer are. Both are
  /// called by the listener's thread.
  void Start(int64_t connections_max, std::function<void(int descriptor)> take,
             std::function<void(const std::string& line)> log);
  /// Stops accepting: `take` is not called any more, and the addresses are free for others.
  /// Idempotent.
  void Stop();

  /// Whether the next connection would be taken.
  bool is_accepting() const { return is_accepting_.load(); }
  ListenerUsage usage();

 private:
  /// A connection that was handed on. Its socket is still open as long as the descriptor names the
  /// same inode: the owner of the descriptor closes it without telling this object, and another
  /// file may get its number then.
  struct Connection {
    int descriptor;
    ino_t inode;
  };
  struct Bound {
    int descriptor = -1;
    /// Path of a Unix socket, whose file is removed at the end if it is still this one.
    std::string path;
    dev_t device = 0;
    ino_t inode = 0;
  };

  Listener();
  absl::StatusOr<int> BindHost(const std::string& address);
  absl::Status BindUnix(const std::string& address);
  void Accept();
  /// Accepts the connections that wait at a socket; false when descriptors or memory were lacking.
  bool AcceptAll(int socket);
  void Take(int descriptor);
  bool HasRoom() ABSL_LOCKS_EXCLUDED(mutex_);
  void DropEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogChange();

  std::vector<int> ports_;
  std::vector<Bound> bound_;
  int wake_ = -1;  ///< An eventfd that ends the thread's waiting.
  std::thread thread_;
  std::function<void(int)> take_;
  std::function<void(const std::string&)> log_;
  std::atomic<bool> is_accepting_{false}, is_stopping_{false};

  // Used by the listener's thread only.
  std::string failure_;  ///< Why the last accept failed; empty when it did not.
  bool was_logged_accepting_ = true;
  std::chrono::steady_clock::time_point logged_at_{};
  int64_t logged_refused_ = 0;  ///< The number of refused connections that log lines have reported.

  std::mutex mutex_;
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point dropped_at_ ABSL_GUARDED_BY(mutex_){};
  ListenerUsage usage_ ABSL_GUARDED_BY(mutex_);  ///< Without `connections`.
};

/// How many connections leave enough descriptors for everything else: the limit less those that are
/// open already (files, the database, devices, HTTP's and gRPC's own) and less a quarter, at least
/// 16, for what calls open; never more than kConnectionsMax. FAILED_PRECONDITION where fewer than
/// kConnectionsLeast remain.
absl::StatusOr<int64_t> ConnectionsMax(int64_t descriptor_limit, int64_t descriptors_open);

}  // namespace quantgate
