#include "client/tensor_name.h"

#include <cmath>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr char kForms[] =
    "FILE.safetensors:NAME, FILE.npy, gen:DISTRIBUTION,shape=RxC[,seed=N][,dtype=T][,scale=F] or "
    "digest:SHA256/SIZE[,dtype=T,shape=RxC]; @DTYPE at the end reinterprets the bytes";
constexpr char kSafetensorsSuffix[] = ".safetensors";

absl::Status Refuse(std::string_view field, const std::string& value, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), ": \"", value, "\": ", rule));
}

using Options = std::map<std::string, std::string>;

/// "key=value,key=value" with known keys, each at most once.
absl::StatusOr<Options> ParseOptions(std::string_view field, const std::string& text,
                                     const std::vector<std::string>& parts,
                                     const std::vector<std::string>& known) {
  Options options;
  for (const std::string& part : parts) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    if (equals == std::string::npos || std::find(known.begin(), known.end(), key) == known.end()) {
      return Refuse(
          field, text,
          absl::StrCat("\"", part, "\" is none of ", absl::StrJoin(known, "=..., "), "=..."));
    }
    if (!options.emplace(key, part.substr(equals + 1)).second) {
      return Refuse(field, text, absl::StrCat(key, " is given twice"));
    }
  }
  return options;
}

absl::Status SetDescriptor(std::string_view field, const Options& options,
                           v1::TensorDescriptor& descriptor) {
  if (const auto dtype = options.find("dtype"); dtype != options.end()) {
    const absl::StatusOr<DType> parsed = ParseDType(dtype->second);
    if (!parsed.ok()) return OfField(field, parsed.status());
    descriptor.set_dtype(std::string(DTypeName(*parsed)));
  }
  if (const auto shape = options.find("shape"); shape != options.end()) {
    QG_ASSIGN_OR_RETURN(const Shape dims, ParseShape(field, shape->second));
    descriptor.mutable_shape()->Add(dims.begin(), dims.end());
  }
  return absl::OkStatus();
}

absl::Status ParseGenerated(std::string_view field, const std::string& body, TensorName& name) {
  std::vector<std::string> parts = absl::StrSplit(body, ',');
  v1::GeneratorSpec& spec = name.generator;
  spec.set_distribution(parts[0]);
  parts.erase(parts.begin());
  QG_ASSIGN_OR_RETURN(const Options options,
                      ParseOptions(field, name.text, parts, {"seed", "shape", "dtype", "scale"}));
  spec.mutable_type()->set_dtype("bf16");
  if (!options.contains("shape")) return Refuse(field, name.text, "gen: needs shape=RxC");
  QG_RETURN_IF_ERROR(SetDescriptor(field, options, *spec.mutable_type()));
  if (const auto seed = options.find("seed"); seed != options.end()) {
    uint64_t value = 0;
    if (!absl::SimpleAtoi(seed->second, &value)) {
      return Refuse(field, name.text, "seed must be an integer from 0 to 2^64-1");
    }
    spec.set_seed(value);
  }
  if (const auto scale = options.find("scale"); scale != options.end()) {
    float value = 0;
    if (!absl::SimpleAtof(scale->second, &value) || !std::isfinite(value)) {
      return Refuse(field, name.text, "scale must be a finite number");
    }
    spec.set_scale(value);
  }
  return absl::OkStatus();
}

absl::Status ParseStored(std::string_view field, const std::string& body, TensorName& name) {
  std::vector<std::string> parts = absl::StrSplit(body, ',');
  const std::vector<std::string> digest = absl::StrSplit(parts[0], '/');
  int64_t size = 0;
  const bool is_hex = digest[0].size() == 64 &&
                      digest[0].find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  if (digest.size() != 2 || !is_hex || !absl::SimpleAtoi(digest[1], &size) || size < 0) {
    return Refuse(field, name.text, "a digest is digest:SHA256/SIZE, 64 hex digits and bytes");
  }
  name.stored.mutable_digest()->set_sha256(absl::HexStringToBytes(digest[0]));
  name.stored.mutable_digest()->set_size(size);
  parts.erase(parts.begin());
  if (parts.empty()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const Options options,
                      ParseOptions(field, name.text, parts, {"dtype", "shape"}));
  if (options.size() != 2) {
    return Refuse(field, name.text, "dtype= and shape= of a digest come together");
  }
  return SetDescriptor(field, options, *name.stored.mutable_type());
}

/// Cuts "@DTYPE" off `text` when what follows the last '@' is a dtype; names may hold a '@' of
/// their own.
std::optional<DType> TakeReinterpretation(std::string& text) {
  const size_t at = text.rfind('@');
  if (at == std::string::npos) return std::nullopt;
  const absl::StatusOr<DType> dtype = ParseDType(text.substr(at + 1));
  if (!dtype.ok()) return std::nullopt;
  text.resize(at);
  return *dtype;
}

absl::StatusOr<Tensor> LoadEntry(const TensorName& name) {
  if (!name.entry.empty()) {
    absl::StatusOr<Tensor> found = ReadSafetensorsTensor(name.path, name.entry);
    const size_t at = name.entry.rfind('@');
    if (!absl::IsNotFound(found.status()) || at == std::string::npos ||
        !absl::StrContains(found.status().message(), "no tensor")) {
      return found;
    }
    const std::string type = name.entry.substr(at + 1);
    return absl::NotFoundError(absl::StrCat(std::string(found.status().message()), " (and \"", type,
                                            "\" is no dtype to reinterpret as: ",
                                            std::string(ParseDType(type).status().message()), ")"));
  }
  QG_ASSIGN_OR_RETURN(const TensorFile file, ReadSafetensors(name.path));
  if (file.tensors.size() == 1) return file.tensors[0].tensor;
  return absl::InvalidArgumentError(
      absl::StrCat(name.path, " holds ", file.tensors.size(),
                   " tensors; name one after a colon: ", file.NameList()));
}

}  // namespace

absl::StatusOr<Shape> ParseShape(std::string_view field, const std::string& text) {
  Shape shape;
  if (text == "scalar") return shape;
  const std::vector<std::string> dims = absl::StrSplit(text, 'x');
  for (const std::string& dim : dims) {
    int64_t value = 0;
    const bool is_decimal =
        !dim.empty() && dim.find_first_not_of("0123456789") == std::string::npos;
    if (!is_decimal || !absl::SimpleAtoi(dim, &value)) {
      return Refuse(field, text, "a shape is dims joined by x, such as 256x512");
    }
    shape.push_back(value);
  }
  return shape;
}

absl::StatusOr<TensorName> ParseTensorName(std::string_view field, const std::string& text) {
  TensorName name;
  name.field = std::string(field);
  name.text = text;
  if (absl::StartsWith(text, "gen:")) {
    name.kind = TensorName::Kind::kGenerated;
    QG_RETURN_IF_ERROR(ParseGenerated(field, text.substr(4), name));
    return name;
  }
  std::string rest = text;
  name.reinterpreted = TakeReinterpretation(rest);
  if (absl::StartsWith(rest, "digest:")) {
    name.kind = TensorName::Kind::kDigest;
    QG_RETURN_IF_ERROR(ParseStored(field, rest.substr(7), name));
    return name;
  }
  const size_t colon = rest.find(absl::StrCat(kSafetensorsSuffix, ":"));
  if (colon != std::string::npos) {
    const size_t path_size = colon + sizeof(kSafetensorsSuffix) - 1;
    name.path = rest.substr(0, path_size);
    name.entry = rest.substr(path_size + 1);
    if (name.entry.empty()) return Refuse(field, text, "no tensor name after the colon");
    return name;
  }
  name.path = rest;
  if (absl::EndsWith(rest, kSafetensorsSuffix)) return name;
  if (absl::EndsWith(rest, ".npy")) {
    name.kind = TensorName::Kind::kNpy;
    return name;
  }
  if (const size_t at = rest.rfind('@'); at != std::string::npos) {
    const std::string_view file = std::string_view(rest).substr(0, at);
    if (absl::EndsWith(absl::string_view(file.data(), file.size()), kSafetensorsSuffix) ||
        absl::EndsWith(absl::string_view(file.data(), file.size()), ".npy")) {
      return OfField(absl::StrCat(std::string(field), ": \"", text, "\""),
                     ParseDType(rest.substr(at + 1)).status());
    }
  }
  return Refuse(field, text, absl::StrCat("no tensor; write ", kForms));
}

absl::StatusOr<Shape> ReinterpretedShape(const Shape& shape, DType from, DType to) {
  if (DTypeBytes(from) == DTypeBytes(to)) return shape;
  if (shape.empty() || shape.back() * DTypeBytes(from) % DTypeBytes(to) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "@", std::string(DTypeName(to)), ": ", std::string(DTypeName(from)), " of shape ",
        ShapeText(shape), " has rows that are no whole number of such elements"));
  }
  Shape result = shape;
  result.back() = shape.back() * DTypeBytes(from) / DTypeBytes(to);
  return result;
}

namespace {

absl::StatusOr<Tensor> LoadAsNamed(const TensorName& name) {
  Tensor tensor;
  if (name.kind == TensorName::Kind::kNpy) {
    QG_ASSIGN_OR_RETURN(tensor, ReadNpy(name.path, name.reinterpreted));
  } else {
    QG_ASSIGN_OR_RETURN(tensor, LoadEntry(name));
  }
  if (!name.reinterpreted) return tensor;
  QG_ASSIGN_OR_RETURN(const Shape shape,
                      ReinterpretedShape(tensor.shape(), tensor.dtype(), *name.reinterpreted));
  return tensor.Reinterpret(*name.reinterpreted, shape);
}

}  // namespace

absl::StatusOr<Tensor> LoadTensor(const TensorName& name) {
  absl::StatusOr<Tensor> tensor = LoadAsNamed(name);
  if (tensor.ok()) return tensor;
  return OfField(name.field, tensor.status());
}

absl::Status OfField(std::string_view field, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(std::string(field), ": ", std::string(status.message())));
}

absl::StatusOr<TensorFile> ReadTensorFile(std::string_view field, const std::string& path) {
  QG_ASSIGN_OR_RETURN(TensorFile known, ReadKnownTensors(field, path));
  if (known.unread.empty()) return known;
  return OfField(field, ReadSafetensors(path).status());
}

absl::StatusOr<TensorFile> ReadKnownTensors(std::string_view field, const std::string& path) {
  const absl::StatusOr<TensorName> name = ParseTensorName(field, path);
  const bool is_tensor = name.ok() && (name->kind != TensorName::Kind::kSafetensors ||
                                       !name->entry.empty() || name->reinterpreted);
  if (is_tensor) {
    return Refuse(field, path,
                  "this names one tensor, and a whole FILE.safetensors is read here, by the names "
                  "of its tensors");
  }
  absl::StatusOr<TensorFile> file = ReadKnownSafetensors(path);
  if (file.ok()) return file;
  return OfField(field, file.status());
}

}  // namespace quantgate
