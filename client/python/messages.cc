#include "client/python/messages.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/python/status.h"
#include "kernels/base/refusal.h"
#include "server/report/report_json.h"

namespace nb = nanobind;

namespace quantgate::python {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::Message;
using google::protobuf::MessageFactory;

std::unique_ptr<Message> NewMessage(const Descriptor& descriptor) {
  const Message* const prototype = MessageFactory::generated_factory()->GetPrototype(&descriptor);
  return std::unique_ptr<Message>(prototype->New());
}

std::unique_ptr<Message> NewMessage(const std::string& type) {
  const Descriptor* const descriptor =
      DescriptorPool::generated_pool()->FindMessageTypeByName("quantgate.v1." + type);
  if (descriptor == nullptr) {
    throw StatusError{Refuse("type", type, "must be a message of quantgate.v1")};
  }
  return NewMessage(*descriptor);
}

/// The messages of a field, serialized: of one that is absent none.
std::vector<nb::bytes> PartsOfMessage(const Message& message, const std::string& name) {
  const google::protobuf::FieldDescriptor* const field =
      message.GetDescriptor()->FindFieldByName(name);
  if (field == nullptr || field->message_type() == nullptr) {
    throw StatusError{Refuse("field", name, "must be a field of messages")};
  }
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<nb::bytes> parts;
  if (!field->is_repeated()) {
    if (reflection.HasField(message, field))
      parts.push_back(BytesOf(reflection.GetMessage(message, field)));
    return parts;
  }
  for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
    parts.push_back(BytesOf(reflection.GetRepeatedMessage(message, field, i)));
  }
  return parts;
}

}  // namespace

void ParseJson(const std::string& json, Message& message) {
  const google::protobuf::util::Status status =
      google::protobuf::util::JsonStringToMessage(json, &message);
  if (!status.ok()) {
    throw StatusError{
        absl::InvalidArgumentError(std::string(status.message().data(), status.message().size()))};
  }
}

std::unique_ptr<Message> MessageOf(const std::string& type, const std::string& json) {
  std::unique_ptr<Message> message = NewMessage(type);
  ParseJson(json, *message);
  return message;
}

nb::bytes BytesOf(const Message& message) {
  const std::string text = message.SerializeAsString();
  return nb::bytes(text.data(), text.size());
}

void ParseInto(const nb::bytes& bytes, Message& message) {
  if (!message.ParseFromArray(bytes.c_str(), static_cast<int>(bytes.size()))) {
    throw StatusError{
        absl::InternalError(absl::StrCat("the bytes are no ", message.GetTypeName()))};
  }
}

std::string RequestJsonOf(const Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) throw StatusError{absl::InternalError(status.ToString())};
  return json;
}

std::string JsonTextOf(const Message& message) { return JsonText(JsonOf(message), -1); }

CallTypes TypesOfCall(const std::string& method) {
  const google::protobuf::MethodDescriptor* const found =
      DescriptorPool::generated_pool()->FindMethodByName(
          absl::StrCat("quantgate.v1.", absl::StrReplaceAll(method, {{"/", "."}})));
  if (found == nullptr) throw StatusError{absl::UnimplementedError("there is no call " + method)};
  return {NewMessage(*found->input_type()), NewMessage(*found->output_type())};
}

void ForEachMessage(Message& message, absl::FunctionRef<void(Message&)> visit) {
  visit(message);
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const google::protobuf::FieldDescriptor* const field : fields) {
    if (field->message_type() == nullptr) continue;
    if (!field->is_repeated()) {
      ForEachMessage(*reflection.MutableMessage(&message, field), visit);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      ForEachMessage(*reflection.MutableRepeatedMessage(&message, field, i), visit);
    }
  }
}

namespace {

std::unique_ptr<Message> Parsed(const std::string& type, const nb::bytes& bytes) {
  std::unique_ptr<Message> message = NewMessage(type);
  ParseInto(bytes, *message);
  return message;
}

}  // namespace

void BindMessages(nb::module_& module) {
  module.def(
      "encode",
      [](const std::string& type, const std::string& json) {
        return BytesOf(*MessageOf(type, json));
      },
      nb::arg("type"), nb::arg("json"));
  module.def(
      "decode",
      [](const std::string& type, const nb::bytes& bytes) {
        return JsonTextOf(*Parsed(type, bytes));
      },
      nb::arg("type"), nb::arg("bytes"));
  module.def(
      "parts",
      [](const std::string& type, const nb::bytes& bytes, const std::string& field) {
        return PartsOfMessage(*Parsed(type, bytes), field);
      },
      nb::arg("type"), nb::arg("bytes"), nb::arg("field"));
  module.def(
      "request_json",
      [](const std::string& type, const nb::bytes& bytes) {
        return RequestJsonOf(*Parsed(type, bytes));
      },
      nb::arg("type"), nb::arg("bytes"));
}

}  // namespace quantgate::python
