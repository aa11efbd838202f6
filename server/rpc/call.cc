#include "server/rpc/call.h"

#include <string>

#include "kernels/base/steady_time.h"
#include "server/errors.h"
#include "server/limits.h"
#include "server/rpc/convert_error.h"

namespace quantgate {
namespace {

int64_t NanosOf(SendBudget::Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

int64_t NanosNow() { return NanosOf(SendBudget::Clock::now()); }

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
  sending_since_nanos_.store(NanosNow(), std::memory_order_relaxed);
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

void Call::MessageBegun() { sending_since_nanos_.store(NanosNow(), std::memory_order_relaxed); }

void Call::MessageSent() {
  sending_since_nanos_.store(0, std::memory_order_relaxed);
  context_.metrics.MessageSent(method_);
}

std::string Call::connection() const {
  std::string peer = server_context_->peer();
  return peer.starts_with("ipv") ? peer : std::string();
}

PeerTransport Call::transport() const {
  const std::string peer = server_context_->peer();
  if (peer.starts_with("unix:")) return PeerTransport::kUnix;
  return peer.starts_with("ipv") ? PeerTransport::kTcp : PeerTransport::kInProcess;
}

void Call::MessageAwaited() { awaiting_since_nanos_.store(NanosNow(), std::memory_order_relaxed); }

Call::Idleness Call::IdlenessAt(SendBudget::Clock::time_point now, absl::Duration send_max,
                                absl::Duration take_max) const {
  const auto is_over = [&](const std::atomic<int64_t>& since_nanos, absl::Duration max) {
    const int64_t since = since_nanos.load(std::memory_order_relaxed);
    return since != 0 && absl::Nanoseconds(NanosOf(now) - since) > max;
  };
  if (is_over(sending_since_nanos_, take_max)) return Idleness::kTakesNothing;
  return is_over(awaiting_since_nanos_, send_max) ? Idleness::kSendsNothing : Idleness::kNone;
}

void CallRegistry::Add(Call* call) {
  const std::lock_guard lock(mutex_);
  calls_.insert(call);
}

void CallRegistry::Remove(Call* call) {
  const std::lock_guard lock(mutex_);
  calls_.erase(call);
  unread_.erase(call);
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

int CallRegistry::CancelIdle(SendBudget::Clock::time_point now, absl::Duration send_max,
                             absl::Duration take_max) {
  const std::lock_guard lock(mutex_);
  int unread = 0;
  for (Call* call : calls_) {
    const Call::Idleness idleness = call->IdlenessAt(now, send_max, take_max);
    if (idleness == Call::Idleness::kNone) continue;
    if (idleness == Call::Idleness::kTakesNothing) unread += unread_.insert(call).second ? 1 : 0;
    call->TryCancel();
  }
  return unread;
}

}  // namespace quantgate
