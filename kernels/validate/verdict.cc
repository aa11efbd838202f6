#include "kernels/validate/verdict.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/validate/output_report.h"

namespace quantgate {
namespace {

/// Counts failures and keeps the first in words.
struct Findings {
  int checked = 0;
  int failed = 0;
  std::string first;

  void Fail(std::string what) {
    if (failed++ == 0) first = std::move(what);
  }
  std::string Text(const std::string& when_none) const {
    if (failed == 0) return when_none;
    if (failed == 1) return first;
    return absl::StrCat(first, "; and ", failed - 1, " more of ", checked, " outputs");
  }
};

std::string OutputOf(const std::string& tensor, const VariantReport& variant) {
  return absl::StrCat(tensor, " of ", variant.label);
}

void JudgeParity(const TensorComparison& comparison, const VariantReport& variant,
                 Findings& findings) {
  ++findings.checked;
  const ParityReport& parity = comparison.parity;
  if (parity.equal) return;
  findings.Fail(absl::StrCat(OutputOf(comparison.tensor, variant), " differs from ",
                             comparison.reference, " in ", parity.mismatch_count, " of ",
                             parity.element_count, " elements, first at (",
                             absl::StrJoin(parity.first.coordinate, ", "), ")"));
}

/// Ranks that disagree on what all of them have: whatever the reported one's bits are, another's
/// are wrong.
void JudgeRanks(const std::vector<VariantReport>& variants, Findings& findings) {
  for (const VariantReport& variant : variants) {
    for (const OutputReport& output : variant.outputs) {
      if (output.rank_difference.empty()) continue;
      findings.Fail(absl::StrCat(OutputOf(output.tensor, variant), ": ", output.rank_difference));
    }
  }
}

Verdict JudgeBitwiseAgainstExact(const std::vector<VariantReport>& variants) {
  Findings findings;
  JudgeRanks(variants, findings);
  for (const VariantReport& variant : variants) {
    for (const OutputReport& output : variant.outputs) {
      JudgeParity(output.against_exact, variant, findings);
    }
  }
  Verdict verdict{Requirement::kBitwise, findings.failed == 0, "0 differing bits",
                  "the exact result on each variant's own operands, rounded once", ""};
  verdict.finding =
      findings.Text(absl::StrCat("all ", findings.checked, " outputs have the bits of exact"));
  return verdict;
}

Verdict JudgeBitwise(const VariantReport& reference, const std::vector<VariantReport>& variants) {
  Findings findings;
  JudgeRanks(variants, findings);
  for (const VariantReport& variant : variants) {
    if (variant.label == reference.label) continue;
    // Of outputs alone: what lies between a layer's operations is each recipe's own.
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
      findings.Fail(absl::StrCat(OutputOf(output.tensor, variant), " is ", TensorText(output.value),
                                 ", and ", reference.label, " has ",
                                 other == nullptr ? "none" : TensorText(other->value)));
    }
  }
  Verdict verdict{Requirement::kBitwise, findings.failed == 0, "0 differing bits",
                  absl::StrCat("the outputs of ", reference.label), ""};
  verdict.finding = findings.Text(
      absl::StrCat("all ", findings.checked, " outputs have the bits of ", reference.label));
  return verdict;
}

std::string BoundText(const BoundCheck& check) {
  // Of operations that are no GEMM the derivation says all.
  if (check.bound.factor == 0)
    return "|error| <= its own fp32 roundings + half an ulp of the output";
  return absl::StrCat("|error| <= ", check.bound.factor,
                      " x sum|a||b| + the epilogue's roundings + half an ulp of the output");
}

Verdict JudgeBound(const std::vector<VariantReport>& variants) {
  Findings findings;
  JudgeRanks(variants, findings);
  const BoundCheck* worst = nullptr;
  std::string worst_output;
  for (const VariantReport& variant : variants) {
    for (const OutputReport& output : variant.outputs) {
      if (!output.bound.has_value()) continue;
      const BoundCheck& check = *output.bound;
      ++findings.checked;
      if (worst == nullptr || check.worst_ratio > worst->worst_ratio) {
        worst = &check;
        worst_output = OutputOf(output.tensor, variant);
      }
      if (check.pass) continue;
      findings.Fail(absl::StrCat(OutputOf(output.tensor, variant), " leaves its bound in ",
                                 check.violation_count, " of ", output.value.element_count(),
                                 " elements, by up to ", check.worst_ratio, " times"));
    }
  }
  Verdict verdict{Requirement::kBound, findings.failed == 0, "", "", ""};
  if (worst == nullptr) {
    verdict.threshold = "none";
    verdict.source = "no output of this run has a bound to keep";
    verdict.finding = findings.Text("every GEMM ran under exact");
    return verdict;
  }
  // Bounds differ by GEMM; the one that comes nearest to its own is the run's.
  verdict.threshold = BoundText(*worst);
  verdict.source = absl::StrCat(worst_output, ": ", worst->bound.derivation);
  verdict.finding = findings.Text(absl::StrCat(
      "all ", findings.checked, " outputs lie within their bounds; nearest: ", worst_output, " at ",
      worst->worst_ratio, " of its bound"));
  return verdict;
}

}  // namespace

Verdict JudgeRun(Requirement requirement, std::optional<int> reference,
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
  return {Requirement::kNone, true, "none", "nothing was required of this run", ""};
}

}  // namespace quantgate
