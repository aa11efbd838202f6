// Errors of a server. The v1.ErrorDetail of a call's status is a payload of the absl::Status, so
// that callers can act on it and the command line can print it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "quantgate/v1/error.pb.h"

namespace quantgate {

/// The detail that SetErrorDetail attached.
std::optional<v1::ErrorDetail> ErrorDetailOf(const absl::Status& status);
/// Sets or replaces the detail of a status.
void SetErrorDetail(const v1::ErrorDetail& detail, absl::Status& status);
/// The same of a serialized v1.ErrorDetail, as the status of a call carries it.
void SetErrorDetail(const std::string& detail, absl::Status& status);

/// After how long the server asked to be called again; absent: it did not.
std::optional<absl::Duration> RetryAfterOf(const absl::Status& status);

/// Whether the same idempotent call may succeed later: the server is unavailable, or said when to
/// retry.
bool IsWorthRetrying(const absl::Status& status);

/// "INVALID_ARGUMENT: message", and below it whatever of field, value, rule and advice the message
/// does not say already. Several lines, no final newline.
std::string ErrorText(const absl::Status& status);

}  // namespace quantgate
