// How the command line names a tensor (docs/file-formats.md section 3):
//
//   FILE.safetensors:NAME   FILE.safetensors (when it holds one tensor)   FILE.npy
//   gen:DISTRIBUTION,shape=4096x1024[,seed=1][,dtype=bf16][,scale=0.5]
//   digest:SHA256/SIZE[,dtype=bf16,shape=4096x1024]
//
// A trailing @DTYPE reinterprets the stored bytes of a file or digest.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/tensor/tensor.h"
#include "quantgate/v1/tensor.pb.h"

namespace quantgate {

struct TensorName {
  enum class Kind { kSafetensors, kNpy, kGenerated, kDigest };
  Kind kind = Kind::kSafetensors;
  std::string field;            ///< The option or argument that named it.
  std::string text;             ///< As given.
  std::string path;             ///< Files only.
  std::string entry;            ///< kSafetensors; empty: the only tensor of the file.
  v1::GeneratorSpec generator;  ///< kGenerated.
  v1::StoredTensor stored;      ///< kDigest; with a descriptor when dtype and shape were given.
  std::optional<DType> reinterpreted;  ///< After '@'.
};

/// Syntax only: no file is opened. INVALID_ARGUMENT naming `field`, the text and what would be
/// right.
absl::StatusOr<TensorName> ParseTensorName(std::string_view field, const std::string& text);

/// "4096x1024" -> {4096, 1024}; "scalar" -> {}. INVALID_ARGUMENT for anything but decimal dims.
absl::StatusOr<Shape> ParseShape(std::string_view field, const std::string& text);

/// The shape of the same bytes as another dtype: equal element sizes keep it, otherwise the last
/// dim grows or shrinks. INVALID_ARGUMENT when the last dim would not be a whole number.
absl::StatusOr<Shape> ReinterpretedShape(const Shape& shape, DType from, DType to);

/// Reads the tensor of a file (kinds kSafetensors and kNpy) and reinterprets it if asked.
absl::StatusOr<Tensor> LoadTensor(const TensorName& name);

/// `status` with `field`, the option or argument it is about, before its message.
absl::Status OfField(std::string_view field, const absl::Status& status);

/// ReadSafetensors, whose errors name `field` too. For a caller to whom each tensor counts.
absl::StatusOr<TensorFile> ReadTensorFile(std::string_view field, const std::string& path);

/// ReadKnownSafetensors, whose errors name `field` too. For a caller who looks tensors up by name.
absl::StatusOr<TensorFile> ReadKnownTensors(std::string_view field, const std::string& path);

}  // namespace quantgate
