// Whether clients take the messages that they are sent. gRPC 1.51 tells of a message only when it
// has passed on the whole of it, and holds all of its bytes until then: so a message has a time
// that grows with its size, in which whoever takes kSendRateLeast takes it.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "server/net/send_budget.h"

namespace quantgate {

class CallRegistry;

/// The message that a call is sending. Thread-safe.
class SendProgress {
 public:
  using Clock = SendBudget::Clock;
  explicit SendProgress(SendBudget::Now now) : now_(now) {}

  /// gRPC is given a message of so many bytes.
  void Begin(int64_t bytes);
  /// It has passed it on.
  void End() { since_.store(0, std::memory_order_relaxed); }

  /// Whether the client has taken it neither in `patience` nor at kSendRateLeast.
  bool IsIdle(Clock::time_point now, absl::Duration patience) const;

 private:
  const SendBudget::Now now_;
  std::atomic<int64_t> bytes_{0};
  std::atomic<Clock::rep> since_{0};  ///< 0: no message is under way.
};

/// For the builder of a server: begins the progress of each message of the calls in the registry,
/// which must outlive the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeSendWatch(
    const CallRegistry& calls);

}  // namespace quantgate
