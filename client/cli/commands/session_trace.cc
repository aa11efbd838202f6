#include "client/cli/commands/session_trace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/blob_transfer.h"
#include "client/cli/options/layer_options.h"
#include "client/cli/options/quantized_metadata.h"
#include "client/session.h"
#include "kernels/base/status_macros.h"
#include "server/report/number_text.h"

namespace quantgate {
namespace {

using ProtoStep = v1::SessionTrace::Step;

/// The trace's variants; without any, the spec's own recipe.
std::vector<v1::Variant> VariantsOf(const v1::SessionTrace& trace) {
  std::vector<v1::Variant> variants(trace.variants().begin(), trace.variants().end());
  if (variants.empty()) {
    *variants.emplace_back().mutable_recipe() = trace.spec().recipe();
    variants[0].set_backward_override(trace.spec().backward_override());
  }
  for (v1::Variant& variant : variants) {
    if (variant.arithmetic().empty()) variant.set_arithmetic(trace.spec().arithmetic());
    if (!variant.has_parallel() && trace.spec().has_parallel()) {
      *variant.mutable_parallel() = trace.spec().parallel();
    }
  }
  return variants;
}

/// The message that is set in `step`'s oneof; null: none.
const google::protobuf::FieldDescriptor* KindOf(const ProtoStep& step) {
  return ProtoStep::GetReflection()->GetOneofFieldDescriptor(
      step, ProtoStep::descriptor()->FindOneofByName("step"));
}

/// Whether it says more than that there is one rank; what it says may be wrong.
bool SaysRanks(v1::Parallel parallel) {
  if (parallel.tensor_parallel() == 1) parallel.clear_tensor_parallel();
  if (parallel.data_parallel() == 1) parallel.clear_data_parallel();
  if (parallel.expert_parallel() == 1) parallel.clear_expert_parallel();
  return parallel.ByteSizeLong() > 0;
}

/// The spec's layers on the ranks of `parallel`; null: on one. Where nothing divides weights they
/// are whole.
void SetRanks(const v1::Parallel* parallel, v1::SessionSpec& spec) {
  spec.clear_parallel();
  const bool has_ranks = parallel != nullptr && SaysRanks(*parallel);
  if (has_ranks) *spec.mutable_parallel() = *parallel;
  if (has_ranks && parallel->tensor_parallel() > 1) return;
  for (v1::SessionLayer& layer : *spec.mutable_layers()) {
    layer.mutable_layer()->clear_parallel_mode();
    for (v1::Operation& operation : *layer.mutable_layer()->mutable_operations()) {
      operation.clear_parallel_mode();
    }
  }
}

/// The same step as a request.
v1::SessionStepRequest RequestOf(const ProtoStep& step) {
  using Request = v1::SessionStepRequest;
  Request request;
  const auto* kind = KindOf(step);
  Request::GetReflection()
      ->MutableMessage(&request, Request::descriptor()->FindFieldByName(kind->name()))
      ->CopyFrom(ProtoStep::GetReflection()->GetMessage(step, kind));
  request.set_keep_outputs(true);
  return request;
}

std::string MicrobatchOf(const ProtoStep& step) {
  if (step.has_forward()) return step.forward().microbatch();
  if (step.has_backward()) return step.backward().microbatch();
  if (step.has_offload()) return step.offload().microbatch();
  if (step.has_restart()) return "";
  return step.reload().microbatch();
}

absl::Status CheckStep(const ProtoStep& step, const std::string& field) {
  const auto refuse = [&](const std::string& name, const std::string& rule) {
    return absl::InvalidArgumentError(absl::StrCat("SPEC: ", field, name, ": ", rule));
  };
  if (KindOf(step) == nullptr) {
    return refuse(
        "", "none of forward, backward, wgrad, optimize, change_recipe, offload, reload, restart");
  }
  if (!step.has_forward() && !step.x().empty()) return refuse(".x", "of forward only");
  if (!step.has_backward() && !step.grad_output().empty()) {
    return refuse(".grad_output", "of backward only");
  }
  if (step.has_forward() && step.x().empty() != step.forward().has_x()) {
    return refuse(".x", "a forward takes one, named here or within it");
  }
  if (step.has_backward() && step.grad_output().empty() != step.backward().has_grad_output()) {
    return refuse(".grad_output", "a backward takes one, named here or within it");
  }
  return absl::OkStatus();
}

/// `status`, saying where in the trace it came from.
absl::Status At(const std::string& where, const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status located(status.code(), absl::StrCat(where, ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { located.SetPayload(url, payload); });
  return located;
}

ComparisonSide TraceSideOf(const v1::NamedTensor& tensor, const std::string& label) {
  ComparisonSide side{absl::StrCat(tensor.name(), " of ", label), tensor.type(), {}};
  if (tensor.has_data()) {
    *side.source.mutable_inline_()->mutable_type() = tensor.type();
    side.source.mutable_inline_()->set_data(tensor.data());
  } else {
    *side.source.mutable_stored()->mutable_digest() = tensor.digest();
    *side.source.mutable_stored()->mutable_type() = tensor.type();
  }
  return side;
}

class TracePlayer {
 public:
  /// `lease_seconds` as OpenSessionRequest's.
  TracePlayer(Connection& connection, const v1::SessionTrace& trace, TensorSources& sources,
              int lease_seconds)
      : connection_(connection),
        trace_(trace),
        sources_(sources),
        lease_seconds_(lease_seconds),
        variants_(VariantsOf(trace)) {
    report_.reference = trace.reference();
    for (const v1::Variant& variant : variants_) report_.variants.push_back(VariantText(variant));
  }
  TracePlayer(const TracePlayer&) = delete;
  TracePlayer& operator=(const TracePlayer&) = delete;
  /// A session that cannot be closed ends with its lease.
  ~TracePlayer() {
    for (ClientSession& session : sessions_) (void)session.Close();
  }

  absl::Status Open();
  absl::Status Play(const ProtoStep& step, int round);
  TraceReport TakeReport() { return std::move(report_); }

 private:
  using Tensors = std::vector<v1::NamedTensor>;

  absl::StatusOr<v1::TensorSource> Source(const std::string& field, const std::string& name);
  /// One step of one variant, and the tensors to compare.
  absl::StatusOr<Tensors> PlayVariant(int variant, const ProtoStep& step,
                                      const v1::SessionStepRequest& request);
  absl::StatusOr<Tensors> StepVariant(int variant, const v1::SessionStepRequest& request);
  absl::Status Restart(int variant, const v1::SessionTrace::Restart& restart);
  absl::StatusOr<Tensors> Parameters(int variant);
  absl::Status Compare(int variant, const Tensors& subjects, const Tensors& references);
  /// Adds a note of a variant to the report, once.
  void AddNote(size_t variant, const std::string& note);

  Connection& connection_;
  const v1::SessionTrace& trace_;
  TensorSources& sources_;
  const int lease_seconds_;
  std::vector<v1::Variant> variants_;  ///< On the ranks that they are on now.
  std::map<std::string, v1::TensorSource> resolved_;
  std::vector<ClientSession> sessions_;
  TraceReport report_;
};

/// Every round takes the same tensors: each is read and sent once.
absl::StatusOr<v1::TensorSource> TracePlayer::Source(const std::string& field,
                                                     const std::string& name) {
  const auto found = resolved_.find(name);
  if (found != resolved_.end()) return found->second;
  QG_ASSIGN_OR_RETURN(const v1::TensorSource source, ResolveOperand(field, name, sources_));
  resolved_[name] = source;
  return source;
}

absl::Status TracePlayer::Open() {
  v1::OpenSessionRequest request;
  *request.mutable_spec() = trace_.spec();
  request.set_lease_seconds(lease_seconds_);
  for (const auto& [name, tensor] : trace_.parameters()) {
    QG_ASSIGN_OR_RETURN((*request.mutable_parameters())[name],
                        Source(absl::StrCat("SPEC: parameters[", name, "]"), tensor));
  }
  for (size_t i = 0; i < variants_.size(); ++i) {
    *request.mutable_spec() = trace_.spec();
    *request.mutable_spec()->mutable_recipe() = variants_[i].recipe();
    request.mutable_spec()->set_backward_override(variants_[i].backward_override());
    request.mutable_spec()->set_arithmetic(variants_[i].arithmetic());
    SetRanks(variants_[i].has_parallel() ? &variants_[i].parallel() : nullptr,
             *request.mutable_spec());
    absl::StatusOr<ClientSession> session = ClientSession::Open(connection_, request);
    if (!session.ok()) return At(report_.variants[i], session.status());
    sessions_.push_back(*std::move(session));
    for (const std::string& note : sessions_.back().session().notes()) AddNote(i, note);
  }
  return absl::OkStatus();
}

void TracePlayer::AddNote(size_t variant, const std::string& note) {
  const std::string text = absl::StrCat(report_.variants[variant], ": ", note);
  const bool is_known =
      std::find(report_.notes.begin(), report_.notes.end(), text) != report_.notes.end();
  if (!is_known) report_.notes.push_back(text);
}

/// Each parameter by its own name, quantized ones dequantized.
absl::StatusOr<TracePlayer::Tensors> TracePlayer::Parameters(int variant) {
  Tensors tensors;
  v1::GetSessionRequest request;
  request.set_session_id(sessions_[variant].id());
  std::vector<std::string> names;
  for (const auto& [name, tensor] : trace_.parameters()) names.push_back(name);
  std::sort(names.begin(), names.end());  // A proto map has no order.
  for (const std::string& name : names) {
    request.set_tensor(name);
    QG_ASSIGN_OR_RETURN(const v1::Session session, connection_.GetSession(request));
    tensors.push_back(session.tensor());
  }
  return tensors;
}

absl::Status TracePlayer::Restart(int variant, const v1::SessionTrace::Restart& restart) {
  const auto& chosen = restart.variants();
  const bool is_chosen =
      chosen.empty() || std::find(chosen.begin(), chosen.end(), variant) != chosen.end();
  if (!is_chosen) return absl::OkStatus();
  ClientSession& session = sessions_[variant];
  if (restart.has_parallel()) *variants_[variant].mutable_parallel() = restart.parallel();
  v1::RestoreSessionRequest request;
  request.set_lease_seconds(lease_seconds_);
  v1::SessionSpec& spec = *request.mutable_spec();
  spec = trace_.spec();
  // The recipe that it has now, with every knob.
  v1::GetSessionRequest get;
  get.set_session_id(session.id());
  QG_ASSIGN_OR_RETURN(const v1::Session now, connection_.GetSession(get));
  *spec.mutable_recipe() = now.spec().recipe();
  spec.clear_backward_override();
  spec.set_arithmetic(variants_[variant].arithmetic());
  SetRanks(variants_[variant].has_parallel() ? &variants_[variant].parallel() : nullptr, spec);
  QG_ASSIGN_OR_RETURN(const v1::CheckpointResponse checkpoint, session.Checkpoint());
  *request.mutable_checkpoint() = checkpoint.digest();
  QG_ASSIGN_OR_RETURN(ClientSession restored, ClientSession::Restore(connection_, request));
  (void)session.Close();
  session = std::move(restored);
  report_.notes.push_back(absl::StrCat(
      "step ", report_.steps.size(), " of ", report_.variants[variant], ": goes on as ",
      VariantText(variants_[variant]), " from checkpoint ", DigestText(checkpoint.digest())));
  return absl::OkStatus();
}

absl::StatusOr<TracePlayer::Tensors> TracePlayer::PlayVariant(
    int variant, const ProtoStep& step, const v1::SessionStepRequest& request) {
  if (!step.has_restart()) return StepVariant(variant, request);
  QG_RETURN_IF_ERROR(Restart(variant, step.restart()));
  return Parameters(variant);
}

absl::StatusOr<TracePlayer::Tensors> TracePlayer::StepVariant(
    int variant, const v1::SessionStepRequest& request) {
  QG_ASSIGN_OR_RETURN(const v1::SessionStepResponse response, sessions_[variant].Step(request));
  const int step = static_cast<int>(report_.steps.size()) - 1;
  for (const v1::QuantizationRecord& record : response.quantizations()) {
    report_.quantizations.push_back({step, variant, -1, record});
  }
  for (const v1::RankReport& rank : response.ranks()) {
    for (const v1::QuantizationRecord& record : rank.quantizations()) {
      report_.quantizations.push_back({step, variant, rank.rank(), record});
    }
    for (const v1::OverlapReport& overlap : rank.overlaps()) {
      report_.overlaps.push_back({step, variant, rank.rank(), overlap});
    }
  }
  if (response.has_memory()) report_.memories.push_back({step, variant, response.memory()});
  for (const std::string& difference : response.rank_differences()) {
    report_.rank_differences.push_back(
        absl::StrCat("step ", step + 1, " of ", report_.variants[variant], ": ", difference));
    report_.notes.push_back(report_.rank_differences.back());
  }
  for (const std::string& note : response.notes()) AddNote(static_cast<size_t>(variant), note);
  if (request.has_optimize()) return Parameters(variant);
  return Tensors(response.outputs().begin(), response.outputs().end());
}

absl::Status TracePlayer::Compare(int variant, const Tensors& subjects, const Tensors& references) {
  const int step = static_cast<int>(report_.steps.size()) - 1;
  for (const v1::NamedTensor& subject : subjects) {
    const auto reference = std::find_if(
        references.begin(), references.end(),
        [&](const v1::NamedTensor& tensor) { return tensor.name() == subject.name(); });
    if (reference == references.end()) continue;
    QG_ASSIGN_OR_RETURN(
        SubjectComparison comparison,
        CompareSides(connection_, subject.name(), TraceSideOf(subject, report_.variants[variant]),
                     TraceSideOf(*reference, report_.variants[report_.reference])));
    if (comparison.result.has_error()) {
      comparison.result.mutable_error()->clear_heat_map();
      comparison.result.mutable_error()->clear_worst_blocks();
    }
    report_.tensors.push_back({step, variant, std::move(comparison)});
  }
  return absl::OkStatus();
}

absl::Status TracePlayer::Play(const ProtoStep& step, int round) {
  report_.steps.push_back({round, std::string(KindOf(step)->name()), MicrobatchOf(step)});
  v1::SessionStepRequest request;
  if (!step.has_restart()) request = RequestOf(step);
  // Every round plays the same steps.
  const int index = static_cast<int>(report_.steps.size() - 1) % trace_.steps_size();
  const std::string at = absl::StrCat("SPEC: steps[", index, "].");
  if (!step.x().empty()) {
    QG_ASSIGN_OR_RETURN(*request.mutable_forward()->mutable_x(), Source(at + "x", step.x()));
  }
  if (!step.grad_output().empty()) {
    QG_ASSIGN_OR_RETURN(*request.mutable_backward()->mutable_grad_output(),
                        Source(at + "grad_output", step.grad_output()));
  }
  std::vector<Tensors> outputs;
  for (int i = 0; i < static_cast<int>(sessions_.size()); ++i) {
    absl::StatusOr<Tensors> tensors = PlayVariant(i, step, request);
    if (!tensors.ok()) {
      return At(absl::StrCat(report_.variants[i], ", step ", report_.steps.size(), " (",
                             report_.steps.back().kind, ")"),
                tensors.status());
    }
    outputs.push_back(*std::move(tensors));
  }
  for (int i = 0; i < static_cast<int>(sessions_.size()); ++i) {
    if (i == report_.reference) continue;
    QG_RETURN_IF_ERROR(Compare(i, outputs[i], outputs[report_.reference]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTrace(const v1::SessionTrace& trace) {
  if (trace.steps().empty()) return absl::InvalidArgumentError("SPEC: steps: none");
  if (trace.rounds() < 0 || trace.rounds() > kTraceStepsMax / trace.steps_size()) {
    return absl::InvalidArgumentError(absl::StrCat("SPEC: rounds: ", trace.rounds(), " of ",
                                                   trace.steps_size(), " steps; from 0 to ",
                                                   kTraceStepsMax, " steps in all"));
  }
  const bool has_recipe = trace.spec().has_recipe() || !trace.spec().backward_override().empty();
  if (!trace.variants().empty() && has_recipe) {
    return absl::InvalidArgumentError(
        "SPEC: spec.recipe: given beside variants, each of which names its own recipe");
  }
  if (trace.variants().empty() && !trace.spec().has_recipe()) {
    return absl::InvalidArgumentError("SPEC: variants: none, and no spec.recipe either");
  }
  const int count = std::max(1, trace.variants_size());
  if (trace.reference() < 0 || trace.reference() >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("SPEC: reference: ", trace.reference(), " is no variant; there are ", count));
  }
  for (int i = 0; i < trace.steps_size(); ++i) {
    for (const int32_t variant : trace.steps(i).restart().variants()) {
      if (variant >= 0 && variant < count) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "SPEC: steps[", i, "].restart.variants: ", variant, " is none of ", count, " variants"));
    }
    QG_RETURN_IF_ERROR(CheckStep(trace.steps(i), absl::StrCat("steps[", i, "]")));
  }
  return absl::OkStatus();
}

absl::StatusOr<TraceReport> PlayTrace(Connection& connection, const v1::SessionTrace& trace,
                                      TensorSources& sources, int lease_seconds,
                                      const TraceProgress& progress) {
  QG_RETURN_IF_ERROR(CheckTrace(trace));
  TracePlayer player(connection, trace, sources, lease_seconds);
  QG_RETURN_IF_ERROR(player.Open());
  const int rounds = std::max(1, trace.rounds());
  const int count = rounds * trace.steps_size();
  for (int done = 0; done < count; ++done) {
    progress(done, count);
    QG_RETURN_IF_ERROR(
        player.Play(trace.steps(done % trace.steps_size()), 1 + done / trace.steps_size()));
  }
  return player.TakeReport();
}

v1::Verdict JudgeTrace(const TraceReport& report) {
  std::vector<SubjectComparison> comparisons;
  for (const TraceTensor& tensor : report.tensors) {
    SubjectComparison& comparison = comparisons.emplace_back(tensor.comparison);
    comparison.tensor = absl::StrCat("step ", tensor.step + 1, ": ", comparison.tensor, " of ",
                                     report.variants[tensor.variant]);
  }
  v1::Verdict verdict = JudgeComparisons(comparisons, std::nullopt);
  if (report.rank_differences.empty()) return verdict;
  verdict.set_pass(false);
  verdict.set_found(verdict.found() == "0"
                        ? report.rank_differences.front()
                        : absl::StrCat(verdict.found(), ", ", report.rank_differences.front()));
  verdict.set_finding(report.rank_differences.front());
  return verdict;
}

}  // namespace quantgate
