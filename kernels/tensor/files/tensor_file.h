// Tensor files, which may come from untrusted sources: safetensors and npy. Readers map the file,
// check every number of the header before they use it, and allocate nothing large for a file whose
// header is wrong.
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

/// What a safetensors file holds.
struct TensorFile {
  std::vector<NamedTensor> tensors;             ///< In the order of the file's offsets.
  std::map<std::string, std::string> metadata;  ///< safetensors __metadata__.
  std::map<std::string, std::string> unread;    ///< Dtypes that no Tensor has, by tensor name.
  /// NOT_FOUND naming the tensor and listing what the file has; INVALID_ARGUMENT for an unread one.
  absl::StatusOr<Tensor> Find(std::string_view name) const;
  /// The first names for messages, control characters escaped: "x, weight, 3 more".
  std::string NameList() const;
};

/// The largest safetensors header that is read: 16 MiB of JSON.
inline constexpr uint64_t kSafetensorsHeaderBytesMax = 16u << 20;

/// Maps a .safetensors file. INVALID_ARGUMENT (naming file, tensor and rule) for a malformed one:
/// header length beyond the file or the limit, bad JSON, nesting, unknown dtype, offsets that
/// overlap, leave holes, run out of range or do not match dtype and shape, duplicate names.
/// NOT_FOUND when there is no such file.
absl::StatusOr<TensorFile> ReadSafetensors(const std::string& path);
/// As ReadSafetensors, for a caller who looks tensors up by name: those of unknown dtypes are left
/// unread, since a checkpoint holds masks and indices too.
absl::StatusOr<TensorFile> ReadKnownSafetensors(const std::string& path);
/// One tensor of a .safetensors file. NOT_FOUND when it has none of that name. The other tensors
/// may have unknown dtypes.
absl::StatusOr<Tensor> ReadSafetensorsTensor(const std::string& path, std::string_view name);
/// As ReadSafetensors, from the bytes of a file in memory, which the tensors share. `source` names
/// the file in errors.
absl::StatusOr<TensorFile> ParseSafetensors(std::shared_ptr<Buffer> buffer,
                                            const std::string& source);

/// Writes a file atomically (temporary file, fsync, rename). Tensors keep the given order, offsets
/// aligned to 64 bytes by padding the header only, as the format demands no holes.
absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata);

/// The bytes of the file that WriteSafetensors writes: U8 [bytes] in host memory, where the tensors
/// must be too. INVALID_ARGUMENT as there.
absl::StatusOr<Tensor> SafetensorsBytes(const std::vector<NamedTensor>& tensors,
                                        const std::map<std::string, std::string>& metadata);

/// Reads a version 1.0 to 3.0 .npy file in C order with little-endian elements f2, f4, f8, i2, i4,
/// i8 or u1. NumPy writes the bf16 of ml_dtypes as V2 and its f8_e5m2 as f1, and these are read so.
/// It writes the other types of one byte as V1, which is read as u8 only if the caller says by
/// `meant` what to reinterpret it as. INVALID_ARGUMENT for everything else.
absl::StatusOr<Tensor> ReadNpy(const std::string& path, std::optional<DType> meant = {});
absl::Status WriteNpy(const std::string& path, const Tensor& tensor);

}  // namespace quantgate
