#include "client/capture.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/tensor_name.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strict_json.h"

namespace quantgate {
namespace {
namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kManifestDepthMax = 16;
constexpr uintmax_t kManifestBytesMax = uintmax_t{1} << 30;
constexpr char kSuffix[] = ".safetensors";
/// Key of the record in a file's metadata.
constexpr char kRecordKey[] = "quantgate.capture";

/// Reads the members of one JSON object; every error names the file and the member.
class Members {
 public:
  Members(std::string where, const Json& json) : where_(std::move(where)), json_(json) {}

  absl::Status Bad(const std::string& member, const std::string& rule) const {
    return absl::InvalidArgumentError(absl::StrCat(where_, ": ", member, ": ", rule));
  }
  absl::Status Check() const {
    return json_.is_object() ? absl::OkStatus() : Bad("record", "must be an object");
  }
  bool Has(const char* member) const { return json_.contains(member) && !json_[member].is_null(); }
  absl::StatusOr<std::string> Text(const char* member) const {
    if (!Has(member) || !json_[member].is_string()) return Bad(member, "must be text");
    return json_[member].get<std::string>();
  }
  absl::StatusOr<int64_t> Integer(const char* member) const {
    if (!Has(member) || !json_[member].is_number_integer() || json_[member] < 0) {
      return Bad(member, "must be an integer of 0 or more");
    }
    return json_[member].get<int64_t>();
  }
  /// `is_absent_valid`: absent is an empty list.
  absl::StatusOr<Shape> Integers(const char* member, bool is_absent_valid) const {
    if (!Has(member) && is_absent_valid) return Shape();
    const bool is_list = Has(member) && json_[member].is_array();
    Shape values;
    for (const Json& one : is_list ? json_[member] : Json::array()) {
      if (!one.is_number_integer()) return Bad(member, "must be a list of integers");
      values.push_back(one.get<int64_t>());
    }
    if (!is_list) return Bad(member, "must be a list of integers");
    return values;
  }
  absl::StatusOr<std::vector<std::string>> Texts(const char* member) const {
    const bool is_list = Has(member) && json_[member].is_array();
    std::vector<std::string> values;
    for (const Json& one : is_list ? json_[member] : Json::array()) {
      if (!one.is_string()) return Bad(member, "must be a list of texts");
      values.push_back(one.get<std::string>());
    }
    if (!is_list) return Bad(member, "must be a list of texts");
    return values;
  }
  absl::StatusOr<Json> Object(const char* member) const {
    if (!Has(member) || !json_[member].is_object()) return Bad(member, "must be an object");
    return json_[member];
  }
  const std::string& where() const { return where_; }

 private:
  const std::string where_;
  const Json& json_;
};

absl::StatusOr<CapturedTensor> TensorOf(const Members& members) {
  QG_RETURN_IF_ERROR(members.Check());
  CapturedTensor tensor;
  QG_ASSIGN_OR_RETURN(tensor.dtype, members.Text("dtype"));
  QG_ASSIGN_OR_RETURN(tensor.shape, members.Integers("shape", false));
  QG_ASSIGN_OR_RETURN(tensor.strides, members.Integers("strides", false));
  QG_ASSIGN_OR_RETURN(tensor.sampled_rows, members.Integers("sampled_rows", true));
  return tensor;
}

/// A manifest may come from anywhere, and names no file outside its directory.
bool IsWithin(const std::string& file) {
  const fs::path path(file);
  return !file.empty() && !path.is_absolute() && absl::EndsWith(file, kSuffix) &&
         std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
}

absl::StatusOr<CapturedCall> CallOf(const Members& members, int rank) {
  QG_RETURN_IF_ERROR(members.Check());
  CapturedCall call;
  call.rank = rank;
  QG_ASSIGN_OR_RETURN(call.file, members.Text("file"));
  if (!IsWithin(call.file)) {
    return members.Bad(
        "file", absl::StrCat("\"", call.file, "\" must be a .safetensors file within the capture"));
  }
  QG_ASSIGN_OR_RETURN(call.module, members.Text("module"));
  QG_ASSIGN_OR_RETURN(call.class_name, members.Text("class"));
  QG_ASSIGN_OR_RETURN(call.kind, members.Text("kind"));
  QG_ASSIGN_OR_RETURN(call.step, members.Integer("step"));
  QG_ASSIGN_OR_RETURN(call.call, members.Integer("call"));
  QG_ASSIGN_OR_RETURN(call.forward_order, members.Integer("forward_order"));
  if (members.Has("backward_order")) {
    QG_ASSIGN_OR_RETURN(call.backward_order, members.Integer("backward_order"));
  }
  QG_ASSIGN_OR_RETURN(call.parameters, members.Texts("parameters"));
  QG_ASSIGN_OR_RETURN(call.knobs, members.Object("knobs"));
  QG_ASSIGN_OR_RETURN(const Json tensors, members.Object("tensors"));
  for (const auto& [name, tensor] : tensors.items()) {
    const Members one(absl::StrCat(members.where(), ": tensors[", name, "]"), tensor);
    QG_ASSIGN_OR_RETURN(call.tensors[name], TensorOf(one));
  }
  if (!members.Has("left_out")) return call;
  QG_ASSIGN_OR_RETURN(const Json left_out, members.Object("left_out"));
  for (const auto& [name, why] : left_out.items()) {
    if (!why.is_string()) return members.Bad("left_out", "must be an object of texts");
    call.left_out[name] = why.get<std::string>();
  }
  return call;
}

absl::StatusOr<Json> JsonOfText(const std::string& where, const std::string& text) {
  absl::StatusOr<Json> json = ParseStrictJson(text, kManifestDepthMax);
  if (json.ok()) return json;
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", RefusalOf(json.status())->rule));
}

absl::Status CheckVersion(const Members& members) {
  QG_RETURN_IF_ERROR(members.Check());
  QG_ASSIGN_OR_RETURN(const int64_t version, members.Integer("version"));
  if (version == 1) return absl::OkStatus();
  return members.Bad("version", absl::StrCat(version, "; this program reads version 1"));
}

absl::Status ReadManifest(const std::string& where, const std::string& path, Capture& capture) {
  std::error_code error;
  if (fs::file_size(path, error) > kManifestBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": longer than 1 GiB"));
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) return absl::NotFoundError(absl::StrCat(where, ": cannot be read"));
  QG_ASSIGN_OR_RETURN(const Json json, JsonOfText(where, text));
  const Members members(where, json);
  QG_RETURN_IF_ERROR(CheckVersion(members));
  QG_ASSIGN_OR_RETURN(const int64_t rank, members.Integer("rank"));
  if (!members.Has("captures") || !json["captures"].is_array()) {
    return members.Bad("captures", "must be a list");
  }
  size_t index = 0;
  for (const Json& one : json["captures"]) {
    const Members record(absl::StrCat(where, ": captures[", index++, "]"), one);
    QG_ASSIGN_OR_RETURN(CapturedCall call, CallOf(record, static_cast<int>(rank)));
    capture.calls.push_back(std::move(call));
  }
  if (!members.Has("left_out")) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const std::vector<std::string> left_out, members.Texts("left_out"));
  capture.left_out.insert(capture.left_out.end(), left_out.begin(), left_out.end());
  return absl::OkStatus();
}

absl::StatusOr<Capture> ReadSingleCall(std::string_view field, const std::string& path) {
  QG_ASSIGN_OR_RETURN(const TensorFile file, ReadKnownTensors(field, path));
  const std::string where = absl::StrCat(std::string(field), ": ", path);
  const auto record = file.metadata.find(kRecordKey);
  if (record == file.metadata.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": its metadata has no ", kRecordKey, "; it is no file of a capture"));
  }
  QG_ASSIGN_OR_RETURN(const Json json, JsonOfText(where, record->second));
  const Members members(where, json);
  QG_RETURN_IF_ERROR(CheckVersion(members));
  QG_ASSIGN_OR_RETURN(const int64_t rank, members.Integer("rank"));
  Capture capture;
  capture.path = path;
  QG_ASSIGN_OR_RETURN(CapturedCall call, CallOf(members, static_cast<int>(rank)));
  capture.calls.push_back(std::move(call));
  return capture;
}

}  // namespace

std::string CapturedCall::Name() const { return file.substr(0, file.size() - sizeof(kSuffix) + 1); }

absl::StatusOr<Capture> ReadCapture(std::string_view field, const std::string& path) {
  if (absl::EndsWith(path, kSuffix)) return ReadSingleCall(field, path);
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return absl::NotFoundError(
        absl::StrCat(std::string(field), ": \"", path, "\" is no directory of a capture"));
  }
  Capture capture;
  capture.path = path;
  std::vector<std::string> manifests;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, "manifest.rank") && absl::EndsWith(name, ".json")) {
      manifests.push_back(name);
    }
  }
  if (manifests.empty()) {
    return absl::NotFoundError(absl::StrCat(std::string(field), ": \"", path,
                                            "\" has no manifest.rank0.json; a capture that has "
                                            "ended no step yet has none"));
  }
  std::sort(manifests.begin(), manifests.end());
  for (const std::string& name : manifests) {
    const std::string file = (fs::path(path) / name).string();
    capture.manifests.push_back(file);
    QG_RETURN_IF_ERROR(ReadManifest(absl::StrCat(std::string(field), ": ", file), file, capture));
  }
  std::stable_sort(capture.calls.begin(), capture.calls.end(),
                   [](const CapturedCall& left, const CapturedCall& right) {
                     return std::tie(left.step, left.forward_order, left.rank) <
                            std::tie(right.step, right.forward_order, right.rank);
                   });
  return capture;
}

std::string PathOf(const Capture& capture, const CapturedCall& call) {
  if (absl::EndsWith(capture.path, kSuffix)) return capture.path;
  return (fs::path(capture.path) / call.file).string();
}

absl::StatusOr<TensorFile> ReadCapturedTensors(std::string_view field, const Capture& capture,
                                               const CapturedCall& call) {
  const std::string path = PathOf(capture, call);
  QG_ASSIGN_OR_RETURN(TensorFile file, ReadKnownTensors(field, path));
  for (const auto& [name, tensor] : call.tensors) {
    if (file.unread.contains(name)) continue;
    const absl::StatusOr<Tensor> found = file.Find(name);
    Shape shape = tensor.shape;
    if (!tensor.sampled_rows.empty()) {
      const int64_t width = shape.empty() ? 1 : shape.back();
      shape = {static_cast<int64_t>(tensor.sampled_rows.size()), width};
    }
    if (!found.ok() || found->shape() != shape || DTypeName(found->dtype()) != tensor.dtype) {
      const std::string what = found.ok()
                                   ? absl::StrCat("is ", std::string(DTypeName(found->dtype())),
                                                  "[", ShapeText(found->shape()), "]")
                                   : "is absent";
      return absl::InvalidArgumentError(absl::StrCat(std::string(field), ": ", path, ": ", name,
                                                     " ", what, ", and its record says ",
                                                     tensor.dtype, "[", ShapeText(shape), "]"));
    }
  }
  return file;
}

int ExecutionPlace(std::string_view tensor) {
  std::vector<std::string> words = absl::StrSplit(std::string(tensor), '.');
  int expert = 0;
  if (words.size() > 1 && absl::SimpleAtoi(words.back(), &expert)) words.pop_back();
  static constexpr std::string_view kOrder[] = {
      "x", "", "y", "dy", "dx", "dw", "main_grad_before", "main_grad"};
  const auto place = std::find(std::begin(kOrder), std::end(kOrder), words.back());
  // Parameters, which have many names, come behind x.
  return place == std::end(kOrder) ? 1 : static_cast<int>(place - std::begin(kOrder));
}

bool IsOfBackward(std::string_view tensor) { return ExecutionPlace(tensor) > 2; }

}  // namespace quantgate
