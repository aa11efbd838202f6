// Fields that requests of several services have in common: names, ids and pages, and the digest of
// a whole request. Failures are INVALID_ARGUMENT naming the field, its value and the rule.
#pragma once

#include <google/protobuf/map.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/refusal.h"
#include "kernels/tensor/fingerprint.h"

namespace quantgate {

/// Text of a client as an error message shows it: quoted, escaped, cut to 64 bytes.
std::string Printable(const std::string& text);
/// Checks a request or upload id: 1 to kTokenLengthMax of [A-Za-z0-9_-].
absl::Status CheckToken(const std::string& token, const std::string& field);
/// Checks a name for people to read: at most kNameLengthMax bytes, no control characters.
absl::Status CheckName(const std::string& name, const std::string& field);

/// The value that `parse` gives for `text`, or `fallback` where `text` is empty. The rule of a
/// refusal is that of the parser, which lists the names that it knows.
template <typename Value>
absl::StatusOr<Value> ParsedName(absl::StatusOr<Value> (*parse)(std::string_view),
                                 const std::string& text, const std::string& field,
                                 Value fallback) {
  if (text.empty()) return fallback;
  absl::StatusOr<Value> value = parse(text);
  if (value.ok()) return value;
  const std::optional<Refusal> refusal = RefusalOf(value.status());
  return Refuse(field, Printable(text),
                refusal ? refusal->rule : std::string(value.status().message()));
}

/// The entries of a request's map in the order of their keys, so that of several mistakes always
/// the same one is reported. The map must outlive them.
template <typename Value>
std::map<std::string, const Value*> InOrder(const google::protobuf::Map<std::string, Value>& map) {
  std::map<std::string, const Value*> entries;
  for (const auto& [key, value] : map) entries.emplace(key, &value);
  return entries;
}

/// A page of a listing, newest entry first.
struct Page {
  int64_t before_id = 0;  ///< Entries have smaller ids; 0 means from the newest on.
  int size = 0;           ///< The most entries of the page.
};
/// The page that page_size (0 means the default) and page_token ask for. The token is the id of the
/// last entry of the page before.
absl::StatusOr<Page> PageFromProto(int page_size, const std::string& page_token);
/// The token of the page after the entry `before_id`; empty for 0, the end of the listing.
std::string PageToken(int64_t before_id);

/// SHA-256 of a message, serialized in an order that does not depend on the order of its maps. It
/// tells a repeated request from another one with the same request id.
Sha256 ContentDigest(const google::protobuf::Message& message);

}  // namespace quantgate
