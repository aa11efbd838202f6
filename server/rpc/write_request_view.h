// WriteRequestView: one v1.WriteRequest taken apart without copying its data, which is most of the
// work that receiving an upload costs.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "quantgate/v1/blobs_service.pb.h"

namespace quantgate {

class WriteRequestView {
 public:
  /// INVALID_ARGUMENT for bytes that are no WriteRequest. Unknown fields are skipped, as
  /// everywhere.
  static absl::StatusOr<WriteRequestView> Parse(const grpc::ByteBuffer& message);

  const std::optional<v1::WriteHeader>& header() const { return header_; }
  /// `data`, in pieces.
  std::span<const std::span<const std::byte>> pieces() const { return pieces_; }
  int64_t size() const { return size_; }
  const std::optional<uint32_t>& crc32c() const { return crc32c_; }

 private:
  class Parser;

  std::vector<grpc::Slice> slices_;  // Own the bytes that pieces_ view.
  std::optional<v1::WriteHeader> header_;
  std::vector<std::span<const std::byte>> pieces_;
  int64_t size_ = 0;
  std::optional<uint32_t> crc32c_;
};

}  // namespace quantgate
