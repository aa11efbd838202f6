#include "kernels/validate/diagnosis/engine_model.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/activation/activation.h"

namespace quantgate {
namespace {

/// Whether the kind has the activation of LayerSpec::activation.
bool HasActivation(LayerKind kind) {
  return kind == LayerKind::kLayerNormMlp || kind == LayerKind::kTransformerLayer;
}

/// Whether a change of one part of backward changes an output.
bool IsOfScope(ChangeScope scope, const std::string& output) {
  const std::string word = ParameterName::Parse(output).word;
  if (scope == ChangeScope::kDgrad) return word == "dx";
  if (scope == ChangeScope::kWgrad) return word == "dw" || word == "db" || word == "main_grad";
  return true;
}

}  // namespace

absl::StatusOr<TensorsByName> OutputsWithin(ChangeScope scope,
                                            const std::vector<NamedTensor>& outputs,
                                            const TensorsByName& expected, Engine& engine,
                                            const Cancellation* cancellation) {
  TensorsByName within;
  for (const NamedTensor& output : outputs) {
    const auto found = expected.find(output.name);
    if (found != expected.end() && !IsOfScope(scope, output.name)) {
      within[output.name] = found->second;
      continue;
    }
    QG_ASSIGN_OR_RETURN(within[output.name], engine.ToHost(output.tensor, cancellation));
  }
  return within;
}

absl::StatusOr<TensorsByName> EngineLayerModel::Compute(const LayerChange& change) {
  if (caller_ != nullptr) QG_RETURN_IF_ERROR(caller_->Check());
  const bool is_linear = request_.layer.kind == LayerKind::kLinear;
  if (change.scope == ChangeScope::kSlope || (change.scope != ChangeScope::kAll && !is_linear)) {
    return absl::UnimplementedError("a part of this layer's backward cannot be changed alone");
  }
  LayerRequest request = request_;
  for (const auto& [name, tensor] : change.operands) {
    if (request.codes.contains(name)) {
      return absl::UnimplementedError(absl::StrCat(name, " is given as codes"));
    }
    if (name == "x") {
      request.x = tensor;
    } else if (name == "grad_output") {
      request.grad_output = tensor;
    } else {
      request.parameters[name] = tensor;
    }
  }
  if (!change.activation.empty()) {
    QG_ASSIGN_OR_RETURN(request.layer.activation.kind, ParseActivationKind(change.activation));
  }
  Recipe recipe = recipe_;
  if (!change.recipe.empty()) {
    QG_ASSIGN_OR_RETURN(recipe, Recipe::Parse(change.recipe));
  }
  QG_ASSIGN_OR_RETURN(const LayerPlanPointer plan, DecideLayer(request, recipe));
  QG_RETURN_IF_ERROR(CheckLayerGemms(*plan, arithmetic_));
  QG_ASSIGN_OR_RETURN(const LayerResult result,
                      RunLayer(engine_, request, recipe, arithmetic_, &end_));
  return OutputsWithin(change.scope, result.outputs, expected_, engine_, &end_);
}

std::vector<std::string> OtherActivations(const LayerSpec& spec) {
  std::vector<std::string> names;
  if (!HasActivation(spec.kind)) return names;
  const ActivationKind own = spec.activation.kind;
  for (size_t i = 0; i < std::size(kActivationKindNames); ++i) {
    const auto kind = static_cast<ActivationKind>(i);
    // Others have another width of fc1.
    if (kind != own && IsGated(kind) == IsGated(own)) {
      names.push_back(std::string(kActivationKindNames[i]));
    }
  }
  return names;
}

std::vector<std::string> OtherRecipes(const Recipe& own) {
  std::vector<std::string> recipes;
  std::set<std::string> known = {own.CanonicalText()};
  const auto add = [&](const absl::StatusOr<Recipe>& recipe) {
    // Values that do not go together are refused.
    if (!recipe.ok() || !known.insert(recipe->CanonicalText()).second) return;
    recipes.push_back(recipe->ShortText());
  };
  for (const RecipeDescription& description : AllRecipes()) {
    if (description.name != own.name() || description.is_composed) continue;
    for (const KnobDescription& knob : description.knobs) {
      for (const std::string& value : std::vector<std::string>(absl::StrSplit(knob.values, '|'))) {
        Recipe::Knobs knobs = own.knobs();
        knobs[knob.name] = value;
        add(Recipe::Create(own.name(), knobs));
      }
    }
  }
  for (const RecipeDescription& description : AllRecipes()) {
    if (description.is_composed || description.is_codes_only) continue;
    add(Recipe::Create(description.name, {}));
  }
  return recipes;
}

absl::Status ReadOperands(Engine& engine, const LayerRequest& request,
                          const Cancellation* cancellation, LayerCase& of) {
  const auto read = [&](const Tensor& tensor, Tensor& host) -> absl::Status {
    QG_ASSIGN_OR_RETURN(host, engine.ToHost(tensor, cancellation));
    return absl::OkStatus();
  };
  QG_RETURN_IF_ERROR(read(request.x, of.operands["x"]));
  if (request.grad_output.has_value()) {
    QG_RETURN_IF_ERROR(read(request.grad_output, of.operands["grad_output"]));
  }
  for (const auto& [name, tensor] : request.parameters) {
    if (tensor.has_value()) QG_RETURN_IF_ERROR(read(tensor, of.operands[name]));
  }
  for (const auto& [name, tensor] : request.main_grads) {
    if (tensor.has_value()) QG_RETURN_IF_ERROR(read(tensor, of.main_grads[name]));
  }
  return absl::OkStatus();
}

}  // namespace quantgate
