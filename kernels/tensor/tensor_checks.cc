#include "kernels/tensor/tensor_checks.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/format_list.h"

namespace quantgate {
namespace {

bool IsFormat(DType dtype) {
  return VisitFormat(DTypeName(dtype), []<class F>() {});
}

}  // namespace

absl::Status CheckCast(DType in, DType out) {
  if ((in == DType::kF64 || IsFormat(in)) && IsFormat(out)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cannot cast ", std::string(DTypeName(in)), " to ",
                                                 std::string(DTypeName(out))));
}

absl::Status CheckTranspose(DType dtype) {
  const int bytes = DTypeBytes(dtype);
  if (bytes == 1 || bytes == 2 || bytes == 4) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("transpose: elements of 1, 2 or 4 bytes, not ", std::string(DTypeName(dtype))));
}

absl::Status CheckColumnSums(DType in, DType out) {
  if (!IsHighPrecision(out)) {
    return absl::InvalidArgumentError(
        absl::StrCat("column sums to ", std::string(DTypeName(out)), "; known: f32, bf16, f16"));
  }
  if (!IsHighPrecision(in)) {
    return absl::InvalidArgumentError(
        absl::StrCat("column sums of ", std::string(DTypeName(in)), "; known: f32, bf16, f16"));
  }
  return absl::OkStatus();
}

}  // namespace quantgate
