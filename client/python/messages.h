// Messages of quantgate.v1 between Python's forms: bytes, JSON that people write (protobuf's JSON
// mapping), and JSON that reports show (server/report/report_json.h). So Python needs no protobuf.
#pragma once

#include <google/protobuf/message.h>
#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"

namespace quantgate::python {

/// A message of a type of quantgate.v1, "QuantizeRequest", that `json` describes. INVALID_ARGUMENT
/// for an unknown type or field.
std::unique_ptr<google::protobuf::Message> MessageOf(const std::string& type,
                                                     const std::string& json);
void ParseJson(const std::string& json, google::protobuf::Message& message);

nanobind::bytes BytesOf(const google::protobuf::Message& message);
void ParseInto(const nanobind::bytes& bytes, google::protobuf::Message& message);

/// By protobuf's JSON mapping, as ParseJson reads it.
std::string RequestJsonOf(const google::protobuf::Message& message);
/// As reports show it, on one line.
std::string JsonTextOf(const google::protobuf::Message& message);

/// The message types of a call, "Engine/Quantize". UNIMPLEMENTED where there is no such call.
struct CallTypes {
  std::unique_ptr<google::protobuf::Message> request;
  std::shared_ptr<google::protobuf::Message> response;
};
CallTypes TypesOfCall(const std::string& method);

/// Visits a message and every message within it.
void ForEachMessage(google::protobuf::Message& message,
                    absl::FunctionRef<void(google::protobuf::Message&)> visit);

void BindMessages(nanobind::module_& module);

}  // namespace quantgate::python
