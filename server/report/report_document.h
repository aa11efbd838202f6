// What a report shows, whatever it is rendered as: a run, comparisons of a user's own tensors, or
// both.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quantgate/v1/engine_service.pb.h"

namespace quantgate {

/// A user's tensor against what it should be (verify), or one file's against another's (diff).
struct SubjectComparison {
  std::string tensor;
  std::string dtype;  ///< Of the subject; prints the width of its bits.
  std::string reference_dtype;
  std::string subject_name;  ///< "mine.safetensors:y".
  std::string reference_name;
  v1::CompareResponse result;  ///< Parity absent: dtypes or shapes differ, see `difference`.
  std::optional<v1::BoundCheck> bound;  ///< Where a derived bound decides instead of the bits.
  std::string difference;  ///< Why there is nothing to compare: "bf16[2x3] against f32[2x3]".
                           ///< Empty: compared.
  bool passes = false;     ///< The verdict's criterion, as far as this tensor goes.
  std::string finding;     ///< Where it does not.
};

struct ReportDocument {
  std::string kind;     ///< run | compare | verify | diff.
  std::string title;    ///< "linear: 6 variants".
  std::string command;  ///< As typed.
  bool has_run = false;
  v1::RunReport run;
  std::vector<SubjectComparison> comparisons;
  std::vector<std::string> remarks;
  v1::Verdict verdict;  ///< Of the whole document.
};

/// Outputs of all variants, in the order they first appear; no intermediates.
std::vector<std::string> OutputNames(const v1::RunReport& run);
/// The output of that name; null when the variant lacks it.
const v1::OutputReport* FindOutput(const v1::VariantReport& variant, std::string_view tensor);
/// The comparison with the reference variant; null when there is none.
const v1::TensorComparison* FindAgainstReference(const v1::VariantReport& variant,
                                                 std::string_view tensor);

}  // namespace quantgate
