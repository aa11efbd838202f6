// SessionStore: the training sessions that this server holds, by id: how many, for how long, how
// large. A session that nobody uses any more gives way; what ended is remembered for a while, so
// that a late call learns why. Thread-safe.
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

/// What is known of a session without waiting for its step.
struct SessionRecord {
  std::string id;
  int64_t number = 0;  ///< In order of opening.
  SessionPhase phase = SessionPhase::kOpen;
  std::string device;
  std::optional<Recipe> recipe;  ///< As last changed.
  int64_t step = 0;
  int64_t bytes = 0;
  std::vector<std::string> microbatches;
  absl::Duration lease;
  absl::Time lease_end;  ///< As SteadyNow.
};

/// A session while a call uses it. Steps hold `mutex`.
struct HeldSession {
  HeldSession(Device& device_in, std::unique_ptr<Session> training_in, std::string spec_in)
      : device(device_in), training(std::move(training_in)), spec(std::move(spec_in)) {}

  Device& device;
  std::mutex mutex;
  const std::unique_ptr<Session> training;
  const std::string spec;  ///< As it came over the wire.
  /// The last step that succeeded, for a client that asks for it again.
  std::string last_request_id ABSL_GUARDED_BY(mutex);
  Sha256 last_content ABSL_GUARDED_BY(mutex);
  std::string last_response ABSL_GUARDED_BY(mutex);
};

class SessionStore;

/// Keeps a session from giving way; its lease is renewed when this ends.
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

/// A place for a session that is being opened, given back unless the session takes it.
class SessionPlace {
 public:
  SessionPlace(SessionStore& store, std::string request_id, Sha256 content)
      : store_(&store), request_id_(std::move(request_id)), content_(content) {}
  SessionPlace(SessionPlace&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)),
        request_id_(std::move(other.request_id_)),
        content_(other.content_) {}
  SessionPlace& operator=(SessionPlace&&) = delete;
  ~SessionPlace();

 private:
  friend class SessionStore;
  SessionStore* store_;
  std::string request_id_;
  Sha256 content_;
};

struct SessionUsage {
  int64_t open = 0;
  int64_t bytes = 0;
  int64_t bytes_max = 0;
  // Since the start.
  int64_t closed = 0;
  int64_t evicted = 0;
  int64_t expired = 0;
};

/// What changes it is noexcept, as memory_guard.h says.
class SessionStore {
 public:
  explicit SessionStore(SessionLimits limits, std::function<absl::Time()> now = SteadyNow)
      : limits_(limits), now_(std::move(now)) {}
  SessionStore(const SessionStore&) = delete;
  SessionStore& operator=(const SessionStore&) = delete;

  const SessionLimits& limits() const { return limits_; }
  /// By the clock of its leases.
  absl::Time Now() const { return now_(); }

  /// The session that the same request id opened, with the same content; ALREADY_EXISTS with
  /// another one.
  absl::StatusOr<std::optional<std::string>> FindRequest(const std::string& request_id,
                                                         const Sha256& content);
  /// RESOURCE_EXHAUSTED where there is no place and no session gives way; ABORTED while the same
  /// request is being opened.
  absl::StatusOr<SessionPlace> Reserve(const std::string& request_id,
                                       const Sha256& content) noexcept;
  /// RESOURCE_EXHAUSTED where the session's bytes have no place.
  absl::StatusOr<SessionRecord> Open(SessionPlace place, Device& device, absl::Duration lease,
                                     std::unique_ptr<Session> training, std::string spec) noexcept;

  /// FAILED_PRECONDITION with the reason for a session that ended, NOT_FOUND for an unknown one.
  absl::StatusOr<SessionUse> Use(const std::string& id) noexcept;
  /// Before a step: how many bytes the session may hold after it.
  void LimitBytes(const SessionUse& use) noexcept;
  /// After a step: counts what the session holds now, with its spec and the response that is kept.
  /// RESOURCE_EXHAUSTED, and nothing is counted, where it holds more than before, no session gives
  /// way, and that has no place.
  absl::Status StepEnded(const SessionUse& use, int64_t response_bytes) noexcept;
  /// The least recently used session that gives way now ends; false where there is none.
  bool Evict() noexcept;
  /// What is known, of ended ones too. NOT_FOUND.
  absl::StatusOr<SessionRecord> Find(const std::string& id) const;
  /// Ended ones stay as they are.
  absl::StatusOr<SessionRecord> Close(const std::string& id) noexcept;
  void ExpireLeases() noexcept;

  /// Open ones, newest first, with numbers below `before`; 0: from the newest.
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
  void GiveBack(const std::string& request_id);
  void End(Entry& entry, SessionPhase phase) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
  int places_ ABSL_GUARDED_BY(mutex_) = 0;  ///< Reserved.
  int64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  SessionUsage usage_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
