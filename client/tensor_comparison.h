// Tensors of two sides, compared through Engine.Compare and looked into through Engine.Diagnose,
// and the reports that diff and verify make of it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/connection.h"
#include "client/tensor_source.h"
#include "kernels/tensor/files/tensor_file.h"
#include "server/report/report_document.h"

namespace quantgate {

/// A tensor where the server can read it, with its name and type.
struct ComparisonSide {
  std::string name;  ///< As people call it: "mine.safetensors:y".
  v1::TensorDescriptor type;
  v1::TensorSource source;
};

/// Bits and error of `subject` against `reference`. Different shapes or dtypes are a result, not an
/// error.
absl::StatusOr<SubjectComparison> CompareSides(Connection& connection, const std::string& tensor,
                                               const ComparisonSide& subject,
                                               const ComparisonSide& reference);

/// Whether a tensor's name can stand in a DiagnoseRequest.
bool CanBeDiagnosed(const std::string& name);
/// Adds both sides of a comparison to the request, under the tensor's name.
void AddPair(const std::string& tensor, const ComparisonSide& subject,
             const ComparisonSide& reference, v1::DiagnoseRequest& request);

/// The tensors of one side, and what people call it: "mine.safetensors".
struct ComparedFile {
  std::string name;
  TensorFile file;
};
/// Compares two sides by the names of their tensors, and adds what has both to `diagnosis`. A
/// tensor that one of them lacks is a difference.
absl::StatusOr<std::vector<SubjectComparison>> CompareFiles(Connection& connection,
                                                            TensorSources& sources,
                                                            const ComparedFile& subject,
                                                            const ComparedFile& reference,
                                                            v1::DiagnoseRequest& diagnosis);

/// Small tensors are compared in less time than it takes to try what can be wrong with them.
inline constexpr absl::Duration kDiagnosisTimeAtLeast = absl::Seconds(1);

/// Asks why the comparisons of `document` fail and adds the answer to it, where its verdict is a
/// failure. Looks at most as long as it took since `start` to compare them, or
/// kDiagnosisTimeAtLeast where that is more. Tensors that one side lacks are their own cause. A
/// server that cannot tell gives a remark.
void AddDiagnosis(Connection& connection, v1::DiagnoseRequest request, absl::Time start,
                  ReportDocument& document);

}  // namespace quantgate
