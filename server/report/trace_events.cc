#include "server/report/trace_events.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/report/number_text.h"

namespace quantgate {
namespace {

/// By step, then by variant: the reference variant's events come first in each step.
template <typename Entry>
void SortByStep(std::vector<Entry>& entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.step, a.variant) < std::pair(b.step, b.variant);
  });
}

}  // namespace

SubjectComparison SubjectComparisonOf(const v1::StepComparison& comparison) {
  SubjectComparison of;
  of.tensor = comparison.tensor();
  of.dtype = comparison.type().dtype();
  of.reference_dtype = comparison.reference_type().dtype();
  if (comparison.has_parity()) *of.result.mutable_parity() = comparison.parity();
  if (comparison.has_error()) *of.result.mutable_error() = comparison.error();
  if (comparison.has_bound()) of.bound = comparison.bound();
  if (!comparison.has_parity()) {
    of.difference = absl::StrCat(TypeText(comparison.type()), " against ",
                                 TypeText(comparison.reference_type()));
  }
  of.passes = comparison.pass();
  of.finding = comparison.finding();
  return of;
}

TraceTensor TraceEvents::TensorOf(const v1::TraceStep& step, const v1::StepComparison& comparison,
                                  const std::string& subject, const std::string& reference) const {
  TraceTensor tensor{step.step() - 1, step.variant(), SubjectComparisonOf(comparison)};
  tensor.comparison.subject_name = absl::StrCat(comparison.tensor(), " of ", subject);
  tensor.comparison.reference_name = absl::StrCat(comparison.tensor(), " of ", reference);
  return tensor;
}

void TraceEvents::TakeNotes(const v1::TraceStep& step, const std::string& label) {
  const std::string place = absl::StrCat("step ", step.step(), " of ", label, ": ");
  for (const std::string& difference : step.rank_differences()) {
    report_.rank_differences.push_back(place + difference);
    report_.notes.push_back(report_.rank_differences.back());
  }
  for (const std::string& note : step.notes()) {
    const std::string text = absl::StrCat(label, ": ", note);
    const bool is_known =
        std::find(report_.notes.begin(), report_.notes.end(), text) != report_.notes.end();
    if (!is_known) report_.notes.push_back(text);
  }
  if (step.has_checkpoint()) {
    report_.notes.push_back(absl::StrCat(place, "goes on as ", step.label(), " from checkpoint ",
                                         DigestText(step.checkpoint())));
  } else if (!step.label().empty() && step.label() != label) {
    report_.notes.push_back(absl::StrCat(place, "goes on as ", step.label()));
  }
}

void TraceEvents::TakeStep(const v1::TraceStep& step) {
  const auto variant = static_cast<size_t>(step.variant());
  // A server is not to be trusted with indices.
  const auto reference_index = static_cast<size_t>(report_.reference);
  if (step.step() < 1 || std::max(variant, reference_index) >= report_.variants.size()) return;
  ++taken_;
  const int index = step.step() - 1;
  if (report_.steps.size() <= static_cast<size_t>(index)) {
    report_.steps.resize(static_cast<size_t>(index) + 1);
    report_.steps.back() = {step.round(), step.kind(), step.microbatch()};
  }
  // Copies: a change that is added moves the others.
  const std::string before = LabelAt(report_, index, step.variant());
  if (!step.label().empty() && step.label() != before) {
    report_.changes.push_back({index, step.variant(), step.label()});
  }
  const std::string label = LabelAt(report_, index, step.variant());
  const std::string reference = LabelAt(report_, index, report_.reference);
  for (const v1::StepComparison& comparison : step.against_reference()) {
    report_.tensors.push_back(TensorOf(step, comparison, label, reference));
  }
  for (const v1::StepComparison& comparison : step.subjects()) {
    report_.subjects.push_back(TensorOf(step, comparison, "the subject", label));
  }
  if (step.has_diagnosis()) report_.diagnoses.push_back({index, step.variant(), step.diagnosis()});
  for (const v1::TraceQuantization& quantization : step.quantizations()) {
    TraceQuantization& added = report_.quantizations.emplace_back();
    added.step = index;
    added.variant = step.variant();
    if (quantization.has_rank()) added.rank = quantization.rank();
    added.record = quantization.record();
    if (quantization.has_scale_against_reference_log2()) {
      added.scale_against_reference = quantization.scale_against_reference_log2();
    }
  }
  for (const v1::TraceOverlap& overlap : step.overlaps()) {
    report_.overlaps.push_back({index, step.variant(), overlap.rank(), overlap.report()});
  }
  if (step.has_memory()) report_.memories.push_back({index, step.variant(), step.memory()});
  TakeNotes(step, before);
}

void TraceEvents::Take(const v1::RunEvent& event) {
  if (event.has_trace()) {
    const v1::TraceStarted& started = event.trace();
    report_.variants.assign(started.variants().begin(), started.variants().end());
    report_.reference = started.reference();
    count_ = int64_t{started.step_count()} * started.variants_size();
  }
  if (event.has_trace_step()) TakeStep(event.trace_step());
}

TraceReport TraceEvents::Finish(const v1::RunReport& report) {
  SortByStep(report_.tensors);
  SortByStep(report_.subjects);
  SortByStep(report_.diagnoses);
  SortByStep(report_.quantizations);
  SortByStep(report_.overlaps);
  SortByStep(report_.memories);
  if (report.verdict().criterion() != v1::REQUIREMENT_UNSPECIFIED) {
    report_.verdict = report.verdict();
  }
  return std::move(report_);
}

}  // namespace quantgate
