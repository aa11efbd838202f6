#include "server/rpc/send_watch.h"

#include "absl/strings/match.h"
#include "server/limits.h"
#include "server/rpc/call.h"

namespace quantgate {
namespace {

/// Reports the messages that one call sends.
class SendWatch : public grpc::experimental::Interceptor {
 public:
  SendWatch(const CallRegistry& calls, const grpc::ServerContextBase* context)
      : calls_(calls), context_(context) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    using grpc::experimental::InterceptionHookPoints;
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      const auto bytes = static_cast<int64_t>(batch->GetSerializedSendMessage()->Length());
      calls_.MessageBegun(context_, bytes);
    }
    batch->Proceed();
  }

 private:
  const CallRegistry& calls_;
  const grpc::ServerContextBase* const context_;
};

class SendWatches : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit SendWatches(const CallRegistry& calls) : calls_(calls) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* call) override {
    // Calls of gRPC's own services have no Call.
    if (!absl::StartsWith(call->method(), "/quantgate.")) return nullptr;
    return new SendWatch(calls_, call->server_context());
  }

 private:
  const CallRegistry& calls_;
};

}  // namespace

void SendProgress::Begin(int64_t bytes) {
  bytes_.store(bytes, std::memory_order_relaxed);
  since_.store(now_().time_since_epoch().count(), std::memory_order_relaxed);
}

bool SendProgress::IsIdle(Clock::time_point now, absl::Duration patience) const {
  const Clock::rep since = since_.load(std::memory_order_relaxed);
  if (since == 0) return false;
  const double slowest = static_cast<double>(bytes_.load(std::memory_order_relaxed)) /
                         static_cast<double>(kSendRateLeast);
  return absl::FromChrono(now.time_since_epoch() - Clock::duration(since)) >
         patience + absl::Seconds(slowest);
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeSendWatch(
    const CallRegistry& calls) {
  return std::make_unique<SendWatches>(calls);
}

}  // namespace quantgate
