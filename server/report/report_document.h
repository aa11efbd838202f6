// What a report shows, whatever it is rendered as: a run, comparisons of a user's own tensors, or
// both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quantgate/v1/engine_service.pb.h"

namespace quantgate {

/// The comparison of a user's tensor with what it should be (verify), or of one file's tensor with
/// another file's (diff).
struct SubjectComparison {
  std::string tensor;
  /// Dtype of the subject, from which the width of its bits follows.
  std::string dtype;
  std::string reference_dtype;
  std::string subject_name;  ///< "mine.safetensors:y".
  std::string reference_name;
  /// Without parity where dtypes or shapes differ, which `difference` then says.
  v1::CompareResponse result;
  /// The check of a derived bound, where it decides instead of the bits.
  std::optional<v1::BoundCheck> bound;
  /// Why the tensors cannot be compared: "bf16[2x3] against f32[2x3]". Empty where they were
  /// compared.
  std::string difference;
  /// Whether this tensor meets the verdict's criterion.
  bool passes = false;
  /// What was found of this tensor where it does not pass.
  std::string finding;
};

/// One call of a module of a captured training step (docs/capture.md), and what was compared of it.
struct CapturedLayer {
  std::string module;      ///< Its path in the model: "blocks.0.fc1".
  std::string class_name;  ///< "torch.nn.modules.linear.Linear".
  std::string layer;       ///< Kind of layer; empty where none is known.
  int rank = 0;
  int64_t step = 0;
  int64_t call = 0;     ///< Index among the module's calls within the step, from 0.
  std::string variant;  ///< "bf16 / none / sm90": what it was computed under; empty for a diff.
  /// Its tensors: this many of the document's comparisons, from this one on.
  size_t first_comparison = 0;
  size_t comparison_count = 0;
  bool passes = true;   ///< False too where it could not be computed.
  std::string finding;  ///< Why it does not pass.
  std::string remark;   ///< What of it was not judged, and why: "dw: rows were sampled".
};

struct ReportDocument {
  std::string kind;     ///< run | compare | verify | diff.
  std::string title;    ///< "linear: 6 variants".
  std::string command;  ///< The command as typed.
  bool has_run = false;
  v1::RunReport run;
  std::vector<SubjectComparison> comparisons;
  std::vector<std::string> remarks;
  v1::Verdict verdict;  ///< The verdict on the whole document.
  /// Why comparisons do not pass, where that was asked.
  std::optional<v1::Diagnosis> diagnosis;
  bool lists_tried = false;  ///< Whether text lists what the diagnosis tried too.
  /// Of captures: the calls in the order in which they were made, and where the first difference in
  /// execution order is. `comparisons` are then named as the files are: "step0/rank0/fc1.0:y".
  std::vector<CapturedLayer> layers;
  std::string first_divergence;
};

/// Outputs of all variants, in the order they first appear; no intermediates.
std::vector<std::string> OutputNames(const v1::RunReport& run);
/// The output of that name; null when the variant lacks it.
const v1::OutputReport* FindOutput(const v1::VariantReport& variant, std::string_view tensor);
/// The comparison with the reference variant; null when there is none.
const v1::TensorComparison* FindAgainstReference(const v1::VariantReport& variant,
                                                 std::string_view tensor);

}  // namespace quantgate
