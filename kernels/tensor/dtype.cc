#include "kernels/tensor/dtype.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"

namespace quantgate {
namespace {

/// What other libraries and specifications call the same types: torch, ml_dtypes and NumPy, the OCP
/// specifications and safetensors. A name is here only where format and layout are the same:
/// ml_dtypes' float8_e4m3 has infinities, its float4_e2m1fn has one code a byte, safetensors' F6
/// types are packed, and NumPy's f4 and f8 are of 4 and 8 bytes.
struct Alias {
  std::string_view name;
  DType dtype;
};
constexpr Alias kAliases[] = {
    {"float64", DType::kF64},
    {"double", DType::kF64},
    {"fp64", DType::kF64},
    {"float32", DType::kF32},
    {"float", DType::kF32},
    {"fp32", DType::kF32},
    {"bfloat16", DType::kBF16},
    {"float16", DType::kF16},
    {"half", DType::kF16},
    {"fp16", DType::kF16},
    {"float8_e4m3fn", DType::kF8E4M3},
    {"e4m3", DType::kF8E4M3},
    {"float8_e5m2", DType::kF8E5M2},
    {"e5m2", DType::kF8E5M2},
    {"float8_e8m0fnu", DType::kF8E8M0},
    {"e8m0", DType::kF8E8M0},
    {"float4_e2m1fn_x2", DType::kF4E2M1x2},
    {"f4_e2m1", DType::kF4E2M1x2},
    {"e2m1", DType::kF4E2M1x2},
    {"float6_e2m3fn", DType::kF6E2M3},
    {"e2m3", DType::kF6E2M3},
    {"float6_e3m2fn", DType::kF6E3M2},
    {"e3m2", DType::kF6E3M2},
    {"uint8", DType::kU8},
    {"int16", DType::kI16},
    {"int32", DType::kI32},
    {"int64", DType::kI64},
    {"F64", DType::kF64},
    {"F32", DType::kF32},
    {"BF16", DType::kBF16},
    {"F16", DType::kF16},
    {"F8_E4M3", DType::kF8E4M3},
    {"F8_E5M2", DType::kF8E5M2},
    {"F8_E8M0", DType::kF8E8M0},
    {"U8", DType::kU8},
    {"I16", DType::kI16},
    {"I32", DType::kI32},
    {"I64", DType::kI64},
};

absl::Status UnknownName(std::string_view name, std::string_view DTypeTraits::*field) {
  // Several dtypes may have one name in safetensors.
  std::vector<std::string> known;
  for (const DTypeTraits& traits : AllDTypes()) {
    const std::string other(traits.*field);
    if (std::find(known.begin(), known.end(), other) == known.end()) known.push_back(other);
  }
  return Refuse("dtype", absl::StrCat("\"", std::string(name), "\""),
                "unknown name; known: " + absl::StrJoin(known, ", "));
}

absl::StatusOr<DType> ParseBy(std::string_view name, std::string_view DTypeTraits::*field) {
  for (const DTypeTraits& traits : AllDTypes()) {
    if (traits.*field == name) return traits.dtype;
  }
  return UnknownName(name, field);
}

}  // namespace

const std::vector<DTypeTraits>& AllDTypes() {
  // In the order of the enum: TraitsOf indexes it.
  static const auto& all = *new std::vector<DTypeTraits>{
      {DType::kF64, "f64", "F64", 8, true},
      {DType::kF32, "f32", "F32", 4, true},
      {DType::kBF16, "bf16", "BF16", 2, true},
      {DType::kF16, "f16", "F16", 2, true},
      {DType::kF8E4M3, "f8_e4m3", "F8_E4M3", 1, true},
      {DType::kF8E5M2, "f8_e5m2", "F8_E5M2", 1, true},
      {DType::kF8E8M0, "f8_e8m0", "F8_E8M0", 1, true},
      {DType::kU8, "u8", "U8", 1, false},
      {DType::kI32, "i32", "I32", 4, false},
      {DType::kI64, "i64", "I64", 8, false},
      {DType::kF4E2M1x2, "f4_e2m1x2", "F4", 1, false},
      // safetensors has no FP6 of one code a byte; behind kU8, which is what U8 is read as.
      {DType::kF6E2M3, "f6_e2m3", "U8", 1, true},
      {DType::kF6E3M2, "f6_e3m2", "U8", 1, true},
      {DType::kI16, "i16", "I16", 2, false},
  };
  return all;
}

const DTypeTraits& TraitsOf(DType dtype) { return AllDTypes()[static_cast<size_t>(dtype)]; }

absl::StatusOr<DType> ParseDType(std::string_view name) {
  for (const Alias& alias : kAliases) {
    if (alias.name == name) return alias.dtype;
  }
  return ParseBy(name, &DTypeTraits::name);
}

absl::StatusOr<DType> ParseSafetensorsDType(std::string_view name) {
  return ParseBy(name, &DTypeTraits::safetensors);
}

}  // namespace quantgate
