#include "kernels/base/refusal.h"

#include <utility>

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

/// A status with the payloads of `like`, which may be more than a refusal's.
absl::Status WithText(absl::StatusCode code, const std::string& text, const absl::Status& like) {
  absl::Status status(code, text);
  like.ForEachPayload(
      [&](absl::string_view key, const absl::Cord& payload) { status.SetPayload(key, payload); });
  return status;
}

absl::Status Refused(const absl::Status& like, const Refusal& refusal, const std::string& text) {
  absl::Status status = WithText(refusal.code, text, like);
  status.SetPayload(kField, absl::Cord(refusal.field));
  status.SetPayload(kValue, absl::Cord(refusal.value));
  status.SetPayload(kRule, absl::Cord(refusal.rule));
  return status;
}

std::string TextOf(const Refusal& refusal) {
  if (refusal.field.empty()) {
    return absl::StrCat(refusal.value, refusal.value.empty() ? "" : ": ", refusal.rule);
  }
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

absl::Status RefusePrecondition(std::string_view field, std::string_view value,
                                std::string_view rule) {
  return StatusOf({.code = absl::StatusCode::kFailedPrecondition,
                   .field = std::string(field),
                   .value = std::string(value),
                   .rule = std::string(rule)});
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
  const std::optional<Refusal> refusal = RefusalOf(status);
  return AsField(refusal.has_value() ? Join(path, refusal->field) : std::string(path), status);
}

absl::Status AsField(std::string_view field, const absl::Status& status) {
  if (status.ok()) return status;
  const std::string text(status.message());
  std::optional<Refusal> refusal = RefusalOf(status);
  if (!refusal.has_value()) {
    refusal = {.code = status.code(), .field = std::string(field), .rule = text};
    return Refused(status, *refusal, TextOf(*refusal));
  }
  const std::string old = std::exchange(refusal->field, std::string(field));
  // The text after the field may say more than value and rule do, so it is kept.
  const bool is_behind = old.empty() ? text.starts_with(" ") : text.starts_with(old);
  return Refused(
      status, *refusal,
      is_behind ? absl::StrCat(refusal->field, text.substr(old.size())) : TextOf(*refusal));
}

absl::Status Prefixed(std::string_view prefix, const absl::Status& status) {
  if (status.ok()) return status;
  return WithText(status.code(), absl::StrCat(std::string(prefix), status.message()), status);
}

}  // namespace quantgate
