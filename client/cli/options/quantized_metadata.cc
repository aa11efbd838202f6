#include "client/cli/options/quantized_metadata.h"

#include <array>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/scale_layout.h"

namespace quantgate {
namespace {

constexpr char kShape[] = "quantgate.shape";
constexpr char kRowwise[] = "quantgate.rowwise";
constexpr char kColumnwise[] = "quantgate.columnwise";
constexpr char kScaleLayout[] = "quantgate.scale_layout";
constexpr char kSourceDType[] = "quantgate.source_dtype";
/// The tensors of a quantized tensor's file that a request takes (docs/file-formats.md section 2).
constexpr std::array<const char*, 11> kParts = {"rowwise_data",
                                                "rowwise_scale_inv",
                                                "columnwise_data",
                                                "columnwise_scale_inv",
                                                "rowwise_zero_point",
                                                "columnwise_zero_point",
                                                "amax_rowwise",
                                                "amax_columnwise",
                                                "rowwise_scale",
                                                "columnwise_scale",
                                                "scale"};

std::string DirectionText(const v1::QuantizedDirection& direction) {
  return absl::StrCat(direction.format(), ":element=", direction.element(),
                      ",block_dim=", direction.block_dim(), ",e4m3_max=", direction.e4m3_max(),
                      ",hadamard=", direction.hadamard() ? "true" : "false",
                      direction.group().empty() ? "" : ",group=", direction.group(),
                      direction.zero_point().empty() ? "" : ",zero_point=", direction.zero_point());
}

absl::Status RefuseField(const std::string& field, const std::string& text,
                         const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": \"", text, "\": ", rule));
}

}  // namespace

FileMetadata MetadataOf(const v1::QuantizedDescription& description) {
  FileMetadata metadata;
  metadata[kShape] = absl::StrJoin(description.shape(), "x");
  if (description.has_rowwise()) metadata[kRowwise] = DirectionText(description.rowwise());
  if (description.has_columnwise()) metadata[kColumnwise] = DirectionText(description.columnwise());
  if (!description.scale_layout().empty()) metadata[kScaleLayout] = description.scale_layout();
  return metadata;
}

absl::StatusOr<v1::QuantizedDescription> DescriptionOf(const FileMetadata& metadata) {
  v1::QuantizedDescription description;
  if (const auto shape = metadata.find(kShape); shape != metadata.end()) {
    const std::vector<std::string> dims = absl::StrSplit(shape->second, 'x');
    for (const std::string& text : dims) {
      int64_t dim = 0;
      if (!absl::SimpleAtoi(text, &dim) || dim < 0) {
        return RefuseField(kShape, shape->second, "dims joined by x");
      }
      description.add_shape(dim);
    }
  }
  if (const auto found = metadata.find(kRowwise); found != metadata.end()) {
    QG_ASSIGN_OR_RETURN(*description.mutable_rowwise(), ParseFormatHint(kRowwise, found->second));
  }
  if (const auto found = metadata.find(kColumnwise); found != metadata.end()) {
    QG_ASSIGN_OR_RETURN(*description.mutable_columnwise(),
                        ParseFormatHint(kColumnwise, found->second));
  }
  if (const auto found = metadata.find(kScaleLayout); found != metadata.end()) {
    description.set_scale_layout(found->second);
  }
  return description;
}

absl::StatusOr<v1::QuantizedDirection> ParseFormatHint(const std::string& field,
                                                       const std::string& text) {
  v1::QuantizedDirection direction;
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  direction.set_format(parts[0]);
  if (parts.size() == 1) return direction;
  const std::vector<std::string> items = absl::StrSplit(parts[1], ',');
  for (const std::string& item : items) {
    const std::vector<std::string> pair = absl::StrSplit(item, absl::MaxSplits('=', 1));
    int number = 0;
    const bool is_number = pair.size() == 2 && absl::SimpleAtoi(pair[1], &number) && number > 0;
    if (pair.size() == 2 && pair[0] == "element") {
      direction.set_element(pair[1]);
    } else if (pair.size() == 2 && pair[0] == "group") {
      direction.set_group(pair[1]);
    } else if (pair.size() == 2 && pair[0] == "zero_point") {
      direction.set_zero_point(pair[1]);
    } else if (pair[0] == "block_dim" && is_number) {
      direction.set_block_dim(number);
    } else if (pair[0] == "e4m3_max" && is_number) {
      direction.set_e4m3_max(number);
    } else if (item == "hadamard=true" || item == "hadamard=false") {
      direction.set_hadamard(item == "hadamard=true");
    } else {
      return RefuseField(
          field, text,
          absl::StrCat("\"", item,
                       "\" is none of element=DTYPE, block_dim=1|2, e4m3_max=448|256, "
                       "hadamard=true|false, group=tensor|row|N, zero_point=none|integer|float"));
    }
  }
  return direction;
}

std::vector<std::string> LayoutNames() {
  std::vector<std::string> names;
  for (const ScaleLayout layout : kScaleLayouts) names.emplace_back(ScaleLayoutName(layout));
  return names;
}

std::string ZeroPointBeside(const TensorName& scales, const TensorFile& file) {
  absl::string_view entry = scales.entry;
  if (!absl::ConsumeSuffix(&entry, "scale_inv")) return "";
  const std::string beside = absl::StrCat(std::string(entry), "zero_point");
  return file.Find(beside).ok() ? absl::StrCat(scales.path, ":", beside) : "";
}

void RemoveDescription(FileMetadata& metadata) {
  for (const char* const key : {kShape, kRowwise, kColumnwise, kScaleLayout}) metadata.erase(key);
}

absl::StatusOr<v1::QuantizedSource> QuantizedOf(const TensorFile& file, const std::string& path,
                                                TensorSources& sources) {
  v1::QuantizedSource source;
  const absl::StatusOr<v1::QuantizedDescription> description = DescriptionOf(file.metadata);
  if (!description.ok()) return OfField(path, description.status());
  *source.mutable_description() = *description;
  const auto source_dtype = file.metadata.find(kSourceDType);
  if (source_dtype != file.metadata.end()) source.set_source_dtype(source_dtype->second);
  sources.NoteFile(path);
  for (const char* const part : kParts) {
    const absl::StatusOr<Tensor> tensor = file.Find(part);
    if (!tensor.ok()) continue;
    QG_ASSIGN_OR_RETURN((*source.mutable_tensors())[part],
                        sources.Place(absl::StrCat(path, ":", part), *tensor));
  }
  return source;
}

absl::StatusOr<v1::TensorSource> ResolveOperand(std::string_view field, const std::string& text,
                                                TensorSources& sources) {
  const absl::StatusOr<TensorName> name = ParseTensorName(field, text);
  const bool is_file = name.ok() && name->kind == TensorName::Kind::kSafetensors &&
                       name->entry.empty() && !name->reinterpreted.has_value();
  if (!is_file) return sources.Resolve(field, text);
  QG_ASSIGN_OR_RETURN(const TensorFile file, ReadKnownTensors(field, name->path));
  if (!file.metadata.contains(kRowwise) && !file.metadata.contains(kColumnwise)) {
    return sources.Resolve(field, text);
  }
  v1::TensorSource source;
  absl::StatusOr<v1::QuantizedSource> quantized = QuantizedOf(file, name->path, sources);
  if (!quantized.ok()) return OfField(field, quantized.status());
  *source.mutable_quantized() = *std::move(quantized);
  return source;
}

}  // namespace quantgate
