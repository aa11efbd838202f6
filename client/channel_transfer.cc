// The uploads and downloads of a ChannelConnection.
#include "client/blob_transfer.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <grpcpp/channel.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/channel_connection.h"
#include "client/live_calls.h"
#include "client/status.h"
#include "kernels/base/crc32c.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/fingerprint.h"
#include "quantgate/v1/blobs_service.grpc.pb.h"
#include "server/report/number_text.h"

namespace quantgate {
namespace {

/// Two streams in a row that were refused because another one writes the same upload: somebody is
/// at it, and not just the server late to notice that a stream has broken.
constexpr int kBusyMax = 2;

// Wire type 2 of protobuf, a length and so many bytes (protobuf.dev, "Encoding").
constexpr uint32_t kDataTag = v1::WriteRequest::kDataFieldNumber << 3 | 2;

/// `message`, which has no data, and then the caller's bytes as its data. The buffer shares
/// ownership of them.
grpc::ByteBuffer WithData(const v1::WriteRequest& message, std::span<const std::byte> data,
                          const std::shared_ptr<const void>& owner) {
  std::string prefix;
  {
    google::protobuf::io::StringOutputStream stream(&prefix);
    google::protobuf::io::CodedOutputStream out(&stream);
    message.SerializeToCodedStream(&out);
    out.WriteTag(kDataTag);
    out.WriteVarint64(data.size());
  }
  const auto let_go = [](void* user_data) {
    delete static_cast<std::shared_ptr<const void>*>(user_data);
  };
  const grpc::Slice slices[2] = {
      grpc::Slice(prefix), grpc::Slice(const_cast<std::byte*>(data.data()), data.size(), let_go,
                                       new std::shared_ptr<const void>(owner))};
  return grpc::ByteBuffer(slices, 2);
}

/// One blob on its way: what is known between one stream and the next.
struct Transfer {
  const SharedBytes& shared;
  const v1::Digest& digest;
  const UploadProgress& progress;
  std::string upload_id;
  Upload upload;
};

/// Sends everything from `offset` on in one stream. `response` is filled when the call ends OK.
absl::Status SendFrom(ChannelConnection& connection, Transfer& transfer, int64_t offset,
                      v1::WriteResponse* response) {
  const int64_t size = static_cast<int64_t>(transfer.shared.bytes.size());
  // What the generated stub does, with messages that are serialized already.
  const std::string name = absl::StrCat("/", v1::Blobs::service_full_name(), "/Write");
  const grpc::internal::RpcMethod method(name.c_str(), grpc::internal::RpcMethod::CLIENT_STREAMING);
  LiveCall call(connection.live_calls());
  const std::unique_ptr<grpc::ClientWriter<grpc::ByteBuffer>> writer(
      grpc::internal::ClientWriterFactory<grpc::ByteBuffer>::Create(
          connection.channel().get(), method, call.context(), response));

  v1::WriteRequest request;
  v1::WriteHeader& header = *request.mutable_header();
  header.set_upload_id(transfer.upload_id);
  *header.mutable_digest() = transfer.digest;
  header.set_offset(offset);
  bool is_first = true;
  while (is_first || offset < size) {
    const int64_t count = std::min(kUploadChunkBytes, size - offset);
    const auto chunk = transfer.shared.bytes.subspan(offset, count);
    // The peer is known once the first message is through.
    if (is_first || !IsOnThisMachine(call.context()->peer())) {
      request.set_crc32c(ExtendCrc32c(0, chunk));
    }
    // A refused write is no error yet: Finish says whether the server ended the call early, and
    // why.
    if (!writer->Write(WithData(request, chunk, transfer.shared.owner))) break;
    request.Clear();
    is_first = false;
    offset += count;
    transfer.upload.bytes_sent += count;
    if (transfer.progress) transfer.progress(offset, size);
  }
  writer->WritesDone();
  return FromGrpcStatus(writer->Finish());
}

/// Where to start: what the server has committed, 0 if it knows nothing of the upload.
absl::StatusOr<v1::QueryWriteResponse> CommittedOf(ChannelConnection& connection,
                                                   const Transfer& transfer) {
  v1::QueryWriteRequest query;
  query.set_upload_id(transfer.upload_id);
  *query.mutable_digest() = transfer.digest;
  absl::StatusOr<v1::QueryWriteResponse> answer = connection.QueryWrite(query);
  if (absl::IsNotFound(answer.status())) return v1::QueryWriteResponse();
  if (answer.ok() &&
      (answer->committed_size() < 0 || answer->committed_size() > transfer.digest.size())) {
    return absl::InternalError(absl::StrCat("server: committed ", answer->committed_size(),
                                            " bytes of a blob of ", transfer.digest.size()));
  }
  return answer;
}

/// A broken stream, a chunk damaged on the way, an offset the server did not expect, or another
/// stream that writes the same upload.
bool CanResume(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDataLoss(status) || absl::IsOutOfRange(status) ||
         absl::IsAborted(status);
}

std::string OwnUploadId(const v1::Digest& digest) {
  return absl::StrCat(SharedUploadId(digest), "-", NewRequestId());
}

/// Sends from `offset` on until the server has all of it.
absl::StatusOr<Upload> Send(ChannelConnection& connection, Transfer& transfer, int64_t offset) {
  int64_t best = -1;  // Largest offset that a resumption started from.
  int times_busy = 0;
  bool has_restarted = false;
  for (int attempt = 1;; ++attempt) {
    v1::WriteResponse response;
    const absl::Status status = SendFrom(connection, transfer, offset, &response);
    if (status.ok()) {
      transfer.upload.already_present = response.already_present();
      return transfer.upload;
    }
    if (absl::IsInvalidArgument(status) && offset > 0 && !has_restarted) {
      // The bytes before `offset` may be another client's, and not what their digest says.
      has_restarted = true;
      transfer.upload_id = OwnUploadId(transfer.digest);
      offset = 0;
      continue;
    }
    if (!CanResume(status) || !connection.PauseBeforeRetry(attempt, status)) return status;
    QG_ASSIGN_OR_RETURN(const v1::QueryWriteResponse committed, CommittedOf(connection, transfer));
    ++transfer.upload.resumptions;
    if (committed.complete()) return transfer.upload;
    offset = committed.committed_size();
    times_busy = absl::IsAborted(status) ? times_busy + 1 : 0;
    if (times_busy == kBusyMax) {
      transfer.upload_id = OwnUploadId(transfer.digest);
      offset = 0;
    }
    if (offset > best) attempt = 0;  // Progress: the count of fruitless tries starts again.
    best = std::max(best, offset);
  }
}

/// Reads from `received` on until the stream ends; `received` says how far it came.
absl::Status ReceiveFrom(ChannelConnection& connection, const v1::Digest& digest, Buffer& buffer,
                         int64_t& received, const DownloadProgress& progress) {
  const std::unique_ptr<v1::Blobs::Stub> stub = v1::Blobs::NewStub(connection.channel());
  LiveCall call(connection.live_calls());
  v1::ReadRequest request;
  *request.mutable_digest() = digest;
  request.set_offset(received);
  const std::unique_ptr<grpc::ClientReader<v1::ReadResponse>> reader =
      stub->Read(call.context(), request);
  v1::ReadResponse response;
  while (reader->Read(&response)) {
    const int64_t count = static_cast<int64_t>(response.data().size());
    if (count > digest.size() - received) {
      call.context()->TryCancel();
      while (reader->Read(&response)) continue;
      reader->Finish();
      return absl::DataLossError(
          absl::StrCat("digest:", DigestText(digest), ": the server sent more bytes than that"));
    }
    std::memcpy(buffer.data() + received, response.data().data(), response.data().size());
    received += count;
    if (progress) progress(received, digest.size());
  }
  return FromGrpcStatus(reader->Finish());
}

}  // namespace

std::string SharedUploadId(const v1::Digest& digest) {
  // The server keeps uploads apart by digest too; the hex digits are for people who read a log.
  return absl::StrCat("sha256-", absl::BytesToHexString(digest.sha256().substr(0, 8)));
}

bool IsOnThisMachine(absl::string_view peer) {
  // "SCHEME:ADDRESS" (grpc_sockaddr_to_uri), with the brackets of IPv6 percent-encoded or not.
  for (const absl::string_view prefix :
       {"unix:", "unix-abstract:", "ipv4:127.",
        "ipv6:[::1]:", "ipv6:%5B::1%5D:", "ipv6:[::ffff:127.", "ipv6:%5B::ffff:127."}) {
    if (absl::StartsWith(peer, prefix)) return true;
  }
  return false;
}

absl::StatusOr<Upload> WriteBlob(ChannelConnection& connection, const SharedBytes& bytes,
                                 const v1::Digest& digest, const UploadProgress& progress) {
  Transfer transfer{bytes, digest, progress, SharedUploadId(digest), {}};
  return Send(connection, transfer, 0);
}

absl::StatusOr<Upload> ChannelConnection::UploadBlob(const SharedBytes& bytes,
                                                     const v1::Digest& digest,
                                                     const UploadProgress& progress) {
  v1::FindMissingRequest request;
  *request.add_digests() = digest;
  QG_ASSIGN_OR_RETURN(const v1::FindMissingResponse answer, FindMissing(request));
  if (answer.missing_size() == 0) {
    if (progress) progress(digest.size(), digest.size());
    return Upload{.already_present = true};
  }
  Transfer transfer{bytes, digest, progress, SharedUploadId(digest), {}};
  // A part that an earlier client left is worth a question only where it saves a chunk; otherwise
  // the server refuses the offset.
  if (digest.size() <= kUploadChunkBytes) return Send(*this, transfer, 0);
  QG_ASSIGN_OR_RETURN(const v1::QueryWriteResponse committed, CommittedOf(*this, transfer));
  if (committed.complete()) return Upload{.already_present = true};
  return Send(*this, transfer, committed.committed_size());
}

absl::StatusOr<std::shared_ptr<Buffer>> ChannelConnection::DownloadBlob(
    const v1::Digest& digest, const DownloadProgress& progress) {
  QG_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, Buffer::Allocate(digest.size()));
  int64_t received = 0;
  for (int attempt = 1; received < digest.size(); ++attempt) {
    const int64_t before = received;
    const absl::Status status = ReceiveFrom(*this, digest, *buffer, received, progress);
    if (status.ok()) break;
    if (received > before) attempt = 1;
    if (!absl::IsUnavailable(status) || !PauseBeforeRetry(attempt, status)) {
      return status;
    }
  }
  const Sha256 sha256 = Sha256Of({buffer->data(), static_cast<size_t>(received)});
  if (received != digest.size() || std::memcmp(sha256.bytes.data(), digest.sha256().data(),
                                               std::min<size_t>(32, digest.sha256().size())) != 0) {
    return absl::DataLossError(absl::StrCat("digest:", DigestText(digest),
                                            ": the bytes received have digest ", sha256.Hex(), "/",
                                            received));
  }
  return buffer;
}

}  // namespace quantgate
