// JSON files that commands read.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace quantgate {

/// The object in a file that was given as `argument`: NOT_FOUND or INVALID_ARGUMENT naming both.
absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& argument, const std::string& path);

/// Reads JSON into `message`. INVALID_ARGUMENT says where the JSON is wrong, and for an unknown
/// field lists the known ones.
absl::Status ParseJsonMessage(const std::string& text, google::protobuf::Message& message);

}  // namespace quantgate
