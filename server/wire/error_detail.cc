#include "server/wire/error_detail.h"

#include "server/wire/convert_tensor.h"

namespace quantgate {
namespace {

// Values come from clients and may be of any length.
constexpr size_t kDetailTextBytesMax = 512;

}  // namespace

std::string CutText(const std::string& text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t end = bytes_max;
  // Does not cut within a UTF-8 sequence, whose continuation bytes are 10xxxxxx.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

v1::ErrorDetail ErrorDetailToProto(const error::Detail& detail) {
  v1::ErrorDetail proto;
  proto.set_field(CutText(detail.field, kDetailTextBytesMax));
  proto.set_value(CutText(detail.value, kDetailTextBytesMax));
  proto.set_rule(CutText(detail.rule, kDetailTextBytesMax));
  for (const Digest& digest : detail.missing) *proto.add_missing() = DigestToProto(digest);
  if (detail.retry_after.has_value()) {
    const int64_t milliseconds = absl::ToInt64Milliseconds(*detail.retry_after);
    proto.mutable_retry_after()->set_seconds(milliseconds / 1000);
    proto.mutable_retry_after()->set_nanos(static_cast<int>(milliseconds % 1000) * 1'000'000);
  }
  proto.set_reason(detail.reason);
  if (detail.committed_size.has_value()) proto.set_committed_size(*detail.committed_size);
  return proto;
}

}  // namespace quantgate
