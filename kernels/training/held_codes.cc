#include "kernels/training/held_codes.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/engine.h"
#include "kernels/layer/linear/given_codes.h"
#include "kernels/quantize/quantized_outline.h"

namespace quantgate {
namespace {

/// The place of "fc1.weight": layer fc1, parameter "weight".
struct HeldPlace {
  size_t layer = 0;
  std::string parameter;
};

std::optional<HeldPlace> PlaceOfHeld(const SessionSpec& spec, const std::string& name) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const std::string prefix = spec.layers[i].name + ".";
    if (absl::StartsWith(name, prefix)) return HeldPlace{i, name.substr(prefix.size())};
  }
  return std::nullopt;
}

Usages UsagesOfHeld(const SessionSpec& spec) { return {true, !spec.built_without_grad}; }

/// Refuses a direction of per-tensor FP8 without the scale that a quantization by `rule` would have
/// given.
absl::Status CheckScale(const std::string& field, const Quantizer& quantizer, Usage usage,
                        const QuantizedTensor& codes) {
  const auto has_scale = [&](Usage of) {
    return quantizer.spec(of).traits().scales == ScaleKind::kTensor;
  };
  const std::optional<QuantizedCopy>& copy = codes.copy(usage);
  if (!has_scale(usage) || !copy.has_value() || copy->scale.has_value()) return absl::OkStatus();
  const bool has_two =
      !quantizer.has_one_rule() && has_scale(Usage::kRowwise) && has_scale(Usage::kColumnwise);
  return Refuse(
      field, absl::StrCat("without ", has_two ? std::string(UsageName(usage)) + "_" : "", "scale"),
      "a session keeps what multiplied the elements with the codes, as a quantization "
      "gives it");
}

/// Refuses a direction that lacks the amax that a quantization by `rule` would have given, which a
/// checkpoint counts on.
absl::Status CheckAmax(const std::string& field, const QuantizerSpec& rule, Usage usage,
                       const QuantizedTensor& codes) {
  const std::optional<QuantizedCopy>& copy = codes.copy(usage);
  if (!copy.has_value() || copy->amax.has_value()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const QuantizedCopy made,
                      OutlineCopy(rule, usage, codes.source_dtype, codes.shape));
  if (!made.amax.has_value()) return absl::OkStatus();
  return Refuse(field, absl::StrCat("without amax_", std::string(UsageName(usage))),
                "a session keeps it with the codes, as a quantization gives it");
}

absl::Status CheckOneHeld(const SessionSpec& spec, const std::string& name,
                          const QuantizedTensor& codes) {
  const std::string field = absl::StrCat("parameters[", name, "]");
  const std::string given = absl::StrCat("given as ", CodesText(codes));
  const std::optional<HeldPlace> place = PlaceOfHeld(spec, name);
  if (!place.has_value()) {
    return Refuse(field, given, "no layer has a parameter of that name; names are LAYER.PARAMETER");
  }
  if (!IsWeight(place->parameter)) return Refuse(field, given, "only weights are held as codes");
  if (spec.parallel.has_value()) {
    return Refuse(field, given, kRanksQuantize);
  }
  if (spec.masters == Masters::kBf16Remainder && codes.source_dtype != DType::kBF16) {
    return Refuse(field, absl::StrCat(given, " of ", std::string(DTypeName(codes.source_dtype))),
                  "masters bf16_remainder complete a bf16 parameter");
  }
  const Recipe recipe =
      RecipeOfParameter(spec.layers[place->layer].spec, spec.recipe, place->parameter);
  QG_RETURN_IF_ERROR(
      CheckCodesOfRole(field, TensorRole::kWeight, codes, recipe, UsagesOfHeld(spec)));
  const Quantizer& quantizer = recipe.QuantizerFor(TensorRole::kWeight);
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    QG_RETURN_IF_ERROR(CheckAmax(field, quantizer.spec(usage), usage, codes));
  }
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    QG_RETURN_IF_ERROR(CheckScale(field, quantizer, usage, codes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckHeldCodes(const SessionSpec& spec, const CodesByName& codes) {
  for (const auto& [name, tensor] : codes) {
    if (spec.weights != WeightStorage::kQuantized) {
      return Refuse(absl::StrCat("parameters[", name, "]"),
                    absl::StrCat("given as ", CodesText(tensor)),
                    "a session holds codes only where its weights are quantized: give the spec "
                    "weights quantized");
    }
    QG_RETURN_IF_ERROR(CheckOneHeld(spec, name, tensor));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, Tensor>> ValuesOfHeld(Engine& engine, const CodesByName& codes,
                                                           const Cancellation* cancellation) {
  std::map<std::string, Tensor> values;
  for (const auto& [name, tensor] : codes) {
    QG_ASSIGN_OR_RETURN(values[name],
                        engine.Dequantize(tensor, Usage::kRowwise, DType::kF32, cancellation));
  }
  return values;
}

absl::Status HoldCodes(Engine& engine, const SessionSpec& spec, const CodesByName& codes,
                       const Cancellation* cancellation, SessionState& state) {
  for (const auto& [name, given] : codes) {
    const std::optional<HeldPlace> place = PlaceOfHeld(spec, name);
    LayerState& layer = state.layers[place->layer].state;
    Parameter& parameter = layer.parameters.at(place->parameter);
    QuantizedTensor held = given;
    held.is_hybrid = !parameter.quantizer.has_one_rule();
    for (std::optional<QuantizedCopy>* const copy : {&held.rowwise, &held.columnwise}) {
      // What a quantization keeps of blocks is in their scales.
      const bool is_by_block = copy->has_value() &&
                               TraitsOf((*copy)->format).scales != ScaleKind::kTensor &&
                               TraitsOf((*copy)->format).scales != ScaleKind::kTwoLevel;
      if (is_by_block) (*copy)->amax = Tensor();
    }
    for (Tensor* const tensor : TensorsOf(held)) {
      if (!tensor->has_value()) continue;
      QG_ASSIGN_OR_RETURN(*tensor, engine.ToDevice(*tensor, cancellation));
    }
    QG_RETURN_IF_ERROR(engine.UpdateUsages(held, UsagesOfHeld(spec), cancellation));
    parameter.quantized = std::move(held);
    const auto delayed = layer.delayed.find(place->parameter);
    if (delayed == layer.delayed.end()) continue;
    const int64_t length = delayed->second.amax_history.element_count();
    QG_ASSIGN_OR_RETURN(delayed->second, FreshDelayedScaling(static_cast<int>(length)));
    for (Tensor* const tensor : {&delayed->second.scale, &delayed->second.amax_history}) {
      QG_ASSIGN_OR_RETURN(*tensor, engine.ToDevice(*tensor, cancellation));
    }
  }
  return absl::OkStatus();
}

}  // namespace quantgate
