// JSON files that commands read.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace quantgate {

/// The object in a file that was given as `argument`: NOT_FOUND or INVALID_ARGUMENT naming both.
absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& argument, const std::string& path);

}  // namespace quantgate
