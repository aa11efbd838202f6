#include "server/rpc/write_request_view.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"

namespace quantgate {
namespace {

// The wire format: a tag is field number * 8 + wire type (protobuf.dev, "Encoding").
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };
constexpr uint64_t Tag(int field, WireType type) {
  return static_cast<uint64_t>(field) << 3 | type;
}

absl::Status Malformed() {
  return Refuse("message", "malformed", "must be a quantgate.v1.WriteRequest");
}

}  // namespace

/// Walks over the slices of a message.
class WriteRequestView::Parser {
 public:
  explicit Parser(const std::vector<grpc::Slice>& slices) : slices_(slices) {
    for (const grpc::Slice& slice : slices_) left_ += slice.size();
  }

  uint64_t left() const { return left_; }

  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      uint8_t byte;
      if (!Copy(&byte, 1)) return false;
      *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }

  bool Copy(void* out, uint64_t count) {
    auto* to = static_cast<std::byte*>(out);
    return Walk(count, [&to](std::span<const std::byte> piece) {
      std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
    });
  }

  template <typename Visit>
  bool Walk(uint64_t count, Visit visit) {
    if (count > left_) return false;
    left_ -= count;
    while (count > 0) {
      const grpc::Slice& slice = slices_[slice_];
      const uint64_t take = std::min<uint64_t>(count, slice.size() - offset_);
      if (take > 0) {
        visit(std::span(reinterpret_cast<const std::byte*>(slice.begin()) + offset_, take));
      }
      offset_ += take;
      count -= take;
      if (offset_ == slice.size()) {
        ++slice_;
        offset_ = 0;
      }
    }
    return true;
  }

  bool Skip(uint32_t wire_type) {
    const auto ignore = [](std::span<const std::byte>) {};
    uint64_t value;
    switch (wire_type) {
      case kVarint:
        return ReadVarint(&value);
      case kFixed64:
        return Walk(8, ignore);
      case kFixed32:
        return Walk(4, ignore);
      case kLengthDelimited:
        return ReadVarint(&value) && Walk(value, ignore);
      default:
        return false;
    }
  }

 private:
  const std::vector<grpc::Slice>& slices_;
  size_t slice_ = 0;
  uint64_t offset_ = 0;
  uint64_t left_ = 0;
};

absl::StatusOr<WriteRequestView> WriteRequestView::Parse(
    std::unique_ptr<grpc::ByteBuffer> message) {
  WriteRequestView view(std::move(message));
  if (!view.message_->Dump(&view.slices_).ok()) return error::Internal("cannot read a message");
  Parser parser(view.slices_);
  while (parser.left() > 0) {
    uint64_t tag, length;
    if (!parser.ReadVarint(&tag)) return Malformed();
    switch (tag) {
      case Tag(v1::WriteRequest::kHeaderFieldNumber, kLengthDelimited): {
        std::string bytes;
        if (!parser.ReadVarint(&length) || length > parser.left()) return Malformed();
        bytes.resize(length);
        view.header_.emplace();
        if (!parser.Copy(bytes.data(), length) || !view.header_->ParseFromString(bytes)) {
          return Malformed();
        }
        break;
      }
      case Tag(v1::WriteRequest::kDataFieldNumber, kLengthDelimited):
        view.pieces_.clear();  // Protobuf keeps the last of several values.
        if (!parser.ReadVarint(&length) ||
            !parser.Walk(length, [&view](auto piece) { view.pieces_.push_back(piece); })) {
          return Malformed();
        }
        view.size_ = static_cast<int64_t>(length);
        break;
      case Tag(v1::WriteRequest::kCrc32CFieldNumber, kFixed32): {
        uint32_t crc;
        if (!parser.Copy(&crc, sizeof(crc))) return Malformed();
        view.crc32c_ = crc;
        break;
      }
      default:
        if (tag >> 3 == 0 || !parser.Skip(static_cast<uint32_t>(tag & 7))) return Malformed();
    }
  }
  return view;
}

}  // namespace quantgate
