// What the codes of a safetensors file are, as its __metadata__ says it (docs/file-formats.md
// section 2):
//   quantgate.shape      2x32x160
//   quantgate.rowwise    nvfp4:element=f4_e2m1x2,block_dim=2,e4m3_max=448,hadamard=false
//                        of levels also group=32,zero_point=integer
//   quantgate.columnwise the same of the other direction
//   quantgate.scale_layout  padded, swizzled, ...; logical where absent
// --format-hint says the same of one direction; fields left out are the format's own.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tensor_name.h"
#include "client/tensor_source.h"
#include "quantgate/v1/engine_service.pb.h"

namespace quantgate {

using FileMetadata = std::map<std::string, std::string>;

FileMetadata MetadataOf(const v1::QuantizedDescription& description);

/// The description that a file's metadata holds; empty where they hold none. INVALID_ARGUMENT for a
/// malformed quantgate.* entry.
absl::StatusOr<v1::QuantizedDescription> DescriptionOf(const FileMetadata& metadata);

/// "mxfp8", "nvfp4:e4m3_max=256", "fp8_block:block_dim=2". INVALID_ARGUMENT naming `field`.
absl::StatusOr<v1::QuantizedDirection> ParseFormatHint(const std::string& field,
                                                       const std::string& text);

/// The names of the layouts of scales, for options that take one.
std::vector<std::string> LayoutNames();

/// What names the zero points that lie beside scales: FILE:rowwise_zero_point for
/// FILE:rowwise_scale_inv. Empty where the file has none.
std::string ZeroPointBeside(const TensorName& scales, const TensorFile& file);

/// Removes what MetadataOf adds.
void RemoveDescription(FileMetadata& metadata);

/// The quantized tensor that a file holds, by its metadata and the names of its tensors. `path`
/// names the file.
absl::StatusOr<v1::QuantizedSource> QuantizedOf(const TensorFile& file, const std::string& path,
                                                TensorSources& sources);

/// The tensor that `text` names, as TensorSources::Resolve gives it, or the quantized tensor where
/// it names a whole file whose metadata describes codes. For operands that may be given as codes.
absl::StatusOr<v1::TensorSource> ResolveOperand(std::string_view field, const std::string& text,
                                                TensorSources& sources);

}  // namespace quantgate
