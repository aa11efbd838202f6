// Downloads: a blob into memory, resumed after a broken stream, checked against its digest.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// Called after every message with the bytes received so far and the size of the blob.

/// The blob's bytes. DATA_LOSS when they do not have this digest; NOT_FOUND from the server.
absl::StatusOr<std::shared_ptr<Buffer>> DownloadBlob(Connection& connection,
                                                     const v1::Digest& digest,
                                                     const DownloadProgress& progress = {});

/// The tensor that a call returned, from its inline bytes or its blob.
absl::StatusOr<Tensor> FetchTensor(Connection& connection, const v1::NamedTensor& tensor,
                                   const DownloadProgress& progress = {});

}  // namespace quantgate
