// Sessions on several ranks for tests.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/training/parallel/parallel_session.h"
#include "tests/training/session_fixture.h"

namespace quantgate {

/// Linear layers fc1, fc2, ... with fp32 masters and Adam.
inline SessionSpec LinearLayers(const std::string& recipe, const std::vector<ParallelMode>& modes) {
  SessionSpec spec{.layers = {}, .recipe = *Recipe::Parse(recipe)};
  for (size_t i = 0; i < modes.size(); ++i) {
    SessionLayer layer{"fc" + std::to_string(i + 1), {}};
    layer.spec.parallel_mode = modes[i];
    spec.layers.push_back(layer);
  }
  spec.masters = Masters::kF32;
  spec.optimizer.kind = OptimizerSpec::Kind::kAdam;
  spec.optimizer.adam.learning_rate = 0.05f;
  return spec;
}

/// The first layer alone, as a gated layernorm_mlp.
inline void BecomeGatedMlp(SessionSpec& spec) {
  spec.layers.resize(1);
  spec.layers[0].spec.kind = LayerKind::kLayerNormMlp;
  spec.layers[0].spec.activation.kind = *ParseActivationKind("swiglu");
}

/// The same layers undivided.
inline SessionSpec OnOneRank(SessionSpec spec) {
  for (SessionLayer& layer : spec.layers) layer.spec.parallel_mode = ParallelMode::kNone;
  spec.parallel.reset();
  return spec;
}

inline ParallelSpec Ranks(int tp, int dp = 1, bool sp = false) {
  ParallelSpec parallel;
  parallel.tensor_parallel = tp;
  parallel.data_parallel = dp;
  parallel.sequence_parallel = sp;
  return parallel;
}

inline std::unique_ptr<Session> OpenRanks(Engine& engine, const SessionSpec& spec,
                                          const std::map<std::string, Tensor>& parameters) {
  auto session = OpenSession(engine, spec, parameters, nullptr, nullptr);
  EXPECT_TRUE(session.ok()) << session.status();
  return session.ok() ? *std::move(session) : nullptr;
}

/// Of 1/4 and 1/2 in absolute value: products and their sums of thousands are exact in fp32, and
/// sums of 256 of them in bf16.
inline Tensor Quarters(uint64_t seed, Shape shape) {
  Tensor tensor = *Tensor::Allocate(DType::kBF16, shape);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    constexpr uint16_t kValues[] = {0x3e80, 0x3f00, 0xbe80, 0xbf00};
    tensor.as<uint16_t>()[i] = kValues[state >> 62];
  }
  return tensor;
}

}  // namespace quantgate
