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

namespace quantgate {
namespace {

/// cuBLASLt was seen to use up to 12 slices; the bound only keeps requests sane.
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

constexpr struct {
  ArithmeticFamily family;
  std::string_view name;
} kFamilies[] = {
    {ArithmeticFamily::kAuto, "auto"},         {ArithmeticFamily::kSm70, "sm70"},
    {ArithmeticFamily::kSm75, "sm75"},         {ArithmeticFamily::kSm80, "sm80"},
    {ArithmeticFamily::kSm86, "sm86"},         {ArithmeticFamily::kSm89, "sm89"},
    {ArithmeticFamily::kSm90, "sm90"},         {ArithmeticFamily::kSm90MmaFp8, "sm90_mma_fp8"},
    {ArithmeticFamily::kSm100, "sm100"},       {ArithmeticFamily::kSm120, "sm120"},
    {ArithmeticFamily::kExact, "exact"},       {ArithmeticFamily::kFp32, "fp32"},
    {ArithmeticFamily::kCublasLt, "cublaslt"},
};

}  // namespace

std::string_view ArithmeticFamilyName(ArithmeticFamily family) {
  for (const auto& entry : kFamilies) {
    if (entry.family == family) return entry.name;
  }
  return "unknown";
}

bool IsTensorCore(ArithmeticFamily family) {
  return family != ArithmeticFamily::kAuto && family != ArithmeticFamily::kExact &&
         family != ArithmeticFamily::kFp32 && family != ArithmeticFamily::kCublasLt;
}

namespace {

bool HasParameters(ArithmeticFamily family) {
  return IsTensorCore(family) || family == ArithmeticFamily::kCublasLt;
}

}  // namespace

absl::StatusOr<Arithmetic> Arithmetic::Parse(std::string_view text) {
  const std::string whole(text);
  const std::vector<std::string> parts = absl::StrSplit(whole, absl::MaxSplits(':', 1));
  const std::string& name = parts[0];
  for (const auto& entry : kFamilies) {
    if (entry.name != name) continue;
    Arithmetic arithmetic;
    arithmetic.family = entry.family;
    if (parts.size() == 1) return arithmetic;
    if (!HasParameters(entry.family)) {
      return RefuseText(text, absl::StrCat(name, " takes no parameters"));
    }
    for (const std::string& parameter : Split(parts[1])) {
      QG_RETURN_IF_ERROR(ApplyParameter(text, parameter, arithmetic));
    }
    return arithmetic;
  }
  return RefuseText(text, absl::StrCat("unknown name; known: ", KnownNames()));
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

const std::vector<ArithmeticDescription>& AllArithmetics() {
  const std::string kRead = "the rule of a public model, from reading it; not measured here";
  const std::string kRecorded =
      "the rule of a public model that its authors checked against recordings of the hardware; not "
      "measured here";
  const std::string kRecordedButTf32 = kRecorded + "; tf32 from reading the model";
  static const auto* const all = new std::vector<ArithmeticDescription>{
      {"sm70", "Volta, mma m8n8k4: fp16 in fused steps of 4 products aligned to 23 bits",
       "docs/tensor-cores.md section 2", kRecorded, false},
      {"sm75", "Turing, mma m16n8k8: fp16 in steps of 8 aligned to 24 bits",
       "docs/tensor-cores.md section 2", kRead, false},
      {"sm80",
       "Ampere (A100), mma.sync: fp16 and bf16 in steps of 8, tf32 of 4, aligned to 24 bits",
       "docs/tensor-cores.md section 2", kRecordedButTf32, false},
      {"sm86", "Ampere (A2, RTX 30): the rules of sm80", "docs/tensor-cores.md section 2",
       kRecordedButTf32, false},
      {"sm89",
       "Ada, mma.sync: as sm80, and FP8 in steps of 16 aligned to 13 bits, results of 13 bits",
       "docs/tensor-cores.md section 2", kRecordedButTf32, false},
      {"sm90",
       "Hopper tensor cores as cuBLASLt drives them: bf16, fp16 and tf32 in fused steps of 16, 16 "
       "and 8 products aligned to 25 bits; FP8 in steps of 32 aligned to 13 bits, accumulated as "
       "the recipe says, always split under scales of 128. Parameters: fast, split, splitk=N",
       "docs/tensor-cores.md sections 1 to 3",
       "measured: H200, cuBLASLt 13.1.0, 2026-11-20, 7.84e10 outputs compared, 0 differing, and "
       "3.39e10 of k to 8192; scales of 128: 1.84e10, 0 differing (tests/hardware/README.md). tf32 "
       "only where k is a multiple of 8 and without split-K; algorithms that differ: "
       "docs/tensor-cores.md section 3.6",
       false},
      {"sm90:fast", "sm90 with FP8 accumulated in the tensor core alone (FAST_ACCUM on)",
       "docs/tensor-cores.md section 3.1",
       "the same measurement: 3.3e10 FP8 outputs compared, 0 differing", false},
      {"sm90:split", "sm90 with FP8 sums promoted to fp32 every 128 of K (FAST_ACCUM off)",
       "docs/tensor-cores.md section 3.1",
       "the same measurement: 2.2e10 FP8 outputs compared, 0 differing", false},
      {"sm90_mma_fp8",
       "Hopper's mma.sync m16n8k32 FP8, compiled to fp16 instructions: two chained steps of 16 "
       "fp16 "
       "numbers aligned to 25 bits (of each 4 k, the first two, then the others), added to the "
       "accumulator in fp32",
       "docs/tensor-cores.md section 2",
       "measured: H200, CUDA 13.0, 2026-11-20, 7.7e7 outputs of single instructions compared, 0 "
       "differing (tests/hardware/README.md); chains of instructions follow from them",
       false},
      {"sm100",
       "Blackwell, tcgen05: bf16 and fp16 in steps of 16, FP8, FP6 and FP4 in steps of 32, also "
       "under E8M0 scales of 32, aligned to 25 bits; NVFP4 in steps of 4 exact groups of 16 "
       "aligned "
       "to 35 bits",
       "docs/tensor-cores.md sections 2 and 3.5",
       "rules of a public model: bf16 and fp16 checked by its authors against recordings of the "
       "hardware, the rest from reading it; not measured here",
       false},
      {"sm120", "Blackwell (RTX), mma.sync: the rules of sm100",
       "docs/tensor-cores.md sections 2 and 3.5", kRead, false},
      {"exact", "the real-number result, rounded once; does not depend on any order",
       "docs/tensor-cores.md section 5",
       "exact rational arithmetic (tests/data/exact_dots.txt, tests/data/exact_scaled_dots.txt)",
       false},
      {"fp32", "sequential fp32 fused multiply-add over k, from zero, on decoded operands",
       "IEEE 754; docs/tensor-cores.md section 5",
       "by definition; cuBLASLt's algorithm 55, what COMPUTE_32F gets, gives the same bits "
       "(the measurement of sm90)",
       false},
      {"cublaslt",
       "the hardware, through cuBLASLt: the subject under test. The CUDA engine only. Parameters: "
       "fast, split, splitk=any (algorithms that split K too), algorithm=N (the N-th that the "
       "heuristic returns)",
       "cuBLASLt's documentation", "it is the hardware", true},
  };
  return *all;
}

}  // namespace quantgate
