// JSON that a user gives, read so that nothing of it is lost.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"

namespace quantgate {

/// INVALID_ARGUMENT, a refusal of the text without a field, for text that is not JSON, has values
/// nested deeper than `depth_max`, or has an object with a key twice, of which only one would be
/// kept.
absl::StatusOr<nlohmann::json> ParseStrictJson(std::string_view text, int depth_max);

}  // namespace quantgate
