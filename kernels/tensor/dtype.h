// Element types of tensors: their names on the wire, in files and on the command line, and their
// sizes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quantgate {

/// The element types.
enum class DType {
  kF64,
  kF32,
  kBF16,
  kF16,
  kF8E4M3,  ///< OCP E4M3 ("fn": no infinities, NaN 0x7F and 0xFF).
  kF8E5M2,  ///< OCP E5M2.
  kF8E8M0,  ///< OCP E8M0 scale: 2^(code - 127), 0xFF is NaN.
  kU8,
  kI32,
  kI64,
  kF4E2M1x2,  ///< Two OCP E2M1 codes per byte, the even index in the low nibble; shapes count
              ///< bytes.
  kF6E2M3,    ///< OCP E2M3, one code in the low six bits of a byte.
  kF6E3M2,    ///< OCP E3M2, likewise.
  kI16,
  kI8,
  // Two codes of four bits per byte, the even index in the low nibble; shapes count bytes.
  kI4x2,        ///< Integers from -8 to 7 in two's complement.
  kU4x2,        ///< Integers from 0 to 15.
  kNf4x2,       ///< Places in the table of NF4 (level_rule.h).
  kBnbFp4x2,    ///< Places in the table that bitsandbytes calls FP4, which is not E2M1.
  kF8E4M3Fnuz,  ///< AMD's E4M3 with bias 8: one zero, no infinities, NaN 0x80.
  kF8E5M2Fnuz,  ///< AMD's E5M2 with bias 16, likewise.
};

/// Properties of one element type.
struct DTypeTraits {
  DType dtype;
  std::string_view name;         ///< On the wire and on the command line.
  std::string_view safetensors;  ///< In safetensors headers.
  int bytes;                     ///< Bytes per element of the shape.
  bool is_floating;              ///< Each element stands for one real number, without a scale.
};

const DTypeTraits& TraitsOf(DType dtype);
const std::vector<DTypeTraits>& AllDTypes();

inline std::string_view DTypeName(DType dtype) { return TraitsOf(dtype).name; }
inline int DTypeBytes(DType dtype) { return TraitsOf(dtype).bytes; }
/// The number of codes in one element of the shape: 2 for types of four bits.
int CodesPerElement(DType dtype);
/// OCP's FP8, which GEMMs read; not AMD's.
inline bool IsFp8(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }
/// AMD's FP8, which no GEMM reads.
inline bool IsFnuz(DType dtype) {
  return dtype == DType::kF8E4M3Fnuz || dtype == DType::kF8E5M2Fnuz;
}
/// Whether it is f32, bf16 or f16: the types in which layers take and return activations.
inline bool IsHighPrecision(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

/// The dtype of one of our names or of a name that other libraries have for the same type.
/// INVALID_ARGUMENT naming the value and listing the known names.
absl::StatusOr<DType> ParseDType(std::string_view name);
/// As ParseDType, for the upper-case names of safetensors headers ("BF16", "F8_E4M3").
absl::StatusOr<DType> ParseSafetensorsDType(std::string_view name);

}  // namespace quantgate
