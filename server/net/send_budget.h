// SendBudget: a bound on the memory of bytes on their way to clients: those that streams have made,
// or gRPC holds, and no client has taken. A stream asks for room before it reads what it sends, and
// gives the room back when gRPC lets go of the bytes, so that clients that do not read cost bounded
// memory. Streams that wait for room are served in turn, connection by connection. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "server/limits.h"

namespace quantgate {

class SendBudget : public std::enable_shared_from_this<SendBudget> {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = Clock::time_point (*)();

  /// Bounds, each with a part held back so that clients that take what they are sent get on beside
  /// others that do not.
  struct Limits {
    /// Bytes of all connections. The last quarter is for connections that hold no more than
    /// `share`, and the second half of it for those that hold nothing: each of them gets on, with a
    /// piece at least, when others have filled the rest.
    int64_t bytes = kSendBytesMax;
    /// Bytes of one connection. The second half is for pieces of at most `piece`, so that its
    /// streams get on beside others of it that hold large ones.
    int64_t connection_bytes = kSendConnectionBytesMax;
    int64_t piece = kSendPieceBytesLeast;
    int64_t share = kSendConnectionBytesShare;
  };

  explicit SendBudget(Limits limits, Now now = &Clock::now) : limits_(limits), now_(now) {}
  SendBudget() : SendBudget(Limits{}) {}

  /// What one connection holds and who waits there.
  class Connection;

  /// Bytes of the budget, given back when it goes. Outlives the budget's owner if need be.
  class Room {
   public:
    Room() = default;
    Room(Room&& other) noexcept { *this = std::move(other); }
    Room& operator=(Room&& other) noexcept;
    ~Room() { Release(); }
    /// 0: none.
    int64_t bytes() const { return bytes_; }
    /// Gives back what is beyond `bytes`.
    void ShrinkTo(int64_t bytes);

   private:
    friend class SendBudget;
    Room(std::shared_ptr<SendBudget> budget, std::shared_ptr<Connection> connection, int64_t bytes)
        : budget_(std::move(budget)), connection_(std::move(connection)), bytes_(bytes) {}
    void Release();

    std::shared_ptr<SendBudget> budget_;
    std::shared_ptr<Connection> connection_;
    int64_t bytes_ = 0;
  };

  /// The connection of that name. Every call with an empty name gives a new one.
  std::shared_ptr<Connection> ConnectionOf(const std::string& name);

  /// Adds a stream whose client has taken nothing yet; true where the connection has no other one.
  bool AddUntaken(const std::shared_ptr<Connection>& connection);
  void RemoveUntaken(const std::shared_ptr<Connection>& connection);

  /// Takes room for `bytes`; none where there is no room, or others wait for it.
  Room TryTake(const std::shared_ptr<Connection>& connection, int64_t bytes);
  /// Takes room even beyond the bounds, for bytes that are in memory already.
  Room Take(const std::shared_ptr<Connection>& connection, int64_t bytes);

  /// Called once, unless StopWaiting was in time: with room for `most` bytes where there is as
  /// much, else for `least`, or with none by Expire. It runs on the thread that gives room back, so
  /// it must neither block nor ask for room.
  using Answer = absl::AnyInvocable<void(Room) &&>;
  /// Waits for room; returns a token for StopWaiting.
  int64_t Wait(const std::shared_ptr<Connection>& connection, int64_t least, int64_t most,
               Answer answer);
  /// True when the answer will not come.
  bool StopWaiting(const std::shared_ptr<Connection>& connection, int64_t token);
  /// Answers all who have waited since before `since` with no room. To be called periodically.
  void Expire(Clock::time_point since);

  int64_t bytes() const;
  int64_t bytes_max() const { return limits_.bytes; }
  /// Whether somebody waits for room that other connections hold.
  bool is_short() const;

 private:
  struct Waiter {
    int64_t token;
    int64_t least, most;
    Clock::time_point since;
    Answer answer;
  };
  struct Answered {
    Answer answer;
    Room room;
  };

  /// Connections by what they would hold, the first to be served first: with nothing before, with
  /// no more than the share, with more.
  enum Kind { kEmpty, kSmall, kLarge, kKinds };
  Kind KindOf(const Connection& connection, int64_t bytes) const;
  bool FitsConnection(const Connection& connection, int64_t bytes) const;
  bool FitsServer(const Connection& connection, int64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Whether somebody waits for what others hold who goes before that kind.
  bool IsShortFor(Kind kind) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The bytes that `waiter` gets; 0 where there is no room for it.
  int64_t Fitting(const Connection& connection, const Waiter& waiter) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Room Taken(const std::shared_ptr<Connection>& connection, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveBack(const std::shared_ptr<Connection>& connection, int64_t bytes);
  /// Serves those in the round for whom there is room.
  [[nodiscard]] std::vector<Answered> Serve() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  const Now now_;
  mutable std::mutex mutex_;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_token_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, std::weak_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
  /// Those with waiters, the next to be served first.
  std::list<std::shared_ptr<Connection>> round_ ABSL_GUARDED_BY(mutex_);
  /// The first kind of which the last round left somebody who waits for what others hold; kKinds:
  /// none. Nobody of that kind, or of a later one, goes before them.
  Kind short_for_ ABSL_GUARDED_BY(mutex_) = kKinds;
};

}  // namespace quantgate
