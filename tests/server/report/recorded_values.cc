#include "tests/server/report/recorded_values.h"

#include <fstream>
#include <regex>
#include <sstream>

#include "tests/base/repository_file.h"

namespace quantgate {
namespace {

using Json = nlohmann::ordered_json;

/// Keys that schema_version 2 renamed: the list in CHANGELOG.md.
std::string PlaceNow(std::string place) {
  static const std::vector<std::pair<std::regex, std::string>> kRenamed = {
      {std::regex("(/run/variants/[0-9]+/outputs/[0-9]+)/tensor"), "$1/tensor/name"},
      {std::regex("(/run/variants/[0-9]+/outputs/[0-9]+)/(dtype|shape)(/[0-9]+)?"),
       "$1/tensor/type/$2$3"},
      {std::regex("(/run/variants/[0-9]+/outputs/[0-9]+)/(fingerprint|digest)"), "$1/tensor/$2"},
      {std::regex("(.*/ranks/[0-9]+/outputs/[0-9]+|/outputs/[0-9]+|.*/state/[0-9]+)/tensor"),
       "$1/name"},
      {std::regex("(.*/ranks/[0-9]+/outputs/[0-9]+|/outputs/[0-9]+|.*/state/[0-9]+|/run/inputs/"
                  "[0-9]+|)/(dtype|shape)(/[0-9]+)?"),
       "$1/type/$2$3"},
      {std::regex("(.*/class_confusion/[0-9]+)/(subject|reference)"), "$1/$2_class"},
      {std::regex("(.*/(?:scale_codes|exponent_histogram)/[0-9]+)/(?:code|exponent)"), "$1/key"},
      {std::regex("(.*/(?:scale_codes|exponent_histogram)/[0-9]+)/count"), "$1/value"}};
  for (const auto& [before, after] : kRenamed) {
    if (std::regex_match(place, before)) return std::regex_replace(place, before, after);
  }
  return place;
}

/// A message that is not there is null now; its fields stood there as zeros.
bool IsOfAbsentMessage(const Json& value, Json::json_pointer place, const Json& now) {
  static const std::regex kZeros("(0x)?0+");
  const bool is_zero =
      value == 0 || (value.is_string() && std::regex_match(value.get<std::string>(), kZeros));
  while (!place.empty() && !now.contains(place)) place = place.parent_pointer();
  return is_zero && now[place].is_null();
}

bool IsValue(const std::string& place, const Json& value) {
  return !value.is_null() && !value.is_structured() && place != "/schema_version";
}

}  // namespace

std::string RecordedText(const std::string& name) {
  std::ifstream file(RepositoryFile("tests/data/report_values/" + name));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> LostValues(const Json& recorded, const Json& now) {
  std::vector<std::string> lost;
  const Json places = recorded.flatten();
  for (const auto& [place, value] : places.items()) {
    if (!IsValue(place, value)) continue;
    const Json::json_pointer pointer(PlaceNow(place));
    const Json found = now.contains(pointer) ? now[pointer] : Json();
    if (found == value || IsOfAbsentMessage(value, pointer, now)) continue;
    lost.push_back(place + ": " + value.dump() + ", now " + found.dump());
  }
  return lost;
}

int CountValues(const Json& recorded) {
  int count = 0;
  const Json places = recorded.flatten();
  for (const auto& [place, value] : places.items()) count += IsValue(place, value) ? 1 : 0;
  return count;
}

}  // namespace quantgate
