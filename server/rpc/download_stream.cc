#include "server/rpc/download_stream.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <span>
#include <utility>

#include "kernels/base/status_macros.h"
#include "quantgate/v1/blobs_service.pb.h"
#include "server/errors.h"
#include "server/rpc/call.h"
#include "server/wire/convert_tensor.h"

namespace quantgate {
namespace {

/// Bytes of a blob and their room in the send budget; owned by gRPC until it has sent them.
struct Piece {
  std::unique_ptr<std::byte[]> data;
  SendBudget::Room room;
};

/// Serializes a ReadResponse around the data of `piece`, without copying the data.
grpc::ByteBuffer ReadResponseOf(std::unique_ptr<Piece> piece, size_t size) {
  using google::protobuf::internal::WireFormatLite;
  using google::protobuf::io::CodedOutputStream;
  uint8_t head[16];
  uint8_t* end = WireFormatLite::WriteTagToArray(v1::ReadResponse::kDataFieldNumber,
                                                 WireFormatLite::WIRETYPE_LENGTH_DELIMITED, head);
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(size), end);
  const grpc::Slice slices[] = {
      grpc::Slice(head, static_cast<size_t>(end - head)),
      grpc::Slice(
          piece->data.get(), size, [](void* done) { delete static_cast<Piece*>(done); },
          piece.get())};
  piece.release();  // NOLINT: the slice owns it now.
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace

DownloadStream::DownloadStream(ServiceContext& context, grpc::CallbackServerContext* server_context,
                               const grpc::ByteBuffer* request)
    : call_(context, Rpc("Blobs.Read"), server_context),
      request_(request),
      connection_(context.send_budget.ConnectionOf(call_.connection())),
      begins_behind_(!context.send_budget.AddUntaken(connection_)) {
  call_.MessageReceived();
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    actions = DecideActions();
  }
  Start(actions);
}

DownloadStream::~DownloadStream() {
  const std::lock_guard lock(mutex_);
  if (!has_written_) call_.context().send_budget.RemoveUntaken(connection_);
}

DownloadStream::Actions DownloadStream::DecideActions() {
  Actions actions;
  if (is_over_) return actions;
  if (!is_writing_ && ready_.has_value()) {
    sending_ = *std::move(ready_);
    ready_.reset();
    actions.write = is_writing_ = true;
    write_begun_ = SendBudget::Clock::now();
  }
  const bool may_read = has_written_ || !is_writing_;
  actions.read = may_read && !is_reading_ && !ready_.has_value() && !outcome_.has_value();
  is_reading_ |= actions.read;
  actions.is_behind = begins_behind_ && !has_written_;
  if (!is_reading_ && !is_writing_ && outcome_.has_value()) {
    is_over_ = true;
    actions.end = *outcome_;
  }
  return actions;
}

// Called without the lock, since gRPC and the executor may call back at once. The last action may
// delete `this`; if there are no actions, `this` may be deleted already.
void DownloadStream::Start(const Actions& actions) {
  if (actions.read) RunTask(actions.is_behind, [this] { AskForRoom(); });
  if (actions.write) StartWrite(&sending_.buffer);
  if (actions.end.has_value()) Finish(call_.End(*actions.end));
}

void DownloadStream::RunTask(bool is_behind, Executor::Task task) {
  Executor& transfers = call_.context().transfers;
  if (is_behind) return transfers.RunBehind(std::move(task), connection_.get());
  transfers.Run(std::move(task), connection_.get());
}

// Takes room for a piece of the present size, or else for a small one, and reads the piece.
void DownloadStream::AskForRoom() {
  SendBudget& budget = call_.context().send_budget;
  int64_t wanted;
  {
    const std::lock_guard lock(mutex_);
    wanted = piece_bytes_;
  }
  if (reader_.has_value()) wanted = std::min(wanted, reader_->remaining());
  SendBudget::Room room = budget.TryTake(connection_, wanted);
  if (room.bytes() == 0 && wanted > kSendPieceBytesLeast) {
    room = budget.TryTake(connection_, kSendPieceBytesLeast);
  }
  if (room.bytes() == 0) return WaitForRoom(wanted);
  ReadNext(std::move(room));
}

void DownloadStream::WaitForRoom(int64_t wanted) {
  {
    // The lock is held so that neither the answer nor a cancellation comes before room_token_ is
    // set.
    const std::lock_guard lock(mutex_);
    if (!is_cancelled_) {
      const bool is_behind = begins_behind_ && !has_written_;
      room_token_ = call_.context().send_budget.Wait(
          connection_, std::min(wanted, kSendPieceBytesLeast), wanted,
          [this, is_behind](SendBudget::Room room) {
            RunTask(is_behind,
                    [this, room = std::move(room)]() mutable { ReadNext(std::move(room)); });
          });
      return;
    }
  }
  EndReading(absl::CancelledError("the client has gone"));
}

absl::Status DownloadStream::Begin() {
  QG_RETURN_IF_ERROR(call_.Admit(Admission::kAlways));
  QG_ASSIGN_OR_RETURN(const v1::ReadRequest request, Parsed<v1::ReadRequest>(*request_));
  QG_ASSIGN_OR_RETURN(const Digest digest, DigestFromProto(request.digest(), "digest"));
  QG_ASSIGN_OR_RETURN(reader_,
                      call_.context().blob_store.Read(digest, request.offset(), request.limit(),
                                                      call_.cancellation().get()));
  return absl::OkStatus();
}

absl::StatusOr<DownloadStream::Message> DownloadStream::ReadMessage(SendBudget::Room room) {
  QG_RETURN_IF_ERROR(reader_.has_value() ? call_.cancellation()->Check() : Begin());
  Message message;
  message.data_bytes = std::min(reader_->remaining(), room.bytes());
  if (message.data_bytes == 0) return message;
  room.ShrinkTo(message.data_bytes);
  const auto size = static_cast<size_t>(message.data_bytes);
  std::unique_ptr<std::byte[]> data(new (std::nothrow) std::byte[size]);
  if (data == nullptr) return absl::ResourceExhaustedError("out of memory for a piece of a blob");
  QG_RETURN_IF_ERROR(reader_->Next(std::span(data.get(), size)).status());
  // The file is closed meanwhile: the next piece may be wanted only much later.
  reader_->Rest();
  message.buffer =
      ReadResponseOf(std::make_unique<Piece>(Piece{std::move(data), std::move(room)}), size);
  return message;
}

void DownloadStream::ReadNext(SendBudget::Room room) {
  {
    const std::lock_guard lock(mutex_);
    room_token_ = 0;
  }
  if (room.bytes() == 0) return EndReading(error::NoRoomToSend());
  EndReading(ReadMessage(std::move(room)));
}

void DownloadStream::EndReading(absl::StatusOr<Message> message) {
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    is_reading_ = false;
    if (!outcome_.has_value()) {
      // A message that is ready is sent before the stream ends.
      if (!message.ok() || reader_->remaining() == 0) outcome_ = message.status();
      if (message.ok() && message->data_bytes > 0) ready_ = *std::move(message);
    }
    actions = DecideActions();
  }
  Start(actions);
}

void DownloadStream::OnWriteDone(bool ok) noexcept {
  if (ok) {
    call_.MessageSent();
    call_.context().metrics.Downloaded(call_.transport(), sending_.data_bytes);
  }
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    is_writing_ = false;
    if (!std::exchange(has_written_, true)) {
      call_.context().send_budget.RemoveUntaken(connection_);
    }
    sending_.buffer.Clear();  // Returns the message's room to the budget.
    const auto time = absl::FromChrono(SendBudget::Clock::now() - write_begun_);
    piece_bytes_ = time < kSendPieceTime ? std::min(2 * piece_bytes_, kSendPieceBytesMost)
                                         : std::max(piece_bytes_ / 2, kSendPieceBytesLeast);
    if (!ok) {
      outcome_ = absl::CancelledError("the client has gone");
      ready_.reset();
    }
    actions = DecideActions();
  }
  Start(actions);
}

void DownloadStream::OnCancel() noexcept {
  call_.cancellation()->Cancel();
  bool has_turn;
  {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
    has_turn =
        room_token_ != 0 && call_.context().send_budget.StopWaiting(connection_, room_token_);
  }
  if (!has_turn) return;
  // gRPC calls OnDone only after this reaction has returned, so `this` still exists.
  call_.context().transfers.Run([this] { EndReading(absl::CancelledError("the client has gone")); },
                                connection_.get());
}

}  // namespace quantgate
