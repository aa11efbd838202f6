#include "server/report/report_json.h"

#include <google/protobuf/timestamp.pb.h>
#include <google/protobuf/util/time_util.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/report/number_text.h"
#include "server/report/verdict_text.h"

namespace quantgate {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

Json RealOf(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

template <typename Items>
Json ListOf(const Items& items) {
  Json list = Json::array();
  for (const auto& item : items) list.push_back(item);
  return list;
}

/// "bound" of REQUIREMENT_BOUND, "none" of REQUIREMENT_UNSPECIFIED.
std::string EnumeratorText(const google::protobuf::EnumValueDescriptor& value) {
  std::string prefix;
  for (const char c : value.type()->name()) {
    if (absl::ascii_isupper(static_cast<unsigned char>(c)) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(static_cast<unsigned char>(c));
  }
  absl::string_view name = value.name();
  absl::ConsumePrefix(&name, prefix + "_");
  return name == "UNSPECIFIED" ? "none" : absl::AsciiStrToLower(name);
}

Json JsonOfFields(const Message& message);

/// An element's value; of i64 an integer, since not each is a real number of fp64.
Json OfElement(double value, uint64_t bits, const std::string& dtype) {
  if (dtype == "i64") return *IntegerOfBits(bits, dtype);
  return RealOf(value);
}

Json OfElementPair(const v1::ElementPair& pair) {
  return Json{
      {"coordinate", ListOf(pair.coordinate())},
      {"subject", OfElement(pair.subject(), pair.subject_bits(), pair.subject_dtype())},
      {"subject_bits", HexBits(pair.subject_bits(), pair.subject_dtype())},
      {"subject_dtype", pair.subject_dtype()},
      {"reference", OfElement(pair.reference(), pair.reference_bits(), pair.reference_dtype())},
      {"reference_bits", HexBits(pair.reference_bits(), pair.reference_dtype())},
      {"reference_dtype", pair.reference_dtype()}};
}

Json OfVerdict(const v1::Verdict& verdict) {
  Json json = JsonOfFields(verdict);
  json["text"] = VerdictLine(verdict);
  return json;
}

Json OfSavedOperand(const v1::SavedOperand& saved) {
  Json json = JsonOfFields(saved);
  if (!saved.used()) json["at_use"] = nullptr;
  return json;
}

/// The dtype of these bits is not known, so that they have as many digits as they need.
Json OfDifference(const v1::ExplainResponse::Difference& difference) {
  return Json{{"row", difference.row()},
              {"column", difference.column()},
              {"given", HexBits(difference.given(), "")},
              {"expected", HexBits(difference.expected(), "")}};
}

Json OfTime(const google::protobuf::Timestamp& time) {
  return google::protobuf::util::TimeUtil::ToString(time);
}

/// Messages whose JSON is not an object of their fields.
using SpecialForm = Json (*)(const Message& message);
template <typename Special, auto kFunction>
std::pair<const google::protobuf::Descriptor*, SpecialForm> Form() {
  return {Special::descriptor(), [](const Message& message) -> Json {
            return kFunction(dynamic_cast<const Special&>(message));
          }};
}
const std::map<const google::protobuf::Descriptor*, SpecialForm>& SpecialForms() {
  static const std::map<const google::protobuf::Descriptor*, SpecialForm> kForms = {
      Form<v1::Digest, DigestText>(),
      Form<v1::Fingerprint, FingerprintText>(),
      Form<v1::ElementPair, OfElementPair>(),
      Form<v1::Verdict, OfVerdict>(),
      Form<v1::SavedOperand, OfSavedOperand>(),
      Form<v1::ExplainResponse::Difference, OfDifference>(),
      Form<google::protobuf::Timestamp, OfTime>()};
  return kForms;
}

bool IsLeftOut(const FieldDescriptor& field) {
  return field.containing_type() == v1::NamedTensor::descriptor() && field.name() == "data";
}

/// One value of a field: that of a field that is not repeated (`index` below 0), or the one at
/// `index`.
Json ValueOf(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  const auto get = [&](auto single, auto repeated) {
    return index < 0 ? (reflection.*single)(message, &field)
                     : (reflection.*repeated)(message, &field, index);
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return RealOf(get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return RealOf(get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat));
    case FieldDescriptor::CPPTYPE_BOOL:
      return get(&Reflection::GetBool, &Reflection::GetRepeatedBool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumeratorText(*get(&Reflection::GetEnum, &Reflection::GetRepeatedEnum));
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = get(&Reflection::GetString, &Reflection::GetRepeatedString);
      return field.type() == FieldDescriptor::TYPE_BYTES ? absl::BytesToHexString(text) : text;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return JsonOf(index < 0 ? reflection.GetMessage(message, &field)
                              : reflection.GetRepeatedMessage(message, &field, index));
  }
  return nullptr;
}

/// A map, in the order of its keys.
Json MapOf(const Message& message, const FieldDescriptor& field) {
  const FieldDescriptor& key = *field.message_type()->map_key();
  std::map<Json, Json> entries;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, &field); ++i) {
    const Message& entry = message.GetReflection()->GetRepeatedMessage(message, &field, i);
    entries[ValueOf(entry, key, -1)] = ValueOf(entry, *field.message_type()->map_value(), -1);
  }
  const bool is_object = key.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
  Json json = is_object ? Json::object() : Json::array();
  for (const auto& [name, value] : entries) {
    if (is_object) {
      json[name.get<std::string>()] = value;
    } else {
      json.push_back({{"key", name}, {"value", value}});
    }
  }
  return json;
}

Json ListOf(const Message& message, const FieldDescriptor& field) {
  Json list = Json::array();
  for (int i = 0; i < message.GetReflection()->FieldSize(message, &field); ++i) {
    list.push_back(ValueOf(message, field, i));
  }
  return list;
}

Json BitsOf(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  return field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT
             ? HexBits(std::bit_cast<uint32_t>(reflection.GetFloat(message, &field)), "f32")
             : HexBits(std::bit_cast<uint64_t>(reflection.GetDouble(message, &field)), "f64");
}

Json JsonOfFields(const Message& message) {
  Json json = Json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (IsLeftOut(field)) continue;
    if (field.is_repeated()) {
      json[field.name()] = field.is_map() ? MapOf(message, field) : ListOf(message, field);
      continue;
    }
    const bool is_there =
        !field.has_presence() || message.GetReflection()->HasField(message, &field);
    if (!is_there && field.real_containing_oneof() != nullptr) continue;
    json[field.name()] = is_there ? ValueOf(message, field, -1) : Json();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT ||
        field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      json[field.name() + "_bits"] = is_there ? BitsOf(message, field) : Json();
    }
  }
  return json;
}

}  // namespace

Json JsonOf(const Message& message) {
  const auto form = SpecialForms().find(message.GetDescriptor());
  return form == SpecialForms().end() ? JsonOfFields(message) : form->second(message);
}

Json JsonOf(const SubjectComparison& comparison) {
  Json json{{"tensor", comparison.tensor},
            {"dtype", comparison.dtype},
            {"reference_dtype", comparison.reference_dtype},
            {"subject", comparison.subject_name},
            {"reference", comparison.reference_name},
            {"difference", comparison.difference},
            {"passes", comparison.passes},
            {"finding", comparison.finding},
            {"bound", comparison.bound ? JsonOf(*comparison.bound) : Json()}};
  json.update(JsonOf(comparison.result));
  return json;
}

namespace {

Json JsonOfLayer(const CapturedLayer& layer) {
  return Json{{"module", layer.module},
              {"class", layer.class_name},
              {"layer", layer.layer},
              {"rank", layer.rank},
              {"step", layer.step},
              {"call", layer.call},
              {"variant", layer.variant},
              {"first_comparison", layer.first_comparison},
              {"comparison_count", layer.comparison_count},
              {"passes", layer.passes},
              {"finding", layer.finding},
              {"remark", layer.remark}};
}

}  // namespace

Json JsonOf(const ReportDocument& document) {
  Json json = JsonHead(document.kind);
  json["title"] = document.title;
  json["command"] = document.command;
  json["verdict"] = JsonOf(document.verdict);
  json["diagnosis"] = document.diagnosis ? JsonOf(*document.diagnosis) : Json();
  json["comparisons"] = Json::array();
  for (const SubjectComparison& one : document.comparisons) {
    json["comparisons"].push_back(JsonOf(one));
  }
  json["remarks"] = ListOf(document.remarks);
  if (!document.layers.empty()) {
    json["first_divergence"] = document.first_divergence;
    json["layers"] = Json::array();
    for (const CapturedLayer& one : document.layers) json["layers"].push_back(JsonOfLayer(one));
  }
  json["run"] = document.has_run ? JsonOf(document.run) : Json();
  return json;
}

Json JsonHead(const std::string& kind) {
  return Json{{"schema_version", kJsonSchemaVersion}, {"kind", kind}};
}

void SetReal(Json& json, const std::string& key, double value) {
  json[key] = RealOf(value);
  json[key + "_bits"] = HexBits(std::bit_cast<uint64_t>(value), "f64");
}

double RealIn(const Json& json) {
  if (json.is_number()) return json.get<double>();
  if (json == "Infinity") return std::numeric_limits<double>::infinity();
  if (json == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

std::string JsonText(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::string JsonLine(const std::string& kind, const Json& body) {
  Json line = JsonHead(kind);
  line.update(body);
  return JsonText(line, -1) + "\n";
}

std::string JsonDocument(const ReportDocument& document) {
  return JsonText(JsonOf(document), 2) + "\n";
}

std::string JsonLines(const ReportDocument& document) {
  std::string lines;
  Json whole = JsonOf(document);
  for (const Json& one : whole["comparisons"]) lines += JsonLine("comparison", one);
  if (!document.layers.empty()) {
    for (const Json& one : whole["layers"]) lines += JsonLine("captured_layer", one);
    whole.erase("layers");
  }
  if (document.has_run) {
    for (const Json& one : whole["run"]["variants"]) lines += JsonLine("variant", one);
    for (const Json& one : whole["run"]["pairs"]) lines += JsonLine("pair", one);
    whole["run"].erase("variants");
    whole["run"].erase("pairs");
  }
  for (const char* told : {"schema_version", "kind", "comparisons"}) whole.erase(told);
  return lines + JsonLine("verdict", whole);
}

}  // namespace quantgate
