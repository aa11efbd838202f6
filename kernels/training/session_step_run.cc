#include "kernels/training/session_step_run.h"

#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layer/delayed_reduction.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/session_faults.h"
#include "kernels/training/sharding/shard_faults.h"
#include "kernels/training/sharding/state_sharding.h"

namespace quantgate {
namespace {

template <typename Record>
void Append(std::vector<Record> from, std::vector<Record>& to) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

void AddPrefix(const std::string& prefix, StepRecords& records) {
  VisitNames(records, [&](std::string& name) {
    if (!name.empty()) name = prefix + name;
  });
}

/// The recipe with the other of the two update rules.
absl::StatusOr<Recipe> WithOtherUpdate(const Recipe& recipe) {
  Recipe::Knobs knobs = recipe.knobs();
  const bool is_fused = recipe.delayed_scaling().update == ScaleUpdate::kFused;
  knobs["update"] = is_fused ? "unfused" : "fused";
  return Recipe::Create(recipe.name(), knobs);
}

absl::Status ForgetInfinities(Engine& engine, const Cancellation* cancellation,
                              DelayedStates& states) {
  for (auto& [name, state] : states) {
    QG_ASSIGN_OR_RETURN(const Tensor history, engine.ToHost(state.amax_history, cancellation));
    QG_ASSIGN_OR_RETURN(Tensor finite,
                        Tensor::FromBytes(history.dtype(), history.shape(), history.bytes()));
    for (int64_t row = 0; row < finite.element_count(); ++row) {
      float& amax = finite.as<float>()[row];
      if (std::isinf(amax)) amax = 0;
    }
    QG_ASSIGN_OR_RETURN(state.amax_history, engine.ToDevice(finite, cancellation));
  }
  return absl::OkStatus();
}

}  // namespace

void VisitNames(StepRecords& records, absl::FunctionRef<void(std::string& name)> visit) {
  for (GemmRecord& gemm : records.gemms) {
    visit(gemm.output);
    visit(gemm.a.tensor);
    visit(gemm.b.tensor);
  }
  for (SavedOperand& saved : records.saved) visit(saved.name);
  for (QuantizationRecord& quantization : records.quantizations) visit(quantization.tensor);
  for (TimedStage& stage : records.stages) visit(stage.stage);
  for (StageTimeline& timeline : records.timelines) visit(timeline.stage);
}

SessionStepRun::SessionStepRun(Engine& engine, const SessionSpec& spec,
                               const Cancellation* cancellation, const SessionRank* rank)
    : spec_(spec), rank_(rank), recorder_(engine, spec.arithmetic, cancellation) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    layers_.push_back(std::make_unique<StepRecorder>(engine, spec.arithmetic, cancellation));
    layers_.back()->ShareGathered(recorder_);
  }
}

absl::StatusOr<StepRecords> SessionStepRun::Finish() {
  QG_ASSIGN_OR_RETURN(StepRecords all, recorder_.Finish());
  for (size_t i = 0; i < layers_.size(); ++i) {
    QG_ASSIGN_OR_RETURN(StepRecords records, layers_[i]->Finish());
    layer(i).NameExpertsOfWhole(records);
    AddPrefix(spec_.layers[i].name + ".", records);
    Append(std::move(records.gemms), all.gemms);
    Append(std::move(records.saved), all.saved);
    Append(std::move(records.quantizations), all.quantizations);
    Append(std::move(records.stages), all.stages);
    Append(std::move(records.timelines), all.timelines);
    for (const std::string& note : records.notes) {
      all.notes.push_back(absl::StrCat(spec_.layers[i].name, ": ", note));
    }
  }
  return all;
}

uint64_t CallIdsOfSession(const SessionSpec& spec) {
  uint64_t count = 0;
  for (const SessionLayer& layer : spec.layers) count += CallIdsOf(layer.spec);
  return count;
}

absl::StatusOr<ForwardPass> ForwardLayers(SessionStepRun& run, const SessionSpec& spec,
                                          const ForwardPlan& plan,
                                          std::vector<LayerState>& layers) {
  ForwardPass pass;
  pass.y = plan.step.x;
  uint32_t call_id = plan.first_call_id;
  for (size_t i = 0; i < layers.size(); ++i) {
    const SessionLayer& layer = spec.layers[i];
    const StepOptions options{.recipe = plan.recipe,
                              .grad_enabled = plan.step.train,
                              .requires_grad = plan.requires_grad[i],
                              .microbatch = plan.step.is_first,
                              .calibrate = plan.step.calibrate,
                              .seed = spec.seed,
                              .first_call_id = call_id,
                              .defer_wgrad = plan.step.defer_wgrad,
                              .parallel = plan.parallel};
    call_id += CallIdsOf(layer.spec);
    const StepOperand x = i == 0 ? StepOperand(pass.y, plan.step.x_codes) : StepOperand(pass.y);
    absl::StatusOr<ForwardResult> result =
        run.layer(i).Forward(run.recorder(i), layers[i], x, options);
    if (!result.ok()) return InLayer(layer, result.status());
    pass.y = std::move(result->y);
    if (result->norm_out.has_value()) {
      pass.norm_outs.push_back({layer.name + ".norm_out", std::move(result->norm_out)});
    }
    pass.saved.push_back(std::move(result->saved));
  }
  return pass;
}

absl::Status ReduceLayerAmaxes(SessionStepRun& run, const OneRankSession::State& session,
                               const Recipe& recipe, const ParallelStep* step, UpdatePoint point,
                               std::vector<LayerState>& layers) {
  if (session.rank == nullptr) return absl::OkStatus();
  // An expert gets the rows of all ranks of its copy, so its amaxes are those of the whole copy.
  std::vector<ReducedLayer> reduced, experts;
  for (size_t i = 0; i < layers.size(); ++i) {
    (DividesExperts(session.spec, i) ? experts : reduced)
        .push_back({&session.spec.layers[i].spec, &layers[i]});
  }
  QG_RETURN_IF_ERROR(
      ReduceDelayedAmaxes(run.recorder(), session.rank->all, reduced, recipe, point, step));
  return ReduceDelayedAmaxes(run.recorder(), session.rank->expert_copies, experts, recipe, point,
                             step);
}

absl::Status UpdateLayerScales(SessionStepRun& run, const OneRankSession::State& session,
                               const Recipe& recipe, const ParallelStep* step, UpdatePoint point,
                               std::vector<LayerState>& layers) {
  const SeededFaults& faults = session.faults;
  if (point == UpdatePoint::kBackward && faults.Has(kFaultBackwardUpdateSkipped)) {
    return absl::OkStatus();
  }
  Recipe rule = recipe;
  if (recipe.is_delayed() && faults.Has(kFaultUpdateRuleSwapped)) {
    QG_ASSIGN_OR_RETURN(rule, WithOtherUpdate(recipe));
  }
  QG_RETURN_IF_ERROR(ReduceLayerAmaxes(run, session, rule, step, point, layers));
  for (size_t i = 0; i < layers.size(); ++i) {
    QG_RETURN_IF_ERROR(
        UpdateScales(run.recorder(i), session.spec.layers[i].spec, layers[i], rule, point));
    if (!faults.Has(kFaultInfiniteAmaxForgotten)) continue;
    QG_RETURN_IF_ERROR(
        ForgetInfinities(session.engine, run.recorder().cancellation(), layers[i].delayed));
  }
  return absl::OkStatus();
}

ProcessGroup* GradientGroup(const SessionSpec& spec, size_t layer, const SessionRank& rank,
                            const SeededFaults& faults) {
  const bool is_of_expert = DividesExperts(spec, layer);
  if (is_of_expert && faults.Has(kFaultExpertGradientsSummed)) return rank.copies;
  ProcessGroup* const copies = CopiesOfLayer(spec, layer, rank);
  if (is_of_expert) {
    const bool is_of_copy = copies != nullptr && faults.Has(kFaultExpertGradientsOfCopy);
    return is_of_copy ? rank.experts : copies;
  }
  const bool is_other = faults.Has(kFaultGradientOfOtherGroup) && rank.step != nullptr;
  return copies != nullptr && is_other ? rank.step->tp : copies;
}

absl::StatusOr<Tensor> SumOverRanks(const OneRankSession::State& session, size_t layer,
                                    const std::string& parameter, const Tensor& gradient) {
  if (session.rank == nullptr) return gradient;
  const SessionRank& rank = *session.rank;
  const ReductionProfile& profile = session.spec.parallel->profile;
  Tensor sum = gradient;
  if (IsOfOwnRows(session.spec, layer, parameter)) {
    QG_ASSIGN_OR_RETURN(sum, rank.step->tp->AllReduce(sum, profile));
  }
  ProcessGroup* const copies = GradientGroup(session.spec, layer, rank, session.faults);
  if (copies != nullptr) {
    QG_ASSIGN_OR_RETURN(sum, copies->AllReduce(sum, profile));
  }
  return sum;
}

std::vector<LayerState> LayersUnder(const SessionState& state, int64_t recipe_number) {
  std::vector<LayerState> layers;
  for (const SessionLayerState& layer : state.layers) layers.push_back(layer.state);
  if (recipe_number == state.recipe_number) return layers;
  const std::vector<DelayedStates>& retired = state.retired_delayed.at(recipe_number);
  for (size_t i = 0; i < layers.size(); ++i) layers[i].delayed = retired[i];
  return layers;
}

void KeepDelayed(int64_t recipe_number, std::vector<LayerState>& layers, SessionState& state) {
  for (size_t i = 0; i < layers.size(); ++i) {
    if (recipe_number == state.recipe_number) {
      state.layers[i].state.delayed = std::move(layers[i].delayed);
    } else {
      state.retired_delayed.at(recipe_number)[i] = std::move(layers[i].delayed);
    }
  }
}

void DropRetired(SessionState& state) {
  for (auto retired = state.retired_delayed.begin(); retired != state.retired_delayed.end();) {
    bool is_followed = false;
    for (const auto& [name, flight] : state.in_flight) {
      is_followed |= flight->recipe_number == retired->first;
    }
    retired = is_followed ? std::next(retired) : state.retired_delayed.erase(retired);
  }
}

void NotePeak(int64_t bytes, int64_t step, SessionState& next) {
  if (bytes <= next.saved_peak) return;
  next.saved_peak = bytes;
  next.saved_peak_step = step;
}

absl::Status Commit(SessionState next, OneRankSession::State& session) {
  if (session.bytes_max < std::numeric_limits<int64_t>::max()) {
    const int64_t bytes = BytesOf(session.spec, next);
    if (bytes > session.bytes_max && bytes > BytesOf(session.spec, session.now)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "session: ", bytes, " bytes after this step; it may hold ", session.bytes_max));
    }
  }
  ++next.step_count;
  NotePeak(SavedMemoryOf(session.spec, next).added(), next.step_count, next);
  session.now = std::move(next);
  return absl::OkStatus();
}

}  // namespace quantgate
