// Messages of methods that take bytes.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"

namespace quantgate {

/// INVALID_ARGUMENT for bytes that are no such message.
template <typename Request>
absl::StatusOr<Request> Parsed(const grpc::ByteBuffer& bytes) {
  Request request;
  grpc::ByteBuffer read = bytes;  // Which is used up.
  if (grpc::SerializationTraits<Request>::Deserialize(&read, &request).ok()) return request;
  return Refuse("message", "malformed",
                absl::StrCat("must be a ", Request::descriptor()->full_name()));
}

}  // namespace quantgate
