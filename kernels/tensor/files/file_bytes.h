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

/// Maps a regular file. Writes through the buffer stay private and do not reach the file. NOT_FOUND
/// when there is no file, INVALID_ARGUMENT when it is not a regular file.
absl::StatusOr<std::shared_ptr<Buffer>> MapFile(const std::string& path);

/// Writes the pieces one after another into a temporary file beside `path`, syncs it and renames it
/// over `path`: a reader sees the old file or the new one. The directory must exist.
absl::Status ReplaceFile(const std::string& path,
                         const std::vector<std::span<const std::byte>>& pieces);

/// A view of `buffer` from byte `offset` on, or a copy if the elements would not be aligned there.
absl::StatusOr<Tensor> AlignedView(DType dtype, Shape shape, const std::shared_ptr<Buffer>& buffer,
                                   size_t offset);

}  // namespace quantgate
