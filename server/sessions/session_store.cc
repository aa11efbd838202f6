#include "server/sessions/session_store.h"

#include <algorithm>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/limits.h"

namespace quantgate {
namespace {

std::string NewSessionId() {
  absl::BitGen random;
  return absl::StrFormat("session-%016x%016x", absl::Uniform<uint64_t>(random),
                         absl::Uniform<uint64_t>(random));
}

}  // namespace

std::string_view SessionPhaseName(SessionPhase phase) {
  switch (phase) {
    case SessionPhase::kOpen:
      return "open";
    case SessionPhase::kClosed:
      return "closed";
    case SessionPhase::kEvicted:
      return "evicted";
    case SessionPhase::kExpired:
      break;
  }
  return "expired";
}

SessionUse::~SessionUse() {
  if (store_ != nullptr) store_->EndUse(id_, *held_);
}

SessionPlace::~SessionPlace() {
  if (store_ != nullptr) store_->GiveBack(*this);
}

absl::StatusOr<std::optional<std::string>> SessionStore::FindRequest(const std::string& request_id,
                                                                     const Sha256& content) {
  if (request_id.empty()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto request = requests_.find(request_id);
  if (request == requests_.end()) return std::nullopt;
  if (entries_.at(request->second).content != content) return error::RequestIdReused(request_id);
  return request->second;
}

absl::StatusOr<SessionPlace> SessionStore::Reserve(const std::string& request_id,
                                                   const Sha256& content) noexcept {
  const std::lock_guard lock(mutex_);
  if (!request_id.empty() && opening_.count(request_id) != 0) return error::SessionBusy(request_id);
  const auto is_full = [&] {
    return static_cast<int>(open_.size()) + places_ >= limits_.sessions_max;
  };
  while (is_full()) {
    if (EvictLocked()) continue;
    // Places are taken by sessions that are being opened, and by traces that wait.
    const auto open = static_cast<int64_t>(open_.size());
    const std::string what =
        places_ == 0 ? "sessions" : absl::StrCat("sessions, ", places_, " of them reserved");
    return error::SessionsFull(what, open + places_, limits_.sessions_max);
  }
  ++places_;
  if (!request_id.empty()) opening_.insert(request_id);
  return SessionPlace(*this, request_id, content);
}

absl::StatusOr<std::vector<SessionPlace>> SessionStore::ReserveAll(int count) noexcept {
  std::vector<SessionPlace> reserved;
  reserved.reserve(static_cast<size_t>(count));
  const std::lock_guard lock(mutex_);
  const auto idle = std::count_if(open_.begin(), open_.end(), [&](const auto& numbered) {
    return IsIdle(entries_.at(numbered.second));
  });
  const auto missing = static_cast<int64_t>(open_.size()) + places_ + count - limits_.sessions_max;
  if (missing > idle) return error::TraceHasNoRoom(count, count - missing + idle);
  for (int64_t evicted = 0; evicted < missing; ++evicted) EvictLocked();
  for (int i = 0; i < count; ++i) {
    ++places_;
    reserved.push_back(SessionPlace(*this, "", Sha256()));
  }
  return reserved;
}

void SessionStore::GiveBack(const SessionPlace& place) {
  const std::lock_guard lock(mutex_);
  --places_;
  usage_.bytes -= place.bytes_;
  opening_.erase(place.request_id_);
}

absl::StatusOr<SessionRecord> SessionStore::Open(SessionPlace place, Device& device,
                                                 absl::Duration lease,
                                                 std::unique_ptr<Session> training,
                                                 std::string spec,
                                                 const std::string& run_id) noexcept {
  const int64_t bytes = training->bytes() + static_cast<int64_t>(spec.size());
  const std::lock_guard lock(mutex_);
  const int64_t more = bytes - place.bytes_;
  while (more > 0 && usage_.bytes + more > limits_.bytes_max) {
    if (EvictLocked()) continue;
    return error::SessionsFull("session bytes", usage_.bytes + more, limits_.bytes_max);
  }
  Entry entry;
  entry.record.id = NewSessionId();
  entry.record.number = ++last_number_;
  entry.record.device = device.id;
  entry.record.run_id = run_id;
  entry.record.recipe = training->recipe();
  entry.record.bytes = bytes;
  entry.record.step = training->step_count();
  entry.record.lease = lease;
  entry.last_used = now_();
  entry.record.lease_end = entry.last_used + lease;
  entry.request_id = place.request_id_;
  entry.content = place.content_;
  entry.held = std::make_shared<HeldSession>(device, std::move(training), std::move(spec));
  const SessionRecord record = entry.record;
  usage_.bytes += more;
  open_[record.number] = record.id;
  if (!entry.request_id.empty()) requests_[entry.request_id] = record.id;
  entries_.emplace(record.id, std::move(entry));
  // The place is taken: from now on the session itself counts in its stead.
  --places_;
  opening_.erase(place.request_id_);
  place.store_ = nullptr;
  return record;
}

absl::StatusOr<SessionUse> SessionStore::Use(const std::string& id,
                                             const std::string& run_id) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return error::SessionNotFound(id);
  Entry& entry = found->second;
  if (entry.record.phase == SessionPhase::kOpen && entry.uses == 0 &&
      now_() > entry.record.lease_end) {
    ++usage_.expired;
    End(entry, SessionPhase::kExpired);
  }
  if (entry.record.phase != SessionPhase::kOpen) {
    return error::SessionEnded(id, SessionPhaseName(entry.record.phase));
  }
  if (entry.record.run_id != run_id) return error::SessionOfRun(id, entry.record.run_id);
  ++entry.uses;
  return SessionUse(*this, id, entry.held);
}

void SessionStore::EndUse(const std::string& id, const HeldSession& held) {
  // Only the use is ended here. The bytes of the session are counted by StepEnded.
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  if (entry.held.get() != &held) return;
  --entry.uses;
  entry.last_used = now_();
  entry.record.lease_end = entry.last_used + entry.record.lease;
}

void SessionStore::LimitBytes(const SessionUse& use) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(use.id());
  if (found == entries_.end()) return;
  const int64_t others = usage_.bytes - found->second.record.bytes;
  use->training->LimitBytes(std::max<int64_t>(limits_.bytes_max - others, 0));
}

absl::Status SessionStore::StepEnded(const SessionUse& use, int64_t response_bytes) noexcept {
  const int64_t bytes =
      use->training->bytes() + static_cast<int64_t>(use->spec.size()) + response_bytes;
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(use.id());
  if (found == entries_.end() || found->second.held == nullptr) return absl::OkStatus();
  SessionRecord& record = found->second.record;
  const int64_t more = bytes - record.bytes;
  while (more > 0 && usage_.bytes + more > limits_.bytes_max) {
    if (EvictLocked()) continue;
    return error::SessionsFull("session bytes", usage_.bytes + more, limits_.bytes_max);
  }
  usage_.bytes += more;
  record.bytes = bytes;
  record.recipe = use->training->recipe();
  record.step = use->training->step_count();
  record.microbatches = use->training->microbatches();
  return absl::OkStatus();
}

void SessionStore::End(Entry& entry, SessionPhase phase) {
  entry.record.phase = phase;
  usage_.bytes -= entry.record.bytes;
  entry.record.bytes = 0;
  entry.record.microbatches.clear();
  // A step in progress keeps the session until the step has ended.
  entry.held = nullptr;
  open_.erase(entry.record.number);
  ended_.push_back(entry.record.id);
  ForgetOldest();
}

void SessionStore::ForgetOldest() {
  while (ended_.size() > kEndedSessionsKept) {
    const auto oldest = entries_.find(ended_.front());
    requests_.erase(oldest->second.request_id);
    entries_.erase(oldest);
    ended_.pop_front();
  }
}

bool SessionStore::IsIdle(const Entry& entry) const {
  return entry.uses == 0 && now_() - entry.last_used >= limits_.idle_min;
}

bool SessionStore::EvictLocked() {
  Entry* oldest = nullptr;
  for (const auto& [number, id] : open_) {
    Entry& entry = entries_.at(id);
    if (!IsIdle(entry)) continue;
    if (oldest == nullptr || entry.last_used < oldest->last_used) oldest = &entry;
  }
  if (oldest == nullptr) return false;
  const bool is_expired = now_() > oldest->record.lease_end;
  ++(is_expired ? usage_.expired : usage_.evicted);
  End(*oldest, is_expired ? SessionPhase::kExpired : SessionPhase::kEvicted);
  return true;
}

bool SessionStore::Evict() noexcept {
  const std::lock_guard lock(mutex_);
  return EvictLocked();
}

void SessionStore::ExpireLeases() noexcept {
  const std::lock_guard lock(mutex_);
  const absl::Time now = now_();
  std::vector<std::string> expired;
  for (const auto& [number, id] : open_) {
    const Entry& entry = entries_.at(id);
    if (entry.uses == 0 && now > entry.record.lease_end) expired.push_back(id);
  }
  for (const std::string& id : expired) {
    ++usage_.expired;
    End(entries_.at(id), SessionPhase::kExpired);
  }
}

absl::StatusOr<SessionRecord> SessionStore::Find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return error::SessionNotFound(id);
  return found->second.record;
}

absl::StatusOr<std::string> SessionStore::SpecOf(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return error::SessionNotFound(id);
  const Entry& entry = found->second;
  if (entry.held == nullptr) return error::SessionEnded(id, SessionPhaseName(entry.record.phase));
  return entry.held->spec;
}

absl::StatusOr<SessionRecord> SessionStore::Close(const std::string& id,
                                                  const std::string& run_id) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return error::SessionNotFound(id);
  if (found->second.record.phase == SessionPhase::kOpen) {
    if (found->second.record.run_id != run_id) {
      return error::SessionOfRun(id, found->second.record.run_id);
    }
    ++usage_.closed;
    End(found->second, SessionPhase::kClosed);
    // End may forget the oldest ended session, never the newest.
    return entries_.at(id).record;
  }
  return found->second.record;
}

absl::StatusOr<SessionPlace> SessionStore::HandOver(const std::string& id,
                                                    const std::string& run_id) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return error::SessionNotFound(id);
  Entry& entry = found->second;
  if (entry.record.phase != SessionPhase::kOpen) {
    return error::SessionEnded(id, SessionPhaseName(entry.record.phase));
  }
  if (entry.record.run_id != run_id) return error::SessionOfRun(id, entry.record.run_id);
  SessionPlace place(*this, "", Sha256());
  place.bytes_ = entry.record.bytes;
  ++places_;
  ++usage_.closed;
  End(entry, SessionPhase::kClosed);
  usage_.bytes += place.bytes_;
  return place;
}

std::vector<SessionRecord> SessionStore::List(int64_t before, int count) const {
  const std::lock_guard lock(mutex_);
  std::vector<SessionRecord> records;
  auto end = before == 0 ? open_.end() : open_.lower_bound(before);
  while (end != open_.begin() && static_cast<int>(records.size()) < count) {
    --end;
    records.push_back(entries_.at(end->second).record);
  }
  return records;
}

SessionUsage SessionStore::usage() const {
  const std::lock_guard lock(mutex_);
  SessionUsage usage = usage_;
  usage.open = static_cast<int64_t>(open_.size());
  usage.bytes_max = limits_.bytes_max;
  return usage;
}

}  // namespace quantgate
