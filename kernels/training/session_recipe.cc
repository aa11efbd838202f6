// A change of recipe between steps (docs/sessions.md sections 2, 3 and 4).
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/layer/layer_program.h"
#include "kernels/training/parameter_update.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/session_faults.h"
#include "kernels/training/session_step_run.h"
#include "kernels/training/sharding/division.h"

namespace quantgate {
namespace {

/// The value to which a scale brings the amax: the format's maximum, less the margin.
float ScaledMax(const Recipe& recipe, DType element) {
  const float max_finite = element == DType::kF8E4M3 ? MaxFinite<E4M3>() : MaxFinite<E5M2>();
  return std::ldexp(max_finite, -recipe.delayed_scaling().margin);
}

/// What the layer's delayed scales cast to under the recipe, by the names of their states.
std::map<std::string, DType> ElementsOfStates(const LayerSpec& spec, const Recipe& recipe) {
  std::map<std::string, DType> elements;
  for (const LayerDelayedState& state : DelayedStatesOf(spec, recipe)) {
    elements[state.name] = state.element;
  }
  return elements;
}

bool IsFresh(const DelayedScalingState& state) {
  for (int64_t row = 0; row < state.amax_history.element_count(); ++row) {
    if (state.amax_history.as<float>()[row] != 0) return false;
  }
  return *state.scale.as<float>() == 1.0f;
}

class RecipeChange {
 public:
  RecipeChange(const OneRankSession::State& session, const Recipe& to,
               const Cancellation* cancellation, SessionState& next)
      : session_(session), to_(to), cancellation_(cancellation), next_(next) {}

  absl::Status Run();

 private:
  absl::Status CheckQuantizedWeights() const;
  absl::Status ChangeDelayed(const LayerSpec& spec, SessionLayerState& layer);
  absl::Status RequantizeWeights();
  Quantizer WeightQuantizer(size_t layer, const std::string& weight) const {
    return RecipeOfParameter(session_.spec.layers[layer].spec, to_, weight)
        .QuantizerFor(TensorRole::kWeight);
  }

  const OneRankSession::State& session_;
  const Recipe& to_;
  const Cancellation* const cancellation_;
  SessionState& next_;
};

absl::Status RecipeChange::CheckQuantizedWeights() const {
  for (size_t i = 0; i < next_.layers.size(); ++i) {
    for (const auto& [name, parameter] : next_.layers[i].state.parameters) {
      if (!parameter.is_quantized()) continue;
      const Quantizer quantizer = WeightQuantizer(i, name);
      const std::string path = absl::StrCat(session_.spec.layers[i].name, ".", name);
      if (parameter.quantizer == quantizer || session_.spec.masters != Masters::kNone) continue;
      return RefusePrecondition(
          "recipe", to_.ShortText(),
          absl::StrCat(path, " is held as ", QuantizerText(parameter.quantizer), " by recipe ",
                       next_.recipe.ShortText(), ", would be ", QuantizerText(quantizer),
                       ", and the session has no masters to quantize it from anew: spec.masters is "
                       "none, and must be f32 or bf16_remainder"));
    }
  }
  return absl::OkStatus();
}

absl::Status RecipeChange::ChangeDelayed(const LayerSpec& spec, SessionLayerState& layer) {
  const int length = to_.delayed_scaling().amax_history_len;
  const std::map<std::string, DType> before = ElementsOfStates(spec, next_.recipe),
                                     after = ElementsOfStates(spec, to_);
  std::erase_if(layer.state.delayed, [&](const auto& state) {
    return !before.contains(state.first) || !after.contains(state.first);
  });
  for (auto& [name, state] : layer.state.delayed) {
    for (Tensor* tensor : {&state.scale, &state.amax_history}) {
      QG_ASSIGN_OR_RETURN(*tensor, session_.engine.ToHost(*tensor, cancellation_));
    }
    const bool is_fresh = IsFresh(state);
    QG_ASSIGN_OR_RETURN(state, WithHistoryLength(state, length));
    const float ratio = ScaledMax(to_, after.at(name)) / ScaledMax(next_.recipe, before.at(name));
    // The formats' maxima and the margins differ by powers of two, so this product equals the scale
    // that the last update would have computed, rounding included.
    if (ratio != 1 && !is_fresh) {
      const float scale = *state.scale.as<float>() * ratio;
      const float max = std::numeric_limits<float>::max();
      QG_ASSIGN_OR_RETURN(state.scale, Tensor::FromScalar(std::isinf(scale) ? max : scale));
    }
    for (Tensor* tensor : {&state.scale, &state.amax_history}) {
      QG_ASSIGN_OR_RETURN(*tensor, session_.engine.ToDevice(*tensor, cancellation_));
    }
  }
  return absl::OkStatus();
}

absl::Status RecipeChange::RequantizeWeights() {
  std::vector<size_t> changed;
  for (size_t i = 0; i < next_.layers.size(); ++i) {
    const auto& parameters = next_.layers[i].state.parameters;
    const bool is_of_another_rule =
        std::any_of(parameters.begin(), parameters.end(), [&](const auto& parameter) {
          return parameter.second.is_quantized() &&
                 parameter.second.quantizer != WeightQuantizer(i, parameter.first);
        });
    if (is_of_another_rule) changed.push_back(i);
  }
  if (changed.empty()) return absl::OkStatus();
  if (session_.faults.Has(kFaultCodesKeptAtChange) && to_.name() != next_.recipe.name()) {
    for (const size_t i : changed) {
      for (auto& [name, parameter] : next_.layers[i].state.parameters) {
        if (parameter.is_quantized()) parameter.quantizer = WeightQuantizer(i, name);
      }
    }
    return absl::OkStatus();
  }
  // Rows are divided at blocks of the new rule, as if the session had been opened under it.
  const Division division(session_.engine, session_.spec, session_.rank.get(), session_.faults,
                          cancellation_);
  const bool by_rows = session_.rank != nullptr && session_.spec.parallel->fully_sharded;
  if (by_rows) QG_RETURN_IF_ERROR(division.Join(next_.layers));
  for (const size_t i : changed) {
    ParameterUpdate update(session_.engine, session_.spec, i, to_, session_.faults, cancellation_,
                           session_.rank.get());
    QG_RETURN_IF_ERROR(InLayer(session_.spec.layers[i], update.Requantize(next_.layers[i])));
  }
  return by_rows ? division.Divide(to_, next_.layers) : absl::OkStatus();
}

absl::Status RecipeChange::Run() {
  QG_RETURN_IF_ERROR(to_.CheckForLayers());
  QG_RETURN_IF_ERROR(CheckQuantizedWeights());
  if (session_.spec.weights == WeightStorage::kQuantized) {
    QG_RETURN_IF_ERROR(CheckQuantizedWeightsOf(session_.spec.layers, to_));
  }
  std::vector<DelayedStates> retired;
  for (size_t i = 0; i < next_.layers.size(); ++i) {
    SessionLayerState& layer = next_.layers[i];
    retired.push_back(layer.state.delayed);
    if (to_.name() == next_.recipe.name()) {
      QG_RETURN_IF_ERROR(ChangeDelayed(session_.spec.layers[i].spec, layer));
    } else {
      layer.state.delayed.clear();
    }
    layer.state.workspaces.clear();
  }
  next_.retired_delayed[next_.recipe_number++] = std::move(retired);
  QG_RETURN_IF_ERROR(RequantizeWeights());
  next_.recipe = to_;
  DropRetired(next_);
  return absl::OkStatus();
}

bool OnlyAlgorithmDiffers(const Recipe& a, const Recipe& b) {
  Recipe::Knobs knobs = a.knobs();
  const auto algorithm = b.knobs().find("amax_compute_algo");
  if (algorithm == b.knobs().end()) return false;
  knobs["amax_compute_algo"] = algorithm->second;
  return a.name() == b.name() && knobs == b.knobs();
}

}  // namespace

absl::Status ApplyRecipe(const OneRankSession::State& session, const Recipe& recipe,
                         const Cancellation* cancellation, SessionState& next) {
  return RecipeChange(session, recipe, cancellation, next).Run();
}

absl::Status OneRankSession::ChangeRecipe(const Recipe& recipe, const Cancellation* cancellation) {
  const State& session = *state_;
  SessionState next = session.now;
  const bool is_ignored =
      (session.faults.Has(kFaultKnobChangeIgnored) && recipe.name() == next.recipe.name()) ||
      (session.faults.Has(kFaultAlgorithmChangeIgnored) &&
       OnlyAlgorithmDiffers(recipe, next.recipe));
  if (!is_ignored) {
    // A session keeps the dtype that it computes in.
    const std::optional<DType> x_dtype = session.checked_forward.has_value()
                                             ? session.checked_forward->x_dtype
                                             : DTypeOfParameters(session.now);
    QG_RETURN_IF_ERROR(CheckSessionRecipe(session.spec, next, recipe, session.rank.get(), x_dtype));
    QG_RETURN_IF_ERROR(ApplyRecipe(session, recipe, cancellation, next));
  }
  return Commit(std::move(next), *state_);
}

}  // namespace quantgate
