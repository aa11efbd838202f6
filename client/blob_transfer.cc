// What blobs need of any connection; remote_transfer.cc has what servers need for them.
#include "client/blob_transfer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/fingerprint.h"

namespace quantgate {

v1::Digest DigestOf(std::span<const std::byte> bytes) {
  const Sha256 sha256 = Sha256Of(bytes);
  v1::Digest digest;
  digest.set_sha256(sha256.bytes.data(), sha256.bytes.size());
  digest.set_size(static_cast<int64_t>(bytes.size()));
  return digest;
}

SharedBytes SharedBytesOf(const Tensor& tensor) {
  return {tensor.bytes(), std::make_shared<const Tensor>(tensor)};
}

absl::StatusOr<Upload> UploadBlob(Connection& connection, const SharedBytes& bytes,
                                  const v1::Digest& digest, const UploadProgress& progress) {
  return connection.UploadBlob(bytes, digest, progress);
}

absl::StatusOr<std::shared_ptr<Buffer>> DownloadBlob(Connection& connection,
                                                     const v1::Digest& digest,
                                                     const DownloadProgress& progress) {
  return connection.DownloadBlob(digest, progress);
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
