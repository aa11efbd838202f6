#include "kernels/gemm/arithmetic.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

/// cuBLASLt was seen to use up to 12 slices; the bound only keeps requests sane.
constexpr int kSplitKMax = 1024;

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

absl::Status Invalid(std::string_view text, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat("arithmetic \"", std::string(text), "\": ", rule));
}

/// Applies one parameter of "sm90:...".
absl::Status ApplySm90Parameter(std::string_view text, const std::string& parameter,
                                Arithmetic& arithmetic) {
  if (parameter == "fast" || parameter == "split") {
    if (arithmetic.accumulation != Accumulation::kRecipe) {
      return Invalid(text, "names the accumulation twice");
    }
    arithmetic.accumulation = parameter == "fast" ? Accumulation::kFast : Accumulation::kSplit;
    return absl::OkStatus();
  }
  const std::vector<std::string> key_value = absl::StrSplit(parameter, absl::MaxSplits('=', 1));
  if (key_value.size() == 2 && key_value[0] == "splitk") {
    if (!absl::SimpleAtoi(key_value[1], &arithmetic.split_k) || arithmetic.split_k < 1 ||
        arithmetic.split_k > kSplitKMax) {
      return Invalid(text, absl::StrCat("splitk must be a whole number from 1 to ", kSplitKMax));
    }
    return absl::OkStatus();
  }
  return Invalid(text, absl::StrCat("unknown parameter \"", parameter,
                                    "\"; sm90 takes fast, split and splitk=N"));
}

}  // namespace

absl::StatusOr<Arithmetic> Arithmetic::Parse(std::string_view text) {
  const std::string whole(text);
  const std::vector<std::string> parts = absl::StrSplit(whole, absl::MaxSplits(':', 1));
  const std::string& name = parts[0];
  Arithmetic arithmetic;
  if (name == "cublaslt") {
    return absl::UnimplementedError(absl::StrCat(
        "arithmetic \"", whole, "\" needs a build with CUDA; known here: ", KnownNames()));
  }
  if (name == "auto") {
    arithmetic.family = ArithmeticFamily::kAuto;
  } else if (name == "sm90") {
    arithmetic.family = ArithmeticFamily::kSm90;
  } else if (name == "exact") {
    arithmetic.family = ArithmeticFamily::kExact;
  } else if (name == "fp32") {
    arithmetic.family = ArithmeticFamily::kFp32;
  } else {
    return Invalid(text, absl::StrCat("unknown name; known: ", KnownNames()));
  }
  if (parts.size() == 1) return arithmetic;
  if (arithmetic.family != ArithmeticFamily::kSm90) {
    return Invalid(text, absl::StrCat(name, " takes no parameters"));
  }
  for (const std::string& parameter : Split(parts[1])) {
    QG_RETURN_IF_ERROR(ApplySm90Parameter(text, parameter, arithmetic));
  }
  return arithmetic;
}

std::string Arithmetic::ToString() const {
  switch (family) {
    case ArithmeticFamily::kAuto:
      return "auto";
    case ArithmeticFamily::kExact:
      return "exact";
    case ArithmeticFamily::kFp32:
      return "fp32";
    case ArithmeticFamily::kSm90:
      break;
  }
  std::vector<std::string> parameters;
  if (accumulation == Accumulation::kFast) parameters.push_back("fast");
  if (accumulation == Accumulation::kSplit) parameters.push_back("split");
  if (split_k != 1) parameters.push_back(absl::StrCat("splitk=", split_k));
  if (parameters.empty()) return "sm90";
  return absl::StrCat("sm90:", absl::StrJoin(parameters, ","));
}

Arithmetic Arithmetic::Resolved() const {
  Arithmetic resolved = *this;
  if (family == ArithmeticFamily::kAuto) resolved.family = ArithmeticFamily::kSm90;
  return resolved;
}

const std::vector<ArithmeticDescription>& AllArithmetics() {
  static const auto* const all = new std::vector<ArithmeticDescription>{
      {"sm90",
       "Hopper tensor cores as cuBLASLt drives them: bf16, fp16 and tf32 in fused steps of 16, 16 "
       "and 8 products aligned to 25 bits; FP8 in steps of 32 aligned to 13 bits, accumulated as "
       "the recipe says. Parameters: fast, split, splitk=N",
       "docs/tensor-cores.md sections 1 to 3",
       "measured: H200, cuBLASLt 13.1.0, 2026-11-20, 7.84e10 outputs compared, 0 differing "
       "(tests/hardware/README.md). tf32 only where k is a multiple of 8: other kernels take the "
       "rest",
       false},
      {"sm90:fast", "sm90 with FP8 accumulated in the tensor core alone (FAST_ACCUM on)",
       "docs/tensor-cores.md section 3.1",
       "the same measurement: 3.3e10 FP8 outputs compared, 0 differing", false},
      {"sm90:split", "sm90 with FP8 sums promoted to fp32 every 128 of K (FAST_ACCUM off)",
       "docs/tensor-cores.md section 3.1",
       "the same measurement: 2.2e10 FP8 outputs compared, 0 differing", false},
      {"exact", "the real-number result, rounded once; does not depend on any order",
       "docs/tensor-cores.md section 5", "exact rational arithmetic (tests/data/exact_dots.txt)",
       false},
      {"fp32", "sequential fp32 fused multiply-add over k, from zero",
       "IEEE 754; docs/tensor-cores.md section 5",
       "by definition; cuBLASLt's algorithm 55 gives the same bits (the measurement of sm90)",
       false},
  };
  return *all;
}

}  // namespace quantgate
