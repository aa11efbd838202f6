#include "client/cli/layer_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/recipe_argument.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/tensor_file.h"

namespace quantgate {
namespace {

constexpr char kVariants[] = "Variants";
constexpr char kTensors[] = "Layer";

absl::Status SetRequiresGrad(const LayerOptions& options, v1::LinearLayer& layer) {
  if (options.requires_grad.empty()) return absl::OkStatus();
  v1::RequiresGrad& requires_grad = *layer.mutable_requires_grad();
  if (options.requires_grad == "none") return absl::OkStatus();
  const std::vector<std::string> names = absl::StrSplit(options.requires_grad, ',');
  for (const std::string& name : names) {
    if (name == "x") {
      requires_grad.set_x(true);
    } else if (name == "w" || name == "weight") {
      requires_grad.set_weight(true);
    } else if (name == "b" || name == "bias") {
      requires_grad.set_bias(true);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--requires-grad: \"", name, "\" is none of x, w, b (or none alone)"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLayer(Connection& connection, const std::string& layer) {
  if (layer == "linear") return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const v1::Capabilities capabilities, connection.GetCapabilities());
  for (const std::string& known : capabilities.layers()) {
    if (known == layer) {
      return absl::UnimplementedError(
          absl::StrCat("--layer: \"", layer, "\" is newer than this command; upgrade quantgate"));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("--layer: \"", layer, "\" is none of ",
                                                 absl::StrJoin(capabilities.layers(), ", ")));
}

std::string VariantList(const std::vector<v1::Variant>& variants) {
  std::string list;
  for (size_t i = 0; i < variants.size(); ++i) {
    absl::StrAppend(&list, "\n  ", i, "  ", VariantText(variants[i]));
  }
  return list;
}

constexpr char kAllRecipes[] = "all";

/// Whether an option's value has the item `all`.
bool NamesAll(const std::string& value) {
  const auto items = SplitItems("--recipe", {value});
  return items.ok() && std::find(items->begin(), items->end(), kAllRecipes) != items->end();
}

/// Whether a recipe has this backward override: fp8_delayed has none but "none". What no recipe
/// knows is left for the server to refuse.
bool HasOverride(const v1::RecipeDescription& recipe, const std::string& mode) {
  if (mode.empty() || mode == "none" || mode == "default") return true;
  for (const v1::KnobDescription& knob : recipe.knobs()) {
    if (knob.name() == "backward_override") return knob.values() != "none";
  }
  return true;
}

/// FILE.safetensors with tensors named input.scale, input.amax_history, ...; or NAME=TENSOR.
absl::Status SetDelayedState(const std::vector<std::string>& values, TensorSources& sources,
                             v1::LinearLayer& layer) {
  for (const std::string& value : values) {
    const size_t equals = value.find('=');
    if (equals != std::string::npos && value.find('.') < equals) {
      QG_ASSIGN_OR_RETURN((*layer.mutable_delayed_state())[value.substr(0, equals)],
                          sources.Resolve("--delayed-state", value.substr(equals + 1)));
      continue;
    }
    QG_ASSIGN_OR_RETURN(const TensorFile file, ReadSafetensors(value));
    for (const NamedTensor& tensor : file.tensors) {
      // What else `run -o` wrote into the file are outputs of that run.
      if (!absl::EndsWith(tensor.name, ".scale") && !absl::EndsWith(tensor.name, ".amax_history")) {
        continue;
      }
      QG_ASSIGN_OR_RETURN((*layer.mutable_delayed_state())[tensor.name],
                          sources.Place(absl::StrCat(value, ":", tensor.name), tensor.tensor));
    }
    if (layer.delayed_state().empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--delayed-state: ", value, " holds no input.scale, input.amax_history, ..."));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Requirement> RequirementOf(const std::string& text) {
  if (text.empty()) return v1::REQUIREMENT_UNSPECIFIED;
  if (text == "bitwise") return v1::REQUIREMENT_BITWISE;
  if (text == "bound") return v1::REQUIREMENT_BOUND;
  return absl::InvalidArgumentError(
      absl::StrCat("--require: \"", text, "\" is none of bitwise, bound"));
}

}  // namespace

void AddLayerOptions(CLI::App& command, LayerOptions& options) {
  command.add_option("--layer", options.layer, "Layer: linear (see quantgate info)")
      ->capture_default_str()
      ->type_name("NAME")
      ->group(kTensors);
  command.add_option("--input", options.input, "x [..., K]")
      ->required()
      ->type_name("TENSOR")
      ->group(kTensors);
  command.add_option("--weight", options.weight, "weight [N][K]")
      ->required()
      ->type_name("TENSOR")
      ->group(kTensors);
  command.add_option("--bias", options.bias, "bias [N]")->type_name("TENSOR")->group(kTensors);
  command
      .add_option("--grad-output", options.grad_output,
                  "dy [..., N]; without it only the forward pass runs")
      ->type_name("TENSOR")
      ->group(kTensors);
  command
      .add_option("--main-grad", options.main_grad,
                  "f32 [N][K] that the weight gradient accumulates into")
      ->type_name("TENSOR")
      ->group(kTensors);
  command
      .add_option("--delayed-state", options.delayed_state,
                  "Delayed scaling: a file that run -o wrote, or input.scale=TENSOR and so on; "
                  "without it scale 1 and no history")
      ->allow_extra_args(false)
      ->type_name("FILE|NAME=TENSOR")
      ->group(kTensors);
  command
      .add_flag("--calibrate", options.calibrate,
                "Delayed scaling: compute in high precision, note the amaxes only")
      ->group(kTensors);
  command
      .add_flag("--error-budget", options.error_budget,
                "Say how much of each output's error every stage makes")
      ->group(kTensors);
  command.add_option("--seed", options.seed, "For recipes that round stochastically")
      ->type_name("N")
      ->group(kTensors);
  command
      .add_option("--requires-grad", options.requires_grad,
                  "Gradients wanted, of x,w,b; default: all that have an operand")
      ->type_name("LIST")
      ->group(kTensors);
}

void AddSingleVariantOptions(CLI::App& command, LayerOptions& options) {
  options.recipes.resize(1);
  options.backward_overrides.resize(1);
  options.arithmetics.resize(1);
  command.add_option("--recipe", options.recipes[0], "NAME, NAME:KNOB=VALUE,... or @FILE.json")
      ->required()
      ->type_name("RECIPE")
      ->group(kVariants);
  command
      .add_option("--backward-override", options.backward_overrides[0],
                  "none, high_precision or dequantized")
      ->type_name("MODE")
      ->group(kVariants);
  command.add_option("--arithmetic", options.arithmetics[0], "auto, sm90, sm90:split, exact, ...")
      ->type_name("NAME")
      ->group(kVariants);
}

void AddVariantListOptions(CLI::App& command, LayerOptions& options) {
  command
      .add_option(
          "--recipe", options.recipes,
          "Recipes: repeat the option, or join by commas; all: every recipe that needs no knobs. A "
          "comma before KNOB=VALUE goes on "
          "with the same recipe: bf16,fp8_current:power_2_scales=true,fp8_format=e4m3 are two")
      ->required()
      ->allow_extra_args(false)
      ->type_name("RECIPE,...")
      ->group(kVariants);
  command
      .add_option("--backward-override", options.backward_overrides,
                  "Modes of none, high_precision, dequantized")
      ->allow_extra_args(false)
      ->type_name("MODE,...")
      ->group(kVariants);
  command.add_option("--arithmetic", options.arithmetics, "Arithmetics, listed like recipes")
      ->allow_extra_args(false)
      ->type_name("NAME,...")
      ->group(kVariants);
  command
      .add_option("--reference", options.reference,
                  "Variant that the others are compared with: its number from 0, or "
                  "RECIPE[/MODE[/ARITHMETIC]] as given")
      ->type_name("VARIANT")
      ->group(kVariants);
}

std::string VariantText(const v1::Variant& variant) {
  return absl::StrCat(RecipeText(variant.recipe()), " / ",
                      variant.backward_override().empty() ? "none" : variant.backward_override(),
                      " / ", variant.arithmetic().empty() ? "auto" : variant.arithmetic());
}

absl::StatusOr<std::vector<v1::Variant>> VariantsOf(const LayerOptions& options,
                                                    const v1::ListRecipesResponse* listed) {
  QG_ASSIGN_OR_RETURN(const auto recipes, SplitItems("--recipe", options.recipes));
  // An absent list is one empty item: the server's default.
  const auto items =
      [](std::string_view option,
         const std::vector<std::string>& values) -> absl::StatusOr<std::vector<std::string>> {
    if (values.empty() || (values.size() == 1 && values[0].empty())) {
      return std::vector<std::string>{""};
    }
    return SplitItems(option, values);
  };
  QG_ASSIGN_OR_RETURN(const auto overrides,
                      items("--backward-override", options.backward_overrides));
  QG_ASSIGN_OR_RETURN(const auto arithmetics, items("--arithmetic", options.arithmetics));
  std::vector<v1::Variant> variants;
  const auto add = [&](const v1::Recipe& recipe, const std::string& backward_override) {
    for (const std::string& arithmetic : arithmetics) {
      v1::Variant& variant = variants.emplace_back();
      *variant.mutable_recipe() = recipe;
      variant.set_backward_override(backward_override);
      variant.set_arithmetic(arithmetic);
    }
  };
  for (const std::string& text : recipes) {
    if (text == kAllRecipes && listed != nullptr) {
      for (const v1::RecipeDescription& description : listed->recipes()) {
        if (description.is_composed()) continue;
        v1::Recipe recipe;
        recipe.set_name(description.name());
        for (const std::string& mode : overrides) {
          if (HasOverride(description, mode)) add(recipe, mode);
        }
      }
      continue;
    }
    QG_ASSIGN_OR_RETURN(const v1::Recipe recipe, ParseRecipeArgument(text));
    for (const std::string& mode : overrides) add(recipe, mode);
  }
  return variants;
}

absl::StatusOr<int> FindVariant(const std::string& text, const std::vector<v1::Variant>& variants) {
  int index = 0;
  if (absl::SimpleAtoi(text, &index)) {
    if (index >= 0 && index < static_cast<int>(variants.size())) return index;
    return absl::InvalidArgumentError(
        absl::StrCat("--reference: ", index, " is no variant; there are", VariantList(variants)));
  }
  std::vector<std::string> wanted = absl::StrSplit(text, '/');
  std::vector<int> found;
  for (size_t i = 0; i < variants.size(); ++i) {
    const std::vector<std::string> parts = absl::StrSplit(VariantText(variants[i]), " / ");
    bool fits = wanted.size() <= parts.size();
    for (size_t j = 0; fits && j < wanted.size(); ++j) {
      fits = absl::StripAsciiWhitespace(wanted[j]) == parts[j];
    }
    if (fits) found.push_back(static_cast<int>(i));
  }
  if (found.size() == 1) return found[0];
  return absl::InvalidArgumentError(absl::StrCat("--reference: \"", text, "\" fits ", found.size(),
                                                 " variants; it must fit one of",
                                                 VariantList(variants)));
}

absl::StatusOr<v1::RunSpec> BuildRunSpec(Connection& connection, const LayerOptions& options,
                                         TensorSources& sources) {
  v1::RunSpec spec;
  v1::ListRecipesResponse listed;
  const auto& asked = options.recipes;
  if (std::any_of(asked.begin(), asked.end(), NamesAll)) {
    QG_ASSIGN_OR_RETURN(listed, connection.ListRecipes());
  }
  QG_ASSIGN_OR_RETURN(const std::vector<v1::Variant> variants, VariantsOf(options, &listed));
  spec.mutable_variants()->Add(variants.begin(), variants.end());
  if (!options.reference.empty()) {
    QG_ASSIGN_OR_RETURN(const int reference, FindVariant(options.reference, variants));
    spec.set_reference(reference);
  }
  QG_ASSIGN_OR_RETURN(const v1::Requirement requirement, RequirementOf(options.require));
  spec.set_requirement(requirement);
  QG_RETURN_IF_ERROR(CheckLayer(connection, options.layer));

  spec.set_seed(options.seed);
  spec.set_error_budget(options.error_budget);
  v1::LinearLayer& layer = *spec.mutable_linear();
  layer.set_calibrate(options.calibrate);
  QG_RETURN_IF_ERROR(SetDelayedState(options.delayed_state, sources, layer));
  QG_RETURN_IF_ERROR(SetRequiresGrad(options, layer));
  QG_ASSIGN_OR_RETURN(*layer.mutable_x(), sources.Resolve("--input", options.input));
  QG_ASSIGN_OR_RETURN(*layer.mutable_weight(), sources.Resolve("--weight", options.weight));
  if (!options.bias.empty()) {
    QG_ASSIGN_OR_RETURN(*layer.mutable_bias(), sources.Resolve("--bias", options.bias));
  }
  if (!options.grad_output.empty()) {
    QG_ASSIGN_OR_RETURN(*layer.mutable_grad_output(),
                        sources.Resolve("--grad-output", options.grad_output));
  }
  if (!options.main_grad.empty()) {
    QG_ASSIGN_OR_RETURN(*layer.mutable_main_grad(),
                        sources.Resolve("--main-grad", options.main_grad));
  }
  return spec;
}

}  // namespace quantgate
