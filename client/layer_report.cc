#include "client/layer_report.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/execute.h"
#include "client/tensor_comparison.h"
#include "kernels/base/status_macros.h"
#include "server/report/comparison_verdict.h"
#include "server/report/element_types.h"
#include "server/report/trace_events.h"

namespace quantgate {
namespace {

void AddRankParts(const v1::VariantReport& variant, std::vector<v1::NamedTensor>& tensors) {
  for (const v1::RankReport& rank : variant.ranks()) {
    for (const v1::NamedTensor& part : rank.outputs()) {
      if (!part.has_digest() && !part.has_data()) continue;
      tensors.push_back(part);
      tensors.back().set_name(absl::StrCat("rank", rank.rank(), ".", part.name()));
    }
  }
}

/// Names that RunSpec.subjects takes: outputs with a derived bound, all but bias gradients.
/// "fc1.dw" and "dw.0" are dw of one weight each.
bool HasBound(const std::string& name) {
  std::vector<std::string> words = absl::StrSplit(name, '.');
  int expert = 0;
  if (words.size() > 1 && absl::SimpleAtoi(words.back(), &expert)) words.pop_back();
  static constexpr const char* kBounded[] = {"y",      "dx",    "dw",      "main_grad",
                                             "dgamma", "dbeta", "norm_out"};
  return std::any_of(std::begin(kBounded), std::end(kBounded),
                     [&](const char* word) { return words.back() == word; });
}

ComparisonSide EngineSide(const v1::VariantReport& variant, const v1::NamedTensor& output) {
  ComparisonSide side;
  side.name = absl::StrCat(output.name(), " of ", variant.label());
  side.type = output.type();
  if (output.has_data()) {
    *side.source.mutable_inline_()->mutable_type() = output.type();
    side.source.mutable_inline_()->set_data(output.data());
  } else {
    *side.source.mutable_stored()->mutable_type() = output.type();
    *side.source.mutable_stored()->mutable_digest() = output.digest();
  }
  return side;
}

/// The computed tensors that `only` names, or all of them.
absl::StatusOr<std::vector<v1::NamedTensor>> AskedFor(const VerifiedSubject& subject,
                                                      std::vector<v1::NamedTensor> computed) {
  const std::vector<std::string>& only = subject.only;
  if (only.empty()) return computed;
  std::vector<v1::NamedTensor> asked;
  for (const std::string& name : only) {
    const auto found =
        std::find_if(computed.begin(), computed.end(),
                     [&](const v1::NamedTensor& tensor) { return tensor.name() == name; });
    if (found == computed.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          subject.only_field, ": \"", name, "\" is no output of this layer; it has ",
          absl::StrJoin(computed, ", ", [](std::string* out, const v1::NamedTensor& tensor) {
            absl::StrAppend(out, tensor.name());
          })));
    }
    asked.push_back(*found);
  }
  return asked;
}

/// Tensors of the subject that nothing is compared with; they are listed so that a misspelt name
/// shows.
std::vector<std::string> UncomparedNames(const TensorFile& subject,
                                         const std::vector<v1::NamedTensor>& asked) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::none_of(asked.begin(), asked.end(),
                     [&](const v1::NamedTensor& output) { return output.name() == name; })) {
      names.push_back(name);
    }
  };
  for (const NamedTensor& tensor : subject.tensors) add(tensor.name);
  for (const auto& [name, dtype] : subject.unread) add(name);
  return names;
}

/// Compares an output of the engine with the subject's tensor of that name. An output that the
/// subject lacks is a difference: a gate that ignored it would pass when nobody computes it any
/// more.
/// Both sides are added to `diagnosis` where they are to be looked at.
absl::StatusOr<SubjectComparison> CompareOutput(Connection& connection, TensorSources& sources,
                                                const v1::VariantReport& variant,
                                                const v1::NamedTensor& output,
                                                const std::string& path, const TensorFile& subject,
                                                v1::DiagnoseRequest& diagnosis) {
  const absl::StatusOr<Tensor> tensor = subject.Find(output.name());
  if (!tensor.ok()) {
    SubjectComparison missing;
    missing.tensor = output.name();
    missing.dtype = output.type().dtype();
    missing.difference = absl::IsNotFound(tensor.status()) ? absl::StrCat("not in ", path)
                                                           : std::string(tensor.status().message());
    return missing;
  }
  ComparisonSide mine{absl::StrCat(path, ":", output.name()), DescriptorOf(*tensor), {}};
  QG_ASSIGN_OR_RETURN(mine.source, sources.Place(mine.name, *tensor));
  const ComparisonSide engines = EngineSide(variant, output);
  QG_ASSIGN_OR_RETURN(SubjectComparison comparison,
                      CompareSides(connection, output.name(), mine, engines));
  const v1::OutputReport* report = FindOutput(variant, output.name());
  if (report != nullptr && report->has_subject_bound()) {
    comparison.bound = report->subject_bound();
  }
  // What lies within its bound may have other bits, which are then no finding.
  const bool is_within = comparison.bound.has_value() && comparison.bound->pass();
  const bool is_equal = comparison.result.has_parity() && comparison.result.parity().equal();
  // Delayed scaling's states are no outputs of a layer that is computed again.
  if (report != nullptr && (is_equal || !is_within)) {
    AddPair(output.name(), mine, engines, diagnosis);
  }
  return comparison;
}

}  // namespace

std::vector<v1::NamedTensor> OutputTensors(const v1::VariantReport& variant) {
  std::vector<v1::NamedTensor> tensors;
  for (const v1::OutputReport& output : variant.outputs()) {
    if (!output.intermediate()) tensors.push_back(output.tensor());
  }
  tensors.insert(tensors.end(), variant.state().begin(), variant.state().end());
  tensors.insert(tensors.end(), variant.stacks().begin(), variant.stacks().end());
  AddRankParts(variant, tensors);
  return tensors;
}

ReportDocument DocumentOfRun(const std::string& kind, const std::string& layer, v1::RunReport run) {
  ReportDocument document;
  document.run = std::move(run);
  for (v1::VariantReport& variant : *document.run.mutable_variants()) SetElementTypes(variant);
  document.kind = kind;
  document.has_run = true;
  document.verdict = document.run.verdict();
  if (document.run.has_diagnosis()) {
    document.diagnosis = std::move(*document.run.mutable_diagnosis());
    document.run.clear_diagnosis();
  }
  const int count = document.run.variants_size();
  document.title = count == 1 ? absl::StrCat(layer, ": ", document.run.variants(0).label())
                              : absl::StrCat(layer, ": ", count, " variants");
  return document;
}

std::vector<NamedTensor> BoundedSubjects(const TensorFile& file) {
  std::vector<NamedTensor> bounded;
  for (const NamedTensor& tensor : file.tensors) {
    if (HasBound(tensor.name)) bounded.push_back(tensor);
  }
  return bounded;
}

absl::Status VerifyOutputs(Connection& connection, TensorSources& sources,
                           const VerifiedSubject& subject, absl::Time start,
                           ReportDocument& document) {
  // The subject is diagnosed here, not the engine's own outputs.
  document.diagnosis.reset();
  const TensorFile& file = subject.file;
  const v1::VariantReport& variant = document.run.variants(document.run.variants_size() - 1);
  QG_ASSIGN_OR_RETURN(const std::vector<v1::NamedTensor> asked,
                      AskedFor(subject, OutputTensors(variant)));
  const bool has_any = std::any_of(asked.begin(), asked.end(), [&](const v1::NamedTensor& output) {
    return file.Find(output.name()).ok();
  });
  const std::vector<std::string> uncompared = UncomparedNames(file, asked);
  if (!has_any) {
    return absl::InvalidArgumentError(
        absl::StrCat(subject.file_field, ": ", subject.name, " holds none of this layer's outputs",
                     uncompared.empty() ? "" : "; it has ", absl::StrJoin(uncompared, ", ")));
  }
  v1::DiagnoseRequest diagnosis;
  for (const v1::NamedTensor& output : asked) {
    QG_ASSIGN_OR_RETURN(
        SubjectComparison comparison,
        CompareOutput(connection, sources, variant, output, subject.name, file, diagnosis));
    document.comparisons.push_back(std::move(comparison));
  }
  if (!uncompared.empty()) {
    document.remarks.push_back(absl::StrCat("in the subject, but ",
                                            subject.only.empty()
                                                ? "no output of this layer"
                                                : absl::StrCat("not in ", subject.only_field),
                                            ": ", absl::StrJoin(uncompared, ", ")));
  }
  document.title = absl::StrCat(subject.name, " against ", variant.label());
  document.verdict = subject.by_bound ? JudgeBounds(document.comparisons)
                                      : JudgeComparisons(document.comparisons, std::nullopt);
  document.verdict.set_non_finite_inputs(document.run.verdict().non_finite_inputs());
  if (document.verdict.pass()) return absl::OkStatus();
  for (const std::string& name : uncompared) {
    const absl::StatusOr<Tensor> related = file.Find(name);
    if (!related.ok() || !CanBeDiagnosed(name)) continue;
    QG_ASSIGN_OR_RETURN((*diagnosis.mutable_related())[name], sources.Place(name, *related));
  }
  if (variant.ranks().empty()) {
    // The layer is computed under a mistake on one rank alone.
    *diagnosis.mutable_spec() = document.run.request();
    diagnosis.mutable_spec()->clear_subjects();
  }
  AddDiagnosis(connection, std::move(diagnosis), start, document);
  return absl::OkStatus();
}

absl::StatusOr<TraceReport> PlayTrace(Connection& connection, const v1::RunTraceRequest& request,
                                      const TraceObserver& observer) {
  TraceEvents events;
  const auto take = [&](const v1::RunEvent& event) {
    events.Take(event);
    if (event.has_trace_step()) observer(event.trace_step(), events.taken(), events.count());
  };
  QG_ASSIGN_OR_RETURN(const v1::RunReport report, RunTrace(connection, request, take));
  return events.Finish(report);
}

}  // namespace quantgate
