#include "kernels/gemm/arithmetic.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/models/rules.h"

namespace quantgate {
namespace {

/// cuBLASLt was seen to use up to 12 slices; this limit only refuses absurd requests.
constexpr int kSplitKMax = 1024;
/// The heuristic returns at most a few dozen.
constexpr int kAlgorithmMax = 1023;

std::string KnownNames() {
  std::vector<std::string> names = {"auto"};
  for (const ArithmeticDescription& description : AllArithmetics()) {
    names.push_back(description.name);
  }
  return absl::StrJoin(names, ", ");
}

std::vector<std::string> Split(const std::string& parameters) {
  return absl::StrSplit(parameters, ',');
}

absl::Status RefuseText(std::string_view text, const std::string& rule) {
  return Refuse("arithmetic", absl::StrCat("\"", std::string(text), "\""), rule);
}

std::string ParametersOf(ArithmeticFamily family) {
  switch (family) {
    case ArithmeticFamily::kSm90:
      return "fast, split and splitk=N";
    case ArithmeticFamily::kCublasLt:
      return "fast, split, splitk=N, splitk=any and algorithm=N";
    default:
      return "acc=f16 or acc=f32";
  }
}

/// "splitk=any" and "algorithm=N" of cublaslt; false for others.
absl::StatusOr<bool> ApplyCublasLtParameter(std::string_view text, const std::string& parameter,
                                            Arithmetic& arithmetic) {
  if (parameter == "splitk=any") {
    arithmetic.any_split_k = true;
    return true;
  }
  const std::vector<std::string> key_value = absl::StrSplit(parameter, absl::MaxSplits('=', 1));
  if (key_value.size() != 2 || key_value[0] != "algorithm") return false;
  if (!absl::SimpleAtoi(key_value[1], &arithmetic.algorithm) || arithmetic.algorithm < 0 ||
      arithmetic.algorithm > kAlgorithmMax) {
    return RefuseText(text,
                      absl::StrCat("algorithm must be a whole number from 0 to ", kAlgorithmMax));
  }
  return true;
}

/// Applies one parameter of "sm90:...", of "cublaslt:..." or of "sm80:...".
absl::Status ApplyParameter(std::string_view text, const std::string& parameter,
                            Arithmetic& arithmetic) {
  const bool is_sm90 = arithmetic.family == ArithmeticFamily::kSm90;
  const bool is_cublaslt = arithmetic.family == ArithmeticFamily::kCublasLt;
  if (is_cublaslt) {
    QG_ASSIGN_OR_RETURN(const bool applied, ApplyCublasLtParameter(text, parameter, arithmetic));
    if (applied) return absl::OkStatus();
  }
  if ((is_sm90 || is_cublaslt) && (parameter == "fast" || parameter == "split")) {
    if (arithmetic.accumulation != Accumulation::kRecipe) {
      return RefuseText(text, "names the accumulation twice");
    }
    arithmetic.accumulation = parameter == "fast" ? Accumulation::kFast : Accumulation::kSplit;
    return absl::OkStatus();
  }
  const std::vector<std::string> key_value = absl::StrSplit(parameter, absl::MaxSplits('=', 1));
  if ((is_sm90 || is_cublaslt) && key_value.size() == 2 && key_value[0] == "splitk") {
    if (!absl::SimpleAtoi(key_value[1], &arithmetic.split_k) || arithmetic.split_k < 1 ||
        arithmetic.split_k > kSplitKMax) {
      return RefuseText(text, absl::StrCat("splitk must be a whole number from 1 to ", kSplitKMax));
    }
    return absl::OkStatus();
  }
  if (!is_sm90 && !is_cublaslt && (parameter == "acc=f16" || parameter == "acc=f32")) {
    arithmetic.f16_accumulate = parameter == "acc=f16";
    return absl::OkStatus();
  }
  return RefuseText(text, absl::StrCat("unknown parameter \"", parameter, "\"; ",
                                       std::string(ArithmeticFamilyName(arithmetic.family)),
                                       " takes ", ParametersOf(arithmetic.family)));
}

bool HasParameters(ArithmeticFamily family) {
  return IsTensorCore(family) || family == ArithmeticFamily::kCublasLt;
}

std::optional<ArithmeticFamily> FamilyNamed(std::string_view name) {
  if (name == ArithmeticFamilyName(ArithmeticFamily::kAuto)) return ArithmeticFamily::kAuto;
  for (const ArithmeticRow& row : ArithmeticTable()) {
    if (row.name() == name) return row.family;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<Arithmetic> Arithmetic::Parse(std::string_view text) {
  const std::string whole(text);
  const std::vector<std::string> parts = absl::StrSplit(whole, absl::MaxSplits(':', 1));
  const std::string& name = parts[0];
  const std::optional<ArithmeticFamily> family = FamilyNamed(name);
  if (!family) return RefuseText(text, absl::StrCat("unknown name; known: ", KnownNames()));
  Arithmetic arithmetic;
  arithmetic.family = *family;
  if (parts.size() == 1) return arithmetic;
  if (!HasParameters(*family)) return RefuseText(text, absl::StrCat(name, " takes no parameters"));
  for (const std::string& parameter : Split(parts[1])) {
    if (arithmetic.family == ArithmeticFamily::kSm100 && parameter == "mma") {
      arithmetic.family = ArithmeticFamily::kSm100MmaFp8;
      continue;
    }
    QG_RETURN_IF_ERROR(ApplyParameter(text, parameter, arithmetic));
  }
  return arithmetic;
}

std::string Arithmetic::ToString() const {
  std::vector<std::string> parameters;
  if (accumulation == Accumulation::kFast) parameters.push_back("fast");
  if (accumulation == Accumulation::kSplit) parameters.push_back("split");
  if (split_k != 1) parameters.push_back(absl::StrCat("splitk=", split_k));
  if (f16_accumulate) parameters.push_back("acc=f16");
  if (any_split_k) parameters.push_back("splitk=any");
  if (algorithm != 0) parameters.push_back(absl::StrCat("algorithm=", algorithm));
  std::string name(ArithmeticFamilyName(family));
  if (parameters.empty() || !HasParameters(family)) return name;
  return absl::StrCat(name, ":", absl::StrJoin(parameters, ","));
}

Arithmetic Arithmetic::Resolved() const {
  Arithmetic resolved = *this;
  if (family == ArithmeticFamily::kAuto) resolved.family = ArithmeticFamily::kSm90;
  return resolved;
}

Arithmetic Arithmetic::Model() const {
  if (family != ArithmeticFamily::kCublasLt) return *this;
  Arithmetic model;
  model.family = ArithmeticFamily::kSm90;
  model.accumulation = accumulation;
  model.split_k = split_k;
  return model;
}

}  // namespace quantgate
