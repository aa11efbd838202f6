#include "client/remote_connection.h"

#include <algorithm>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "client/status.h"

namespace quantgate {

bool IsServerAddress(const std::string& address) {
  if (address.rfind("unix:", 0) == 0 && address.size() > 5) return true;
  const size_t colon = address.rfind(':');
  int port = 0;
  return colon != std::string::npos && colon != 0 &&
         absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 1 && port <= 65535;
}

absl::Status RemoteConnection::Call(
    const std::string& method, const google::protobuf::MessageLite& request,
    const std::shared_ptr<google::protobuf::MessageLite>& response) {
  for (int attempt = 1;; ++attempt) {
    response->Clear();
    absl::Status status = CallOnce(method, Purpose::kWork, request, *response);
    if (status.ok() || !IsWorthRetrying(status) || !PauseBeforeRetry(attempt, status)) {
      return status;
    }
  }
}

absl::StatusOr<v1::Run> RemoteConnection::CancelRun(const v1::CancelRunRequest& request) {
  v1::Run run;
  const absl::Status status = CallOnce("Engine/CancelRun", Purpose::kFarewell, request, run);
  if (!status.ok()) return status;
  return run;
}

void RemoteConnection::Cancel() {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
  }
  CancelCalls();
}

bool RemoteConnection::PauseBeforeRetry(int attempt, const absl::Status& status) {
  if (attempt >= options().attempts_max) return false;
  thread_local std::minstd_rand random(std::random_device{}());
  const double jitter = std::uniform_real_distribution<double>(0.5, 1.0)(random);
  const absl::Duration backoff = options().backoff * (1 << std::min(attempt - 1, 10)) * jitter;
  const absl::Time wake = absl::Now() + std::max(backoff, RetryAfterOf(status).value_or(backoff));
  return SleepUntil(std::min(wake, options().deadline)) && wake < options().deadline;
}

bool RemoteConnection::SleepUntil(absl::Time wake) {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithDeadline(absl::Condition(&cancelled_), wake);
  return !cancelled_;
}

}  // namespace quantgate
