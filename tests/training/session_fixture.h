// Sessions of two linear layers for tests, and what they are fed.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "kernels/tensor/files/safetensors_bytes.h"
#include "kernels/training/training_session.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {

inline constexpr int64_t kRows = 64, kIn = 64, kHidden = 96, kOut = 64;

inline Tensor Normal(uint64_t seed, Shape shape, DType dtype = DType::kBF16) {
  return Generated(Distribution::kNormal, seed, dtype, std::move(shape));
}

inline std::map<std::string, Tensor> TwoLayerParameters() {
  return {{"fc1.weight", Normal(11, {kHidden, kIn})},
          {"fc1.bias", Normal(12, {kHidden})},
          {"fc2.weight", Normal(13, {kOut, kHidden})},
          {"fc2.bias", Normal(14, {kOut})}};
}

inline SessionSpec TwoLayerSpec(const std::string& recipe) {
  SessionSpec spec{.layers = {{"fc1", {}}, {"fc2", {}}}, .recipe = *Recipe::Parse(recipe)};
  spec.masters = Masters::kF32;
  spec.optimizer.kind = OptimizerSpec::Kind::kAdam;
  spec.optimizer.adam.learning_rate = 0.05f;
  spec.seed = 77;
  return spec;
}

inline std::unique_ptr<TrainingSession> OpenOn(Engine& engine, const SessionSpec& spec) {
  auto session = TrainingSession::Open(engine, spec, TwoLayerParameters(), nullptr);
  EXPECT_TRUE(session.ok()) << session.status();
  return session.ok() ? *std::move(session) : nullptr;
}

inline ForwardStep ForwardOf(uint64_t seed, const std::string& microbatch = "0") {
  ForwardStep step;
  step.microbatch = microbatch;
  step.x = Normal(seed, {kRows, kIn});
  return step;
}

inline BackwardStep BackwardOf(uint64_t seed, const std::string& microbatch = "0") {
  BackwardStep step;
  step.microbatch = microbatch;
  step.grad_output = Normal(seed, {kRows, kOut});
  return step;
}

/// One of the outputs; absent, and a failure, where the step failed or has none of that name.
inline Tensor OutputOf(const absl::StatusOr<SessionStepResult>& result, const std::string& name) {
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return Tensor();
  for (const NamedTensor& output : result->outputs) {
    if (output.name == name) return output.tensor;
  }
  ADD_FAILURE() << "no output " << name;
  return Tensor();
}

/// The fingerprints of the whole state, by name.
inline std::map<std::string, std::string> DigestsOf(Session& session) {
  std::map<std::string, std::string> digests;
  const auto tensors = session.Describe(nullptr);
  EXPECT_TRUE(tensors.ok()) << tensors.status();
  if (!tensors.ok()) return digests;
  for (const StateTensor& tensor : *tensors) digests[tensor.name] = tensor.fingerprint.Hex();
  return digests;
}

inline Recipe RecipeUnder(const std::string& text,
                          BackwardOverride mode = BackwardOverride::kNone) {
  return Recipe::Parse(text)->WithBackwardOverride(mode);
}

/// SHA-256 of every byte of the state.
inline std::string StateDigest(Session& session) {
  const auto file = session.Checkpoint(nullptr);
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return "";
  const auto bytes = SafetensorsBytes(file->tensors, file->metadata);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return Sha256Of(bytes->bytes()).Hex();
}

/// Two training microbatches in flight together, an evaluation between them, and an update; the
/// digests of the state after it.
inline std::map<std::string, std::string> TrainOnce(TrainingSession& session, uint64_t seed) {
  ForwardStep evaluation = ForwardOf(seed + 4, "eval");
  evaluation.train = false;
  EXPECT_TRUE(session.Forward(ForwardOf(seed, "a"), nullptr).ok());
  EXPECT_TRUE(session.Forward(evaluation, nullptr).ok());
  EXPECT_TRUE(session.Forward(ForwardOf(seed + 1, "b"), nullptr).ok());
  EXPECT_TRUE(session.Backward(BackwardOf(seed + 2, "b"), nullptr).ok());
  EXPECT_TRUE(session.Backward(BackwardOf(seed + 3, "a"), nullptr).ok());
  const auto updated = session.Optimize({}, nullptr);
  EXPECT_TRUE(updated.ok()) << updated.status();
  return DigestsOf(session);
}

/// What suites of sessions are run with.
struct SessionCase {
  const char* name;
  const char* recipe;
  WeightStorage weights = WeightStorage::kHighPrecision;
  Masters masters = Masters::kF32;
  bool main_grads = false;
  bool caches = false;  ///< The last forward caches its quantized weights.
  bool is_mlp = false;  ///< One gated layernorm_mlp in place of two linear layers.

  /// How a session of the case keeps weights and gradients.
  void Set(SessionSpec& spec) const {
    spec.weights = weights;
    spec.masters = masters;
    spec.main_grads = main_grads;
  }
};

}  // namespace quantgate
