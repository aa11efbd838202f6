// The .npy format: magic, version, header length, a Python dict literal, the elements.
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#include <charconv>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/files/file_bytes.h"
#include "kernels/tensor/files/tensor_file.h"

namespace quantgate {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kHeaderBytesMax =
    1 << 16;  // One array's shape and type; numpy writes under 128 bytes.
constexpr size_t kNpyAlignmentBytes = 64;

struct DescrName {
  std::string_view descr;
  DType dtype;
};

// Files are written with the first entry of a dtype.
constexpr DescrName kDescrs[] = {
    {"<f8", DType::kF64},  {"<f4", DType::kF32},       {"<f2", DType::kF16}, {"<V2", DType::kBF16},
    {"|V2", DType::kBF16}, {"bfloat16", DType::kBF16}, {"|u1", DType::kU8},  {"<u1", DType::kU8},
    {"|i1", DType::kI8},   {"<i1", DType::kI8},        {"<i2", DType::kI16}, {"<i4", DType::kI32},
    {"<i8", DType::kI64},
};
// The only one-byte type of ml_dtypes that NumPy writes with a name, which it cannot read back.
constexpr std::string_view kE5m2Descr = "<f1";

/// The dtype of one-byte elements without a type, as which np.save writes all other one-byte types
/// of ml_dtypes.
absl::StatusOr<DType> DTypeOfUntyped(std::string_view descr, std::optional<DType> meant) {
  const std::string is_untyped =
      absl::StrCat("descr '", std::string(descr), "' is bytes whose type np.save left out");
  if (!meant.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(is_untyped,
                     "; say which it is: append @f8_e4m3 (float8_e4m3fn), @f8_e5m2, @f8_e8m0, "
                     "@f6_e2m3 or @f6_e3m2"));
  }
  if (*meant == DType::kF4E2M1x2) {
    return absl::InvalidArgumentError(
        absl::StrCat(is_untyped,
                     "; ml_dtypes' float4_e2m1fn has one code a byte and f4_e2m1x2 two: pack them, "
                     "the even index in the low nibble, and save them as uint8"));
  }
  return DType::kU8;
}

absl::StatusOr<DType> DTypeOfDescr(std::string_view descr, std::optional<DType> meant) {
  if (descr == kE5m2Descr) return DType::kF8E5M2;
  if (descr == "<V1" || descr == "|V1") return DTypeOfUntyped(descr, meant);
  std::string known;
  for (const DescrName& entry : kDescrs) {
    if (entry.descr == descr) return entry.dtype;
    absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(entry.descr));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("descr '", std::string(descr.substr(0, 40)), "' is not one of ", known));
}

struct NpyHeader {
  std::string descr;  // Empty: not given.
  std::optional<bool> fortran_order;
  std::optional<Shape> shape;
};

/// The subset of Python literals that numpy writes: one dict of three known keys.
class DictReader {
 public:
  explicit DictReader(std::string_view text) : text_(text) {}

  absl::StatusOr<NpyHeader> Read() {
    NpyHeader header;
    if (!Take('{')) return Malformed("must be a dict");
    while (!Take('}')) {
      QG_RETURN_IF_ERROR(ReadEntry(header));
      if (!Take(',') && !Peek('}')) return Malformed("has an entry without a comma behind it");
    }
    SkipSpace();
    if (!text_.empty()) return Malformed("has text behind the dict");
    if (header.descr.empty() || !header.fortran_order || !header.shape) {
      return Malformed("lacks one of descr, fortran_order, shape");
    }
    return header;
  }

 private:
  static absl::Status Malformed(const std::string& rule) {
    return absl::InvalidArgumentError("header " + rule);
  }

  absl::Status ReadEntry(NpyHeader& header) {
    QG_ASSIGN_OR_RETURN(const std::string key, ReadString());
    if (!Take(':')) return Malformed("has a key without a colon");
    if (key == "descr" && header.descr.empty()) {
      QG_ASSIGN_OR_RETURN(header.descr, ReadString());
    } else if (key == "fortran_order" && !header.fortran_order) {
      QG_ASSIGN_OR_RETURN(header.fortran_order, ReadBool());
    } else if (key == "shape" && !header.shape) {
      QG_ASSIGN_OR_RETURN(header.shape, ReadShape());
    } else {
      return Malformed("has an unknown or repeated key '" + key.substr(0, 40) + "'");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ReadString() {
    SkipSpace();
    if (text_.empty() || (text_[0] != '\'' && text_[0] != '"')) {
      return Malformed("has something else where a string must be");
    }
    const size_t end = text_.find(text_[0], 1);
    const std::string value(text_.substr(1, end == std::string_view::npos ? 0 : end - 1));
    if (end == std::string_view::npos || value.find('\\') != std::string::npos) {
      return Malformed("has an unterminated or escaped string");
    }
    text_.remove_prefix(end + 1);
    return value;
  }

  absl::StatusOr<bool> ReadBool() {
    SkipSpace();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(0, word.size()) == word) {
        text_.remove_prefix(word.size());
        return value;
      }
    }
    return Malformed("has a fortran_order that is neither True nor False");
  }

  absl::StatusOr<Shape> ReadShape() {
    Shape shape;
    if (!Take('(')) return Malformed("has a shape that is not a tuple");
    while (!Take(')')) {
      SkipSpace();
      int64_t dim = 0;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), dim);
      if (error != std::errc()) return Malformed("has a dim that is not an int64");
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      shape.push_back(dim);
      if (shape.size() > kRankMax) return Malformed("has more than 8 dims");
      if (!Take(',') && !Peek(')')) return Malformed("has a shape without a comma between dims");
    }
    return shape;
  }

  void SkipSpace() {
    const size_t begin = text_.find_first_not_of(" \t\n");
    text_.remove_prefix(begin == std::string_view::npos ? text_.size() : begin);
  }
  bool Peek(char c) {
    SkipSpace();
    return !text_.empty() && text_[0] == c;
  }
  bool Take(char c) {
    const bool found = Peek(c);
    if (found) text_.remove_prefix(1);
    return found;
  }

  std::string_view text_;
};

/// The text of the header and the offset of the data.
struct NpyLayout {
  std::string_view header;
  size_t data_begin;
};

absl::StatusOr<NpyLayout> FindHeader(const Buffer& buffer) {
  const std::string_view text(reinterpret_cast<const char*>(buffer.data()), buffer.size());
  if (text.substr(0, kMagic.size()) != kMagic || text.size() < kMagic.size() + 4) {
    return absl::InvalidArgumentError("does not begin as a .npy file");
  }
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(text[i])); };
  const size_t major = byte(6), minor = byte(7);
  if (major < 1 || major > 3 || minor != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("version ", major, ".", minor, " is not 1.0, 2.0 or 3.0"));
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t prefix = kMagic.size() + 2 + length_bytes;
  if (text.size() < prefix) return absl::InvalidArgumentError("ends inside its header");
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) length |= byte(8 + i) << (8 * i);
  if (length > kHeaderBytesMax || length > text.size() - prefix) {
    return absl::InvalidArgumentError(
        absl::StrCat("header length ", length, " is over the limit of ", kHeaderBytesMax,
                     " or beyond the file's ", text.size(), " bytes"));
  }
  return NpyLayout{text.substr(prefix, length), prefix + length};
}

absl::StatusOr<Tensor> ParseNpy(const std::shared_ptr<Buffer>& buffer, std::optional<DType> meant) {
  QG_ASSIGN_OR_RETURN(const NpyLayout layout, FindHeader(*buffer));
  QG_ASSIGN_OR_RETURN(const NpyHeader header, DictReader(layout.header).Read());
  QG_ASSIGN_OR_RETURN(const DType dtype, DTypeOfDescr(header.descr, meant));
  if (*header.fortran_order) {
    return absl::InvalidArgumentError(
        "fortran_order is True; only C order is read: np.save(..., np.ascontiguousarray(x))");
  }
  QG_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(*header.shape, dtype, "shape"));
  const size_t expected = static_cast<size_t>(count) * DTypeBytes(dtype);
  const size_t have = buffer->size() - layout.data_begin;
  if (have != expected) {
    return absl::InvalidArgumentError(absl::StrCat("shape ", ShapeText(*header.shape), " of ",
                                                   std::string(DTypeName(dtype)), " takes ",
                                                   expected, " bytes, the file has ", have));
  }
  return AlignedView(dtype, *header.shape, buffer, layout.data_begin);
}

}  // namespace

absl::StatusOr<Tensor> ReadNpy(const std::string& path, std::optional<DType> meant) {
  QG_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> buffer, MapFile(path));
  auto tensor = ParseNpy(buffer, meant);
  if (tensor.ok()) return tensor;
  return absl::Status(tensor.status().code(), absl::StrCat(path, ": ", tensor.status().message()));
}

absl::Status WriteNpy(const std::string& path, const Tensor& tensor) {
  std::string_view descr;
  for (const DescrName& entry : kDescrs) {
    if (entry.dtype == tensor.dtype() && descr.empty()) descr = entry.descr;
  }
  if (descr.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": .npy has no type for ",
                                                   std::string(DTypeName(tensor.dtype())),
                                                   "; write safetensors"));
  }
  std::string header =
      absl::StrCat("{'descr': '", std::string(descr), "', 'fortran_order': False, 'shape': (",
                   absl::StrJoin(tensor.shape(), ", "), tensor.rank() == 1 ? ",), }" : "), }");
  const size_t prefix = kMagic.size() + 4;
  while ((prefix + header.size() + 1) % kNpyAlignmentBytes != 0) header.push_back(' ');
  header.push_back('\n');
  std::string start = absl::StrCat(std::string(kMagic), std::string("\x01\x00", 2));
  start.push_back(static_cast<char>(header.size() & 0xFF));
  start.push_back(static_cast<char>(header.size() >> 8));
  return ReplaceFile(
      path, {std::as_bytes(std::span(start)), std::as_bytes(std::span(header)), tensor.bytes()});
}

}  // namespace quantgate
