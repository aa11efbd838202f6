#include "server/wire/request_fields.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <cctype>
#include <span>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/limits.h"

namespace quantgate {
namespace {

constexpr size_t kPrintableBytesMax = 64;

}  // namespace

std::string Printable(const std::string& text) {
  const std::string cut = text.substr(0, kPrintableBytesMax);
  return absl::StrCat("\"", absl::CHexEscape(cut), text.size() > cut.size() ? "...\"" : "\"");
}

absl::Status CheckToken(const std::string& token, const std::string& field) {
  const bool is_good = !token.empty() && token.size() <= kTokenLengthMax &&
                       std::all_of(token.begin(), token.end(), [](unsigned char c) {
                         return (std::isalnum(c) != 0 && c < 128) || c == '_' || c == '-';
                       });
  if (is_good) return absl::OkStatus();
  return Refuse(
      field, Printable(token),
      absl::StrCat("an id is 1 to ", kTokenLengthMax, " of letters, digits, '-' and '_'"));
}

absl::Status CheckName(const std::string& name, const std::string& field) {
  const bool is_good =
      name.size() <= kNameLengthMax &&
      std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; });
  if (is_good) return absl::OkStatus();
  return Refuse(
      field, Printable(name),
      absl::StrCat("a name has at most ", kNameLengthMax, " bytes and no control characters"));
}

absl::StatusOr<Page> PageFromProto(int page_size, const std::string& page_token) {
  Page page;
  page.size = page_size == 0 ? kPageSizeDefault : page_size;
  if (page.size < 0 || page.size > kPageSizeMax) {
    return Refuse("page_size", absl::StrCat(page_size),
                  absl::StrCat("a page has 1 to ", kPageSizeMax, " entries"));
  }
  if (page_token.empty()) return page;
  if (!absl::SimpleAtoi(page_token, &page.before_id) || page.before_id <= 0) {
    return Refuse("page_token", Printable(page_token),
                  "must be the next_page_token of the page before");
  }
  return page;
}

std::string PageToken(int64_t before_id) { return before_id == 0 ? "" : absl::StrCat(before_id); }

Sha256 ContentDigest(const google::protobuf::Message& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return Sha256Of(std::as_bytes(std::span(bytes)));
}

}  // namespace quantgate
