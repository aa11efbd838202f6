// Why a request is refused: the field, its value and the rule that the value breaks. They travel as
// payloads of an absl::Status, so that nobody reads them back from its text; the text is made here
// alone: "FIELD is VALUE: RULE".
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace quantgate {

struct Refusal {
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  /// A path as requests spell it: "variants[0].recipe", "parameters[fc1.weight]".
  std::string field;
  std::string value;  ///< As text; empty: the field is absent, or the rule says all there is.
  std::string rule;   ///< What has to hold, and why where that is not plain.
};

/// "FIELD is VALUE: RULE"; of an empty value "FIELD: RULE", of no field "VALUE: RULE" until it is
/// within one.
absl::Status StatusOf(const Refusal& refusal);

/// INVALID_ARGUMENT "FIELD is VALUE: RULE".
absl::Status Refuse(std::string_view field, std::string_view value, std::string_view rule);

/// FAILED_PRECONDITION "FIELD is VALUE: RULE", of what another state would allow.
absl::Status RefusePrecondition(std::string_view field, std::string_view value,
                                std::string_view rule);

/// INVALID_ARGUMENT "FIELD is absent: RULE", its value empty.
absl::Status RefuseAbsent(std::string_view field, std::string_view rule);

/// Nothing for OK and for errors that refuse no field.
std::optional<Refusal> RefusalOf(const absl::Status& status);

/// The same refusal of the field "PATH.FIELD" ("PATH[KEY]" of a field that begins so); of an error
/// that refuses no field one of PATH itself, its text as the rule. An empty path changes nothing of
/// the former and gives the latter no field. OK stays OK.
absl::Status WithinField(std::string_view path, const absl::Status& status);

/// The same value and rule of another field: of what a parser refused, which knows no path.
absl::Status AsField(std::string_view field, const absl::Status& status);

/// The same error, with all that it carries, whose text begins with `prefix`. OK stays OK.
absl::Status Prefixed(std::string_view prefix, const absl::Status& status);

}  // namespace quantgate
