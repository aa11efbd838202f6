#include "client/cli/json_file.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace quantgate {

absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& argument,
                                              const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat(argument, ": cannot read ", path));
  nlohmann::json json = nlohmann::json::parse(text.str(), nullptr, false);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(absl::StrCat(argument, ": ", path, " is no JSON object"));
}

}  // namespace quantgate
