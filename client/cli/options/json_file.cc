#include "client/cli/options/json_file.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace quantgate {
namespace {

/// The message at "steps[0].forward" of `root`; null where there is none.
const google::protobuf::Descriptor* MessageAt(const google::protobuf::Descriptor* root,
                                              const std::string& path) {
  const std::vector<std::string> names = absl::StrSplit(path, '.', absl::SkipEmpty());
  for (const std::string& name : names) {
    const google::protobuf::FieldDescriptor* field = nullptr;
    const std::string plain = name.substr(0, name.find('['));
    for (int i = 0; i < root->field_count(); ++i) {
      const bool is_named = root->field(i)->name() == plain || root->field(i)->json_name() == plain;
      if (is_named) field = root->field(i);
    }
    root = field == nullptr ? nullptr : field->message_type();
    if (root == nullptr) return nullptr;
  }
  return root;
}

/// "(steps[0]) train: Cannot find field." as "steps[0]: "train" is no field; those are forward,
/// ...".
std::string JsonProblem(std::string problem, const google::protobuf::Descriptor* root) {
  constexpr char kUnknown[] = ": Cannot find field.";
  absl::StrReplaceAll(
      {{"for type type.googleapis.com/quantgate.v1.", "where an object stands, a "}}, &problem);
  if (!absl::EndsWith(problem, kUnknown)) return problem;
  std::string name(absl::StripSuffix(problem, kUnknown)), path;
  if (absl::StartsWith(name, "(") && absl::StrContains(name, ") ")) {
    path = name.substr(1, name.find(") ") - 1);
    name = name.substr(name.find(") ") + 2);
  }
  const google::protobuf::Descriptor* message = MessageAt(root, path);
  std::vector<std::string> fields;
  for (int i = 0; message != nullptr && i < message->field_count(); ++i) {
    fields.push_back(message->field(i)->name());
  }
  return absl::StrCat(path, path.empty() ? "" : ": ", "\"", name, "\" is no field",
                      fields.empty() ? "" : "; those are ", absl::StrJoin(fields, ", "));
}

}  // namespace

absl::Status ParseJsonMessage(const std::string& text, google::protobuf::Message& message) {
  const auto status = google::protobuf::util::JsonStringToMessage(text, &message);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      JsonProblem(std::string(status.message()), message.GetDescriptor()));
}

absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& argument,
                                              const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat(argument, ": cannot read ", path));
  nlohmann::json json = nlohmann::json::parse(text.str(), nullptr, false);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(absl::StrCat(argument, ": ", path, " is no JSON object"));
}

}  // namespace quantgate
