// SessionStore: the training sessions that this server holds, by id, with bounds on their number,
// bytes and leases. An idle session is evicted where another one needs its place. Sessions that
// have ended are remembered for a while, so that a late call learns why. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/steady_time.h"
#include "kernels/training/training_session.h"
#include "server/device/device.h"
#include "server/limits.h"

namespace quantgate {

enum class SessionPhase { kOpen, kClosed, kEvicted, kExpired };
std::string_view SessionPhaseName(SessionPhase phase);  ///< "open", "closed", ...

/// What the store knows of a session without waiting for a step of it.
struct SessionRecord {
  std::string id;
  int64_t number = 0;  ///< Ascending in the order of opening.
  SessionPhase phase = SessionPhase::kOpen;
  std::string device;
  std::optional<Recipe> recipe;  ///< As last changed.
  int64_t step = 0;
  int64_t bytes = 0;
  std::vector<std::string> microbatches;
  std::string run_id = {};  ///< The trace whose session it is; empty: a client's.
  absl::Duration lease;
  absl::Time lease_end;  ///< When the lease ends, by SteadyNow.
};

/// A session and what its calls need. A step holds `mutex` while it runs.
struct HeldSession {
  HeldSession(Device& device_in, std::unique_ptr<Session> training_in, std::string spec_in)
      : device(device_in), training(std::move(training_in)), spec(std::move(spec_in)) {}

  Device& device;
  std::mutex mutex;
  const std::unique_ptr<Session> training;
  const std::string spec;  ///< The serialized spec, as it came over the wire.
  /// The last step that succeeded, for a client that repeats its request.
  std::string last_request_id ABSL_GUARDED_BY(mutex);
  Sha256 last_content ABSL_GUARDED_BY(mutex);
  std::string last_response ABSL_GUARDED_BY(mutex);
  /// A forward in flight under SessionStepRequest.against.
  struct ForwardAgainst {
    std::string recipe;                 ///< Its canonical text.
    std::function<absl::Status()> put;  ///< KeptForward::put.
    int64_t bytes = 0;                  ///< What it keeps beside the session's own state.
  };
  std::map<std::string, ForwardAgainst> against ABSL_GUARDED_BY(mutex);  ///< By microbatch.
};

class SessionStore;

/// A call's use of a session: keeps it from being evicted, and renews its lease at the end.
class SessionUse {
 public:
  SessionUse(SessionStore& store, std::string id, std::shared_ptr<HeldSession> held)
      : store_(&store), id_(std::move(id)), held_(std::move(held)) {}
  SessionUse(SessionUse&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)),
        id_(std::move(other.id_)),
        held_(std::move(other.held_)) {}
  SessionUse& operator=(SessionUse&&) = delete;
  ~SessionUse();

  const std::string& id() const { return id_; }
  HeldSession& operator*() const { return *held_; }
  HeldSession* operator->() const { return held_.get(); }

 private:
  SessionStore* store_;
  std::string id_;
  std::shared_ptr<HeldSession> held_;
};

/// A place reserved for a session that is being opened; given back unless SessionStore::Open takes
/// it.
class SessionPlace {
 public:
  SessionPlace(SessionStore& store, std::string request_id, Sha256 content)
      : store_(&store), request_id_(std::move(request_id)), content_(content) {}
  SessionPlace(SessionPlace&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)),
        request_id_(std::move(other.request_id_)),
        content_(other.content_),
        bytes_(other.bytes_) {}
  SessionPlace& operator=(SessionPlace&&) = delete;
  ~SessionPlace();

 private:
  friend class SessionStore;
  SessionStore* store_;
  std::string request_id_;
  Sha256 content_;
  int64_t bytes_ = 0;  ///< Reserved with it: those of the session whose place it was.
};

struct SessionUsage {
  int64_t open = 0;
  int64_t bytes = 0;
  int64_t bytes_max = 0;
  // Totals since the server's start.
  int64_t closed = 0;
  int64_t evicted = 0;
  int64_t expired = 0;
};

/// Functions that change it are noexcept, for the reason in memory_guard.h.
class SessionStore {
 public:
  explicit SessionStore(SessionLimits limits, std::function<absl::Time()> now = SteadyNow)
      : limits_(limits), now_(std::move(now)) {}
  SessionStore(const SessionStore&) = delete;
  SessionStore& operator=(const SessionStore&) = delete;

  const SessionLimits& limits() const { return limits_; }
  /// The time by the clock of the leases.
  absl::Time Now() const { return now_(); }

  /// The id of the session that this request opened before; ALREADY_EXISTS where a request with
  /// this id had another content.
  absl::StatusOr<std::optional<std::string>> FindRequest(const std::string& request_id,
                                                         const Sha256& content);
  /// Reserves `count` places for a trace, or none. RESOURCE_EXHAUSTED where there are not so many,
  /// idle sessions counted; only where there are, idle ones are evicted.
  absl::StatusOr<std::vector<SessionPlace>> ReserveAll(int count) noexcept;
  /// Reserves a place. RESOURCE_EXHAUSTED where there is none and no session can be evicted;
  /// ABORTED while the same request is being opened.
  absl::StatusOr<SessionPlace> Reserve(const std::string& request_id,
                                       const Sha256& content) noexcept;
  /// Puts a session into its place, for clients or for the trace `run_id`. RESOURCE_EXHAUSTED where
  /// there is no room for its bytes.
  absl::StatusOr<SessionRecord> Open(SessionPlace place, Device& device, absl::Duration lease,
                                     std::unique_ptr<Session> training, std::string spec,
                                     const std::string& run_id = "") noexcept;

  /// FAILED_PRECONDITION with the reason for a session that has ended, or that is of another trace
  /// than `run_id`; NOT_FOUND for an unknown one.
  absl::StatusOr<SessionUse> Use(const std::string& id, const std::string& run_id = "") noexcept;
  /// Before a step: tells the session how many bytes it may hold after the step.
  void LimitBytes(const SessionUse& use) noexcept;
  /// After a step: counts the bytes that the session holds now, with its spec and the response that
  /// is kept. RESOURCE_EXHAUSTED, and nothing is counted, where these are more than before and
  /// neither fit nor another session can be evicted.
  absl::Status StepEnded(const SessionUse& use, int64_t response_bytes) noexcept;
  /// Evicts the least recently used session that may be evicted; false where there is none.
  bool Evict() noexcept;
  /// The record of an open or ended session. NOT_FOUND.
  absl::StatusOr<SessionRecord> Find(const std::string& id) const;
  /// The serialized spec of an open session, whoever's it is, as it came over the wire. Errors as
  /// Use of an ended or unknown one.
  absl::StatusOr<std::string> SpecOf(const std::string& id) const;
  /// Ends a session; one that has ended stays as it is. NOT_FOUND; FAILED_PRECONDITION for one of
  /// another trace than `run_id`.
  absl::StatusOr<SessionRecord> Close(const std::string& id,
                                      const std::string& run_id = "") noexcept;
  /// Ends a session as Close does, and reserves its place and its bytes for the one that goes on
  /// from it, so that no other takes them in between. FAILED_PRECONDITION also for one that has
  /// ended.
  absl::StatusOr<SessionPlace> HandOver(const std::string& id, const std::string& run_id) noexcept;
  void ExpireLeases() noexcept;

  /// At most `count` open sessions with numbers below `before`, newest first; 0 means from the
  /// newest on.
  std::vector<SessionRecord> List(int64_t before, int count) const;
  SessionUsage usage() const;

 private:
  friend class SessionUse;
  friend class SessionPlace;

  struct Entry {
    SessionRecord record;
    std::shared_ptr<HeldSession> held;  ///< Null once it has ended.
    absl::Time last_used;
    int uses = 0;
    std::string request_id;
    Sha256 content;
  };

  void EndUse(const std::string& id, const HeldSession& held);
  void GiveBack(const SessionPlace& place);
  void End(Entry& entry, SessionPhase phase) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsIdle(const Entry& entry) const;
  bool EvictLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SessionLimits limits_;
  const std::function<absl::Time()> now_;
  mutable std::mutex mutex_;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, std::string> open_ ABSL_GUARDED_BY(mutex_);  ///< Ids by number.
  std::deque<std::string> ended_ ABSL_GUARDED_BY(mutex_);        ///< Oldest first.
  absl::flat_hash_map<std::string, std::string> requests_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> opening_ ABSL_GUARDED_BY(mutex_);
  int places_ ABSL_GUARDED_BY(mutex_) = 0;  ///< Places that are reserved.
  int64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  SessionUsage usage_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
