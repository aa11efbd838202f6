#include "server/rpc/run_stream.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <utility>

#include "quantgate/v1/engine_service.pb.h"
#include "server/errors.h"
#include "server/limits.h"
#include "server/runs/memory_guard.h"

namespace quantgate {
namespace {

/// Whether an event is a run's last one. DATA_LOSS for bytes that are no event.
absl::StatusOr<bool> EndsRun(const std::string& event) {
  using google::protobuf::internal::WireFormatLite;
  google::protobuf::io::CodedInputStream fields(reinterpret_cast<const uint8_t*>(event.data()),
                                                static_cast<int>(event.size()));
  bool ends = false;
  while (const uint32_t tag = fields.ReadTag()) {
    ends |= WireFormatLite::GetTagFieldNumber(tag) == v1::RunEvent::kFinishedFieldNumber;
    if (!WireFormatLite::SkipField(&fields, tag)) break;
  }
  if (fields.ConsumedEntireMessage()) return ends;
  return absl::DataLossError("the database holds a damaged run event");
}

/// The bytes to send for a stored event. The mark of an unverified event is appended: concatenated
/// serialized messages are parsed as one message.
std::shared_ptr<const std::string> EventToSend(RunStore::StoredEvent event) {
  if (event.is_unverified) {
    v1::RunEvent mark;
    mark.set_unverified(true);
    mark.AppendToString(&event.bytes);
  }
  return std::make_shared<const std::string>(std::move(event.bytes));
}

/// A buffer over the event's bytes, without a copy. gRPC owns the event and its room until it has
/// sent them.
grpc::ByteBuffer BufferOf(std::shared_ptr<const std::string> event, SendBudget::Room room) {
  struct Owner {
    std::shared_ptr<const std::string> event;
    SendBudget::Room room;
  };
  auto* const owner = new Owner{std::move(event), std::move(room)};
  const grpc::Slice slice(
      const_cast<char*>(owner->event->data()), owner->event->size(),
      [](void* done) { delete static_cast<Owner*>(done); }, owner);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

RunStream::RunStream(ServiceContext& context, Runs& runs, Rpc rpc, Admission admission,
                     grpc::CallbackServerContext* server_context, Place place,
                     absl::AnyInvocable<absl::StatusOr<Start>(const Call&) &&> start)
    : call_(context, rpc, server_context),
      runs_(runs),
      connection_(context.send_budget.ConnectionOf(call_.connection())) {
  call_.MessageReceived();
  if (place == Place::kHere) {
    Begin(admission, std::move(start));
  } else {
    RunTask([this, admission, start = std::move(start)]() mutable {
      Begin(admission, std::move(start));
    });
  }
}

void RunStream::RunTask(Executor::Task task) {
  call_.context().executor.Run(std::move(task), connection_.get());
}

void RunStream::Begin(Admission admission,
                      absl::AnyInvocable<absl::StatusOr<Start>(const Call&) &&> start) {
  const absl::Status admitted = call_.Admit(admission);
  if (!admitted.ok()) return End(admitted);
  absl::StatusOr<Start> started = GuardMemory([&] { return std::move(start)(call_); });
  if (!started.ok()) return End(started.status());
  next_sequence_ = started->sequence;
  live_ = runs_.live().Hold(started->run_id);
  bool was_cancelled;
  {
    const std::lock_guard lock(mutex_);
    run_id_ = started->run_id;
    cancel_on_disconnect_ = started->cancel_on_disconnect;
    was_cancelled = is_cancelled_;
  }
  // The client may have gone before there was a run to cancel.
  if (was_cancelled && cancel_on_disconnect_) runs_.CancelLive(run_id_);
  Continue();
}

std::shared_ptr<const std::string> RunStream::Latest() const {
  return live_ == nullptr ? nullptr : runs_.live().EventOf(*live_, next_sequence_);
}

// Called only by the code whose turn it is, as described at RunStream.
void RunStream::Continue(SendBudget::Room room) {
  {
    const std::lock_guard lock(mutex_);
    wait_token_ = room_token_ = 0;
  }
  const absl::Status wanted = call_.cancellation()->Check();
  if (!wanted.ok()) return End(wanted);
  const bool was_live = runs_.live().IsLive(run_id_);
  if (auto latest = Latest()) return Send(std::move(latest), std::move(room));
  // The event is not published yet, so it is waited for. Reading the database would only wait for
  // writes that are under way.
  if (runs_.live().IsToCome(run_id_, next_sequence_)) return WaitForEvent();
  // The event's size is known only once it is read. Send() then takes as much room as it needs.
  if (room.bytes() == 0) {
    room = call_.context().send_budget.TryTake(connection_, kSendPieceBytesLeast);
    if (room.bytes() == 0) return WaitForRoom(kSendPieceBytesLeast);
  }
  auto event = call_.context().run_store.ReadEvent(run_id_, next_sequence_);
  if (!event.ok()) return End(event.status());
  if (event->has_value()) return Send(EventToSend(**std::move(event)), std::move(room));
  const absl::Status why_owed = runs_.live().WhyOwed(run_id_);
  if (!why_owed.ok()) return End(why_owed);
  if (!was_live) return End(error::Internal("the run ended without its last event"));
  WaitForEvent();
}

void RunStream::Send(std::shared_ptr<const std::string> event, SendBudget::Room room) {
  const absl::StatusOr<bool> is_last = EndsRun(*event);
  if (!is_last.ok()) return End(is_last.status());
  const auto bytes = static_cast<int64_t>(event->size());
  if (room.bytes() < bytes) {
    room = {};
    room = call_.context().send_budget.TryTake(connection_, bytes);
  }
  // The event is read again later, so that it does not stay in memory while the stream waits.
  if (room.bytes() == 0) return WaitForRoom(bytes);
  room.ShrinkTo(bytes);
  event_ = BufferOf(std::move(event), std::move(room));
  ++next_sequence_;
  if (!*is_last) return StartWrite(&event_);
  // The status is sent together with the last event.
  call_.MessageSent();
  StartWriteAndFinish(&event_, grpc::WriteOptions(), call_.End(absl::OkStatus()));
}

void RunStream::WaitForRoom(int64_t bytes) {
  const auto go_on = [this](SendBudget::Room room) {
    RunTask([this, room = std::move(room)]() mutable {
      if (room.bytes() == 0) return End(error::NoRoomToSend());
      Continue(std::move(room));
    });
  };
  {
    const std::lock_guard lock(mutex_);
    // The lock is held for the same reason as in WaitForEvent.
    if (!is_cancelled_) {
      room_token_ = call_.context().send_budget.Wait(connection_, bytes, bytes, go_on);
      return;
    }
  }
  RunTask([this] { Continue(); });
}

void RunStream::WaitForEvent() {
  {
    const std::lock_guard lock(mutex_);
    // The lock is held so that neither a wake nor a cancellation comes before wait_token_ is set.
    if (!is_cancelled_) {
      wait_token_ = runs_.live().Wait(run_id_, next_sequence_, [this](LiveRuns::Position position) {
        // Waking another thread takes longer than sending the event here.
        if (position == LiveRuns::Position::kLast) return Continue();
        RunTask([this] { Continue(); });
      });
      if (wait_token_ != 0) return;
    }
  }
  RunTask([this] { Continue(); });
}

void RunStream::OnWriteDone(bool ok) noexcept {
  if (!ok) return End(absl::CancelledError("the client has gone"));
  event_.Clear();  // Returns the event's room to the budget.
  call_.MessageSent();
  // Neither sending an event in memory nor waiting for an unpublished one needs another thread.
  if (call_.cancellation()->Check().ok()) {
    if (auto latest = Latest()) return Send(std::move(latest), {});
    if (runs_.live().IsToCome(run_id_, next_sequence_)) return WaitForEvent();
  }
  RunTask([this] { Continue(); });
}

void RunStream::OnCancel() noexcept {
  call_.cancellation()->Cancel();
  std::string run_id;
  bool has_turn = false, cancels = false;
  {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
    run_id = run_id_;
    cancels = cancel_on_disconnect_;
    has_turn =
        (wait_token_ != 0 && runs_.live().StopWaiting(run_id_, wait_token_)) ||
        (room_token_ != 0 && call_.context().send_budget.StopWaiting(connection_, room_token_));
  }
  if (!run_id.empty() && cancels) runs_.CancelLive(run_id);
  // gRPC calls OnDone only after this reaction has returned, so `this` still exists.
  if (has_turn) RunTask([this] { Continue(); });
}

void RunStream::End(const absl::Status& status) { Finish(call_.End(status)); }

}  // namespace quantgate
