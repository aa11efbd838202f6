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

  /// Records that gRPC was given a message of `bytes` bytes to send.
  void Begin(int64_t bytes);
  /// Records that gRPC has passed the message on.
  void End() { since_.store(0, std::memory_order_relaxed); }

  /// Whether sending the message has taken longer than `patience` plus its time at kSendRateLeast.
  bool IsIdle(Clock::time_point now, absl::Duration patience) const;

 private:
  const SendBudget::Now now_;
  std::atomic<int64_t> bytes_{0};
  /// When sending began, in ticks of Clock; 0 while no message is being sent.
  std::atomic<Clock::rep> since_{0};
};

/// For the builder of a server: an interceptor that calls MessageBegun for each message that a call
/// in `calls` begins to send. `calls` must outlive the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeSendWatch(
    const CallRegistry& calls);

}  // namespace quantgate
