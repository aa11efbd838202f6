// What a session holds, as a value. A step works on a copy, which shares the tensors, and the copy
// takes the original's place when the step has succeeded: a step that fails has changed nothing.
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
  Tensor exp_avg;     ///< Adam: f32, from the start,
  Tensor exp_avg_sq;  ///< and likewise.
  Tensor momentum;    ///< SGD with momentum: f32, from the first update on.
  Tensor gradient;    ///< The sum since the last update; main gradients are in LayerState.
  bool has_main_gradient = false;  ///< A wgrad went into its main gradient since the last update.
};

/// A parameter of which the copies of its layer have a part each
/// (kernels/training/sharding/division.h).
struct DividedParameter {
  enum class By {
    kRows,      ///< A weight, in LayerState::parameters too, its master and its moments.
    kElements,  ///< Master and moments: the row-major elements.
  };
  By by = By::kRows;
  DType dtype = DType::kBF16;
  /// Of the parameter, or of its tensor-parallel part; `bounds` of what is divided. The quantizer
  /// is of rows of a weight with storage kQuantized alone.
  ShardedWeightSpec weight = {};
  bool by_rows() const { return by == By::kRows; }
  bool is_quantized() const { return weight.storage == WeightStorage::kQuantized; }
};

struct SessionLayerState {
  LayerState state;  ///< Delayed scaling's states are those of the current recipe.
  std::map<std::string, TrainedParameter> trained;       ///< By parameter.
  std::map<std::string, DividedParameter> divided = {};  ///< Likewise; empty: a copy has all.
};

/// What activation checkpointing forwards again, as the first phase found it.
struct Recomputation {
  Recipe recipe;
  ForwardStep step;
  uint32_t first_call_id = 0;
  std::vector<LayerState> layers;
  std::shared_ptr<const ParallelStep> parallel = nullptr;
  SavedMarkPointer x_mark = {};
  std::vector<SavedOperand> saved = {};  ///< By the first phase, to be compared with the second's.
  /// Of the layers' states then only weights of which this rank has rows.
  std::vector<SessionLayerState> divided = {};
};

/// A weight as a forward read it, of which this rank's rows are kept in what the forward saved.
struct ReshardedWeight {
  struct Part {
    std::string name;  ///< SavedPart::name.
    size_t place = 0;  ///< Which of the gathered parameter's tensors it was,
    size_t from = 0;   ///< and which of the rows' it is now.
  };
  size_t layer = 0;
  std::string parameter;
  DividedParameter divided;
  Parameter rows = {};  ///< Without tensors: those are the parts.
  std::vector<Part> parts = {};
};

/// A forward that waits for its backward.
struct InFlight {
  int64_t recipe_number = 0;  ///< SessionState::recipe_number of its forward.
  Shape y_shape;
  /// By layer; empty where the forward is recomputed. Never written to: backward takes clones.
  std::vector<std::shared_ptr<LayerSaved>> saved;
  std::shared_ptr<const Recomputation> recomputation;
  bool is_offloaded = false;
  std::vector<ReshardedWeight> resharded = {};
};

/// A backward's weight gradients that wait for the wgrad step.
struct DeferredWgrad {
  size_t layer = 0;
  std::shared_ptr<LayerSaved> saved;
};

struct SessionState {
  Recipe recipe;
  int64_t recipe_number = 0;  ///< Counts the changes.
  std::vector<SessionLayerState> layers = {};
  /// Delayed scaling's states by layer under recipes that only forwards in flight still follow.
  std::map<int64_t, std::vector<DelayedStates>> retired_delayed = {};
  std::map<std::string, std::shared_ptr<const InFlight>> in_flight = {};
  std::vector<DeferredWgrad> deferred = {};
  uint32_t next_call_id = 0;
  int64_t optimizer_steps = 0;
  int64_t step_count = 0;
};

/// A forward that was found in order: what that depends on beside what a session keeps as it was
/// opened.
struct CheckedForward {
  Recipe recipe;
  DType x_dtype = DType::kBF16;
  Shape x_shape;
  bool train = true;
  bool calibrate = false;
  RequiresGrad requires_grad;
  Shape y_shape;  ///< What the checks gave.

  bool IsLike(const ForwardStep& step, const Recipe& under) const {
    return step.x.has_value() && step.x.dtype() == x_dtype && step.x.shape() == x_shape &&
           step.train == train && step.calibrate == calibrate &&
           step.requires_grad == requires_grad && under.name() == recipe.name() &&
           under.knobs() == recipe.knobs();
  }
};

/// One rank of a session on several: its ends of their groups, which change when a step has failed
/// and the groups are made anew.
struct SessionRank {
  int index = 0;                             ///< Among all ranks.
  std::shared_ptr<const ParallelStep> step;  ///< Of every forward; null: layers are not divided.
  ProcessGroup* all = nullptr;  ///< All ranks, whose amaxes of delayed scaling are one.
  /// Those with the same part of layers whose experts are not divided; null: no others.
  ProcessGroup* copies = nullptr;
  /// Those that have one copy of the experts, this rank alone among them; null where nobody can.
  ProcessGroup* experts = nullptr;
  ProcessGroup* expert_copies = nullptr;  ///< Those with the same experts; null: no others.
  /// The session's amax group of weights that are held quantized, whatever forwards name; null:
  /// none.
  ProcessGroup* held_weights = nullptr;
};

class TrainingSession::State {
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
  std::optional<CheckedForward> checked_forward;  ///< The last one.
  const std::shared_ptr<const SessionRank> rank;  ///< Null: there are no others.
};

/// Every place that can hold a tensor of the state between steps, absent ones included, by name in
/// a fixed order. Microbatches in flight are not in it.
using TensorVisitor = absl::FunctionRef<void(const std::string& name, Tensor& tensor)>;
void VisitTensors(const SessionSpec& spec, SessionState& state, TensorVisitor visit);
/// Of what is not absent.
std::set<std::string> HeldNames(const SessionSpec& spec, SessionState& state);
/// Both, without what is absent.
void VisitHeldTensors(const SessionSpec& spec, SessionState& state, TensorVisitor visit);
/// Of every buffer once.
int64_t BytesOf(const SessionSpec& spec, SessionState& state);
/// What microbatches in flight and deferred gradients hold: "in_flight.MICROBATCH.LAYER.PART".
void VisitTensorsInFlight(const SessionSpec& spec, const SessionState& state, TensorVisitor visit);

/// What a tensor of the state is.
struct TensorPlace {
  enum class Kind {
    kParameter,  ///< Of the parameter's shape: its value, a master, a moment.
    kGradient,   ///< Likewise: what backwards have added up since the last update.
    kCodes,      ///< Data or block scales of one direction of a quantized weight.
    kAmax,       ///< What the scales of such a direction were made from.
    kScale,      ///< One of the whole quantized weight.
    kDelayed,    ///< A scale of delayed scaling.
    kHistory,    ///< Its amaxes.
  };
  Kind kind = Kind::kDelayed;
  size_t layer = 0;
  std::string parameter = {};  ///< All but kDelayed and kHistory.
  // kCodes, kAmax; kScale of one direction.
  const QuantizedTensor* quantized = nullptr;
  Usage usage = Usage::kRowwise;
};
using PlaceVisitor =
    absl::FunctionRef<void(const TensorPlace& place, const std::string& name, Tensor& tensor)>;
/// VisitTensors with what each tensor is.
void VisitPlaces(const SessionSpec& spec, SessionState& state, PlaceVisitor visit);

/// The tensors of one direction of a quantized tensor below `name`.
void VisitQuantized(const std::string& name, QuantizedTensor& quantized, TensorVisitor visit);

/// Whether a parameter is a weight: what is quantized and has a main gradient.
bool IsWeight(const std::string& parameter);
/// "fc1.weight" with last word "dw": "fc1.dw"; "weight.0": "dw.0".
std::string WithLastWord(const std::string& parameter, const std::string& word);
/// "dw" of a weight, "db", "dgamma", "dbeta", with what is around the last word.
std::string GradientOf(const std::string& parameter);

}  // namespace quantgate
