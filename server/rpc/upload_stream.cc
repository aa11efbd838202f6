#include "server/rpc/upload_stream.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/crc32c.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/limits.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

grpc::ByteBuffer Response(int64_t committed_size, bool already_present) {
  v1::WriteResponse response;
  response.set_committed_size(committed_size);
  response.set_already_present(already_present);
  grpc::ByteBuffer buffer;
  bool own_buffer;
  (void)grpc::SerializationTraits<v1::WriteResponse>::Serialize(response, &buffer, &own_buffer);
  return buffer;
}

}  // namespace

UploadStream::UploadStream(ServiceContext& context, grpc::CallbackServerContext* server_context,
                           grpc::ByteBuffer* response)
    : call_(context, Rpc("Blobs.Write"), server_context), response_(response) {
  const absl::Status admitted = call_.Admit(Admission::kUnlessDraining);
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    if (!admitted.ok()) Stop(admitted);
    actions = DecideActions();
  }
  Start(actions);
}

// Called without the lock, since gRPC and the executor may call back at once. The last action may
// delete `this`, as End() may; if there are no actions, `this` may be deleted already.
void UploadStream::Start(const Actions& actions) {
  if (actions.hash) call_.context().transfers.Run([this] { HashQueued(); });
  if (actions.write) call_.context().transfers.Run([this] { WriteQueued(); });
  if (actions.commit) call_.context().transfers.Run([this] { Commit(); });
  if (actions.read) Read();
  if (actions.end) End();
}

UploadStream::Actions UploadStream::DecideActions() {
  Actions actions;
  if (is_over_) return actions;
  if (outcome_.has_value()) DropQueued();
  actions.hash = !is_hashing_ && !to_hash_.empty();
  actions.write = !is_writing_ && !to_write_.empty();
  is_hashing_ |= actions.hash;
  is_writing_ |= actions.write;
  const bool is_drained = !is_hashing_ && !is_writing_ && !is_committing_;
  if (is_reading_) return actions;
  if (outcome_.has_value()) {
    actions.end = is_over_ = is_drained;
  } else if (has_read_all_) {
    actions.commit = is_committing_ = is_drained;
  } else {
    // Every stream may always read one message, so that each of them makes progress.
    const bool has_room =
        in_flight_ == 0 || (in_flight_ < kUploadChunksInFlight &&
                            call_.context().upload_bytes_in_flight < kUploadBytesInFlight);
    actions.read = is_reading_ = has_room;
  }
  return actions;
}

void UploadStream::Read() {
  call_.MessageAwaited();
  StartRead(&incoming_);
}

// A task that was queued before finds its queue empty.
void UploadStream::DropQueued() {
  for (const Received& received : to_hash_) Release(received.message_bytes);
  for (const Hashed& hashed : to_write_) Release(hashed.message_bytes);
  to_hash_.clear();
  to_write_.clear();
}

void UploadStream::Release(int64_t message_bytes) {
  --in_flight_;
  call_.context().upload_bytes_in_flight -= message_bytes;
}

void UploadStream::Stop(absl::Status status) {
  if (!outcome_.has_value()) outcome_ = std::move(status);
}

void UploadStream::OnReadDone(bool ok) noexcept {
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    is_reading_ = false;
    if (ok) {
      call_.MessageReceived();
      Received& received = to_hash_.emplace_back();
      received.message = std::make_unique<grpc::ByteBuffer>();
      received.message->Swap(&incoming_);
      received.message_bytes = static_cast<int64_t>(received.message->Length());
      ++in_flight_;
      call_.context().upload_bytes_in_flight += received.message_bytes;
    } else {
      has_read_all_ = true;
    }
    actions = DecideActions();
  }
  Start(actions);
}

// Hashes several messages in a row, since waking a thread for each of them costs more, but only a
// bounded number of them, since other streams wait for the thread.
void UploadStream::HashQueued() {
  for (int turn = 1; HashOne(turn < kUploadChunksInFlight);) ++turn;
}

bool UploadStream::HashOne(bool may_go_on) {
  std::optional<Received> received;
  {
    const std::lock_guard lock(mutex_);
    if (!to_hash_.empty()) {
      received = std::move(to_hash_.front());
      to_hash_.pop_front();
    }
  }
  absl::StatusOr<WriteRequestView> request = absl::CancelledError("dropped meanwhile");
  if (received.has_value()) request = WriteRequestView::Parse(std::move(received->message));
  const absl::Status taken = request.ok() ? Take(*request) : request.status();
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    if (taken.ok() && !is_present_) {
      to_write_.push_back({*std::move(request), received->message_bytes});
    } else if (received.has_value()) {
      Release(received->message_bytes);
      Stop(taken);
    }
    may_go_on = is_hashing_ = may_go_on && !to_hash_.empty();
    actions = DecideActions();
  }
  Start(actions);
  return may_go_on;
}

absl::Status UploadStream::Take(const WriteRequestView& request) {
  if (upload_ == nullptr) {
    QG_RETURN_IF_ERROR(Begin(request));
  } else if (request.header().has_value()) {
    return Refuse("header", "given again", "only the first message has a header");
  }
  // Another upload may have finished this blob by now.
  if (is_present_ || upload_->IsPresent()) {
    is_present_ = true;
    return absl::OkStatus();
  }
  QG_RETURN_IF_ERROR(CheckChunk(request));
  upload_->Hash(request.pieces());
  received_ += request.size();
  call_.context().metrics.Uploaded(call_.transport(), request.size());
  return absl::OkStatus();
}

absl::Status UploadStream::Begin(const WriteRequestView& request) {
  if (!request.header().has_value()) {
    return RefuseAbsent("header", "the first message says what is uploaded");
  }
  const v1::WriteHeader& header = *request.header();
  QG_RETURN_IF_ERROR(CheckToken(header.upload_id(), "header.upload_id"));
  QG_ASSIGN_OR_RETURN(const Digest digest, DigestFromProto(header.digest(), "header.digest"));
  BlobStore& blobs = call_.context().blob_store;
  if (blobs.Contains(digest)) {
    is_present_ = true;
    call_.context().metrics.UploadDeduplicated(digest.size);
    *response_ = Response(digest.size, /*already_present=*/true);
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(upload_, blobs.BeginUpload(header.upload_id(), digest, header.offset()));
  received_ = header.offset();
  if (received_ > 0) {
    call_.context().metrics.UploadResumed();
  } else {
    device_copy_ = DeviceCopy::Start(call_.context().devices, digest);
  }
  return absl::OkStatus();
}

absl::Status UploadStream::CheckChunk(const WriteRequestView& request) const {
  const int64_t declared = upload_->digest().size;
  if (request.size() > declared - received_) {
    return Refuse("data", absl::StrCat(request.size(), " bytes at offset ", received_),
                  absl::StrCat("the upload ends at header.digest.size = ", declared));
  }
  if (!request.crc32c().has_value()) return absl::OkStatus();
  uint32_t crc = 0;
  for (const auto piece : request.pieces()) crc = ExtendCrc32c(crc, piece);
  if (crc == *request.crc32c()) return absl::OkStatus();
  return error::ChunkCorrupted(received_, *request.crc32c(), crc);
}

std::vector<UploadStream::Hashed> UploadStream::NextToWrite() {
  std::vector<Hashed> batch;
  const std::lock_guard lock(mutex_);
  for (int64_t bytes = 0; !to_write_.empty(); to_write_.pop_front()) {
    bytes += to_write_.front().request.size();
    if (!batch.empty() && bytes > kUploadWriteBytes) break;
    batch.push_back(std::move(to_write_.front()));
  }
  return batch;
}

void UploadStream::WriteQueued() {
  absl::Status written;
  const std::vector<Hashed> batch = NextToWrite();
  if (!batch.empty()) {
    std::vector<std::span<const std::byte>> pieces;
    for (const Hashed& hashed : batch) {
      const auto chunk = hashed.request.pieces();
      pieces.insert(pieces.end(), chunk.begin(), chunk.end());
    }
    written = upload_->Write(pieces);
    if (device_copy_ != nullptr) device_copy_->Append(pieces);
  }
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    is_writing_ = false;
    for (const Hashed& hashed : batch) Release(hashed.message_bytes);
    if (!written.ok()) Stop(written);
    actions = DecideActions();
  }
  Start(actions);
}

void UploadStream::Commit() {
  absl::Status status;
  if (upload_ == nullptr) {
    status = call_.cancellation()->Check();
    if (status.ok()) status = RefuseAbsent("header", "the stream had no message");
  } else {
    status = upload_->Commit();
    if (status.ok() && device_copy_ != nullptr) device_copy_->Keep();
  }
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    is_committing_ = false;
    Stop(status);
    actions = DecideActions();
  }
  Start(actions);
}

// Runs alone: no read and no task of this stream is in progress, and none starts any more.
void UploadStream::End() {
  absl::Status status;
  {
    const std::lock_guard lock(mutex_);
    status = *outcome_;
  }
  if (status.ok() && upload_ != nullptr) {
    *response_ = Response(upload_->digest().size, is_present_);
  }
  // The client may resume as soon as it knows of the end.
  upload_ = nullptr;
  device_copy_ = nullptr;
  if (status.ok()) call_.MessageSent();
  Finish(call_.End(status));
}

}  // namespace quantgate
