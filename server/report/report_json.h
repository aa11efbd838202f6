// Messages and reports as JSON: always valid, keys stable, `schema_version` first. A message is an
// object of its fields under their names in proto/, in their order; what is absent is null, and of
// a oneof left out. Enumerators are their names in lower case without the enum's ("bound", "none"
// for what is unspecified), bytes hex, maps by text objects and by number lists of {key, value}.
// NaN and infinities are the strings "NaN", "Infinity" and "-Infinity"; beside every real number
// KEY, but not in lists, stands KEY_bits, its bits in hex (of fp64 or fp32 as the field's; of an
// element's own dtype). Digests are "SHA256/SIZE", fingerprints 32 hex digits, times RFC 3339;
// bytes of a tensor that a call returned are left out.
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
/// A number, or what stands for one: "NaN", "Infinity", "-Infinity". NaN of anything else.
double RealIn(const nlohmann::ordered_json& json);
/// Text on one line (`indent` < 0) or indented; bytes that are no UTF-8 become U+FFFD.
std::string JsonText(const nlohmann::ordered_json& json, int indent);
/// One line: an object that starts with schema_version and kind, then what `body` has.
std::string JsonLine(const std::string& kind, const nlohmann::ordered_json& body);

/// The whole document, indented, with a final newline.
std::string JsonDocument(const ReportDocument& document);
/// One line per comparison, variant and pair, and a last one with the rest.
std::string JsonLines(const ReportDocument& document);

}  // namespace quantgate
