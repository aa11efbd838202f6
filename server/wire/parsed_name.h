// Names in requests that the domain has a parser for.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/base/refusal.h"
#include "server/wire/convert_tensor.h"

namespace quantgate {

/// What `parse` makes of `text`; empty: `fallback`. INVALID_ARGUMENT naming the field, the value
/// and the names that the parser knows.
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

}  // namespace quantgate
