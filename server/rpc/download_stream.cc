#include "server/rpc/download_stream.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "kernels/base/status_macros.h"
#include "server/limits.h"
#include "server/rpc/convert_tensor.h"

namespace quantgate {

DownloadStream::DownloadStream(ServiceContext& context, grpc::CallbackServerContext* server_context,
                               const v1::ReadRequest* request)
    : call_(context, Rpc::kRead, server_context), request_(request) {
  call_.MessageReceived();
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    actions = DecideActions();
  }
  Start(actions);
}

DownloadStream::Actions DownloadStream::DecideActions() {
  Actions actions;
  if (is_over_) return actions;
  if (!is_writing_ && ready_.has_value()) {
    sending_ = *std::move(ready_);
    ready_.reset();
    actions.write = is_writing_ = true;
  }
  actions.read = !is_reading_ && !ready_.has_value() && !outcome_.has_value();
  is_reading_ |= actions.read;
  if (!is_reading_ && !is_writing_ && outcome_.has_value()) {
    is_over_ = true;
    actions.end = *outcome_;
  }
  return actions;
}

// Without the lock: gRPC and the executor may come back at once. The last of the actions may be the
// end of `this`, and with none `this` may be gone already.
void DownloadStream::Start(const Actions& actions) {
  if (actions.read) call_.context().transfers.Run([this] { ReadNext(); });
  if (actions.write) StartWrite(&sending_);
  if (actions.end.has_value()) Finish(call_.End(*actions.end));
}

absl::Status DownloadStream::Begin() {
  QG_RETURN_IF_ERROR(call_.Admit(Admission::kAlways));
  QG_ASSIGN_OR_RETURN(const Digest digest, DigestFromProto(request_->digest(), "digest"));
  QG_ASSIGN_OR_RETURN(reader_,
                      call_.context().blobs.Read(digest, request_->offset(), request_->limit(),
                                                 call_.cancellation().get()));
  return absl::OkStatus();
}

void DownloadStream::ReadNext() {
  absl::Status status = reader_.has_value() ? call_.cancellation()->Check() : Begin();
  v1::ReadResponse response;
  if (status.ok() && reader_->remaining() > 0) {
    std::string& data = *response.mutable_data();
    data.resize(static_cast<size_t>(std::min(reader_->remaining(), kChunkBytes)));
    status = reader_->Next(std::as_writable_bytes(std::span(data))).status();
  }
  const bool has_piece = status.ok() && !response.data().empty();
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    is_reading_ = false;
    if (!outcome_.has_value()) {
      if (has_piece) ready_ = std::move(response);
      // A message that is ready goes out before the end.
      if (!status.ok() || reader_->remaining() == 0) outcome_ = status;
    }
    actions = DecideActions();
  }
  Start(actions);
}

void DownloadStream::OnWriteDone(bool ok) {
  if (ok) {
    call_.MessageSent();
    call_.context().metrics.Downloaded(call_.transport(),
                                       static_cast<int64_t>(sending_.data().size()));
  }
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    is_writing_ = false;
    if (!ok) {
      outcome_ = absl::CancelledError("the client has gone");
      ready_.reset();
    }
    actions = DecideActions();
  }
  Start(actions);
}

}  // namespace quantgate
