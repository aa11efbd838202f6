// Whole files as buffers: mapped for reading, replaced atomically for writing.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// Maps a regular file, read-only for others (writes through the buffer stay private). NOT_FOUND
/// when there is none, INVALID_ARGUMENT when it is not a regular file.
absl::StatusOr<std::shared_ptr<Buffer>> MapFile(const std::string& path);

/// Writes the pieces one after another into a temporary file beside `path`, syncs it and renames it
/// over `path`: a reader sees the old file or the new one. The directory must exist.
absl::Status ReplaceFile(const std::string& path,
                         const std::vector<std::span<const std::byte>>& pieces);

/// A view of `buffer`, or a copy where the offset is not a multiple of the element size.
absl::StatusOr<Tensor> AlignedView(DType dtype, Shape shape, const std::shared_ptr<Buffer>& buffer,
                                   size_t offset);

}  // namespace quantgate
