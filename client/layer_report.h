// The reports of runs of a layer (run, compare), and of a user's own outputs against those of a run
// (verify).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/connection.h"
#include "client/tensor_source.h"
#include "kernels/tensor/files/tensor_file.h"
#include "server/report/report_document.h"

namespace quantgate {

/// What `run` gives: the layer's outputs, then what delayed scaling's next step needs; of
/// several ranks also the parts that are not the whole output, as "rank0.y", "rank1.y", ....
std::vector<v1::NamedTensor> OutputTensors(const v1::VariantReport& variant);

/// A finished run of a layer of kind `layer` as a document of `kind`, whose verdict and diagnosis
/// are the run's.
ReportDocument DocumentOfRun(const std::string& kind, const std::string& layer, v1::RunReport run);

/// Outputs that were computed elsewhere, and what is asked of them.
struct VerifiedSubject {
  std::string name;  ///< As people call it: "mine.safetensors".
  TensorFile file;   ///< By the names that OutputTensors gives.
  /// The outputs that it must hold; empty: every one.
  std::vector<std::string> only;
  /// Whether what has a derived bound need only lie within it, instead of having the run's bits.
  bool by_bound = false;
  /// The fields that errors name.
  std::string file_field = "subject";
  std::string only_field = "only";
};

/// The tensors that RunSpec.subjects must have, by their names, where by_bound.
std::vector<NamedTensor> BoundedSubjects(const TensorFile& file);

/// Compares the outputs of the last variant of document.run, which the connection must still have,
/// with the subject, judges them, and asks why what fails does, for at most as long as it took
/// since `start`. An output that the subject lacks fails. INVALID_ARGUMENT where it has none of the
/// outputs, and for a name in `only` that is none.
absl::Status VerifyOutputs(Connection& connection, TensorSources& sources,
                           const VerifiedSubject& subject, absl::Time start,
                           ReportDocument& document);

}  // namespace quantgate
