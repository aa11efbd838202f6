#include "kernels/validate/run/verdict.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/grouped_digits.h"
#include "kernels/validate/run/output_report.h"

namespace quantgate {
namespace {

constexpr size_t kListedMax = 8;

/// "63,363 in y, 31,623 in dx".
std::string Listed(const std::vector<std::string>& parts, const char* separator) {
  if (parts.size() <= kListedMax) return absl::StrJoin(parts, separator);
  return absl::StrCat(absl::StrJoin(parts.begin(), parts.begin() + kListedMax, separator),
                      separator, "and ", parts.size() - kListedMax, " more");
}

/// Counts failures, and keeps the words of the first and the number of each.
struct Findings {
  int checked = 0;
  int failed = 0;
  std::string first;
  std::vector<std::string> found;

  void Fail(std::string what, std::string number) {
    if (failed++ == 0) first = std::move(what);
    found.push_back(std::move(number));
  }
  std::string Found() const { return failed == 0 ? "0" : Listed(found, ", "); }
  std::string Text(const std::string& when_none) const {
    if (failed == 0) return when_none;
    if (failed == 1) return first;
    return absl::StrCat(first, "; and ", failed - 1, " more of ", checked, " outputs");
  }
};

/// Beyond this ratio the bound is no measure of an error: the bound of a sum whose terms are all 0
/// is half of fp32's smallest subnormal.
constexpr double kRatioMax = 0x1p64;

std::string OutputOf(const std::string& tensor, const VariantReport& variant) {
  return absl::StrCat(tensor, " of ", variant.label);
}

void JudgeParity(const TensorComparison& comparison, const VariantReport& variant,
                 Findings& findings) {
  ++findings.checked;
  const ParityReport& parity = comparison.parity;
  if (parity.equal) return;
  findings.Fail(absl::StrCat(OutputOf(comparison.tensor, variant), " differs from ",
                             comparison.reference, " in ", GroupedDigits(parity.mismatch_count),
                             " of ", GroupedDigits(parity.element_count), " elements, first at (",
                             absl::StrJoin(parity.first.coordinate, ", "), ")"),
                absl::StrCat(GroupedDigits(parity.mismatch_count), " in ",
                             OutputOf(comparison.tensor, variant)));
}

/// Fails if ranks differ in a value that all of them have, since then at least one rank is wrong.
void JudgeRanks(const std::vector<VariantReport>& variants, Findings& findings) {
  for (const VariantReport& variant : variants) {
    for (const OutputReport& output : variant.outputs) {
      if (output.rank_difference.empty()) continue;
      const std::string text =
          absl::StrCat(OutputOf(output.tensor, variant), ": ", output.rank_difference);
      findings.Fail(text, text);
    }
  }
}

Verdict BitwiseVerdict(const Findings& findings, const std::string& source) {
  Verdict verdict;
  verdict.criterion = Requirement::kBitwise;
  verdict.pass = findings.failed == 0;
  verdict.threshold = "0 differing elements";
  verdict.source = source;
  verdict.found = findings.Found();
  return verdict;
}

Verdict JudgeBitwiseAgainstExact(const std::vector<VariantReport>& variants) {
  Findings findings;
  JudgeRanks(variants, findings);
  for (const VariantReport& variant : variants) {
    for (const OutputReport& output : variant.outputs) {
      JudgeParity(output.against_exact, variant, findings);
    }
  }
  Verdict verdict =
      BitwiseVerdict(findings, "the exact result on each variant's own operands, rounded once");
  verdict.finding =
      findings.Text(absl::StrCat("all ", findings.checked, " outputs have the bits of exact"));
  return verdict;
}

Verdict JudgeBitwise(const VariantReport& reference, const std::vector<VariantReport>& variants) {
  Findings findings;
  JudgeRanks(variants, findings);
  for (const VariantReport& variant : variants) {
    if (variant.label == reference.label) continue;
    // Only outputs: intermediates differ between recipes.
    for (const TensorComparison& comparison : variant.against_reference) {
      const OutputReport* output = FindOutput(variant, comparison.tensor);
      if (output != nullptr && output->is_intermediate) continue;
      JudgeParity(comparison, variant, findings);
    }
    for (const OutputReport& output : variant.outputs) {
      if (output.is_intermediate) continue;
      const OutputReport* other = FindOutput(reference, output.tensor);
      if (other != nullptr && other->value.dtype() == output.value.dtype()) continue;
      ++findings.checked;
      const std::string text = absl::StrCat(
          OutputOf(output.tensor, variant), " is ", TensorText(output.value), ", and ",
          reference.label, " has ", other == nullptr ? "none" : TensorText(other->value));
      findings.Fail(text, text);
    }
  }
  Verdict verdict = BitwiseVerdict(findings, absl::StrCat("the outputs of ", reference.label));
  verdict.finding = findings.Text(
      absl::StrCat("all ", findings.checked, " outputs have the bits of ", reference.label));
  return verdict;
}

std::string BoundText(const BoundCheck& check) {
  if (check.bound.derivation == kCorrectlyRounded) return "|error| <= half an ulp of the output";
  // For operations other than GEMMs the derivation says everything.
  if (check.bound.factor == 0)
    return "|error| <= its own fp32 roundings + half an ulp of the output";
  return absl::StrCat("|error| <= ", check.bound.factor,
                      " x sum|a||b| + the epilogue's roundings + half an ulp of the output");
}

constexpr char kExact[] = "exact";

constexpr bool IsNanClass(int value_class) {
  return value_class == static_cast<int>(ValueClass::kNan);
}
constexpr bool IsInfiniteClass(int value_class) {
  return value_class == static_cast<int>(ValueClass::kNegativeInfinity) ||
         value_class == static_cast<int>(ValueClass::kPositiveInfinity);
}

NonFiniteSides SidesOfParity(const ParityReport& parity) {
  NonFiniteSides sides;
  sides.element_count = parity.element_count;
  for (int subject = 0; subject < kValueClassCount; ++subject) {
    for (int reference = 0; reference < kValueClassCount; ++reference) {
      const int64_t count = parity.class_confusion[subject][reference];
      const auto add = [&](int value_class, NonFiniteCounts& counts) {
        if (IsNanClass(value_class)) counts.nan += count;
        if (IsInfiniteClass(value_class)) counts.infinite += count;
      };
      add(subject, sides.subject);
      add(reference, sides.reference);
      if (subject == reference) add(subject, sides.shared);
    }
  }
  return sides;
}

NonFiniteSides SidesOfAll(const std::vector<VariantReport>& variants) {
  NonFiniteSides sides;
  for (const VariantReport& variant : variants) {
    for (const OutputReport& output : variant.outputs) {
      sides.Add(SidesOfParity(output.against_exact.parity));
    }
  }
  return sides;
}

/// "by up to 1.5 times". Beyond kRatioMax the bound is no scale to measure by.
std::string ExcessText(const BoundCheck& check, const ParityReport& parity) {
  if (check.worst_ratio <= kRatioMax) return absl::StrCat("by up to ", check.worst_ratio, " times");
  if (std::isinf(check.worst_ratio)) {
    const NonFiniteSides sides = SidesOfParity(parity);
    if (sides.any())
      return absl::StrCat(NonFiniteLine(sides, kExact), ", where both must have the same");
  }
  int64_t count = 0;
  for (int subject = 0; subject < kValueClassCount; ++subject) {
    const auto is = [&](ValueClass value_class) {
      return subject == static_cast<int>(value_class);
    };
    if (is(ValueClass::kNegativeZero) || is(ValueClass::kPositiveZero)) continue;
    const auto& row = parity.class_confusion[subject];
    count += row[static_cast<int>(ValueClass::kNegativeZero)] +
             row[static_cast<int>(ValueClass::kPositiveZero)];
  }
  if (count == 0) return "by more than 2^64 times";
  return absl::StrCat(
      "by more than 2^64 times: the bound is next to 0 where all that is added up is "
      "0, and ",
      GroupedDigits(count), " are not 0 where exact is");
}

Verdict JudgeBound(const std::vector<VariantReport>& variants) {
  Findings findings;
  JudgeRanks(variants, findings);
  std::vector<std::string> unbounded;
  const BoundCheck* worst = nullptr;
  std::string worst_output;
  const auto judge = [&](const BoundCheck& check, const std::string& name, const Tensor& value,
                         const ParityReport& against_exact) {
    ++findings.checked;
    if (worst == nullptr || check.worst_ratio > worst->worst_ratio) {
      worst = &check;
      worst_output = name;
    }
    if (check.pass) return;
    findings.Fail(absl::StrCat(name, " leaves its bound in ", GroupedDigits(check.violation_count),
                               " of ", GroupedDigits(value.element_count()), " elements, ",
                               ExcessText(check, against_exact)),
                  absl::StrCat(GroupedDigits(check.violation_count), " beyond it in ", name));
  };
  for (const VariantReport& variant : variants) {
    for (const OutputReport& output : variant.outputs) {
      const std::string name = OutputOf(output.tensor, variant);
      if (output.bound.has_value()) {
        judge(*output.bound, name, output.value, output.against_exact.parity);
      } else {
        unbounded.push_back(name);
      }
      // Of a subject the bound alone is known.
      if (output.subject_bound.has_value()) {
        judge(*output.subject_bound, absl::StrCat("the subject for ", name), output.value, {});
      }
    }
  }
  Verdict verdict;
  verdict.criterion = Requirement::kBound;
  if (worst == nullptr) {
    // A requirement that judges nothing is not met.
    verdict.pass = false;
    verdict.threshold = "none";
    verdict.source = "no output of this run has a bound to keep";
    verdict.found = findings.failed == 0 ? "nothing to judge" : findings.Found();
    verdict.finding = findings.Text(verdict.source);
    return verdict;
  }
  verdict.pass = findings.failed == 0;
  verdict.found = findings.failed == 0 ? "0 beyond it" : findings.Found();
  // Every output has a bound of its own. The threshold of the run is the bound of the output that
  // comes nearest to it.
  verdict.threshold = BoundText(*worst);
  verdict.source = absl::StrCat(worst_output, ": ", worst->bound.derivation);
  verdict.finding = findings.Text(
      absl::StrCat(findings.checked == 1
                       ? "the one output lies within its bound"
                       : absl::StrCat("all ", findings.checked, " outputs lie within their bounds"),
                   "; nearest: ", worst_output, " at ", worst->worst_ratio, " of its bound",
                   unbounded.empty() ? "" : "; without a bound: ", Listed(unbounded, ", ")));
  return verdict;
}

/// "y of L1: 3 NaN of 4,096 elements, exact has all of them too".
std::string OutputsText(const std::vector<VariantReport>& variants) {
  std::vector<std::string> parts;
  for (const VariantReport& variant : variants) {
    for (const OutputReport& output : variant.outputs) {
      const NonFiniteSides sides = SidesOfParity(output.against_exact.parity);
      if (!sides.any()) continue;
      parts.push_back(
          absl::StrCat(OutputOf(output.tensor, variant), ": ", NonFiniteText(sides, kExact)));
    }
  }
  return Listed(parts, "; ");
}

std::string InputsText(const std::vector<NonFinite>& inputs) {
  std::vector<std::string> parts;
  for (const NonFinite& input : inputs) {
    if (input.any())
      parts.push_back(absl::StrCat(input.tensor, " has ", NonFiniteCountsText(input.counts)));
  }
  return parts.empty() ? std::string(kNoInputHasAny) : Listed(parts, "; ");
}

Verdict Judged(Requirement requirement, std::optional<int> reference,
               const std::vector<VariantReport>& variants) {
  switch (requirement) {
    case Requirement::kNone:
      break;
    case Requirement::kBitwise:
      return reference.has_value() ? JudgeBitwise(variants[*reference], variants)
                                   : JudgeBitwiseAgainstExact(variants);
    case Requirement::kBound:
      return JudgeBound(variants);
  }
  Verdict verdict;
  verdict.threshold = "none";
  verdict.source = "nothing was required of this run";
  return verdict;
}

}  // namespace

NonFinite NonFiniteOf(const std::string& tensor, const ParityReport& parity) {
  return {tensor, SidesOfParity(parity).subject};
}

bool HasNonFinite(const std::vector<VariantReport>& variants) {
  if (SidesOfAll(variants).any()) return true;
  const auto saw_any = [](const std::vector<QuantizationRecord>& records) {
    return std::any_of(records.begin(), records.end(), [](const QuantizationRecord& record) {
      return record.counts.nan + record.counts.infinite > 0;
    });
  };
  return std::any_of(variants.begin(), variants.end(), [&](const VariantReport& variant) {
    return saw_any(variant.quantizations) ||
           std::any_of(variant.ranks.begin(), variant.ranks.end(),
                       [&](const auto& rank) { return saw_any(rank.quantizations); });
  });
}

Verdict JudgeRun(Requirement requirement, std::optional<int> reference,
                 const std::vector<VariantReport>& variants, const std::vector<NonFinite>& inputs) {
  Verdict verdict = Judged(requirement, reference, variants);
  const NonFiniteSides sides = SidesOfAll(variants);
  const bool inputs_have_any =
      std::any_of(inputs.begin(), inputs.end(), [](const NonFinite& input) { return input.any(); });
  if (!sides.any()) {
    // Quantization may have saturated them, so that no output shows them.
    if (inputs_have_any) verdict.non_finite_inputs = InputsText(inputs);
    return verdict;
  }
  if (!verdict.found.empty()) {
    absl::StrAppend(&verdict.found, ", ", NonFiniteLine(sides, kExact));
  }
  verdict.non_finite = OutputsText(variants);
  verdict.non_finite_inputs = InputsText(inputs);
  return verdict;
}

}  // namespace quantgate
