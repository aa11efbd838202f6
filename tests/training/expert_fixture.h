// Sessions whose layers are grouped_linear, for tests: experts on one rank or on several.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <string>

#include "tests/training/parallel/parallel_fixture.h"
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

/// Experts, a linear layer fc of which all ranks are copies, and experts again.
inline SessionSpec MixedLayers(const std::string& recipe) {
  SessionSpec spec = ExpertLayers(recipe);
  spec.layers[1] = {"fc", {}};
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

/// The first of these layers alone, and its parameters.
inline SessionSpec FirstExperts(const std::string& recipe, ParallelMode mode) {
  SessionSpec spec = ExpertLayers(recipe);
  spec.layers.resize(1);
  spec.layers[0].spec.parallel_mode = mode;
  return spec;
}
inline std::map<std::string, Tensor> FirstExpertParameters() {
  std::map<std::string, Tensor> parameters = ExpertParameters();
  std::erase_if(parameters, [](const auto& one) { return !one.first.starts_with("fc1."); });
  return parameters;
}

inline ParallelSpec Experts(int ranks, int copies = 1) {
  ParallelSpec parallel = Ranks(1, copies);
  parallel.expert_parallel = ranks;
  return parallel;
}

inline Tensor ExpertBatch(uint64_t seed) { return Normal(seed, {kBatch, kExpertColumns}); }

inline auto ExpertCases() {
  constexpr auto kQuantized = WeightStorage::kQuantized;
  return ::testing::Values(
      SessionCase{.name = "Bf16", .recipe = "bf16"},
      SessionCase{.name = "Current", .recipe = "fp8_current"},
      SessionCase{.name = "DelayedMainGrads", .recipe = "fp8_delayed", .main_grads = true},
      SessionCase{.name = "QuantizedDelayed",
                  .recipe = "fp8_delayed",
                  .weights = kQuantized,
                  .main_grads = true},
      SessionCase{.name = "QuantizedMxfp8Remainder",
                  .recipe = "mxfp8",
                  .weights = kQuantized,
                  .masters = Masters::kBf16Remainder},
      SessionCase{.name = "Block", .recipe = "fp8_block"},
      SessionCase{.name = "Nvfp4Stochastic", .recipe = "nvfp4"});
}
inline std::string NameOfCase(const ::testing::TestParamInfo<SessionCase>& info) {
  return info.param.name;
}

/// One element in each row and column, `value`: a layer that moves columns and scales them.
inline Tensor Permutation(int64_t stride, uint16_t value) {
  Tensor weight = *Tensor::Allocate(DType::kBF16, {kExpertColumns, kExpertColumns});
  std::fill_n(weight.as<uint16_t>(), weight.element_count(), uint16_t{0});
  for (int64_t row = 0; row < kExpertColumns; ++row) {
    weight.as<uint16_t>()[row * kExpertColumns + (row * stride + 5) % kExpertColumns] = value;
  }
  return weight;
}

/// Of layers without biases.
inline std::map<std::string, Tensor> ExactExperts() {
  constexpr uint16_t kOne = 0x3f80, kTwo = 0x4000;
  std::map<std::string, Tensor> parameters;
  for (int expert = 0; expert < 4; ++expert) {
    const std::string number = std::to_string(expert);
    parameters["fc1.weight." + number] = Permutation(3 + 2 * expert, kTwo);
    parameters["fc2.weight." + number] = Permutation(21 + 2 * expert, kOne);
  }
  return parameters;
}

/// How weights are held where sums are exact: quantized ones under delayed scaling, whose updates
/// note amaxes, no scenario follows by hand.
inline std::vector<WeightStorage> ExactStorages(const Recipe& recipe) {
  if (!recipe.is_delayed()) return {WeightStorage::kHighPrecision};
  return {WeightStorage::kHighPrecision, WeightStorage::kQuantized};
}

/// The microbatches of an update, of which no sum is rounded.
inline void PassExactly(Session& one, Session& ranks) {
  // Scales are powers of two; delayed scaling's first ones are 1.
  const uint64_t microbatches = one.recipe().is_delayed() ? 1 : 2;
  for (uint64_t microbatch = 0; microbatch < microbatches; ++microbatch) {
    ForwardStep forward;
    forward.x = Quarters(1 + microbatch, {kBatch, kExpertColumns});
    forward.is_first = microbatch == 0 ? Microbatch::kFirst : Microbatch::kLater;
    ExpectSameStep(one, ranks, [&](Session& each) { return each.Forward(forward, nullptr); });
    ExpectSameStep(one, ranks, [&](Session& each) {
      return each.Backward({"0", Quarters(11 + microbatch, {kBatch, kExpertColumns})}, nullptr);
    });
  }
}

/// An update on one rank and on the ranks of `on_ranks`, of which no sum is rounded: the same.
inline void ExpectExactlyAsOne(Engine& engine, const SessionSpec& spec, const SessionSpec& on_ranks,
                               const std::map<std::string, Tensor>& parameters) {
  const auto one = OpenRanks(engine, spec, parameters);
  const auto ranks = OpenRanks(engine, on_ranks, parameters);
  ASSERT_TRUE(one != nullptr && ranks != nullptr);
  ExpectSameFiles(*one, *ranks);
  PassExactly(*one, *ranks);
  // Until the update each copy has main gradients of its own rows.
  EXPECT_EQ(ranks->Checkpoint(nullptr)->metadata.count("ranks"),
            on_ranks.parallel->data_parallel > 1 ? 1u : 0u);
  ExpectSameStep(*one, *ranks, [](Session& each) { return each.Optimize({}, nullptr); });
  ExpectSameParameters(*one, *ranks, parameters);
  ExpectSameFiles(*one, *ranks);
}

/// Forward and backward of one microbatch, whose gradients no update uses.
inline void PassExperts(Session& session, uint64_t seed) {
  ForwardStep forward;
  forward.x = ExpertBatch(seed);
  const auto y = session.Forward(forward, nullptr);
  const auto dx = session.Backward({"0", ExpertBatch(seed + 1)}, nullptr);
  ASSERT_TRUE(y.ok() && dx.ok()) << y.status() << dx.status();
}

/// An update, and gradients that no update has used yet.
inline void TrainToTheMiddle(Session& session, uint64_t seed) {
  PassExperts(session, seed);
  ASSERT_TRUE(session.Optimize({}, nullptr).ok());
  PassExperts(session, seed + 5);
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
