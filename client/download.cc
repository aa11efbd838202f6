#include "client/download.h"

#include <grpcpp/channel.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/channel_connection.h"
#include "client/live_calls.h"
#include "client/status.h"
#include "client/upload.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/fingerprint.h"
#include "quantgate/v1/blobs_service.grpc.pb.h"
#include "server/report/number_text.h"

namespace quantgate {
namespace {

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

absl::StatusOr<std::shared_ptr<Buffer>> DownloadBlob(Connection& connection,
                                                     const v1::Digest& digest,
                                                     const DownloadProgress& progress) {
  return connection.DownloadBlob(digest, progress);
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

absl::StatusOr<Tensor> FetchTensor(Connection& connection, const v1::NamedTensor& tensor,
                                   const DownloadProgress& progress) {
  QG_ASSIGN_OR_RETURN(const DType dtype, ParseDType(tensor.type().dtype()));
  const Shape shape(tensor.type().shape().begin(), tensor.type().shape().end());
  if (tensor.has_data()) {
    return Tensor::FromBytes(dtype, shape, std::as_bytes(std::span(tensor.data())));
  }
  if (!tensor.has_digest()) {
    return absl::InternalError(
        absl::StrCat("server: returned ", tensor.name(), " without bytes and without digest"));
  }
  QG_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer,
                      DownloadBlob(connection, tensor.digest(), progress));
  return Tensor::View(dtype, shape, std::move(buffer));
}

}  // namespace quantgate
