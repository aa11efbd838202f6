#include "kernels/tensor/tensor_checks.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {

absl::Status CheckCast(DType in, DType out) {
  if ((in == DType::kF64 || IsElementFormat(in)) && IsElementFormat(out)) return absl::OkStatus();
  return Refuse("out_dtype", DTypeName(out),
                absl::StrCat(std::string(DTypeName(in)), " cannot be cast to it"));
}

absl::Status CheckTranspose(DType dtype) {
  const int bytes = DTypeBytes(dtype);
  if (bytes == 1 || bytes == 2 || bytes == 4) return absl::OkStatus();
  return Refuse("tensor", DTypeName(dtype), "what is transposed has elements of 1, 2 or 4 bytes");
}

absl::Status CheckColumnSums(DType in, DType out) {
  if (!IsHighPrecision(out)) {
    return Refuse("out_dtype", DTypeName(out), "column sums must be f32, bf16 or f16");
  }
  if (!IsHighPrecision(in)) {
    return Refuse("tensor", DTypeName(in), "column sums are of f32, bf16 or f16");
  }
  return absl::OkStatus();
}

}  // namespace quantgate
