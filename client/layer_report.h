// The reports of runs of a layer (run, compare), of a user's own outputs against those of a run
// (verify), and of traces of training steps (session run).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/connection.h"
#include "client/tensor_source.h"
#include "kernels/tensor/files/tensor_file.h"
#include "quantgate/v1/sessions_service.pb.h"
#include "server/report/report_document.h"
#include "server/report/trace_report.h"

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
/// with the subject, judges them, and asks why what fails does (AddDiagnosis, of what began at
/// `start`). An output that the subject lacks fails. INVALID_ARGUMENT where it has none of the
/// outputs, and for a name in `only` that is none.
absl::Status VerifyOutputs(Connection& connection, TensorSources& sources,
                           const VerifiedSubject& subject, absl::Time start,
                           ReportDocument& document);

/// Called after each step of a variant with what it gave and the number of such steps done and of
/// all.
using TraceObserver = std::function<void(const v1::TraceStep& step, int64_t done, int64_t of)>;

/// Plays the trace to its end; a server plays it in sessions of its own. A step that a variant
/// refuses ends it with that error, naming variant and step.
absl::StatusOr<TraceReport> PlayTrace(Connection& connection, const v1::RunTraceRequest& request,
                                      const TraceObserver& observer);

}  // namespace quantgate
