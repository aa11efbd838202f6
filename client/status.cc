#include "client/status.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace quantgate {
namespace {

constexpr char kDetailUrl[] = "type.googleapis.com/quantgate.v1.ErrorDetail";

/// What a person can do about this code, where the code alone says it.
std::string AdviceFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return "check that quantgated is running at this address, or leave --server out to compute "
             "in this process";
    case absl::StatusCode::kDeadlineExceeded:
      return "raise --timeout";
    case absl::StatusCode::kDataLoss:
      return "the stored bytes or the connection are damaged; upload the tensor again";
    default:
      return "";
  }
}

std::string ReasonText(const v1::ErrorDetail& detail) {
  if (detail.reason().empty()) return "";
  return absl::StrCat("exhausted: ", detail.reason());
}

/// A long message is cut: what it begins to say is not said again.
constexpr size_t kSaidBytes = 64;

void AddLine(std::string& text, const std::string& message, const std::string& label,
             const std::string& value) {
  if (value.empty() || message.find(value.substr(0, kSaidBytes)) != std::string::npos) return;
  absl::StrAppend(&text, "\n  ", label, value);
}

}  // namespace

std::optional<v1::ErrorDetail> ErrorDetailOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kDetailUrl);
  v1::ErrorDetail detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

void SetErrorDetail(const v1::ErrorDetail& detail, absl::Status& status) {
  SetErrorDetail(detail.SerializeAsString(), status);
}

void SetErrorDetail(const std::string& detail, absl::Status& status) {
  status.SetPayload(kDetailUrl, absl::Cord(detail));
}

std::optional<absl::Duration> RetryAfterOf(const absl::Status& status) {
  const std::optional<v1::ErrorDetail> detail = ErrorDetailOf(status);
  if (!detail || !detail->has_retry_after()) return std::nullopt;
  return absl::Seconds(detail->retry_after().seconds()) +
         absl::Nanoseconds(detail->retry_after().nanos());
}

bool IsWorthRetrying(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return true;
  return absl::IsResourceExhausted(status) && RetryAfterOf(status).has_value();
}

std::string ErrorText(const absl::Status& status) {
  const std::string message(status.message());
  std::string text = absl::StrCat(absl::StatusCodeToString(status.code()), ": ", message);
  if (const std::optional<v1::ErrorDetail> detail = ErrorDetailOf(status)) {
    AddLine(text, message, "field: ", detail->field());
    AddLine(text, message, "value: ", detail->value());
    AddLine(text, message, "rule: ", detail->rule());
    AddLine(text, message, "", ReasonText(*detail));
    if (detail->missing_size() > 0) {
      AddLine(text, message, "missing blobs: ", std::to_string(detail->missing_size()));
    }
  }
  if (const std::optional<absl::Duration> retry_after = RetryAfterOf(status)) {
    AddLine(text, message, "try again after ", absl::FormatDuration(*retry_after));
  }
  AddLine(text, message, "", AdviceFor(status));
  return text;
}

}  // namespace quantgate
