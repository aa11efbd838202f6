// What the codes of a safetensors file are, as its __metadata__ says it (docs/file-formats.md
// section 2):
//   quantgate.shape      2x32x160
//   quantgate.rowwise    nvfp4:element=f4_e2m1x2,block_dim=2,e4m3_max=448,hadamard=false
//   quantgate.columnwise the same of the other direction
//   quantgate.scale_layout  padded or swizzled; logical where absent
// --format-hint says the same of one direction; fields left out are the format's own.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
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

}  // namespace quantgate
