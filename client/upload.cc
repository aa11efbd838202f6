#include "client/upload.h"

#include <grpcpp/channel.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/live_calls.h"
#include "client/status.h"
#include "kernels/base/crc32c.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/fingerprint.h"
#include "quantgate/v1/blobs_service.grpc.pb.h"

namespace quantgate {
namespace {

/// One blob on its way: what is known between one stream and the next.
struct Transfer {
  std::span<const std::byte> bytes;
  const v1::Digest& digest;
  std::string upload_id;
  const UploadProgress& progress;
  Upload upload;
};

/// Sends everything from `offset` on in one stream. `response` is filled when the call ends OK.
absl::Status SendFrom(Connection& connection, Transfer& transfer, int64_t offset,
                      v1::WriteResponse* response) {
  const int64_t size = static_cast<int64_t>(transfer.bytes.size());
  const std::unique_ptr<v1::Blobs::Stub> stub = v1::Blobs::NewStub(connection.channel());
  LiveCall call(connection.live_calls());
  const std::unique_ptr<grpc::ClientWriter<v1::WriteRequest>> writer =
      stub->Write(call.context(), response);

  v1::WriteRequest request;
  v1::WriteHeader& header = *request.mutable_header();
  header.set_upload_id(transfer.upload_id);
  *header.mutable_digest() = transfer.digest;
  header.set_offset(offset);
  bool is_first = true;
  while (is_first || offset < size) {
    const int64_t count = std::min(kUploadChunkBytes, size - offset);
    const auto chunk = transfer.bytes.subspan(offset, count);
    request.set_data(chunk.data(), chunk.size());
    request.set_crc32c(ExtendCrc32c(0, chunk));
    // A refused write is no error yet: Finish says whether the server ended the call early, and
    // why.
    if (!writer->Write(request)) break;
    request.clear_header();
    is_first = false;
    offset += count;
    transfer.upload.bytes_sent += count;
    if (transfer.progress) transfer.progress(offset, size);
  }
  writer->WritesDone();
  return FromGrpcStatus(writer->Finish());
}

/// Where to go on after a broken stream: what the server has committed, 0 if it knows nothing of
/// the upload.
absl::StatusOr<v1::QueryWriteResponse> CommittedOf(Connection& connection,
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

/// A broken stream, a chunk damaged on the way, or an offset the server did not expect.
bool CanResume(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDataLoss(status) || absl::IsOutOfRange(status) ||
         absl::IsAborted(status);
}

}  // namespace

v1::Digest DigestOf(std::span<const std::byte> bytes) {
  const Sha256 sha256 = Sha256Of(bytes);
  v1::Digest digest;
  digest.set_sha256(sha256.bytes.data(), sha256.bytes.size());
  digest.set_size(static_cast<int64_t>(bytes.size()));
  return digest;
}

std::string DigestText(const v1::Digest& digest) {
  return absl::StrCat(absl::BytesToHexString(digest.sha256()), "/", digest.size());
}

absl::StatusOr<Upload> WriteBlob(Connection& connection, std::span<const std::byte> bytes,
                                 const v1::Digest& digest, const UploadProgress& progress) {
  Transfer transfer{bytes, digest, NewRequestId(), progress, {}};
  int64_t offset = 0;
  int64_t best = -1;  // Largest offset that a resumption started from.
  for (int attempt = 1;; ++attempt) {
    v1::WriteResponse response;
    const absl::Status status = SendFrom(connection, transfer, offset, &response);
    if (status.ok()) {
      transfer.upload.already_present = response.already_present();
      return transfer.upload;
    }
    if (!CanResume(status) || !connection.PauseBeforeRetry(attempt, status)) return status;
    QG_ASSIGN_OR_RETURN(const v1::QueryWriteResponse committed, CommittedOf(connection, transfer));
    ++transfer.upload.resumptions;
    if (committed.complete()) return transfer.upload;
    offset = committed.committed_size();
    if (offset > best) attempt = 0;  // Progress: the count of fruitless tries starts again.
    best = std::max(best, offset);
  }
}

absl::StatusOr<Upload> UploadBlob(Connection& connection, std::span<const std::byte> bytes,
                                  const v1::Digest& digest, const UploadProgress& progress) {
  v1::FindMissingRequest request;
  *request.add_digests() = digest;
  QG_ASSIGN_OR_RETURN(const v1::FindMissingResponse answer, connection.FindMissing(request));
  if (answer.missing_size() == 0) {
    if (progress) progress(digest.size(), digest.size());
    return Upload{.already_present = true};
  }
  return WriteBlob(connection, bytes, digest, progress);
}

}  // namespace quantgate
