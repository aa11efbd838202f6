// The JSON that version 0.1.0's renderer (schema_version 1) made of the reports in
// tests/data/report_values, and where its values are now.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace quantgate {

/// tests/data/report_values/NAME.
std::string RecordedText(const std::string& name);

/// "/run/seconds: 1.5, now null" for every value (what was null or empty had none) that `now` does
/// not have in the place that CHANGELOG.md tells. Of messages that are absent, zeros are no values.
std::vector<std::string> LostValues(const nlohmann::ordered_json& recorded,
                                    const nlohmann::ordered_json& now);

/// How many values there are to lose.
int CountValues(const nlohmann::ordered_json& recorded);

}  // namespace quantgate
