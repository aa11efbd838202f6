// WriteRequestView: parses a serialized v1.WriteRequest without copying its data. The copy would be
// most of the cost of receiving an upload.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "quantgate/v1/blobs_service.pb.h"

namespace quantgate {

class WriteRequestView {
 public:
  /// INVALID_ARGUMENT for bytes that are not a WriteRequest. Unknown fields are skipped, as
  /// protobuf's own parsers do.
  static absl::StatusOr<WriteRequestView> Parse(std::unique_ptr<grpc::ByteBuffer> message);

  WriteRequestView(WriteRequestView&&) = default;
  WriteRequestView& operator=(WriteRequestView&& other) noexcept {
    // Assigning the members one by one would let go of message_ before slices_.
    std::swap(message_, other.message_);
    std::swap(slices_, other.slices_);
    std::swap(header_, other.header_);
    std::swap(pieces_, other.pieces_);
    std::swap(size_, other.size_);
    std::swap(crc32c_, other.crc32c_);
    return *this;
  }

  const std::optional<v1::WriteHeader>& header() const { return header_; }
  /// The contents of the field `data`, in pieces that lie in the message's slices.
  std::span<const std::span<const std::byte>> pieces() const { return pieces_; }
  int64_t size() const { return size_; }
  const std::optional<uint32_t>& crc32c() const { return crc32c_; }

 private:
  class Parser;

  explicit WriteRequestView(std::unique_ptr<grpc::ByteBuffer> message)
      : message_(std::move(message)) {}

  // Destroyed after slices_, which share its memory: the last one to let go of a message must be a
  // ByteBuffer. Under a memory quota that is used up, gRPC 1.51 crashes when a Slice does it on a
  // thread that is not gRPC's own (the quota wakes its reclaimer, which needs an ExecCtx).
  std::unique_ptr<grpc::ByteBuffer> message_;
  std::vector<grpc::Slice> slices_;
  std::optional<v1::WriteHeader> header_;
  std::vector<std::span<const std::byte>> pieces_;
  int64_t size_ = 0;
  std::optional<uint32_t> crc32c_;
};

}  // namespace quantgate
