// Messages of methods that take bytes.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace quantgate {

/// INVALID_ARGUMENT for bytes that are no such message.
template <typename Request>
absl::StatusOr<Request> Parsed(const grpc::ByteBuffer& bytes) {
  Request request;
  grpc::ByteBuffer read = bytes;  // Which is used up.
  if (grpc::SerializationTraits<Request>::Deserialize(&read, &request).ok()) return request;
  return absl::InvalidArgumentError(
      absl::StrCat("the message is no ", Request::descriptor()->full_name()));
}

}  // namespace quantgate
