#include "kernels/base/refusal.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace quantgate {
namespace {

constexpr char kField[] = "quantgate/field";
constexpr char kValue[] = "quantgate/value";
constexpr char kRule[] = "quantgate/rule";

std::string Payload(const absl::Status& status, const char* key) {
  const auto payload = status.GetPayload(key);
  return payload.has_value() ? std::string(*payload) : std::string();
}

/// `status` itself with other payloads stays what it is: a list of what is missing, say.
absl::Status Refused(const absl::Status& like, const Refusal& refusal, const std::string& text) {
  absl::Status status(refusal.code, text);
  like.ForEachPayload(
      [&](absl::string_view key, const absl::Cord& payload) { status.SetPayload(key, payload); });
  status.SetPayload(kField, absl::Cord(refusal.field));
  status.SetPayload(kValue, absl::Cord(refusal.value));
  status.SetPayload(kRule, absl::Cord(refusal.rule));
  return status;
}

std::string TextOf(const Refusal& refusal) {
  if (refusal.field.empty() && refusal.value.empty()) return refusal.rule;
  return absl::StrCat(refusal.field, refusal.value.empty() ? "" : " is ", refusal.value, ": ",
                      refusal.rule);
}

std::string Join(std::string_view path, const std::string& field) {
  if (path.empty()) return field;
  return absl::StrCat(std::string(path), field.empty() || field[0] == '[' ? "" : ".", field);
}

}  // namespace

absl::Status StatusOf(const Refusal& refusal) {
  return Refused(absl::OkStatus(), refusal, TextOf(refusal));
}

absl::Status Refuse(std::string_view field, std::string_view value, std::string_view rule) {
  return StatusOf(
      {.field = std::string(field), .value = std::string(value), .rule = std::string(rule)});
}

absl::Status RefuseAbsent(std::string_view field, std::string_view rule) {
  const Refusal refusal = {.field = std::string(field), .rule = std::string(rule)};
  return Refused(absl::OkStatus(), refusal,
                 absl::StrCat(refusal.field, " is absent: ", refusal.rule));
}

std::optional<Refusal> RefusalOf(const absl::Status& status) {
  if (status.ok() || !status.GetPayload(kField).has_value()) return std::nullopt;
  return Refusal{.code = status.code(),
                 .field = Payload(status, kField),
                 .value = Payload(status, kValue),
                 .rule = Payload(status, kRule)};
}

absl::Status WithinField(std::string_view path, const absl::Status& status) {
  if (status.ok()) return status;
  const std::string text(status.message());
  std::optional<Refusal> refusal = RefusalOf(status);
  if (!refusal.has_value()) {
    return StatusOf({.code = status.code(), .field = std::string(path), .rule = text});
  }
  const std::string field = refusal->field;
  refusal->field = Join(path, field);
  // The text begins with the field; the rest may say more than the parts do.
  return Refused(status, *refusal, absl::StrCat(refusal->field, text.substr(field.size())));
}

absl::Status AsField(std::string_view field, const absl::Status& status) {
  if (status.ok()) return status;
  std::optional<Refusal> refusal = RefusalOf(status);
  if (!refusal.has_value()) return WithinField(field, status);
  const std::string text(status.message());
  const size_t old_size = refusal->field.size();
  refusal->field = std::string(field);
  return Refused(status, *refusal, absl::StrCat(refusal->field, text.substr(old_size)));
}

}  // namespace quantgate
