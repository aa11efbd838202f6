// Messages and reports as JSON: always valid, keys stable, `schema_version` first. A message is an
// object of its fields under their names in proto/, in their order. Absent fields are null; absent
// members of a oneof are left out. Enumerators are their names in lower case without the enum's
// name ("bound"; "none" for an unspecified one), bytes are hex, maps are objects where their keys
// are text and lists of {key, value} where they are numbers. NaN and infinities are the strings
// "NaN", "Infinity" and "-Infinity". Beside every real number KEY, except in lists, is KEY_bits,
// its bits in hex (as fp64 or fp32, whichever the field is; of an element, those of its own dtype).
// Digests are "SHA256/SIZE", fingerprints 32 hex digits, times RFC 3339; the bytes of a tensor that
// a call returned are left out.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/report/report_document.h"

namespace quantgate {

inline constexpr int kJsonSchemaVersion = 2;

nlohmann::ordered_json JsonOf(const google::protobuf::Message& message);
nlohmann::ordered_json JsonOf(const ReportDocument& document);
nlohmann::ordered_json JsonOf(const SubjectComparison& comparison);

/// An object that starts with schema_version and kind.
nlohmann::ordered_json JsonHead(const std::string& kind);
/// Sets json[key] and json[key_bits].
void SetReal(nlohmann::ordered_json& json, const std::string& key, double value);
/// The real number that `json` stands for: a number, "NaN", "Infinity" or "-Infinity". NaN for
/// anything else.
double RealIn(const nlohmann::ordered_json& json);
/// Text on one line (`indent` < 0) or indented; bytes that are no UTF-8 become U+FFFD.
std::string JsonText(const nlohmann::ordered_json& json, int indent);
/// One line: an object that starts with schema_version and kind and goes on with the members of
/// `body`.
std::string JsonLine(const std::string& kind, const nlohmann::ordered_json& body);

/// The whole document, indented, with a final newline.
std::string JsonDocument(const ReportDocument& document);
/// One line per comparison, captured layer, variant and pair, and a last one with the rest.
std::string JsonLines(const ReportDocument& document);

}  // namespace quantgate
