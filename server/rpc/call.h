// Call: what every RPC has in common, whatever its shape: admission, deadline and cancellation,
// metrics, and the conversion from absl::Status to grpc::Status at the end. CallRegistry has the
// calls in progress.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/base/execution.h"
#include "kernels/base/refusal.h"
#include "server/rpc/rpc_methods.h"
#include "server/rpc/send_watch.h"
#include "server/service_context.h"

namespace quantgate {

/// Whether a call is admitted while the server drains.
enum class Admission { kAlways, kUnlessDraining };

class Call {
 public:
  /// `server_context` must outlive the call, which a reactor ensures by owning it until OnDone.
  Call(ServiceContext& context, Rpc rpc, grpc::CallbackServerContext* server_context);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// Returns UNAVAILABLE while the server drains (unless `admission` is kAlways), DEADLINE_EXCEEDED
  /// after the call's deadline, and CANCELLED after its cancellation.
  absl::Status Admit(Admission admission) const;
  /// Records in the metrics how the call ended and returns the status to pass to Finish. Called
  /// once.
  grpc::Status End(const absl::Status& status);

  void MessageReceived();
  /// MessageBegun: gRPC was given a message of the response, as the interceptor of MakeSendWatch
  /// reports. MessageSent: gRPC has passed the whole message on. CallRegistry::CancelIdle may
  /// cancel a call when too much time passes between the two, or between End and the end of the
  /// call.
  void MessageBegun(int64_t bytes) { progress_.Begin(bytes); }
  void MessageSent();

  ServiceContext& context() const { return context_; }
  const std::shared_ptr<Cancellation>& cancellation() const { return cancellation_; }
  PeerTransport transport() const;
  /// The address of the peer, by which gRPC tells TCP connections apart. Empty for Unix sockets and
  /// the in-process channel, where gRPC does not.
  std::string connection() const;

  /// Records that a streaming call now waits for a message of its client. CallRegistry::CancelIdle
  /// may cancel the call if that takes too long.
  void MessageAwaited();
  enum class Idleness { kNone, kSendsNothing, kTakesNothing };
  Idleness IdlenessAt(SendBudget::Clock::time_point now, absl::Duration send_max,
                      absl::Duration take_max) const;
  void TryCancel() const { server_context_->TryCancel(); }
  const grpc::ServerContextBase* server_context() const { return server_context_; }

 private:
  ServiceContext& context_;
  const int method_;
  grpc::CallbackServerContext* const server_context_;
  const absl::Time start_;
  const std::shared_ptr<Cancellation> cancellation_;
  SendProgress progress_;
  /// When the call began to wait for its client, in nanoseconds of ServerOptions::now, a steady
  /// clock; 0 while it does not wait.
  std::atomic<int64_t> awaiting_since_nanos_{0};
};

class CallRegistry {
 public:
  void Add(Call* call);
  void Remove(Call* call);
  int size() const;
  /// Call::MessageBegun of the call with this context, if there is one.
  void MessageBegun(const grpc::ServerContextBase* context, int64_t bytes) const;
  /// Cancels every call in progress, as if its client had cancelled it.
  void CancelAll();
  /// Cancels the calls whose clients have sent nothing for `send_max` although the call waits for a
  /// message, or have taken nothing for `take_max`. Returns the number of calls cancelled for the
  /// second reason, without those that an earlier call of this function has counted.
  int CancelIdle(SendBudget::Clock::time_point now, absl::Duration send_max,
                 absl::Duration take_max);

 private:
  mutable std::mutex mutex_;
  absl::flat_hash_map<const grpc::ServerContextBase*, Call*> calls_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<Call*> unread_
      ABSL_GUARDED_BY(mutex_);  ///< Calls cancelled because their clients took nothing.
};

/// Returns a gRPC status with the same code, the text (cut to kStatusMessageBytesMax) and a
/// serialized v1.ErrorDetail. For Call::End, and for calls that end before they have a Call
/// (refused_calls.h).
grpc::Status StatusToGrpc(const absl::Status& status);

/// Parses the request of a method that receives raw bytes. INVALID_ARGUMENT for bytes that are not
/// a serialized `Request`.
template <typename Request>
absl::StatusOr<Request> Parsed(const grpc::ByteBuffer& bytes) {
  Request request;
  grpc::ByteBuffer read = bytes;  // A copy, since Deserialize consumes its buffer.
  if (grpc::SerializationTraits<Request>::Deserialize(&read, &request).ok()) return request;
  return Refuse("message", "malformed",
                absl::StrCat("must be a ", Request::descriptor()->full_name()));
}

}  // namespace quantgate
