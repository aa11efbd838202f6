#include "kernels/tensor/dtype.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

struct DTypeRow {
  DTypeTraits traits;
  FormatId format = kNoFormat;
  /// The names of the same type in other libraries and specifications: torch, ml_dtypes and NumPy,
  /// the OCP specifications and safetensors. A name is here only if format and layout are the same:
  /// ml_dtypes' float8_e4m3 has infinities, its float4_e2m1fn has one code per byte, safetensors'
  /// F6 types are packed, and NumPy's f4 and f8 have 4 and 8 bytes.
  std::vector<std::string_view> aliases;
};

/// In the order of the enum, which indexes it.
const std::vector<DTypeRow>& Rows() {
  static const auto& rows = *new std::vector<DTypeRow>{
      {{DType::kF64, "f64", "F64", 8, true}, kNoFormat, {"float64", "double", "fp64", "F64"}},
      {{DType::kF32, "f32", "F32", 4, true},
       kFormatId<Float32>,
       {"float32", "float", "fp32", "F32"}},
      {{DType::kBF16, "bf16", "BF16", 2, true}, kFormatId<BFloat16>, {"bfloat16", "BF16"}},
      {{DType::kF16, "f16", "F16", 2, true},
       kFormatId<Float16>,
       {"float16", "half", "fp16", "F16"}},
      {{DType::kF8E4M3, "f8_e4m3", "F8_E4M3", 1, true},
       kFormatId<E4M3>,
       {"float8_e4m3fn", "e4m3", "F8_E4M3"}},
      {{DType::kF8E5M2, "f8_e5m2", "F8_E5M2", 1, true},
       kFormatId<E5M2>,
       {"float8_e5m2", "e5m2", "F8_E5M2"}},
      {{DType::kF8E8M0, "f8_e8m0", "F8_E8M0", 1, true},
       kNoFormat,
       {"float8_e8m0fnu", "e8m0", "F8_E8M0"}},
      {{DType::kU8, "u8", "U8", 1, false}, kNoFormat, {"uint8", "U8"}},
      {{DType::kI32, "i32", "I32", 4, false}, kNoFormat, {"int32", "I32"}},
      {{DType::kI64, "i64", "I64", 8, false}, kNoFormat, {"int64", "I64"}},
      {{DType::kF4E2M1x2, "f4_e2m1x2", "F4", 1, false},
       kFormatId<E2M1>,
       {"float4_e2m1fn_x2", "f4_e2m1", "e2m1"}},
      // safetensors has no FP6 with one code per byte. These rows stand after kU8, so that U8 is
      // read as u8.
      {{DType::kF6E2M3, "f6_e2m3", "U8", 1, true}, kFormatId<E2M3>, {"float6_e2m3fn", "e2m3"}},
      {{DType::kF6E3M2, "f6_e3m2", "U8", 1, true}, kFormatId<E3M2>, {"float6_e3m2fn", "e3m2"}},
      {{DType::kI16, "i16", "I16", 2, false}, kNoFormat, {"int16", "I16"}},
      {{DType::kI8, "i8", "I8", 1, false}, kNoFormat, {"int8", "I8"}},
      // safetensors and NumPy have no types for these either. ml_dtypes' int4 and uint4 have one
      // code per byte.
      {{DType::kI4x2, "i4x2", "U8", 1, false}, kNoFormat, {}},
      {{DType::kU4x2, "u4x2", "U8", 1, false}, kNoFormat, {}},
      {{DType::kNf4x2, "nf4x2", "U8", 1, false}, kNoFormat, {}},
      {{DType::kBnbFp4x2, "bnb_fp4x2", "U8", 1, false}, kNoFormat, {}},
      {{DType::kF8E4M3Fnuz, "f8_e4m3fnuz", "F8_E4M3FNUZ", 1, true},
       kFormatId<E4M3Fnuz>,
       {"float8_e4m3fnuz", "e4m3fnuz", "F8_E4M3FNUZ"}},
      {{DType::kF8E5M2Fnuz, "f8_e5m2fnuz", "F8_E5M2FNUZ", 1, true},
       kFormatId<E5M2Fnuz>,
       {"float8_e5m2fnuz", "e5m2fnuz", "F8_E5M2FNUZ"}},
  };
  return rows;
}

/// "did you mean f8_e4m3 or f8_e5m2? " for a name that several element types could mean; else
/// empty.
std::string MeantText(std::string_view name) {
  std::string_view bits = name;
  for (const std::string_view prefix : {"float", "fp"}) {
    if (!bits.starts_with(prefix)) continue;
    bits.remove_prefix(prefix.size());
    break;
  }
  std::vector<std::string> meant;
  for (const DTypeTraits& traits : AllDTypes()) {
    if (bits.size() == 1 && bits.size() < name.size() && IsElementFormat(traits.dtype) &&
        traits.name.starts_with(absl::StrCat("f", std::string(bits), "_"))) {
      meant.push_back(std::string(traits.name));
    }
  }
  return meant.empty() ? "" : absl::StrCat("did you mean ", absl::StrJoin(meant, " or "), "? ");
}

absl::Status UnknownName(std::string_view name, std::string_view DTypeTraits::*field) {
  // Several dtypes may have one name in safetensors.
  std::vector<std::string> known;
  for (const DTypeTraits& traits : AllDTypes()) {
    const std::string other(traits.*field);
    if (std::find(known.begin(), known.end(), other) == known.end()) known.push_back(other);
  }
  return Refuse(
      "dtype", absl::StrCat("\"", std::string(name), "\""),
      absl::StrCat("unknown name; ", MeantText(name), "known: ", absl::StrJoin(known, ", ")));
}

absl::StatusOr<DType> ParseBy(std::string_view name, std::string_view DTypeTraits::*field) {
  for (const DTypeTraits& traits : AllDTypes()) {
    if (traits.*field == name) return traits.dtype;
  }
  return UnknownName(name, field);
}

}  // namespace

const std::vector<DTypeTraits>& AllDTypes() {
  static const auto& all = *[] {
    auto* list = new std::vector<DTypeTraits>;
    for (const DTypeRow& row : Rows()) list->push_back(row.traits);
    return list;
  }();
  return all;
}

const DTypeTraits& TraitsOf(DType dtype) { return AllDTypes()[static_cast<size_t>(dtype)]; }

int CodesPerElement(DType dtype) {
  switch (dtype) {
    case DType::kF4E2M1x2:
    case DType::kI4x2:
    case DType::kU4x2:
    case DType::kNf4x2:
    case DType::kBnbFp4x2:
      return 2;
    default:
      return 1;
  }
}

FormatId FormatOf(DType dtype) { return Rows()[static_cast<size_t>(dtype)].format; }

bool IsElementFormat(DType dtype) {
  return VisitFormat<ElementFormats>(dtype, []<class F>() {});
}

std::string ElementFormatNames() {
  std::string names;
  for (const DTypeTraits& traits : AllDTypes()) {
    if (!IsElementFormat(traits.dtype)) continue;
    absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(traits.name));
  }
  return names;
}

absl::StatusOr<DType> ParseDType(std::string_view name) {
  constexpr std::string_view kTorch = "torch.";
  // After "torch." only names of torch are known, not ours.
  const std::string_view given = name;
  if (name.starts_with(kTorch)) name.remove_prefix(kTorch.size());
  for (const DTypeRow& row : Rows()) {
    if (std::find(row.aliases.begin(), row.aliases.end(), name) != row.aliases.end()) {
      return row.traits.dtype;
    }
  }
  return given == name ? ParseBy(name, &DTypeTraits::name) : UnknownName(given, &DTypeTraits::name);
}

absl::StatusOr<DType> ParseSafetensorsDType(std::string_view name) {
  return ParseBy(name, &DTypeTraits::safetensors);
}

}  // namespace quantgate
