#include "kernels/base/strict_json.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"

namespace quantgate {
namespace {

/// Bytes of a text that a refusal shows.
constexpr size_t kShownMax = 80;

}  // namespace

absl::StatusOr<nlohmann::json> ParseStrictJson(std::string_view text, int depth_max) {
  using Event = nlohmann::json::parse_event_t;
  bool is_deep = false;
  std::vector<std::set<std::string>> keys;  // Those of each object around what is read.
  std::optional<std::string> twin;
  const auto watch = [&](int depth, Event event, nlohmann::json& parsed) {
    is_deep |= depth > depth_max;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second) {
      twin = parsed.get<std::string>();
    }
    return true;
  };
  nlohmann::json json = nlohmann::json::parse(text, watch, /*allow_exceptions=*/false);
  const auto refuse = [&](const std::string& rule) {
    return Refuse("", absl::StrCat("\"", std::string(text.substr(0, kShownMax)), "\""), rule);
  };
  if (is_deep) return refuse(absl::StrCat("nested deeper than ", depth_max));
  if (json.is_discarded()) return refuse("not valid JSON");
  if (twin.has_value()) {
    return refuse(
        absl::StrCat("the key \"", twin->substr(0, kShownMax), "\" stands twice in one object"));
  }
  return json;
}

}  // namespace quantgate
