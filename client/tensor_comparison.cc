#include "client/tensor_comparison.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "server/report/element_types.h"
#include "server/report/number_text.h"

namespace quantgate {

absl::StatusOr<SubjectComparison> CompareSides(Connection& connection, const std::string& tensor,
                                               const ComparisonSide& subject,
                                               const ComparisonSide& reference) {
  SubjectComparison comparison;
  comparison.tensor = tensor;
  comparison.dtype = subject.type.dtype();
  comparison.reference_dtype = reference.type.dtype();
  comparison.subject_name = subject.name;
  comparison.reference_name = reference.name;
  const bool same_shape = std::equal(subject.type.shape().begin(), subject.type.shape().end(),
                                     reference.type.shape().begin(), reference.type.shape().end());
  if (!same_shape || subject.type.dtype() != reference.type.dtype()) {
    comparison.difference =
        absl::StrCat(TypeText(subject.type), " against ", TypeText(reference.type));
  }
  if (!same_shape) return comparison;
  v1::CompareRequest request;
  *request.mutable_subject() = subject.source;
  *request.mutable_reference() = reference.source;
  QG_ASSIGN_OR_RETURN(comparison.result, connection.Compare(request));
  SetElementTypes(comparison.result, comparison.dtype, comparison.reference_dtype);
  return comparison;
}

bool CanBeDiagnosed(const std::string& name) {
  constexpr size_t kNameMax = 80;
  return !name.empty() && name.size() <= kNameMax &&
         std::all_of(name.begin(), name.end(), [](char letter) {
           return absl::ascii_isalnum(static_cast<unsigned char>(letter)) || letter == '.' ||
                  letter == '-' || letter == '_';
         });
}

void AddPair(const std::string& tensor, const ComparisonSide& subject,
             const ComparisonSide& reference, v1::DiagnoseRequest& request) {
  if (!CanBeDiagnosed(tensor)) return;
  (*request.mutable_subjects())[tensor] = subject.source;
  (*request.mutable_expected())[tensor] = reference.source;
}

absl::StatusOr<std::vector<SubjectComparison>> CompareFiles(Connection& connection,
                                                            TensorSources& sources,
                                                            const ComparedFile& subject,
                                                            const ComparedFile& reference,
                                                            v1::DiagnoseRequest& diagnosis) {
  std::vector<SubjectComparison> comparisons;
  const auto missing = [&](const NamedTensor& tensor, const std::string& difference) {
    SubjectComparison comparison;
    comparison.tensor = tensor.name;
    comparison.dtype = std::string(DTypeName(tensor.tensor.dtype()));
    comparison.difference = difference;
    comparisons.push_back(comparison);
  };
  for (const NamedTensor& tensor : subject.file.tensors) {
    const absl::StatusOr<Tensor> other = reference.file.Find(tensor.name);
    if (!other.ok()) {
      missing(tensor, absl::StrCat("only in ", subject.name));
      continue;
    }
    ComparisonSide sides[2] = {
        {absl::StrCat(subject.name, ":", tensor.name), DescriptorOf(tensor.tensor), {}},
        {absl::StrCat(reference.name, ":", tensor.name), DescriptorOf(*other), {}}};
    QG_ASSIGN_OR_RETURN(sides[0].source, sources.Place(sides[0].name, tensor.tensor));
    QG_ASSIGN_OR_RETURN(sides[1].source, sources.Place(sides[1].name, *other));
    QG_ASSIGN_OR_RETURN(SubjectComparison comparison,
                        CompareSides(connection, tensor.name, sides[0], sides[1]));
    AddPair(tensor.name, sides[0], sides[1], diagnosis);
    comparisons.push_back(std::move(comparison));
  }
  for (const NamedTensor& tensor : reference.file.tensors) {
    if (!subject.file.Find(tensor.name).ok()) {
      missing(tensor, absl::StrCat("only in ", reference.name));
    }
  }
  return comparisons;
}

void AddDiagnosis(Connection& connection, v1::DiagnoseRequest request, absl::Time start,
                  ReportDocument& document) {
  if (document.verdict.pass()) return;
  std::vector<std::string> missing;
  for (const SubjectComparison& comparison : document.comparisons) {
    if (!comparison.passes && comparison.subject_name.empty()) {
      const bool is_missing = absl::StartsWith(comparison.difference, "not in ") ||
                              absl::StartsWith(comparison.difference, "only in ");
      missing.push_back(absl::StrCat(comparison.tensor, is_missing ? " is missing: " : ": ",
                                     comparison.difference));
    }
  }
  v1::Diagnosis diagnosis;
  if (request.subjects_size() > 0) {
    request.set_seconds(
        absl::ToDoubleSeconds(std::max(SteadyNow() - start, kDiagnosisTimeAtLeast)));
    const absl::StatusOr<v1::DiagnoseResponse> response = connection.Diagnose(request);
    if (!response.ok()) {
      document.remarks.push_back(absl::StrCat("no diagnosis: ", response.status().message()));
      if (missing.empty()) return;
    } else {
      diagnosis = response->diagnosis();
    }
  }
  if (!diagnosis.sentence().empty()) missing.push_back(diagnosis.sentence());
  if (missing.empty()) return;
  diagnosis.set_sentence(absl::StrJoin(missing, "; "));
  document.diagnosis = std::move(diagnosis);
}

}  // namespace quantgate
