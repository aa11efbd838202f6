#include "tests/server/store/exchanges.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <set>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/digest.h"

namespace quantgate {
namespace {

/// Longer responses are recorded as their digest.
constexpr size_t kRecordedBytesMax = 4096;
constexpr char kDigestPrefix[] = "sha256 ";

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  (void)buffer.Dump(&slices);
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

void Clear(google::protobuf::Message& message, const std::set<std::string>& names) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const auto* field : fields) {
    if (names.contains(field->name())) {
      reflection.ClearField(&message, field);
    } else if (field->is_map() ||
               field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      continue;
    } else if (field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        Clear(*reflection.MutableRepeatedMessage(&message, field, i), names);
      }
    } else {
      Clear(*reflection.MutableMessage(&message, field), names);
    }
  }
}

}  // namespace

Exchange Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
             const std::vector<std::string>& requests) {
  Exchange exchange{method, requests, 0, {}};
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto is_done = [&queue] {
    void* tag;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = stub.PrepareCall(&context, "/" + method, &queue);
  call->StartCall(nullptr);
  bool goes_on = is_done();
  for (const std::string& request : requests) {
    if (!goes_on) break;
    call->Write(BufferOf(request), nullptr);
    goes_on = is_done();
  }
  if (goes_on) {
    call->WritesDone(nullptr);
    goes_on = is_done();
  }
  while (true) {
    grpc::ByteBuffer response;
    call->Read(&response, nullptr);
    if (!is_done()) break;
    exchange.responses.push_back(BytesOf(response));
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  (void)is_done();
  exchange.status = status.error_code();
  return exchange;
}

std::string Comparable(const std::string& method, const std::string& response) {
  const auto* described = google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
      absl::StrCat(method.substr(0, method.find('/')), ".", method.substr(method.find('/') + 1)));
  if (described == nullptr) return "no such method";
  const std::unique_ptr<google::protobuf::Message> message(
      google::protobuf::MessageFactory::generated_factory()
          ->GetPrototype(described->output_type())
          ->New());
  if (!message->ParseFromString(response)) return "malformed";
  Clear(*message, {"unverified", "session_id", "lease_left_seconds"});
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  (void)message->SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

std::vector<std::string> ComparableLines(const Exchange& exchange) {
  std::vector<std::string> lines;
  for (const std::string& response : exchange.responses) {
    if (IsDigest(response)) {
      lines.push_back(response);
      continue;
    }
    const std::string bytes = Comparable(exchange.method, response);
    lines.push_back(bytes.size() <= kRecordedBytesMax
                        ? absl::Base64Escape(bytes)
                        : absl::StrCat(kDigestPrefix,
                                       Sha256Of(std::as_bytes(std::span(bytes))).Hex(), " ",
                                       bytes.size()));
  }
  return lines;
}

bool IsDigest(const std::string& response) { return response.starts_with(kDigestPrefix); }

std::string TextOf(const std::vector<Exchange>& exchanges) {
  std::string text;
  for (const Exchange& exchange : exchanges) {
    absl::StrAppend(&text, "call ", exchange.method, "\n");
    for (const std::string& request : exchange.requests) {
      absl::StrAppend(&text, "request ", absl::Base64Escape(request), "\n");
    }
    absl::StrAppend(&text, "status ", exchange.status, "\n");
    for (const std::string& line : ComparableLines(exchange)) {
      absl::StrAppend(&text, "response ", line, "\n");
    }
  }
  return text;
}

absl::StatusOr<std::vector<Exchange>> ExchangesFrom(const std::string& text) {
  std::vector<Exchange> exchanges;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line[0] == '#') continue;
    const std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    const auto& [word, rest] = parts;
    if (word == "call") {
      exchanges.push_back({rest, {}, 0, {}});
      continue;
    }
    std::string bytes;
    if (exchanges.empty()) return absl::InvalidArgumentError("a record begins with a call");
    if (word == "status" && absl::SimpleAtoi(rest, &exchanges.back().status)) continue;
    if (word == "response" && IsDigest(rest)) {
      exchanges.back().responses.push_back(rest);
    } else if (word == "response" && absl::Base64Unescape(rest, &bytes)) {
      exchanges.back().responses.push_back(bytes);
    } else if (word == "request" && absl::Base64Unescape(rest, &bytes)) {
      exchanges.back().requests.push_back(bytes);
    } else {
      return absl::InvalidArgumentError(absl::StrCat("bad line of a record: ", line.substr(0, 80)));
    }
  }
  return exchanges;
}

}  // namespace quantgate
