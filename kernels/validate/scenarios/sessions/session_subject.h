// A training session on the engine that is looked at, beside the network by hand.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/training/training_session.h"
#include "kernels/validate/scenarios/oracles/network_by_hand.h"
#include "kernels/validate/scenarios/scenario_context.h"

namespace quantgate {

/// fc1 (linear), a relu, fc2 (linear): 32 x 64 x 32 in bf16, with biases; fp32 masters and SGD.
SessionSpec TwoLayerSpec(const Recipe& recipe);

/// Parameters of a spec's linear layers, by TrainingSession's names, on the host.
absl::StatusOr<std::map<std::string, Tensor>> MakeParameters(ScenarioContext& context,
                                                             uint64_t seed);

/// Both sides of a comparison, driven together. Every call compares what it gives; a step that the
/// session refuses is a difference too, and after the first difference calls do nothing.
class ComparedTraining {
 public:
  static absl::StatusOr<std::unique_ptr<ComparedTraining>> Open(ScenarioContext& context,
                                                                const SessionSpec& spec,
                                                                uint64_t seed);

  absl::Status Forward(const ForwardStep& step);
  absl::Status Backward(const std::string& microbatch, const Tensor& grad_output,
                        Microbatch is_first = Microbatch::kUnset);
  absl::Status Optimize();
  absl::Status ChangeRecipe(const Recipe& recipe);
  /// Forward and backward of tensors made from `seed`, which counts up from step to step.
  absl::Status TrainStep(uint64_t seed, float scale = 1.0f);
  absl::Status Evaluate(uint64_t seed, float scale = 1.0f);

  absl::StatusOr<Tensor> MakeX(uint64_t seed, float scale = 1.0f);
  absl::StatusOr<Tensor> MakeGradOutput(uint64_t seed, float scale = 1.0f);
  TrainingSession& session() { return *session_; }
  NetworkByHand& by_hand() { return by_hand_; }
  /// Another session in the place of this one, as after a restore.
  void Replace(std::unique_ptr<TrainingSession> session) { session_ = std::move(session); }

  /// Whether the two sides have gone apart.
  bool has_parted() const { return context_.difference_count() > 0; }

 private:
  ComparedTraining(ScenarioContext& context, std::unique_ptr<TrainingSession> session,
                   NetworkByHand by_hand)
      : context_(context), session_(std::move(session)), by_hand_(std::move(by_hand)) {}

  ScenarioContext& context_;
  std::unique_ptr<TrainingSession> session_;
  NetworkByHand by_hand_;
};

/// Outputs of a step by name.
NamedOutputs OutputsOf(const SessionStepResult& result);

/// Saved operands have the same fingerprint at use as at save, in those that were used.
void ExpectSavedUnchanged(ScenarioContext& context, const StepRecords& records);

}  // namespace quantgate
