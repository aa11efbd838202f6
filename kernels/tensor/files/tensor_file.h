// Tensor files from untrusted hands: safetensors and npy. Readers map the file, check every number
// of the header before they believe it, and allocate nothing large for a file that lies.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

struct TensorFile {
  std::vector<NamedTensor> tensors;             ///< In the order of the file's offsets.
  std::map<std::string, std::string> metadata;  ///< safetensors __metadata__.
  /// NOT_FOUND naming the tensor and listing what the file has.
  absl::StatusOr<Tensor> Find(std::string_view name) const;
  /// "x, weight, 3 more" for messages: control characters escaped, the first names only.
  std::string NameList() const;
};

/// Largest safetensors header that is read: 16 MiB of JSON.
inline constexpr uint64_t kSafetensorsHeaderBytesMax = 16u << 20;

/// Maps a .safetensors file. INVALID_ARGUMENT (naming file, tensor and rule) for a malformed one:
/// header length beyond the file or the limit, bad JSON, nesting, unknown dtype, offsets that
/// overlap, leave holes, run out of range or do not match dtype and shape, duplicate names.
/// NOT_FOUND when there is no such file.
absl::StatusOr<TensorFile> ReadSafetensors(const std::string& path);
/// One tensor of such a file, NOT_FOUND when it has none of that name. The dtypes of the others
/// need not be known: a checkpoint holds masks and indices too.
absl::StatusOr<Tensor> ReadSafetensorsTensor(const std::string& path, std::string_view name);
/// A whole file from bytes in memory; tensors share `buffer`.
absl::StatusOr<TensorFile> ParseSafetensors(std::shared_ptr<Buffer> buffer,
                                            const std::string& source);

/// Writes atomically (temporary file, fsync, rename). Tensors keep the given order, offsets aligned
/// to 64 bytes by padding the header only, as the format demands no holes.
absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata);

/// A version 1.0 to 3.0 .npy file, C order, little-endian f2, f4, f8, i2, i4, i8, u1, V2 as bf16
/// and f1 as f8_e5m2, as ml_dtypes' are written. V1, as the others of one byte are, is u8 where the
/// caller knows what is `meant` and reinterprets it. INVALID_ARGUMENT for all else.
absl::StatusOr<Tensor> ReadNpy(const std::string& path, std::optional<DType> meant = {});
absl::Status WriteNpy(const std::string& path, const Tensor& tensor);

}  // namespace quantgate
