// Whether clients take the messages that they are sent. gRPC 1.51 reports a message only once the
// whole of it is passed on, and holds all of its bytes until then. So the time that a message may
// take grows with its size, at kSendRateLeast.
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
  /// gRPC has passed the message on.
  void End() { since_.store(0, std::memory_order_relaxed); }

  /// Whether the message has taken longer than `patience` and its time at kSendRateLeast together.
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
