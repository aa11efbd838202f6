#include "server/rpc/call.h"

#include <string>

#include "kernels/base/steady_time.h"
#include "server/errors.h"
#include "server/limits.h"
#include "server/wire/error_detail.h"

namespace quantgate {
namespace {

int64_t NanosOf(SendBudget::Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  // gRPC keeps the deadline as the time that is left, which a jump of the wall clock must not
  // change.
  return SteadyFromWall(absl::FromChrono(deadline));
}

}  // namespace

Call::Call(ServiceContext& context, Rpc rpc, grpc::CallbackServerContext* server_context)
    : context_(context),
      method_(rpc.index()),
      server_context_(server_context),
      start_(SteadyNow()),
      cancellation_(std::make_shared<Cancellation>(DeadlineOf(*server_context))),
      progress_(context.options.now) {
  context_.metrics.RpcStarted(method_);
  context_.calls.Add(this);
}

Call::~Call() { context_.calls.Remove(this); }

absl::Status Call::Admit(Admission admission) const {
  if (admission == Admission::kUnlessDraining && context_.is_draining) return error::Draining();
  return cancellation_->Check();
}

grpc::Status Call::End(const absl::Status& status) {
  progress_.Begin(0);
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

void Call::MessageSent() {
  progress_.End();
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

void Call::MessageAwaited() {
  awaiting_since_nanos_.store(NanosOf(context_.options.now()), std::memory_order_relaxed);
}

Call::Idleness Call::IdlenessAt(SendBudget::Clock::time_point now, absl::Duration send_max,
                                absl::Duration take_max) const {
  if (progress_.IsIdle(now, take_max)) return Idleness::kTakesNothing;
  const int64_t since = awaiting_since_nanos_.load(std::memory_order_relaxed);
  const bool is_over = since != 0 && absl::Nanoseconds(NanosOf(now) - since) > send_max;
  return is_over ? Idleness::kSendsNothing : Idleness::kNone;
}

void CallRegistry::Add(Call* call) {
  const std::lock_guard lock(mutex_);
  calls_[call->server_context()] = call;
}

void CallRegistry::Remove(Call* call) {
  const std::lock_guard lock(mutex_);
  calls_.erase(call->server_context());
  unread_.erase(call);
}

int CallRegistry::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(calls_.size());
}

void CallRegistry::MessageBegun(const grpc::ServerContextBase* context, int64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto it = calls_.find(context);
  if (it != calls_.end()) it->second->MessageBegun(bytes);
}

// The lock keeps the calls alive. A reaction that removes a call cannot deadlock with it, since
// TryCancel never runs a reaction on a thread that is not gRPC's own.
void CallRegistry::CancelAll() {
  const std::lock_guard lock(mutex_);
  for (const auto& [context, call] : calls_) call->TryCancel();
}

int CallRegistry::CancelIdle(SendBudget::Clock::time_point now, absl::Duration send_max,
                             absl::Duration take_max) {
  const std::lock_guard lock(mutex_);
  int unread = 0;
  for (const auto& [context, call] : calls_) {
    const Call::Idleness idleness = call->IdlenessAt(now, send_max, take_max);
    if (idleness == Call::Idleness::kNone) continue;
    if (idleness == Call::Idleness::kTakesNothing) unread += unread_.insert(call).second ? 1 : 0;
    call->TryCancel();
  }
  return unread;
}

grpc::Status StatusToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      CutText(std::string(status.message()), kStatusMessageBytesMax),
                      ErrorDetailToProto(error::DetailOf(status)).SerializeAsString());
}

}  // namespace quantgate
