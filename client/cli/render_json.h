// Reports as JSON: always valid, keys stable, `schema_version` first. NaN and infinities are the
// strings "NaN", "Infinity" and "-Infinity"; beside every real number KEY stands KEY_bits, its bits
// in hex (of the element's own dtype for elements, of fp32 for amax and scales, of fp64 for
// statistics).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "client/cli/report_document.h"
#include "quantgate/v1/sessions_service.pb.h"
#include "quantgate/v1/tensors_service.pb.h"

namespace quantgate {

inline constexpr int kJsonSchemaVersion = 1;

nlohmann::ordered_json JsonOf(const ReportDocument& document);
nlohmann::ordered_json JsonOf(const v1::TensorDescriptor& type);
nlohmann::ordered_json JsonOf(const v1::NamedTensor& tensor);
nlohmann::ordered_json JsonOf(const v1::TensorRecord& record);
nlohmann::ordered_json JsonOf(const v1::QuantizationRecord& record);
nlohmann::ordered_json JsonOf(const v1::Environment& environment);
nlohmann::ordered_json JsonOf(const v1::OverlapReport& overlap);
nlohmann::ordered_json JsonOf(const v1::Verdict& verdict);
nlohmann::ordered_json JsonOf(const v1::SessionStepResponse& response);
/// One element of both sides of a comparison; dtypes give the width of the bits.
nlohmann::ordered_json JsonOf(const v1::ElementPair& pair, const std::string& dtype,
                              const std::string& reference_dtype);

/// An object that starts with schema_version and kind.
nlohmann::ordered_json JsonHead(const std::string& kind);
/// Sets json[key] and json[key_bits].
void SetReal(nlohmann::ordered_json& json, const std::string& key, double value);
/// Text on one line (`indent` < 0) or indented; bytes that are no UTF-8 become U+FFFD.
std::string JsonText(const nlohmann::ordered_json& json, int indent);

/// The whole document, indented, with a final newline.
std::string JsonDocument(const ReportDocument& document);
/// One line per variant, comparison and pair, and a last one with the rest.
std::string JsonLines(const ReportDocument& document);

}  // namespace quantgate
