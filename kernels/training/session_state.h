// The state of a session, as a value. A step works on a copy that shares the tensors, and the copy
// replaces the original when the step has succeeded. So a step that fails has changed nothing.
// Private to kernels/training.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/layer/delayed_states.h"
#include "kernels/training/sharding/sharded_weight.h"
#include "kernels/training/training_session.h"

namespace quantgate {

/// What training keeps of one parameter beside the parameter itself.
struct TrainedParameter {
  Tensor master;      ///< Masters::kF32.
  SplitTensor split;  ///< Masters::kBf16Remainder.
  Tensor exp_avg;     ///< Adam: f32, from the start.
  Tensor exp_avg_sq;  ///< Adam: f32, from the start.
  Tensor momentum;    ///< SGD with momentum: f32, from the first update on.
  Tensor gradient;    ///< The sum since the last update; main gradients are in LayerState.
  bool has_main_gradient = false;  ///< A wgrad went into its main gradient since the last update.
};

/// A parameter that the copies of its layer divide: each has a part
/// (kernels/training/sharding/division.h).
struct DividedParameter {
  enum class By {
    kRows,      ///< Rows of a weight (also in LayerState::parameters), its master and its moments.
    kElements,  ///< Row-major elements of master and moments.
  };
  By by = By::kRows;
  DType dtype = DType::kBF16;
  /// Describes the parameter, or its tensor-parallel part. `bounds` are those of rows or of
  /// elements. `quantizer` is set only for kRows with storage kQuantized.
  ShardedWeightSpec weight = {};
  bool by_rows() const { return by == By::kRows; }
  bool is_quantized() const { return weight.storage == WeightStorage::kQuantized; }
};

struct SessionLayerState {
  LayerState state;  ///< Delayed scaling's states are those of the current recipe.
  std::map<std::string, TrainedParameter> trained;  ///< By parameter.
  std::map<std::string, DividedParameter> divided =
      {};  ///< By parameter; empty if none is divided.
};

/// What activation checkpointing needs to repeat a forward, as the first phase found it.
struct Recomputation {
  Recipe recipe;
  ForwardStep step;
  uint32_t first_call_id = 0;
  std::vector<LayerState> layers;
  std::shared_ptr<const ParallelStep> parallel = nullptr;
  SavedMarkPointer x_mark = {};
  std::vector<SavedOperand> saved = {};  ///< The first phase's, to be compared with the second's.
  std::vector<SessionOperand> left_out = {};  ///< What the first phase did not save.
  /// The layers' states at that time, with only the weights that this rank has rows of.
  std::vector<SessionLayerState> divided = {};
};

/// A gathered weight that a forward saved, after this rank's rows have replaced it in what the
/// forward saved.
struct ReshardedWeight {
  struct Part {
    std::string name;  ///< SavedPart::name.
    size_t place = 0;  ///< Which tensor of the gathered parameter the part was.
    size_t from = 0;   ///< Which tensor of this rank's rows the part is now.
  };
  size_t layer = 0;
  std::string parameter;
  DividedParameter divided;
  Parameter rows = {};  ///< Its tensors are absent: the parts have them.
  std::vector<Part> parts = {};
};

/// A forward that waits for its backward.
struct InFlight {
  int64_t recipe_number = 0;  ///< SessionState::recipe_number of its forward.
  Shape y_shape;
  /// By layer; empty if the forward is recomputed. Never written to: backward takes clones.
  std::vector<std::shared_ptr<LayerSaved>> saved;
  std::shared_ptr<const Recomputation> recomputation;
  bool is_offloaded = false;
  std::vector<ReshardedWeight> resharded = {};
};

/// A layer's weight gradients that wait for the wgrad step.
struct DeferredWgrad {
  size_t layer = 0;
  std::shared_ptr<LayerSaved> saved;
};

struct SessionState {
  Recipe recipe;
  int64_t recipe_number = 0;  ///< Counts the changes.
  std::vector<SessionLayerState> layers = {};
  /// Delayed scaling's states, by layer, of recipes that only forwards in flight still follow; by
  /// recipe_number.
  std::map<int64_t, std::vector<DelayedStates>> retired_delayed = {};
  std::map<std::string, std::shared_ptr<const InFlight>> in_flight = {};
  std::vector<DeferredWgrad> deferred = {};
  uint32_t next_call_id = 0;
  int64_t optimizer_steps = 0;
  int64_t step_count = 0;
  // SavedMemory::peak and peak_step.
  int64_t saved_peak = 0;
  int64_t saved_peak_step = 0;
};

/// The last forward that passed the checks: what their result depends on beside the session's spec.
/// A forward like it need not be checked again.
struct CheckedForward {
  Recipe recipe;
  DType x_dtype = DType::kBF16;
  Shape x_shape;
  bool train = true;
  bool calibrate = false;
  RequiresGrad requires_grad;
  // What the step's ParallelStep says; defaults where there is none.
  OverlapPlan column_overlap, row_overlap;
  AmaxGroups amax_groups;
  Shape y_shape;  ///< What the checks gave.

  /// `parallel`: the ranks that the forward is to have, or null.
  bool IsLike(const ForwardStep& step, const Recipe& under, const ParallelStep* parallel) const {
    const ParallelStep alone;
    const ParallelStep& ranks = parallel == nullptr ? alone : *parallel;
    return step.x.has_value() && step.x.dtype() == x_dtype && step.x.shape() == x_shape &&
           step.train == train && step.calibrate == calibrate &&
           step.requires_grad == requires_grad && ranks.column_overlap == column_overlap &&
           ranks.row_overlap == row_overlap && ranks.amax_groups == amax_groups &&
           under.name() == recipe.name() && under.knobs() == recipe.knobs();
  }
};

/// One rank of a session on several ranks, with its ends of the groups. The groups are made anew
/// after a step that failed.
struct SessionRank {
  int index = 0;                             ///< The number of this rank among all ranks.
  std::shared_ptr<const ParallelStep> step;  ///< The step of later forwards; null if undivided.
  ProcessGroup* all = nullptr;  ///< All ranks; delayed scaling reduces amaxes over them.
  /// The ranks with the same part of layers whose experts are not divided; null if it is alone.
  ProcessGroup* copies = nullptr;
  /// The ranks that divide one copy of the experts, possibly this rank alone. Null under tensor
  /// parallelism, which does not divide experts.
  ProcessGroup* experts = nullptr;
  ProcessGroup* expert_copies = nullptr;  ///< The ranks with the same experts; null if it is alone.
  /// The session's amax group of weights that are held quantized, whichever groups forwards name;
  /// null if none.
  ProcessGroup* held_weights = nullptr;
};

class OneRankSession::State {
 public:
  State(Engine& engine_in, SessionSpec spec_in, SeededFaults faults_in, SessionState now_in,
        std::shared_ptr<const SessionRank> rank_in = nullptr)
      : engine(engine_in),
        spec(std::move(spec_in)),
        faults(std::move(faults_in)),
        now(std::move(now_in)),
        rank(std::move(rank_in)) {}

  /// Null: layers are not divided.
  std::shared_ptr<const ParallelStep> parallel() const {
    return rank == nullptr ? nullptr : rank->step;
  }

  Engine& engine;
  const SessionSpec spec;  ///< Its recipe is the one that the session began with.
  const SeededFaults faults;
  int64_t bytes_max = std::numeric_limits<int64_t>::max();
  SessionState now;
  /// The layers whose experts' weights were given as one tensor; their gradients are stacked too.
  std::set<size_t> stacked_layers = {};
  std::optional<CheckedForward> checked_forward;  ///< The last one.
  const std::shared_ptr<const SessionRank> rank;  ///< Null in a session on one rank.
};

using TensorVisitor = absl::FunctionRef<void(const std::string& name, Tensor& tensor)>;
/// Visits every place that can hold a tensor of the state between steps, absent tensors included,
/// in a fixed order. Leaves out what VisitTensorsInFlight visits.
void VisitTensors(const SessionSpec& spec, SessionState& state, TensorVisitor visit);
/// The names that VisitTensors gives for tensors that are not absent.
std::set<std::string> HeldNames(const SessionSpec& spec, SessionState& state);
/// Visits the tensors held by microbatches in flight, by deferred gradients and for retired
/// recipes: "in_flight.MICROBATCH.LAYER.PART".
void VisitTensorsInFlight(const SessionSpec& spec, const SessionState& state, TensorVisitor visit);
/// VisitTensors and VisitTensorsInFlight, without absent tensors.
void VisitHeldTensors(const SessionSpec& spec, SessionState& state, TensorVisitor visit);
/// The bytes of all held tensors; a buffer that several tensors share counts once.
int64_t BytesOf(const SessionSpec& spec, SessionState& state);
/// The bytes of what `more` holds and `state` does not, counted likewise.
int64_t BytesBeside(const SessionSpec& spec, SessionState& state, SessionState& more);

/// Visits the tensors of one layer's state, without what training keeps beside parameters.
void VisitLayerState(const LayerState& state, TensorVisitor visit);

/// What the state holds for backwards, and the peak so far. `recomputed`: what a backward that
/// repeats its forward has saved again, by layer.
SavedMemory SavedMemoryOf(const SessionSpec& spec, SessionState& state,
                          const std::vector<std::shared_ptr<LayerSaved>>& recomputed = {});
/// What a recomputed forward does not save of `saved`, by layer, beside what `state` and its own x
/// hold.
std::vector<SessionOperand> LeftOutOf(const SessionSpec& spec, SessionState& state,
                                      const Recomputation& recomputation,
                                      const std::vector<std::shared_ptr<LayerSaved>>& saved);
/// Notes that SavedMemory::added was `bytes` at a moment of this step.
void NotePeak(int64_t bytes, int64_t step, SessionState& next);

/// What kind of tensor of the state a tensor is.
struct TensorPlace {
  enum class Kind {
    kParameter,  ///< A parameter's value, master or moment; it has the parameter's shape.
    kGradient,   ///< The sum of gradients since the last update; it has the parameter's shape.
    kCodes,      ///< Data or block scales of one direction of a quantized weight.
    kAmax,       ///< The amaxes that the scales of one direction were made from.
    kScale,      ///< A scale of a whole quantized weight, or its inverse.
    kDelayed,    ///< A scale of delayed scaling.
    kHistory,    ///< An amax history of delayed scaling.
  };
  Kind kind = Kind::kDelayed;
  size_t layer = 0;
  std::string parameter = {};  ///< Empty for kDelayed and kHistory.
  // Set for kCodes, kAmax and kScale; a scale of both directions has that of the first.
  const QuantizedTensor* quantized = nullptr;
  Usage usage = Usage::kRowwise;
};
using PlaceVisitor =
    absl::FunctionRef<void(const TensorPlace& place, const std::string& name, Tensor& tensor)>;
/// VisitTensors, saying what each tensor is.
void VisitPlaces(const SessionSpec& spec, SessionState& state, PlaceVisitor visit);

/// Visits the tensors of each direction of a quantized tensor, under names that begin with `name`.
void VisitQuantized(const std::string& name, QuantizedTensor& quantized, TensorVisitor visit);

/// Whether a parameter is a weight: only weights are quantized and have main gradients.
bool IsWeight(const std::string& parameter);
/// The parameter's name with another word (ParameterName::word): for "dw", "fc1.weight" gives
/// "fc1.dw" and "weight.0" gives "dw.0".
std::string WithLastWord(const std::string& parameter, const std::string& word);
/// The name of a parameter's gradient: "fc1.dw" of "fc1.weight", "db.0" of "bias.0".
std::string GradientOf(const std::string& parameter);

}  // namespace quantgate
