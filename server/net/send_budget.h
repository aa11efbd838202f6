// SendBudget: bounds the memory of bytes on their way to clients, which streams have prepared or
// gRPC holds, and which no client has taken. A stream asks for room before it reads what it sends,
// and gives the room back when gRPC has released the bytes, so that clients that do not read cost
// bounded memory. Streams that wait for room are served in turn, connection by connection.
// Thread-safe.
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

  /// The bounds. A part of each is held back, so that clients that take what they are sent make
  /// progress beside others that do not.
  struct Limits {
    /// Bytes of all connections together. The last quarter is for connections that hold no more
    /// than `share`, and the second half of that quarter for connections that hold nothing: each of
    /// these makes progress, with at least one piece, when others have filled the rest.
    int64_t bytes = kSendBytesMax;
    /// Bytes of one connection. The second half is for pieces of at most `piece`, so that streams
    /// make progress beside others of the same connection that hold large pieces.
    int64_t connection_bytes = kSendConnectionBytesMax;
    int64_t piece = kSendPieceBytesLeast;
    int64_t share = kSendConnectionBytesShare;
  };

  explicit SendBudget(Limits limits, Now now = &Clock::now) : limits_(limits), now_(now) {}
  SendBudget() : SendBudget(Limits{}) {}

  /// The bytes that one connection holds, and the streams of it that wait for room.
  class Connection;

  /// Bytes taken from the budget, which its destructor gives back. May outlive the budget's owner.
  class Room {
   public:
    Room() = default;
    Room(Room&& other) noexcept { *this = std::move(other); }
    Room& operator=(Room&& other) noexcept;
    ~Room() { Release(); }
    /// 0 where no room was taken.
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

  /// The connection of that name. Each call with an empty name gives a new connection.
  std::shared_ptr<Connection> ConnectionOf(const std::string& name);

  /// Adds a stream whose client has taken nothing yet; true where the connection has no other such
  /// stream.
  bool AddUntaken(const std::shared_ptr<Connection>& connection);
  void RemoveUntaken(const std::shared_ptr<Connection>& connection);

  /// Takes room for `bytes`. Takes none where there is no room, or where other streams that wait
  /// for it go first.
  Room TryTake(const std::shared_ptr<Connection>& connection, int64_t bytes);
  /// Takes room even beyond the bounds, for bytes that are in memory already.
  Room Take(const std::shared_ptr<Connection>& connection, int64_t bytes);

  /// Called once, unless StopWaiting was in time: with room for `most` bytes where there is as
  /// much, else for `least`, or with no room by Expire. It runs on the thread that gives room back
  /// or that calls Wait, StopWaiting or Expire, so it must neither block nor ask for room.
  using Answer = absl::AnyInvocable<void(Room) &&>;
  /// Waits for room; returns a token for StopWaiting.
  int64_t Wait(const std::shared_ptr<Connection>& connection, int64_t least, int64_t most,
               Answer answer);
  /// Returns true if the answer will not be called.
  bool StopWaiting(const std::shared_ptr<Connection>& connection, int64_t token);
  /// Calls the answers of all who have waited since before `since` with no room. To be called
  /// periodically.
  void Expire(Clock::time_point since);

  int64_t bytes() const;
  int64_t bytes_max() const { return limits_.bytes; }
  /// Whether a stream waits for room that other connections hold.
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

  /// Kinds of connections by what they would hold with the room that they ask for, in the order in
  /// which they are served: kEmpty holds nothing before, kSmall no more than the share afterwards,
  /// kLarge more.
  enum Kind { kEmpty, kSmall, kLarge, kKinds };
  Kind KindOf(const Connection& connection, int64_t bytes) const;
  bool FitsConnection(const Connection& connection, int64_t bytes) const;
  bool FitsServer(const Connection& connection, int64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Whether a stream of that kind, or of one that is served before it, waits for room that other
  /// connections hold.
  bool IsShortFor(Kind kind) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The bytes that `waiter` gets; 0 where there is no room for it.
  int64_t Fitting(const Connection& connection, const Waiter& waiter) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Room Taken(const std::shared_ptr<Connection>& connection, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveBack(const std::shared_ptr<Connection>& connection, int64_t bytes);
  /// Takes room for the waiters in the round for whom there is room. The caller calls their answers
  /// once it has released the lock.
  [[nodiscard]] std::vector<Answered> Serve() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  const Now now_;
  mutable std::mutex mutex_;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_token_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, std::weak_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
  /// The connections with waiters; the next one to be served is first.
  std::list<std::shared_ptr<Connection>> round_ ABSL_GUARDED_BY(mutex_);
  /// The first kind of which the last Serve left a waiter that waits for room that other
  /// connections hold; kKinds: none. Until it is served, no room is given to connections of that
  /// kind or of a later one, except by Take.
  Kind short_for_ ABSL_GUARDED_BY(mutex_) = kKinds;
};

}  // namespace quantgate
