// Looks up a value of an enum by name.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"

namespace quantgate {

/// The enumerator whose number is the index of `name` in `names`. INVALID_ARGUMENT naming the
/// field, the value and the known names.
template <class Enum>
absl::StatusOr<Enum> ParseName(std::span<const std::string_view> names, std::string_view field,
                               std::string_view name) {
  std::string known;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
    absl::StrAppend(&known, i == 0 ? "" : ", ", std::string(names[i]));
  }
  return Refuse(field, absl::StrCat("\"", std::string(name), "\""),
                absl::StrCat("unknown name; known: ", known));
}

}  // namespace quantgate
