// Why a request is refused: the field, its value and the rule that the value breaks. The three
// travel as payloads of an absl::Status, so that nobody parses its text, which only this file
// writes: "FIELD is VALUE: RULE".
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace quantgate {

/// One refusal.
struct Refusal {
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  /// A path as requests spell it: "variants[0].recipe", "parameters[fc1.weight]".
  std::string field;
  std::string value;  ///< As text; empty where the field is absent or the rule says everything.
  std::string rule;   ///< What must hold, and why where that is not obvious.
};

/// The status with the text "FIELD is VALUE: RULE"; without a value "FIELD: RULE"; without a field
/// "VALUE: RULE", until WithinField or AsField names one.
absl::Status StatusOf(const Refusal& refusal);

/// INVALID_ARGUMENT "FIELD is VALUE: RULE".
absl::Status Refuse(std::string_view field, std::string_view value, std::string_view rule);

/// FAILED_PRECONDITION "FIELD is VALUE: RULE", for a request that another state would allow.
absl::Status RefusePrecondition(std::string_view field, std::string_view value,
                                std::string_view rule);

/// INVALID_ARGUMENT "FIELD is absent: RULE", with an empty value.
absl::Status RefuseAbsent(std::string_view field, std::string_view rule);

/// The refusal that `status` carries; nothing for OK and for errors that refuse no field.
std::optional<Refusal> RefusalOf(const absl::Status& status);

/// Puts a refusal under `path`: FIELD becomes "PATH.FIELD" ("PATH[KEY]" if the field begins with a
/// bracket); an empty path changes nothing. An error that refuses no field becomes a refusal of
/// PATH itself with the error's text as the rule. OK stays OK.
absl::Status WithinField(std::string_view path, const absl::Status& status);

/// The same refusal with `field` in place of its field, for parsers, which know no path. OK stays
/// OK.
absl::Status AsField(std::string_view field, const absl::Status& status);

/// The same error and payloads with `prefix` before the text. OK stays OK.
absl::Status Prefixed(std::string_view prefix, const absl::Status& status);

}  // namespace quantgate
