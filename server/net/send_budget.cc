#include "server/net/send_budget.h"

#include <algorithm>
#include <utility>

namespace quantgate {

/// All members are guarded by the budget's mutex.
class SendBudget::Connection {
 public:
  int64_t bytes = 0;
  int64_t untaken = 0;  ///< Streams whose client has taken nothing yet.
  std::deque<Waiter> waiters;
};

SendBudget::Room& SendBudget::Room::operator=(Room&& other) noexcept {
  if (this == &other) return *this;
  Release();
  budget_ = std::move(other.budget_);
  connection_ = std::move(other.connection_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void SendBudget::Room::ShrinkTo(int64_t bytes) {
  if (bytes >= bytes_) return;
  budget_->GiveBack(connection_, bytes_ - bytes);
  bytes_ = bytes;
}

void SendBudget::Room::Release() {
  if (budget_ != nullptr) ShrinkTo(0);
  budget_ = nullptr;
  connection_ = nullptr;
}

std::shared_ptr<SendBudget::Connection> SendBudget::ConnectionOf(const std::string& name) {
  auto connection = std::make_shared<Connection>();
  if (name.empty()) return connection;
  const std::lock_guard lock(mutex_);
  std::weak_ptr<Connection>& known = connections_[name];
  if (auto there = known.lock()) return there;
  known = connection;
  return connection;
}

bool SendBudget::AddUntaken(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  return ++connection->untaken == 1;
}

void SendBudget::RemoveUntaken(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  --connection->untaken;
}

bool SendBudget::FitsConnection(const Connection& connection, int64_t bytes) const {
  const int64_t bound =
      bytes <= limits_.piece ? limits_.connection_bytes : limits_.connection_bytes / 2;
  return connection.bytes == 0 || connection.bytes + bytes <= bound;
}

SendBudget::Kind SendBudget::KindOf(const Connection& connection, int64_t bytes) const {
  if (connection.bytes == 0) return kEmpty;
  return connection.bytes + bytes <= limits_.share ? kSmall : kLarge;
}

bool SendBudget::FitsServer(const Connection& connection, int64_t bytes) const {
  const Kind kind = KindOf(connection, bytes);
  const int64_t kept_back = kind == kEmpty ? 0 : limits_.bytes / (kind == kSmall ? 8 : 4);
  return bytes_ + bytes <= limits_.bytes - kept_back;
}

bool SendBudget::IsShortFor(Kind kind) const { return short_for_ <= kind; }

int64_t SendBudget::Fitting(const Connection& connection, const Waiter& waiter) const {
  for (const int64_t bytes : {waiter.most, waiter.least}) {
    if (FitsConnection(connection, bytes) && FitsServer(connection, bytes) &&
        !IsShortFor(KindOf(connection, bytes))) {
      return bytes;
    }
  }
  return 0;
}

SendBudget::Room SendBudget::Taken(const std::shared_ptr<Connection>& connection, int64_t bytes) {
  bytes_ += bytes;
  connection->bytes += bytes;
  return Room(shared_from_this(), connection, bytes);
}

SendBudget::Room SendBudget::TryTake(const std::shared_ptr<Connection>& connection, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const bool others_first = IsShortFor(KindOf(*connection, bytes)) || !connection->waiters.empty();
  if (others_first || !FitsConnection(*connection, bytes) || !FitsServer(*connection, bytes)) {
    return Room();
  }
  return Taken(connection, bytes);
}

SendBudget::Room SendBudget::Take(const std::shared_ptr<Connection>& connection, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  return Taken(connection, bytes);
}

int64_t SendBudget::Wait(const std::shared_ptr<Connection>& connection, int64_t least, int64_t most,
                         Answer answer) {
  std::vector<Answered> answered;
  int64_t token;
  {
    const std::lock_guard lock(mutex_);
    token = ++last_token_;
    if (connection->waiters.empty()) round_.push_back(connection);
    connection->waiters.push_back({token, least, most, now_(), std::move(answer)});
    answered = Serve();
  }
  for (Answered& one : answered) std::move(one.answer)(std::move(one.room));
  return token;
}

bool SendBudget::StopWaiting(const std::shared_ptr<Connection>& connection, int64_t token) {
  std::vector<Answered> answered;
  bool was_there;
  {
    const std::lock_guard lock(mutex_);
    was_there = std::erase_if(connection->waiters,
                              [token](const Waiter& waiter) { return waiter.token == token; }) > 0;
    answered = Serve();
  }
  for (Answered& one : answered) std::move(one.answer)(std::move(one.room));
  return was_there;
}

void SendBudget::GiveBack(const std::shared_ptr<Connection>& connection, int64_t bytes) {
  std::vector<Answered> answered;
  {
    const std::lock_guard lock(mutex_);
    bytes_ -= bytes;
    connection->bytes -= bytes;
    if (!round_.empty()) answered = Serve();
  }
  for (Answered& one : answered) std::move(one.answer)(std::move(one.room));
}

std::vector<SendBudget::Answered> SendBudget::Serve() {
  std::vector<Answered> answered;
  short_for_ = kKinds;
  for (auto at = round_.begin(); at != round_.end() && !IsShortFor(kEmpty);) {
    const std::shared_ptr<Connection> connection = *at;
    if (connection->waiters.empty()) {
      at = round_.erase(at);
      continue;
    }
    const Waiter& waiter = connection->waiters.front();
    const int64_t bytes = Fitting(*connection, waiter);
    if (bytes == 0) {
      // A waiter that is kept waiting by its own connection's bytes delays no other connection.
      if (FitsConnection(*connection, waiter.least)) {
        short_for_ = std::min(short_for_, KindOf(*connection, waiter.least));
      }
      ++at;
    } else {
      answered.push_back({std::move(connection->waiters.front().answer), Taken(connection, bytes)});
      connection->waiters.pop_front();
      // The served connection goes to the end; those that could not be served keep their places.
      at = round_.erase(at);
      if (!connection->waiters.empty()) {
        round_.push_back(connection);
        if (at == round_.end()) --at;
      }
    }
  }
  return answered;
}

void SendBudget::Expire(Clock::time_point since) {
  std::vector<Answered> answered;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& connection : round_) {
      std::deque<Waiter>& waiters = connection->waiters;
      // The waiters of one connection are in the order of arrival.
      for (; !waiters.empty() && waiters.front().since < since; waiters.pop_front()) {
        answered.push_back({std::move(waiters.front().answer), Room()});
      }
    }
    std::vector<Answered> served = Serve();
    std::move(served.begin(), served.end(), std::back_inserter(answered));
    absl::erase_if(connections_, [](const auto& entry) { return entry.second.expired(); });
  }
  for (Answered& one : answered) std::move(one.answer)(std::move(one.room));
}

int64_t SendBudget::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

bool SendBudget::is_short() const {
  const std::lock_guard lock(mutex_);
  return IsShortFor(kLarge);
}

}  // namespace quantgate
