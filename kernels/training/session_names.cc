#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/training/training_session.h"

namespace quantgate {
namespace {

/// The value whose name is `name`; INVALID_ARGUMENT listing the names.
template <typename Value>
absl::StatusOr<Value> Parse(const char* field, std::string_view name,
                            std::initializer_list<Value> values,
                            std::string_view (*name_of)(Value)) {
  std::vector<std::string> names;
  for (const Value value : values) {
    if (name_of(value) == name) return value;
    names.emplace_back(name_of(value));
  }
  return Refuse(field, absl::StrCat("\"", std::string(name.substr(0, 64)), "\""),
                absl::StrCat("unknown name; known: ", absl::StrJoin(names, ", ")));
}

}  // namespace

std::string_view WeightStorageName(WeightStorage weights) {
  return weights == WeightStorage::kQuantized ? "quantized" : "high_precision";
}

std::string_view MastersName(Masters masters) {
  if (masters == Masters::kNone) return "none";
  return masters == Masters::kF32 ? "f32" : "bf16_remainder";
}

std::string_view RequantizationName(Requantization requantization) {
  return requantization == Requantization::kFromF32 ? "from_f32" : "through_bf16";
}

absl::StatusOr<WeightStorage> ParseWeightStorage(std::string_view name) {
  return Parse("weights", name, {WeightStorage::kHighPrecision, WeightStorage::kQuantized},
               WeightStorageName);
}

absl::StatusOr<Masters> ParseMasters(std::string_view name) {
  return Parse("masters", name, {Masters::kNone, Masters::kF32, Masters::kBf16Remainder},
               MastersName);
}

absl::StatusOr<Requantization> ParseRequantization(std::string_view name) {
  return Parse("requantization", name, {Requantization::kFromF32, Requantization::kThroughBf16},
               RequantizationName);
}

}  // namespace quantgate
