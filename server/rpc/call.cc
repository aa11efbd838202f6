#include "server/rpc/call.h"

#include <string>

#include "kernels/base/steady_time.h"
#include "server/errors.h"
#include "server/limits.h"
#include "server/rpc/convert_error.h"

namespace quantgate {
namespace {

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  // gRPC keeps it as time left, and no jump of the wall clock is to shorten or lengthen that.
  return SteadyFromWall(absl::FromChrono(deadline));
}

}  // namespace

Call::Call(ServiceContext& context, Rpc rpc, grpc::CallbackServerContext* server_context)
    : context_(context),
      method_(static_cast<int>(rpc)),
      server_context_(server_context),
      start_(SteadyNow()),
      cancellation_(std::make_shared<Cancellation>(DeadlineOf(*server_context))) {
  context_.metrics.RpcStarted(method_);
  context_.calls.Add(this);
}

Call::~Call() { context_.calls.Remove(this); }

absl::Status Call::Admit(Admission admission) const {
  if (admission == Admission::kUnlessDraining && context_.is_draining) return error::Draining();
  return cancellation_->Check();
}

grpc::Status Call::End(const absl::Status& status) {
  context_.metrics.RpcHandled(method_, status.code(), SteadyNow() - start_);
  if (absl::IsResourceExhausted(status)) {
    const std::string reason = error::DetailOf(status).reason;
    context_.metrics.Rejected(reason.empty() ? "memory" : reason);
  } else if (absl::IsUnavailable(status)) {
    context_.metrics.Rejected("draining");
  }
  return StatusToGrpc(status);
}

void Call::MessageReceived() {
  awaiting_since_nanos_.store(0, std::memory_order_relaxed);
  context_.metrics.MessageReceived(method_);
}

void Call::MessageSent() { context_.metrics.MessageSent(method_); }

PeerTransport Call::transport() const {
  const std::string peer = server_context_->peer();
  if (peer.starts_with("unix:")) return PeerTransport::kUnix;
  return peer.starts_with("ipv") ? PeerTransport::kTcp : PeerTransport::kInProcess;
}

void Call::MessageAwaited() {
  awaiting_since_nanos_.store(absl::ToUnixNanos(SteadyNow()), std::memory_order_relaxed);
}

bool Call::IsIdle(absl::Time now, absl::Duration idle_max) const {
  const int64_t since = awaiting_since_nanos_.load(std::memory_order_relaxed);
  return since != 0 && now - absl::FromUnixNanos(since) > idle_max;
}

void CallRegistry::Add(Call* call) {
  const std::lock_guard lock(mutex_);
  calls_.insert(call);
}

void CallRegistry::Remove(Call* call) {
  const std::lock_guard lock(mutex_);
  calls_.erase(call);
}

int CallRegistry::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(calls_.size());
}

// gRPC never runs a reaction within TryCancel on a thread that is not its own, so holding the lock,
// which keeps the calls alive, cannot meet a reaction that removes one.
void CallRegistry::CancelAll() {
  const std::lock_guard lock(mutex_);
  for (const Call* call : calls_) call->TryCancel();
}

void CallRegistry::CancelIdle(absl::Time now, absl::Duration idle_max) {
  const std::lock_guard lock(mutex_);
  for (const Call* call : calls_) {
    if (call->IsIdle(now, idle_max)) call->TryCancel();
  }
}

}  // namespace quantgate
