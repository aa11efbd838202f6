// Sessions whose layers are grouped_linear, for tests: experts on one rank or on several.
#pragma once

#include <gmock/gmock.h>

#include <map>
#include <string>

#include "tests/training/parallel_fixture.h"
#include "tests/training/same_sessions.h"

namespace quantgate {

inline constexpr int64_t kExpertColumns = 128, kBatch = 512;

/// Two grouped_linear layers of 4 experts, one of which sees no rows, with an activation between
/// them.
inline SessionSpec ExpertLayers(const std::string& recipe) {
  SessionSpec spec = LinearLayers(recipe, {ParallelMode::kNone, ParallelMode::kNone});
  for (SessionLayer& layer : spec.layers) {
    layer.spec.kind = LayerKind::kGroupedLinear;
    layer.spec.m_splits = {128, 0, 256, 128};
  }
  SessionLayer activation{"act", {}};
  activation.spec.kind = LayerKind::kChain;
  OperationSpec& gelu = activation.spec.operations.emplace_back();
  gelu.name = "gelu";
  gelu.kind = OperationKind::kActivation;
  spec.layers.insert(spec.layers.begin() + 1, activation);
  spec.seed = 9;
  return spec;
}

inline std::map<std::string, Tensor> ExpertParameters() {
  std::map<std::string, Tensor> parameters;
  for (int expert = 0; expert < 4; ++expert) {
    const std::string number = std::to_string(expert);
    const Shape shape = {kExpertColumns, kExpertColumns};
    parameters["fc1.weight." + number] = Normal(10 + expert, shape);
    parameters["fc1.bias." + number] = Normal(20 + expert, {kExpertColumns});
    parameters["fc2.weight." + number] = Normal(30 + expert, shape);
  }
  return parameters;
}

inline ParallelSpec Experts(int ranks, int copies = 1) {
  ParallelSpec parallel = Ranks(1, copies);
  parallel.expert_parallel = ranks;
  return parallel;
}

inline Tensor ExpertBatch(uint64_t seed) { return Normal(seed, {kBatch, kExpertColumns}); }

/// Forward and backward of one microbatch, whose gradients no update uses.
inline void PassExperts(Session& session, uint64_t seed) {
  ForwardStep forward;
  forward.x = ExpertBatch(seed);
  const auto y = session.Forward(forward, nullptr);
  const auto dx = session.Backward({"0", ExpertBatch(seed + 1)}, nullptr);
  ASSERT_TRUE(y.ok() && dx.ok()) << y.status() << dx.status();
}

/// Microbatches in flight over an update, an evaluation, a recomputation, a weight gradient that is
/// deferred, a move to the host and back.
inline void TrainExperts(Session& one, Session& ranks, uint64_t seed) {
  const auto forward = [&](ForwardStep step, const std::string& microbatch) {
    step.microbatch = microbatch;
    step.x = ExpertBatch(seed++);
    ExpectSameStep(one, ranks, [&](Session& session) { return session.Forward(step, nullptr); });
  };
  const auto backward = [&](const std::string& microbatch) {
    ExpectSameStep(one, ranks, [&](Session& session) {
      return session.Backward({microbatch, ExpertBatch(seed)}, nullptr);
    });
    ++seed;
  };
  const auto optimize = [&] {
    ExpectSameStep(one, ranks, [](Session& session) { return session.Optimize({}, nullptr); });
  };
  ForwardStep first, evaluation, later, recomputed;
  first.is_first = Microbatch::kFirst;
  evaluation.train = false;
  later.is_first = Microbatch::kLater;
  later.defer_wgrad = true;
  recomputed.recompute = true;
  forward(first, "a");
  forward(evaluation, "e");
  forward(later, "b");
  forward(recomputed, "c");
  for (Session* session : {&one, &ranks}) {
    EXPECT_TRUE(session->Offload("b", nullptr).ok());
    EXPECT_TRUE(session->Reload("b", nullptr).ok());
  }
  backward("a");
  optimize();  // The others are of the weights before it.
  backward("c");
  backward("b");
  ExpectSameStep(one, ranks, [](Session& session) { return session.Wgrad(nullptr); });
  optimize();
}

}  // namespace quantgate
