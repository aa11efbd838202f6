// The uploads and downloads of a RemoteConnection.
#include "client/blob_transfer.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/remote_connection.h"
#include "client/status.h"
#include "kernels/base/crc32c.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/fingerprint.h"
#include "server/report/number_text.h"

namespace quantgate {
namespace {

/// Two streams in a row that were refused because another one writes the same upload: somebody is
/// at it, and not just the server late to notice that a stream has broken.
constexpr int kBusyMax = 2;

/// A broken stream, a chunk damaged on the way, an offset the server did not expect, or another
/// stream that writes the same upload.
bool CanResume(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDataLoss(status) || absl::IsOutOfRange(status) ||
         absl::IsAborted(status);
}

std::string OwnUploadId(const v1::Digest& digest) {
  return absl::StrCat(SharedUploadId(digest), "-", NewRequestId());
}

}  // namespace

bool UploadMessages::Next(bool is_on_this_machine, v1::WriteRequest& request,
                          std::span<const std::byte>& data) {
  const int64_t size = static_cast<int64_t>(upload_.shared.bytes.size());
  if (!is_first_ && offset_ >= size) return false;
  request.Clear();
  if (is_first_) {
    v1::WriteHeader& header = *request.mutable_header();
    header.set_upload_id(upload_.upload_id);
    *header.mutable_digest() = upload_.digest;
    header.set_offset(offset_);
  }
  count_ = std::min(kUploadChunkBytes, size - offset_);
  data = upload_.shared.bytes.subspan(offset_, count_);
  if (!is_on_this_machine) request.set_crc32c(ExtendCrc32c(0, data));
  return true;
}

void UploadMessages::NoteSent() {
  is_first_ = false;
  offset_ += count_;
  upload_.upload.bytes_sent += count_;
  if (upload_.progress) upload_.progress(offset_, upload_.digest.size());
}

/// Where to start: what the server has committed, 0 if it knows nothing of the upload.
absl::StatusOr<v1::QueryWriteResponse> RemoteConnection::CommittedOf(const UploadUnderWay& upload) {
  v1::QueryWriteRequest query;
  query.set_upload_id(upload.upload_id);
  *query.mutable_digest() = upload.digest;
  absl::StatusOr<v1::QueryWriteResponse> answer = QueryWrite(query);
  if (absl::IsNotFound(answer.status())) return v1::QueryWriteResponse();
  if (answer.ok() &&
      (answer->committed_size() < 0 || answer->committed_size() > upload.digest.size())) {
    return absl::InternalError(absl::StrCat("server: committed ", answer->committed_size(),
                                            " bytes of a blob of ", upload.digest.size()));
  }
  return answer;
}

/// Sends from `offset` on until the server has all of it.
absl::StatusOr<Upload> RemoteConnection::Send(UploadUnderWay& upload, int64_t offset) {
  int64_t best = -1;  // Largest offset that a resumption started from.
  int times_busy = 0;
  bool has_restarted = false;
  for (int attempt = 1;; ++attempt) {
    v1::WriteResponse response;
    UploadMessages messages(upload, offset);
    const absl::Status status = WriteStream(messages, response);
    if (status.ok()) {
      upload.upload.already_present = response.already_present();
      return upload.upload;
    }
    if (absl::IsInvalidArgument(status) && offset > 0 && !has_restarted) {
      // The bytes before `offset` may be another client's, and not what their digest says.
      has_restarted = true;
      upload.upload_id = OwnUploadId(upload.digest);
      offset = 0;
      continue;
    }
    if (!CanResume(status) || !PauseBeforeRetry(attempt, status)) return status;
    QG_ASSIGN_OR_RETURN(const v1::QueryWriteResponse committed, CommittedOf(upload));
    ++upload.upload.resumptions;
    if (committed.complete()) return upload.upload;
    offset = committed.committed_size();
    times_busy = absl::IsAborted(status) ? times_busy + 1 : 0;
    if (times_busy == kBusyMax) {
      upload.upload_id = OwnUploadId(upload.digest);
      offset = 0;
    }
    if (offset > best) attempt = 0;  // Progress: the count of fruitless tries starts again.
    best = std::max(best, offset);
  }
}

/// Reads from `received` on until the stream ends; `received` says how far it came.
absl::Status RemoteConnection::ReceiveFrom(const v1::Digest& digest, Buffer& buffer,
                                           int64_t& received, const DownloadProgress& progress) {
  v1::ReadRequest request;
  *request.mutable_digest() = digest;
  request.set_offset(received);
  v1::ReadResponse response;
  bool is_too_long = false;
  const absl::Status status = ReadStream("Blobs/Read", Purpose::kWork, request, response, [&] {
    const int64_t count = static_cast<int64_t>(response.data().size());
    is_too_long = count > digest.size() - received;
    if (is_too_long) return false;
    std::memcpy(buffer.data() + received, response.data().data(), response.data().size());
    received += count;
    if (progress) progress(received, digest.size());
    return true;
  });
  if (is_too_long) {
    return absl::DataLossError(
        absl::StrCat("digest:", DigestText(digest), ": the server sent more bytes than that"));
  }
  return status;
}

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

absl::StatusOr<Upload> WriteBlob(RemoteConnection& connection, const SharedBytes& bytes,
                                 const v1::Digest& digest, const UploadProgress& progress) {
  UploadUnderWay upload{bytes, digest, progress, SharedUploadId(digest), {}};
  return connection.Send(upload, 0);
}

absl::StatusOr<Upload> RemoteConnection::UploadBlob(const SharedBytes& bytes,
                                                    const v1::Digest& digest,
                                                    const UploadProgress& progress) {
  v1::FindMissingRequest request;
  *request.add_digests() = digest;
  QG_ASSIGN_OR_RETURN(const v1::FindMissingResponse answer, FindMissing(request));
  if (answer.missing_size() == 0) {
    if (progress) progress(digest.size(), digest.size());
    return Upload{.already_present = true};
  }
  UploadUnderWay upload{bytes, digest, progress, SharedUploadId(digest), {}};
  // A part that an earlier client left is worth a question only where it saves a chunk; otherwise
  // the server refuses the offset.
  if (digest.size() <= kUploadChunkBytes) return Send(upload, 0);
  QG_ASSIGN_OR_RETURN(const v1::QueryWriteResponse committed, CommittedOf(upload));
  if (committed.complete()) return Upload{.already_present = true};
  return Send(upload, committed.committed_size());
}

absl::StatusOr<std::shared_ptr<Buffer>> RemoteConnection::DownloadBlob(
    const v1::Digest& digest, const DownloadProgress& progress) {
  QG_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, Buffer::Allocate(digest.size()));
  int64_t received = 0;
  for (int attempt = 1; received < digest.size(); ++attempt) {
    const int64_t before = received;
    const absl::Status status = ReceiveFrom(digest, *buffer, received, progress);
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
