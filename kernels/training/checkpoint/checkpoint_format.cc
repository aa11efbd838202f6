#include "kernels/training/checkpoint/checkpoint_format.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"

namespace quantgate {
namespace {

using Json = nlohmann::json;

Json NormJson(const NormOptions& norm) {
  return {{"kind", std::string(NormKindName(norm.kind))},
          {"zero_centered_gamma", norm.zero_centered_gamma},
          {"epsilon", norm.epsilon}};
}

Json ActivationJson(const ActivationOptions& activation) {
  return {{"kind", std::string(ActivationKindName(activation.kind))},
          {"variant", std::string(ActivationVariantName(activation.variant))},
          {"limit", activation.limit},
          {"alpha", activation.alpha},
          {"offset", activation.offset}};
}

Json OperationJson(const OperationSpec& operation) {
  return {{"kind", std::string(OperationKindName(operation.kind))},
          {"name", operation.name},
          {"norm", NormJson(operation.norm)},
          {"activation", ActivationJson(operation.activation)},
          {"factor", operation.factor},
          {"addend", operation.addend},
          {"quantize_forward", operation.quantize_forward},
          {"quantize_backward", operation.quantize_backward}};
}

Json AttentionJson(const AttentionOptions& attention) {
  Json json = {{"heads", attention.heads},
               {"groups", attention.group_count()},
               {"mask", std::string(AttentionMaskName(attention.mask))}};
  if (attention.rotary_base.has_value()) json["rotary_base"] = *attention.rotary_base;
  return json;
}

Json LayerJson(const SessionLayer& layer) {
  const LayerSpec& spec = layer.spec;
  Json operations = Json::array();
  for (const OperationSpec& operation : spec.operations) {
    operations.push_back(OperationJson(operation));
  }
  Json json = {{"name", layer.name},
               {"kind", std::string(LayerKindName(spec.kind))},
               {"norm", NormJson(spec.norm)},
               {"activation", ActivationJson(spec.activation)},
               {"return_norm_output", spec.return_norm_output},
               {"m_splits", spec.m_splits},
               {"operations", operations},
               {"fused", spec.fused}};
  // Other kinds have none, also in checkpoints that were written before there was attention.
  if (spec.traits().has(OperationKind::kAttention)) {
    json["attention"] = AttentionJson(spec.attention);
  }
  return json;
}

Json OptimizerJson(const OptimizerSpec& optimizer) {
  if (optimizer.kind == OptimizerSpec::Kind::kAdam) {
    const AdamOptions& adam = optimizer.adam;
    return {{"kind", "adam"},
            {"beta1", adam.beta1},
            {"beta2", adam.beta2},
            {"epsilon", adam.epsilon},
            {"learning_rate", adam.learning_rate},
            {"weight_decay", adam.weight_decay},
            {"decoupled_decay", adam.decoupled_decay}};
  }
  if (optimizer.kind == OptimizerSpec::Kind::kSgd) {
    const SgdOptions& sgd = optimizer.sgd;
    return {{"kind", "sgd"},
            {"learning_rate", sgd.learning_rate},
            {"momentum", sgd.momentum},
            {"weight_decay", sgd.weight_decay},
            {"nesterov", sgd.nesterov}};
  }
  return {{"kind", "none"}};
}

}  // namespace

Json SessionSpecJson(const SessionSpec& spec) {
  Json layers = Json::array();
  for (const SessionLayer& layer : spec.layers) layers.push_back(LayerJson(layer));
  return {{"layers", layers},
          {"weights", std::string(WeightStorageName(spec.weights))},
          {"masters", std::string(MastersName(spec.masters))},
          {"requantization", std::string(RequantizationName(spec.requantization))},
          {"optimizer", OptimizerJson(spec.optimizer)},
          {"main_grads", spec.main_grads},
          {"seed", spec.seed}};
}

std::string JsonText(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

absl::Status CheckSameSpec(const Json& checkpoint, const Json& session) {
  const Json patch = Json::diff(checkpoint, session);
  if (patch.empty()) return absl::OkStatus();
  const std::string path = patch[0].value("path", "");
  const auto text = [&](const Json& side) {
    const Json::json_pointer pointer(path);
    return side.contains(pointer) ? JsonText(side[pointer]) : std::string("absent");
  };
  return StatusOf(
      {.code = absl::StatusCode::kFailedPrecondition,
       .field = "checkpoint",
       .value = "",
       .rule = absl::StrCat(path, " is ", text(checkpoint), ", this session's is ", text(session),
                            "; a session continues only from a checkpoint of the same layers")});
}

}  // namespace quantgate
