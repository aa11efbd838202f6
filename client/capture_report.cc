#include "client/capture_report.h"

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/captured_layer.h"
#include "client/execute.h"
#include "client/layer_report.h"
#include "client/tensor_comparison.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "server/report/comparison_verdict.h"

namespace quantgate {
namespace {

CapturedLayer LineOf(const CapturedCall& call, const ReportDocument& document) {
  CapturedLayer line;
  line.module = call.module;
  line.class_name = call.class_name;
  line.layer = call.kind;
  line.rank = call.rank;
  line.step = call.step;
  line.call = call.call;
  line.first_comparison = document.comparisons.size();
  return line;
}

/// Where a tensor of a call stands in the execution of the whole capture.
using Moment = std::tuple<int64_t, int64_t, int, int, std::string>;
Moment MomentOf(const CapturedCall& call, const std::string& tensor) {
  const bool is_backward = IsOfBackward(tensor) && call.backward_order.has_value();
  return {call.step, is_backward ? *call.backward_order : call.forward_order, call.rank,
          ExecutionPlace(tensor), tensor};
}

/// Judges the comparisons of one call and adds them, under names that no other call has.
void AddComparisons(const CapturedCall& call, std::vector<SubjectComparison> comparisons,
                    ComparisonJudge& judge, CapturedLayer& line, ReportDocument& document) {
  std::stable_sort(comparisons.begin(), comparisons.end(),
                   [](const SubjectComparison& left, const SubjectComparison& right) {
                     return ExecutionPlace(left.tensor) < ExecutionPlace(right.tensor);
                   });
  const std::string prefix = absl::StrCat(call.Name(), ":");
  std::vector<std::string> findings;
  for (SubjectComparison& comparison : comparisons) {
    comparison.tensor = absl::StrCat(prefix, comparison.tensor);
    judge.Add(comparison);
    // The line says of which call it is.
    comparison.finding = std::string(absl::StripPrefix(comparison.finding, prefix));
    if (!comparison.passes) findings.push_back(comparison.finding);
    // Of what passes nobody looks at the map, and captures have many tensors.
    if (comparison.passes && comparison.result.has_error()) {
      comparison.result.mutable_error()->clear_heat_map();
    }
    document.comparisons.push_back(std::move(comparison));
  }
  line.comparison_count += comparisons.size();
  if (findings.empty()) return;
  line.passes = false;
  line.finding = findings[0];
  if (findings.size() > 1) {
    absl::StrAppend(&line.finding, "; and ", findings.size() - 1, " more of ", comparisons.size(),
                    " tensors");
  }
}

/// The earliest difference.
class FirstDivergence {
 public:
  void Add(const CapturedCall& call, const std::string& tensor, const std::string& finding) {
    const Moment moment = MomentOf(call, tensor);
    if (moment_.has_value() && *moment_ <= moment) return;
    moment_ = moment;
    text_ = absl::StrCat("First divergence in execution order: step ", call.step, ", rank ",
                         call.rank, ", ", call.module.empty() ? "the model" : call.module,
                         ", call ", call.call, tensor.empty() ? "" : ": ", tensor,
                         tensor.empty()         ? ""
                         : IsOfBackward(tensor) ? " (backward)"
                                                : " (forward)",
                         ": ", finding);
    name_ = call.Name();
  }
  void AddAll(const CapturedCall& call, const CapturedLayer& line, const ReportDocument& document) {
    for (size_t i = 0; i < line.comparison_count; ++i) {
      const SubjectComparison& one = document.comparisons[line.first_comparison + i];
      if (one.passes) continue;
      Add(call, one.tensor.substr(one.tensor.rfind(':') + 1), one.finding);
    }
  }
  const std::string& text() const { return text_; }
  /// The name of its call; empty while there is none.
  const std::string& name() const { return name_; }

 private:
  std::optional<Moment> moment_;
  std::string text_, name_;
};

void AddLeftOut(const Capture& capture, ReportDocument& document) {
  for (const std::string& text : capture.left_out) {
    document.remarks.push_back(absl::StrCat("not captured: ", text));
  }
}

/// What was computed elsewhere, under the names that the engine's outputs have.
TensorFile SubjectOf(const LayerJudgement& judgement) {
  TensorFile file;
  for (const std::string& name : judgement.outputs) {
    file.tensors.push_back({name, judgement.tensors.at(name)});
  }
  return file;
}

/// main_grad of a module that adds dw to it in an operation of its own: the sum is known exactly.
absl::StatusOr<SubjectComparison> CompareSum(Connection& connection, TensorSources& sources,
                                             const std::string& path, const GradientSum& sum) {
  ComparisonSide subject{absl::StrCat(path, ":", sum.name), DescriptorOf(sum.found), {}};
  ComparisonSide expected{
      absl::StrCat("sum of ", sum.terms, " of ", path), DescriptorOf(sum.expected), {}};
  QG_ASSIGN_OR_RETURN(subject.source, sources.Place(subject.name, sum.found));
  QG_ASSIGN_OR_RETURN(expected.source, sources.Place(expected.name, sum.expected));
  return CompareSides(connection, sum.name, subject, expected);
}

/// Runs one layer and compares what the step gave. The result's verdict is not used.
absl::StatusOr<ReportDocument> RunLayer(Connection& connection, TensorSources& sources,
                                        const CaptureCriterion& criterion, const std::string& path,
                                        LayerJudgement& judgement) {
  const absl::Time start = SteadyNow();
  VerifiedSubject subject;
  subject.name = path;
  subject.file = SubjectOf(judgement);
  subject.only = judgement.outputs;
  subject.by_bound = criterion.by_bound;
  v1::RunSpec& spec = judgement.spec;
  for (const auto& [name, tensor] : judgement.operands) {
    QG_ASSIGN_OR_RETURN(const v1::TensorSource source, sources.Place(name, tensor));
    if (name == "x") {
      *spec.mutable_step()->mutable_x() = source;
    } else if (name == "dy") {
      *spec.mutable_step()->mutable_grad_output() = source;
    } else {
      (*spec.mutable_step()->mutable_parameters())[name] = source;
    }
  }
  for (const auto& [name, tensor] : judgement.main_grads) {
    QG_ASSIGN_OR_RETURN((*spec.mutable_step()->mutable_main_grads())[name],
                        sources.Place(name, tensor));
  }
  if (criterion.by_bound) {
    for (const NamedTensor& tensor : BoundedSubjects(subject.file)) {
      QG_ASSIGN_OR_RETURN((*spec.mutable_subjects())[tensor.name],
                          sources.Place(tensor.name, tensor.tensor));
    }
  }
  spec.set_keep_outputs(true);
  QG_ASSIGN_OR_RETURN(v1::RunReport run, ExecuteRun(connection, spec));
  ReportDocument document = DocumentOfRun("verify", spec.step().layer().kind(), std::move(run));
  QG_RETURN_IF_ERROR(VerifyOutputs(connection, sources, subject, start, document));
  return document;
}

/// The refusal of a layer, which names its tensors as captures do.
absl::Status OfTensors(const absl::Status& status) {
  const std::string message(status.message());
  const std::string named = absl::StrReplaceAll(
      absl::StrReplaceAll(message, {{"spec.step.", "step."}}), {{"step.x", "x"},
                                                                {"step.grad_output", "dy"},
                                                                {"step.parameters", "parameters"},
                                                                {"step.main_grads", "main_grads"}});
  return named == message ? status : absl::Status(status.code(), named);
}

class CaptureVerifier {
 public:
  CaptureVerifier(Connection& connection, TensorSources& sources, const Capture& capture,
                  const CaptureCriterion& criterion)
      : connection_(connection),
        sources_(sources),
        capture_(capture),
        criterion_(criterion),
        judge_(criterion.by_bound ? ComparisonJudge::ByBounds() : ComparisonJudge::Bitwise()) {
    document_.kind = "verify";
  }

  absl::Status Add(const CapturedCall& call) {
    CapturedLayer line = LineOf(call, document_);
    QG_ASSIGN_OR_RETURN(const TensorFile file,
                        ReadCapturedTensors(criterion_.capture_field, capture_, call));
    LayerJudgement judgement = JudgementOf(call, file, criterion_.variant);
    std::vector<std::string> remarks = judgement.remarks;
    std::vector<SubjectComparison> comparisons;
    if (!judgement.outputs.empty()) {
      absl::StatusOr<ReportDocument> ran =
          RunLayer(connection_, sources_, criterion_, PathOf(capture_, call), judgement);
      if (ran.ok()) {
        TakeRun(call, *ran, line);
        ++computed_;
        comparisons = std::move(ran->comparisons);
      } else if (IsAboutThisLayer(ran.status())) {
        // A known layer that the engine refuses is not passed over. Where it refuses all of them,
        // what was asked for is wrong.
        const absl::Status refusal = OfTensors(ran.status());
        first_error_.Update(refusal);
        line.passes = false;
        line.finding = absl::StrCat("cannot be computed: ", std::string(refusal.message()));
        judge_.AddDifference(absl::StrCat(call.Name(), " ", line.finding));
        first_.Add(call, "", line.finding);
      } else {
        return ran.status();
      }
    }
    for (const GradientSum& sum : judgement.sums) {
      QG_ASSIGN_OR_RETURN(SubjectComparison comparison,
                          CompareSum(connection_, sources_, PathOf(capture_, call), sum));
      comparisons.push_back(std::move(comparison));
    }
    AddComparisons(call, std::move(comparisons), judge_, line, document_);
    if (!line.passes && diagnosis_of_.contains(call.Name())) {
      line.finding = absl::StrCat(line.finding, " (", diagnosis_of_[call.Name()].sentence(), ")");
    }
    line.remark = absl::StrJoin(remarks, "; ");
    first_.AddAll(call, line, document_);
    judged_ += line.comparison_count > 0 || !line.passes;
    document_.layers.push_back(std::move(line));
    return absl::OkStatus();
  }

  absl::StatusOr<ReportDocument> Finish() {
    if (computed_ == 0) QG_RETURN_IF_ERROR(first_error_);
    if (judged_ == 0) {
      std::set<std::string> remarks;
      for (const CapturedLayer& layer : document_.layers) remarks.insert(layer.remark);
      return absl::InvalidArgumentError(absl::StrCat(
          criterion_.capture_field, ": ", capture_.path, " has no layer that can be judged",
          remarks.empty() ? "" : ": ", absl::StrJoin(remarks, "; ")));
    }
    const size_t count = document_.layers.size();
    document_.title =
        absl::StrCat(capture_.path, ": ", judged_, " of ", count, " captured calls judged");
    if (judged_ < count) {
      document_.remarks.push_back(
          absl::StrCat(count - judged_, " of ", count, " captured calls were not judged"));
    }
    AddLeftOut(capture_, document_);
    document_.verdict = judge_.Verdict();
    if (criterion_.by_bound) {
      document_.verdict.set_source("derived for each GEMM, as its comparison says");
    }
    document_.first_divergence = first_.text();
    if (const auto found = diagnosis_of_.find(first_.name()); found != diagnosis_of_.end()) {
      document_.diagnosis = found->second;
    }
    return std::move(document_);
  }

 private:
  /// Whether another layer of the capture may well be computed.
  static bool IsAboutThisLayer(const absl::Status& status) {
    return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
           absl::IsUnimplemented(status) || absl::IsOutOfRange(status);
  }

  void TakeRun(const CapturedCall& call, ReportDocument& run, CapturedLayer& line) {
    if (run.diagnosis) diagnosis_of_[call.Name()] = *run.diagnosis;
    // With the arithmetics that `auto` stood for.
    const v1::VariantReport& variant = run.run.variants(0);
    line.variant = variant.label();
    if (!absl::EndsWith(line.variant, " auto") || variant.gemms().empty()) return;
    std::set<std::string> arithmetics;
    for (const v1::GemmLine& gemm : variant.gemms()) arithmetics.insert(gemm.arithmetic());
    line.variant.resize(line.variant.size() - 4);
    absl::StrAppend(&line.variant, absl::StrJoin(arithmetics, ", "));
  }

  Connection& connection_;
  TensorSources& sources_;
  const Capture& capture_;
  const CaptureCriterion& criterion_;
  ComparisonJudge judge_;
  FirstDivergence first_;
  std::map<std::string, v1::Diagnosis> diagnosis_of_;
  absl::Status first_error_;
  size_t computed_ = 0, judged_ = 0;
  ReportDocument document_;
};

absl::StatusOr<std::vector<const CapturedCall*>> Chosen(const Capture& capture,
                                                        const CaptureCriterion& criterion) {
  std::vector<const CapturedCall*> chosen;
  std::regex pattern;
  try {
    pattern = std::regex(criterion.layers.empty() ? std::string(".*") : criterion.layers);
    for (const CapturedCall& call : capture.calls) {
      if (std::regex_match(call.module, pattern)) chosen.push_back(&call);
    }
  } catch (const std::regex_error& error) {
    return absl::InvalidArgumentError(absl::StrCat(criterion.layers_field, ": \"", criterion.layers,
                                                   "\": no regular expression: ", error.what()));
  }
  if (!chosen.empty()) return chosen;
  std::set<std::string> modules;
  for (const CapturedCall& call : capture.calls) modules.insert(call.module);
  if (modules.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(criterion.capture_field, ": ", capture.path, " has no captured call"));
  }
  return absl::InvalidArgumentError(absl::StrCat(criterion.layers_field, ": \"", criterion.layers,
                                                 "\" matches no module; there are ",
                                                 absl::StrJoin(modules, ", ")));
}

/// What identifies a call in two runs of one program.
using CallKey = std::tuple<int, int64_t, std::string, int64_t>;
CallKey KeyOf(const CapturedCall& call) { return {call.rank, call.step, call.module, call.call}; }

/// The knobs that differ: "tf32 is true against false".
std::string KnobDifference(const CapturedCall& subject, const CapturedCall& reference) {
  std::vector<std::string> texts;
  std::set<std::string> names;
  for (const auto& [name, value] : subject.knobs.items()) names.insert(name);
  for (const auto& [name, value] : reference.knobs.items()) names.insert(name);
  for (const std::string& name : names) {
    const nlohmann::json mine = subject.knobs.value(name, nlohmann::json());
    const nlohmann::json theirs = reference.knobs.value(name, nlohmann::json());
    if (mine != theirs) {
      texts.push_back(absl::StrCat(name, " is ", mine.dump(), " against ", theirs.dump()));
    }
  }
  return absl::StrJoin(texts, ", ");
}

class CaptureDiffer {
 public:
  CaptureDiffer(Connection& connection, TensorSources& sources, const Capture& subject,
                const Capture& reference, std::optional<int64_t> ulp_max)
      : connection_(connection),
        sources_(sources),
        subject_(subject),
        reference_(reference),
        judge_(ulp_max.has_value() ? ComparisonJudge::WithinUlp(*ulp_max)
                                   : ComparisonJudge::Bitwise()) {
    document_.kind = "diff";
    document_.title = absl::StrCat(subject.path, " against ", reference.path);
  }

  absl::Status AddBoth(const CapturedCall& subject, const CapturedCall& reference) {
    const absl::Time start = SteadyNow();
    CapturedLayer line = LineOf(subject, document_);
    QG_ASSIGN_OR_RETURN(TensorFile mine, ReadCapturedTensors("A", subject_, subject));
    QG_ASSIGN_OR_RETURN(TensorFile theirs, ReadCapturedTensors("B", reference_, reference));
    DropOtherRows(subject, reference, mine, theirs, line);
    v1::DiagnoseRequest diagnosis;
    QG_ASSIGN_OR_RETURN(
        std::vector<SubjectComparison> comparisons,
        CompareFiles(connection_, sources_, {PathOf(subject_, subject), std::move(mine)},
                     {PathOf(reference_, reference), std::move(theirs)}, diagnosis));
    AddComparisons(subject, std::move(comparisons), judge_, line, document_);
    const std::string before = first_.name();
    first_.AddAll(subject, line, document_);
    if (first_.name() != before) {
      diagnosis_ = std::move(diagnosis);
      seconds_ = absl::ToDoubleSeconds(SteadyNow() - start);
    }
    if (const std::string knobs = KnobDifference(subject, reference); !knobs.empty()) {
      absl::StrAppend(&line.remark, line.remark.empty() ? "" : "; ", knobs);
    }
    document_.layers.push_back(std::move(line));
    return absl::OkStatus();
  }

  void AddOne(const CapturedCall& call, const Capture& capture) {
    CapturedLayer line = LineOf(call, document_);
    line.passes = false;
    line.finding = absl::StrCat("only in ", capture.path);
    judge_.AddDifference(absl::StrCat(call.Name(), ": ", line.finding));
    const std::string before = first_.name();
    first_.Add(call, "", line.finding);
    if (first_.name() != before) diagnosis_.reset();
    document_.layers.push_back(std::move(line));
  }

  ReportDocument Finish() {
    AddLeftOut(subject_, document_);
    AddLeftOut(reference_, document_);
    document_.first_divergence = first_.text();
    if (diagnosis_.has_value()) Diagnose();
    document_.verdict = judge_.Verdict();
    return std::move(document_);
  }

 private:
  /// Samples of other rows are not compared with each other, nor with the whole tensor.
  void DropOtherRows(const CapturedCall& subject, const CapturedCall& reference, TensorFile& mine,
                     TensorFile& theirs, CapturedLayer& line) {
    std::set<std::string> dropped;
    for (const auto& [name, tensor] : subject.tensors) {
      const auto other = reference.tensors.find(name);
      if (other != reference.tensors.end() && other->second.sampled_rows != tensor.sampled_rows) {
        dropped.insert(name);
      }
    }
    if (dropped.empty()) return;
    const auto drop = [&](TensorFile& file) {
      std::erase_if(file.tensors,
                    [&](const NamedTensor& one) { return dropped.contains(one.name); });
    };
    drop(mine);
    drop(theirs);
    line.passes = false;
    line.finding = absl::StrCat("other rows were sampled of ", absl::StrJoin(dropped, ", "));
    judge_.AddDifference(absl::StrCat(subject.Name(), ": ", line.finding));
    first_.Add(subject, *dropped.begin(), line.finding);
  }

  /// Why the tensors of the first module that differs do.
  void Diagnose() {
    ReportDocument one;
    for (const CapturedLayer& layer : document_.layers) {
      for (size_t i = 0; i < layer.comparison_count; ++i) {
        const SubjectComparison& comparison = document_.comparisons[layer.first_comparison + i];
        if (!absl::StartsWith(comparison.tensor, absl::StrCat(first_.name(), ":"))) continue;
        one.comparisons.push_back(comparison);
        one.comparisons.back().tensor = comparison.tensor.substr(comparison.tensor.rfind(':') + 1);
      }
    }
    one.verdict.set_pass(false);
    AddDiagnosis(connection_, std::move(*diagnosis_), SteadyNow() - absl::Seconds(seconds_), one);
    document_.diagnosis = std::move(one.diagnosis);
  }

  Connection& connection_;
  TensorSources& sources_;
  const Capture& subject_;
  const Capture& reference_;
  ComparisonJudge judge_;
  FirstDivergence first_;
  std::optional<v1::DiagnoseRequest> diagnosis_;
  double seconds_ = 0;
  ReportDocument document_;
};

}  // namespace

absl::StatusOr<ReportDocument> VerifyCapture(Connection& connection, TensorSources& sources,
                                             const Capture& capture,
                                             const CaptureCriterion& criterion,
                                             const CaptureProgress& progress) {
  QG_ASSIGN_OR_RETURN(const std::vector<const CapturedCall*> calls, Chosen(capture, criterion));
  CaptureVerifier verifier(connection, sources, capture, criterion);
  int64_t done = 0;
  for (const CapturedCall* call : calls) {
    if (progress) progress(call->Name(), done++, static_cast<int64_t>(calls.size()));
    QG_RETURN_IF_ERROR(verifier.Add(*call));
  }
  return verifier.Finish();
}

absl::StatusOr<ReportDocument> DiffCaptures(Connection& connection, TensorSources& sources,
                                            const Capture& subject, const Capture& reference,
                                            std::optional<int64_t> ulp_max,
                                            const CaptureProgress& progress) {
  if (subject.calls.empty() && reference.calls.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("A: ", subject.path, " and ", reference.path,
                                                   " have no captured call to compare"));
  }
  std::map<CallKey, const CapturedCall*> others;
  for (const CapturedCall& call : reference.calls) others[KeyOf(call)] = &call;
  CaptureDiffer differ(connection, sources, subject, reference, ulp_max);
  int64_t done = 0;
  for (const CapturedCall& call : subject.calls) {
    if (progress) progress(call.Name(), done++, static_cast<int64_t>(subject.calls.size()));
    const auto other = others.find(KeyOf(call));
    if (other == others.end()) {
      differ.AddOne(call, subject);
      continue;
    }
    QG_RETURN_IF_ERROR(differ.AddBoth(call, *other->second));
    others.erase(other);
  }
  for (const CapturedCall& call : reference.calls) {
    if (others.contains(KeyOf(call))) differ.AddOne(call, reference);
  }
  return differ.Finish();
}

}  // namespace quantgate
