// The wording of what a layer refuses.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quantgate {

/// INVALID_ARGUMENT "field: value; rule".
inline absl::Status InvalidField(const std::string& field, const std::string& value,
                                 const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, "; ", rule));
}

}  // namespace quantgate
