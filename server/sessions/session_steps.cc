#include "server/sessions/session_steps.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/report/element_types.h"
#include "server/wire/convert_report.h"
#include "server/wire/convert_tensor.h"

namespace quantgate {
namespace {

absl::StatusOr<SessionStepResult> NothingAfter(const absl::Status& status) {
  if (!status.ok()) return status;
  return SessionStepResult();
}

/// A session as TakeStepOf wants it.
class StepTaker {
 public:
  StepTaker(Session& training, const std::string& spec, const Cancellation& cancellation)
      : training_(training), spec_(spec), cancellation_(&cancellation) {}

  const Recipe& recipe() const { return training_.recipe(); }
  absl::StatusOr<SessionStepResult> Forward(const ForwardStep& step) {
    return training_.Forward(step, cancellation_);
  }
  absl::StatusOr<SessionStepResult> Backward(const BackwardStep& step) {
    return training_.Backward(step, cancellation_);
  }
  absl::StatusOr<SessionStepResult> Wgrad() { return training_.Wgrad(cancellation_); }
  absl::StatusOr<SessionStepResult> Optimize(const OptimizerStep& step) {
    return training_.Optimize(step, cancellation_);
  }
  absl::StatusOr<SessionStepResult> ChangeRecipe(const Recipe& recipe);
  absl::StatusOr<SessionStepResult> Offload(const std::string& microbatch) {
    return NothingAfter(training_.Offload(microbatch, cancellation_));
  }
  absl::StatusOr<SessionStepResult> Reload(const std::string& microbatch) {
    return NothingAfter(training_.Reload(microbatch, cancellation_));
  }

 private:
  Session& training_;
  const std::string& spec_;
  const Cancellation* const cancellation_;
};

absl::StatusOr<SessionStepResult> StepTaker::ChangeRecipe(const Recipe& recipe) {
  const BackwardOverride before = training_.recipe().backward_override();
  QG_RETURN_IF_ERROR(training_.ChangeRecipe(recipe, cancellation_));
  SessionStepResult result;
  if (recipe.backward_override() != before) {
    result.notes.push_back(absl::StrCat(
        "backward_override: ", std::string(BackwardOverrideName(recipe.backward_override())),
        " from now on; it was ", std::string(BackwardOverrideName(before))));
  }
  v1::SessionSpec spec;
  if (!spec.ParseFromString(spec_)) return error::Internal("a session's spec is damaged");
  QG_ASSIGN_OR_RETURN(const std::vector<std::string> notes, NotesOfRecipe(spec, recipe));
  result.notes.insert(result.notes.end(), notes.begin(), notes.end());
  return result;
}

void AddQuantizations(const std::vector<QuantizationRecord>& records, std::optional<int> rank,
                      v1::TraceStep& proto) {
  for (const QuantizationRecord& record : records) {
    v1::TraceQuantization& added = *proto.add_quantizations();
    if (rank.has_value()) added.set_rank(*rank);
    *added.mutable_record() = QuantizationRecordToProto(record);
  }
}

/// A comparison that the engine has begun.
struct StartedComparison {
  v1::StepComparison proto;
  std::optional<Deferred<ParityReport>> parity;
  std::optional<Deferred<ErrorReport>> error;
};

absl::StatusOr<StartedComparison> StartComparison(Engine& engine, const NamedTensor& subject,
                                                  const Tensor& reference,
                                                  const Cancellation* cancellation) {
  StartedComparison started;
  const Tensor& tensor = subject.tensor;
  started.proto.set_tensor(subject.name);
  *started.proto.mutable_type() = TensorTypeToProto({tensor.dtype(), tensor.shape()});
  *started.proto.mutable_reference_type() =
      TensorTypeToProto({reference.dtype(), reference.shape()});
  started.proto.set_pass(true);
  if (tensor.shape() != reference.shape()) return started;
  if (tensor.dtype() == reference.dtype()) {
    QG_ASSIGN_OR_RETURN(started.parity, engine.StartCompareBits(tensor, reference, cancellation));
  }
  if (TraitsOf(tensor.dtype()).is_floating && TraitsOf(reference.dtype()).is_floating) {
    QG_ASSIGN_OR_RETURN(started.error, engine.StartMeasureError(tensor, reference, cancellation));
  }
  return started;
}

absl::StatusOr<v1::StepComparison> FinishComparison(StartedComparison started) {
  v1::StepComparison& proto = started.proto;
  if (started.parity.has_value()) {
    QG_ASSIGN_OR_RETURN(const ParityReport parity, (*std::move(started.parity))());
    *proto.mutable_parity() = ParityReportToProto(parity);
  }
  if (started.error.has_value()) {
    QG_ASSIGN_OR_RETURN(const ErrorReport error, (*std::move(started.error))());
    *proto.mutable_error() = ErrorReportToProto(error);
    proto.mutable_error()->clear_heat_map();
    proto.mutable_error()->clear_worst_blocks();
  }
  SetElementTypes(proto, proto.type().dtype(), proto.reference_type().dtype());
  return std::move(started.proto);
}

std::optional<double> Log2ScaleOf(const v1::QuantizationRecord& record) {
  if (record.has_scale()) return std::log2(double{record.scale()});
  if (record.has_scale_inv()) return -std::log2(double{record.scale_inv()});
  return std::nullopt;
}

/// Whether both quantized the same tensor, on the same rank, in the same role and directions.
bool QuantizeTheSame(const v1::TraceQuantization& a, const v1::TraceQuantization& b) {
  const v1::QuantizationRecord &of_a = a.record(), &of_b = b.record();
  return a.has_rank() == b.has_rank() && a.rank() == b.rank() && of_a.tensor() == of_b.tensor() &&
         of_a.role() == of_b.role() && of_a.rowwise() == of_b.rowwise() &&
         of_a.columnwise() == of_b.columnwise();
}

}  // namespace

absl::StatusOr<Recipe> RecipeOfChange(const SessionStep& step, const Recipe& now) {
  if (!step.keeps_override) return *step.recipe;
  const BackwardOverride before = now.backward_override();
  // Of rules by module, those that are there are judged with the whole session.
  if (step.recipe->is_delayed() && !step.recipe->DependsOnModule() &&
      before != BackwardOverride::kNone) {
    return Refuse("backward_override",
                  absl::StrCat("absent, so that the session's, ",
                               std::string(BackwardOverrideName(before)), ", stays"),
                  "delayed scaling has no backward override: give none");
  }
  return step.recipe->WithBackwardOverride(before);
}

absl::StatusOr<SessionStepResult> TakeSessionStep(Session& training, const std::string& spec,
                                                  const SessionStep& step,
                                                  const Cancellation& cancellation) {
  StepTaker taker(training, spec, cancellation);
  return TakeStepOf(taker, step);
}

absl::StatusOr<SessionStepResult> TakeStepWithinRoom(
    SessionStore& store, const SessionUse& use,
    absl::FunctionRef<absl::StatusOr<SessionStepResult>()> take) {
  absl::StatusOr<SessionStepResult> result;
  do {
    store.LimitBytes(use);
    result = take();
  } while (absl::IsResourceExhausted(result.status()) && store.Evict());
  return result;
}

v1::SessionMemory MemoryAfter(const Session& training, const SessionStepResult& result) {
  v1::SessionMemory memory = SavedMemoryToProto(training.saved_memory());
  for (const RankStepRecords& rank : result.ranks) {
    const GatheredRecord& gathered = rank.records.gathered;
    memory.set_gathered_peak_bytes(memory.gathered_peak_bytes() + gathered.peak);
    memory.set_gathered_held_bytes(memory.gathered_held_bytes() + gathered.held);
  }
  return memory;
}

void CountOverlaps(RunStatistics& statistics, const SessionStepResult& result) {
  for (const RankStepRecords& rank : result.ranks) {
    for (const StageTimeline& stage : rank.records.timelines) statistics.Overlapped(stage.timeline);
  }
}

void StepResultToProto(const Session& training, const SessionStepResult& result,
                       v1::TraceStep& proto) {
  AddQuantizations(result.quantizations, std::nullopt, proto);
  for (int rank = 0; const RankStepRecords& of_rank : result.ranks) {
    AddQuantizations(of_rank.records.quantizations, rank, proto);
    VariantReport::RankReport report;
    report.timelines = of_rank.records.timelines;
    v1::RankReport of_stages = RankReportToProto(report);
    for (v1::OverlapReport& overlap : *of_stages.mutable_overlaps()) {
      v1::TraceOverlap& added = *proto.add_overlaps();
      added.set_rank(rank);
      *added.mutable_report() = std::move(overlap);
    }
    ++rank;
  }
  *proto.mutable_memory() = MemoryAfter(training, result);
  for (const std::string& text : result.rank_differences) proto.add_rank_differences(text);
  for (const std::string& note : result.notes) proto.add_notes(note);
}

absl::StatusOr<std::vector<v1::StepComparison>> CompareTensors(
    Engine& engine, const std::vector<NamedTensor>& subjects,
    const std::vector<NamedTensor>& references, const Cancellation* cancellation) {
  std::vector<StartedComparison> started;
  for (const NamedTensor& subject : subjects) {
    const auto reference =
        std::find_if(references.begin(), references.end(),
                     [&](const NamedTensor& tensor) { return tensor.name == subject.name; });
    if (reference == references.end()) continue;
    QG_ASSIGN_OR_RETURN(started.emplace_back(),
                        StartComparison(engine, subject, reference->tensor, cancellation));
  }
  std::vector<v1::StepComparison> comparisons;
  for (StartedComparison& one : started) {
    QG_ASSIGN_OR_RETURN(comparisons.emplace_back(), FinishComparison(std::move(one)));
  }
  return comparisons;
}

void CompareScales(const v1::TraceStep& reference, v1::TraceStep& step) {
  for (v1::TraceQuantization& quantization : *step.mutable_quantizations()) {
    const auto same =
        std::find_if(reference.quantizations().begin(), reference.quantizations().end(),
                     [&](const auto& other) { return QuantizeTheSame(other, quantization); });
    if (same == reference.quantizations().end()) continue;
    const std::optional<double> own = Log2ScaleOf(quantization.record());
    const std::optional<double> others = Log2ScaleOf(same->record());
    if (!own.has_value() || !others.has_value()) continue;
    quantization.set_scale_against_reference_log2(*own - *others);
  }
}

}  // namespace quantgate
