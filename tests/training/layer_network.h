// A network of one layer of each kind for tests of sessions, and its parameters.
#pragma once

#include <map>
#include <string>

#include "tests/training/session_fixture.h"

namespace quantgate {

inline constexpr int64_t kWidth = 64;

inline SessionLayer LayerNormLinear() {
  SessionLayer layer{"qkv", {}};
  layer.spec.kind = LayerKind::kLayerNormLinear;
  layer.spec.return_norm_output = true;
  return layer;
}

inline SessionLayer LayerNormMlp() {
  SessionLayer layer{"mlp", {}};
  layer.spec.kind = LayerKind::kLayerNormMlp;
  layer.spec.norm.kind = NormKind::kRmsNorm;
  layer.spec.activation.kind = ActivationKind::kSwiglu;
  return layer;
}

inline SessionLayer Experts() {
  SessionLayer layer{"moe", {}};
  layer.spec.kind = LayerKind::kGroupedLinear;
  layer.spec.m_splits = {32, 0, 32};
  return layer;
}

inline SessionLayer Chain() {
  SessionLayer layer{"tail", {}};
  layer.spec.kind = LayerKind::kChain;
  OperationSpec linear, bias, activation, scale;
  linear.kind = OperationKind::kBasicLinear;
  linear.name = "proj";
  bias.kind = OperationKind::kBias;
  bias.name = "shift";
  activation.kind = OperationKind::kActivation;
  activation.name = "act";
  scale.kind = OperationKind::kScale;
  scale.name = "half";
  scale.factor = 0.5f;
  layer.spec.operations = {linear, bias, activation, scale};
  return layer;
}

/// 64 columns in and out.
inline std::map<std::string, Tensor> ParametersOfLayers() {
  std::map<std::string, Tensor> parameters = {{"qkv.gamma", Normal(1, {kWidth})},
                                              {"qkv.beta", Normal(2, {kWidth})},
                                              {"qkv.weight", Normal(3, {kWidth, kWidth})},
                                              {"qkv.bias", Normal(4, {kWidth})},
                                              {"mlp.gamma", Normal(5, {kWidth})},
                                              {"mlp.fc1.weight", Normal(6, {2 * kWidth, kWidth})},
                                              {"mlp.fc2.weight", Normal(7, {kWidth, kWidth})},
                                              {"mlp.fc2.bias", Normal(8, {kWidth})},
                                              {"tail.proj.weight", Normal(9, {kWidth, kWidth})},
                                              {"tail.shift.bias", Normal(10, {kWidth})}};
  for (const std::string expert : {"0", "1", "2"}) {
    parameters["moe.weight." + expert] = Normal(20 + expert[0], {kWidth, kWidth});
  }
  return parameters;
}

inline SessionSpec SpecOfLayers(const std::string& recipe) {
  SessionSpec spec{.layers = {LayerNormLinear(), LayerNormMlp(), Experts(), Chain()},
                   .recipe = *Recipe::Parse(recipe)};
  spec.masters = Masters::kF32;
  spec.optimizer.kind = OptimizerSpec::Kind::kSgd;
  spec.optimizer.sgd.learning_rate = 0.1f;
  spec.optimizer.sgd.momentum = 0.5f;
  return spec;
}

}  // namespace quantgate
