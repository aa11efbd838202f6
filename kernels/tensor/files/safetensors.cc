// The safetensors format: an 8-byte little-endian header length, a JSON header, the tensors' bytes
// without holes. https://github.com/huggingface/safetensors#format
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/files/file_bytes.h"
#include "kernels/tensor/files/tensor_file.h"

namespace quantgate {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kSafetensorsAlignmentBytes = 64;
constexpr std::string_view kMetadataKey = "__metadata__";

/// One entry of the header, as read. Shape dims and offsets are unsigned in the file.
struct HeaderEntry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

struct Header {
  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;
};

/// Cuts and escapes a name for a message, since it comes from the file.
std::string Quoted(std::string_view name) {
  constexpr size_t kShown = 80;
  std::string text(name.substr(0, kShown));
  if (name.size() > kShown) text += "...";
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

/// Reads the header as a stream of tokens, so that a hostile header can be neither deep nor
/// repetitive and is never held as a document. Each callback returns false to stop and leaves the
/// rule that was broken in error_.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  const std::string& error() const { return error_; }
  Header TakeHeader() { return std::move(header_); }

  bool null() override { return Refuse("null"); }
  bool boolean(bool) override { return Refuse("a boolean"); }
  bool number_integer(number_integer_t) override { return Refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Refuse("a number that is not a 64-bit integer");
  }
  bool binary(binary_t&) override { return Refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kInArray) return Refuse("a number");
    // Two offsets and at most kRankMax dims; one more is kept for the rank's own error message.
    if (array_->size() > kRankMax) return Fail("has an array of more than 8 numbers");
    array_->push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kInMetadata) {
      header_.metadata[key_] = value;
      return true;
    }
    if (state_ != State::kInEntry || key_ != "dtype") return Refuse("a string");
    header_.entries.back().dtype = value;
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == State::kStart) {
      state_ = State::kInHeader;
    } else if (state_ == State::kInHeader && key_ == kMetadataKey) {
      state_ = State::kInMetadata;
    } else if (state_ == State::kInHeader) {
      header_.entries.push_back({.name = key_, .dtype = {}, .shape = {}, .offsets = {}});
      state_ = State::kInEntry;
      entry_keys_.clear();
    } else {
      return Refuse("a nested object");
    }
    return true;
  }

  bool end_object() override {
    state_ = state_ == State::kInHeader ? State::kDone : State::kInHeader;
    return true;
  }

  bool key(string_t& value) override {
    key_ = value;
    switch (state_) {
      case State::kInHeader:
        if (!names_.insert(value).second) return FailPlain("names " + Quoted(value) + " twice");
        return true;
      case State::kInMetadata:
        if (header_.metadata.count(value) != 0) {
          return FailPlain("has the metadata key " + Quoted(value) + " twice");
        }
        return true;
      default:
        if (!entry_keys_.insert(value).second) return Fail("has " + Quoted(value) + " twice");
        if (value != "dtype" && value != "shape" && value != "data_offsets") {
          return Fail("has the unknown key " + Quoted(value));
        }
        return true;
    }
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kInEntry || key_ == "dtype") return Refuse("an array");
    HeaderEntry& entry = header_.entries.back();
    array_ = &(key_ == "shape" ? entry.shape : entry.offsets).emplace();
    state_ = State::kInArray;
    return true;
  }

  bool end_array() override {
    state_ = State::kInEntry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    if (error_.empty()) error_ = absl::StrCat("is not valid JSON at byte ", position);
    return false;
  }

 private:
  enum class State { kStart, kInHeader, kInMetadata, kInEntry, kInArray, kDone };

  bool FailPlain(std::string rule) {
    error_ = std::move(rule);
    return false;
  }
  bool Fail(const std::string& rule) {
    return FailPlain("tensor " + Quoted(header_.entries.back().name) + " " + rule);
  }
  bool Refuse(const std::string& what) {
    if (state_ == State::kStart) return FailPlain("is not a JSON object");
    if (state_ == State::kInMetadata) {
      return FailPlain("has " + what + " in __metadata__; only strings may be there");
    }
    if (state_ == State::kInHeader) {
      return FailPlain("has " + what + " as the value of " + Quoted(key_));
    }
    return Fail("has " + what + " in " + Quoted(key_));
  }

  State state_ = State::kStart;
  std::string key_;
  std::set<std::string> names_;
  std::set<std::string> entry_keys_;
  std::vector<uint64_t>* array_ = nullptr;
  Header header_;
  std::string error_;
};

absl::StatusOr<Header> ParseHeader(std::string_view text) {
  HeaderReader reader;
  const bool parsed = Json::sax_parse(text.begin(), text.end(), &reader);
  if (!parsed) return absl::InvalidArgumentError("header " + reader.error());
  return reader.TakeHeader();
}

/// An entry whose dtype, shape and offsets agree.
struct CheckedEntry {
  std::string name;
  std::optional<DType> dtype;  ///< Absent: none that a Tensor has; nothing but its range is known.
  Shape shape;
  uint64_t begin;
  uint64_t end;
};

absl::StatusOr<Shape> CheckShape(const HeaderEntry& entry, DType dtype) {
  Shape shape;
  for (const uint64_t dim : *entry.shape) {
    if (dim > static_cast<uint64_t>(INT64_MAX)) {
      return absl::InvalidArgumentError(absl::StrCat("has dim ", dim, "; dims must fit int64"));
    }
    shape.push_back(static_cast<int64_t>(dim));
  }
  // The file counts elements of 4 bits, a Tensor bytes with two of them.
  if (dtype == DType::kF4E2M1x2) {
    if (shape.empty() || shape.back() % 2 != 0) {
      return absl::InvalidArgumentError("has 4-bit elements and an odd last dim");
    }
    shape.back() /= 2;
  }
  return shape;
}

absl::StatusOr<CheckedEntry> CheckEntry(const HeaderEntry& entry, uint64_t data_bytes) {
  if (!entry.dtype || !entry.shape || !entry.offsets) {
    return absl::InvalidArgumentError("lacks one of dtype, shape, data_offsets");
  }
  const absl::StatusOr<DType> dtype = ParseSafetensorsDType(*entry.dtype);
  if (entry.offsets->size() != 2) {
    return absl::InvalidArgumentError("data_offsets must be two numbers");
  }
  const uint64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
  if (begin > end || end > data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("data_offsets [", begin, ", ", end,
                                                   "] are not a range within the ", data_bytes,
                                                   " bytes of data"));
  }
  if (!dtype.ok()) return CheckedEntry{entry.name, std::nullopt, {}, begin, end};
  QG_ASSIGN_OR_RETURN(Shape shape, CheckShape(entry, *dtype));
  QG_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(shape, *dtype, "shape"));
  const uint64_t expected = static_cast<uint64_t>(count) * DTypeBytes(*dtype);
  if (end - begin != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("data_offsets [", begin, ", ", end, "] hold ", end - begin, " bytes; ",
                     *entry.dtype, " of shape ", ShapeText(shape), " takes ", expected));
  }
  return CheckedEntry{entry.name, *dtype, std::move(shape), begin, end};
}

/// Checks that the tensors lie one after another from the first byte of data to the last.
absl::Status CheckContiguous(const std::vector<CheckedEntry>& entries, uint64_t data_bytes) {
  uint64_t expected = 0;
  for (const CheckedEntry& entry : entries) {
    if (entry.begin != expected) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quoted(entry.name), " begins at ", entry.begin, " where ",
          entry.begin < expected ? "another tensor lies up to " : "a hole begins at ", expected));
    }
    expected = entry.end;
  }
  if (expected != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensors end at byte ", expected, " of data, the file at ", data_bytes));
  }
  return absl::OkStatus();
}

absl::Status OfTensor(std::string_view name, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("tensor ", Quoted(name), ": ", status.message()));
}

/// Why the tensor `name` of the safetensors dtype `dtype` was left unread.
absl::Status WhyUnread(std::string_view name, std::string_view dtype) {
  return OfTensor(name, ParseSafetensorsDType(dtype).status());
}

/// The file with its tensors of unknown dtypes left unread.
absl::StatusOr<TensorFile> ParseBuffer(const std::shared_ptr<Buffer>& buffer) {
  const uint64_t file_bytes = buffer->size();
  if (file_bytes < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", file_bytes,
                     " bytes; a safetensors file begins with the 8 bytes of the header length"));
  }
  uint64_t header_bytes;
  std::memcpy(&header_bytes, buffer->data(), kLengthBytes);
  if (header_bytes > kSafetensorsHeaderBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("header length ", header_bytes, " is over the limit of ",
                     kSafetensorsHeaderBytesMax, "; no safetensors file begins so"));
  }
  if (header_bytes > file_bytes - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat("header length ", header_bytes,
                                                   " is beyond the file's ", file_bytes, " bytes"));
  }
  const uint64_t data_begin = kLengthBytes + header_bytes, data_bytes = file_bytes - data_begin;
  QG_ASSIGN_OR_RETURN(
      Header header,
      ParseHeader({reinterpret_cast<const char*>(buffer->data()) + kLengthBytes, header_bytes}));

  TensorFile file;
  std::vector<CheckedEntry> entries;
  for (const HeaderEntry& entry : header.entries) {
    auto checked = CheckEntry(entry, data_bytes);
    if (!checked.ok()) return OfTensor(entry.name, checked.status());
    if (!checked->dtype) file.unread.emplace(entry.name, *entry.dtype);
    entries.push_back(*std::move(checked));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  QG_RETURN_IF_ERROR(CheckContiguous(entries, data_bytes));

  file.metadata = std::move(header.metadata);
  for (CheckedEntry& entry : entries) {
    if (!entry.dtype) continue;
    QG_ASSIGN_OR_RETURN(Tensor tensor, AlignedView(*entry.dtype, std::move(entry.shape), buffer,
                                                   data_begin + entry.begin));
    file.tensors.push_back({std::move(entry.name), std::move(tensor)});
  }
  return file;
}

/// The error with the file's name in front.
template <class T>
absl::StatusOr<T> WithSource(absl::StatusOr<T> result, const std::string& source) {
  if (result.ok()) return result;
  return absl::Status(result.status().code(),
                      absl::StrCat(source, ": ", result.status().message()));
}

std::string JsonText(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::strict);
}

/// Whether JSON can hold the text: nlohmann's dump throws unless it is UTF-8, and names from a
/// command line may be anything.
bool IsUtf8(const std::string& text) {
  const auto replaced = Json(text).dump(-1, ' ', true, Json::error_handler_t::ignore);
  const auto parsed = Json::parse(replaced, nullptr, false);
  return parsed.is_string() && parsed.get_ref<const std::string&>() == text;
}

absl::Status CheckWritable(const std::vector<NamedTensor>& tensors,
                           const std::map<std::string, std::string>& metadata) {
  std::set<std::string> names;
  for (const NamedTensor& named : tensors) {
    if (!named.tensor.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(named.name), " is absent"));
    }
    if (named.name == kMetadataKey || !IsUtf8(named.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor name ", Quoted(named.name), " must be UTF-8, not __metadata__"));
    }
    if (!names.insert(named.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor name ", Quoted(named.name), " is given twice"));
    }
  }
  for (const auto& [key, value] : metadata) {
    if (!IsUtf8(key) || !IsUtf8(value)) {
      return absl::InvalidArgumentError(absl::StrCat("metadata ", Quoted(key), " must be UTF-8"));
    }
  }
  return absl::OkStatus();
}

std::string HeaderText(const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> entries;
  if (!metadata.empty()) {
    entries.push_back(
        absl::StrCat(JsonText(std::string(kMetadataKey)), ":", Json(metadata).dump()));
  }
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const uint64_t end = offset + tensor.byte_size();
    Shape shape = tensor.shape();
    if (tensor.dtype() == DType::kF4E2M1x2) shape.back() *= 2;
    entries.push_back(absl::StrCat(JsonText(name), ":{\"dtype\":\"",
                                   std::string(TraitsOf(tensor.dtype()).safetensors),
                                   "\",\"shape\":[", absl::StrJoin(shape, ","),
                                   "],\"data_offsets\":[", offset, ",", end, "]}"));
    offset = end;
  }
  std::string header = absl::StrCat("{", absl::StrJoin(entries, ","), "}");
  while ((kLengthBytes + header.size()) % kSafetensorsAlignmentBytes != 0) header.push_back(' ');
  return header;
}

/// Everything before the first tensor.
absl::StatusOr<std::string> SafetensorsPrefix(const std::vector<NamedTensor>& tensors,
                                              const std::map<std::string, std::string>& metadata) {
  QG_RETURN_IF_ERROR(CheckWritable(tensors, metadata));
  const std::string header = HeaderText(tensors, metadata);
  const uint64_t header_bytes = header.size();
  if (header_bytes > kSafetensorsHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the header would take ", header_bytes,
                                                   " bytes, over the limit of ",
                                                   kSafetensorsHeaderBytesMax));
  }
  std::string prefix(kLengthBytes, '\0');
  std::memcpy(prefix.data(), &header_bytes, kLengthBytes);
  return prefix + header;
}

}  // namespace

std::string TensorFile::NameList() const {
  constexpr size_t kShown = 32;
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(tensors.size(), kShown); ++i) {
    const std::string& name = tensors[i].name;
    const bool is_plain = std::none_of(name.begin(), name.end(),
                                       [](unsigned char c) { return c < 0x20 || c == 0x7F; });
    names.push_back(is_plain && !name.empty() ? name : Quoted(name));
  }
  if (names.empty()) return "none";
  if (tensors.size() > kShown) names.push_back(absl::StrCat(tensors.size() - kShown, " more"));
  return absl::StrJoin(names, ", ");
}

absl::StatusOr<Tensor> TensorFile::Find(std::string_view name) const {
  for (const NamedTensor& named : tensors) {
    if (named.name == name) return named.tensor;
  }
  const auto left_out = unread.find(std::string(name));
  if (left_out != unread.end()) return WhyUnread(name, left_out->second);
  return absl::NotFoundError(
      absl::StrCat("no tensor ", Quoted(name), "; the file has ", NameList()));
}

absl::StatusOr<TensorFile> ParseSafetensors(std::shared_ptr<Buffer> buffer,
                                            const std::string& source) {
  absl::StatusOr<TensorFile> file = ParseBuffer(buffer);
  if (file.ok() && !file->unread.empty()) {
    const auto& [name, dtype] = *file->unread.begin();
    file = WhyUnread(name, dtype);
  }
  return WithSource(std::move(file), source);
}

absl::StatusOr<TensorFile> ReadSafetensors(const std::string& path) {
  QG_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, MapFile(path));
  return ParseSafetensors(std::move(buffer), path);
}

absl::StatusOr<TensorFile> ReadKnownSafetensors(const std::string& path) {
  QG_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> buffer, MapFile(path));
  return WithSource(ParseBuffer(buffer), path);
}

absl::StatusOr<Tensor> ReadSafetensorsTensor(const std::string& path, std::string_view name) {
  QG_ASSIGN_OR_RETURN(const TensorFile file, ReadKnownSafetensors(path));
  return WithSource(file.Find(name), path);
}

absl::StatusOr<Tensor> SafetensorsBytes(const std::vector<NamedTensor>& tensors,
                                        const std::map<std::string, std::string>& metadata) {
  QG_ASSIGN_OR_RETURN(const std::string prefix, SafetensorsPrefix(tensors, metadata));
  size_t size = prefix.size();
  for (const NamedTensor& named : tensors) size += named.tensor.byte_size();
  QG_ASSIGN_OR_RETURN(Tensor file, Tensor::Allocate(DType::kU8, {static_cast<int64_t>(size)}));
  std::byte* to = file.data();
  std::memcpy(to, prefix.data(), prefix.size());
  to += prefix.size();
  for (const NamedTensor& named : tensors) {
    const std::span<const std::byte> bytes = named.tensor.bytes();
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
    to += bytes.size();
  }
  return file;
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  const absl::StatusOr<std::string> prefix = SafetensorsPrefix(tensors, metadata);
  if (!prefix.ok()) {
    return absl::Status(prefix.status().code(),
                        absl::StrCat(path, ": ", std::string(prefix.status().message())));
  }
  std::vector<std::span<const std::byte>> pieces = {std::as_bytes(std::span(*prefix))};
  for (const NamedTensor& named : tensors) pieces.push_back(named.tensor.bytes());
  return ReplaceFile(path, pieces);
}

}  // namespace quantgate
