// A training session on the engine under test, compared with the network by hand.
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

/// Parameters of TwoLayerSpec's linear layers, by OneRankSession's names, on the host.
absl::StatusOr<std::map<std::string, Tensor>> MakeParameters(ScenarioContext& context,
                                                             uint64_t seed);

/// Drives a session together with the network by hand. Every call compares the outputs. A step that
/// the session refuses counts as a difference; after the first difference, calls do nothing.
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
  /// Forward and backward of an x and a grad_output generated from `seed`, both times `scale`.
  absl::Status TrainStep(uint64_t seed, float scale = 1.0f);
  absl::Status Evaluate(uint64_t seed, float scale = 1.0f);

  absl::StatusOr<Tensor> MakeX(uint64_t seed, float scale = 1.0f);
  absl::StatusOr<Tensor> MakeGradOutput(uint64_t seed, float scale = 1.0f);
  OneRankSession& session() { return *session_; }
  NetworkByHand& by_hand() { return by_hand_; }
  /// Replaces the session, as after a restore.
  void Replace(std::unique_ptr<OneRankSession> session) { session_ = std::move(session); }

  /// Whether there has been a difference.
  bool has_diverged() const { return context_.difference_count() > 0; }

 private:
  ComparedTraining(ScenarioContext& context, std::unique_ptr<OneRankSession> session,
                   NetworkByHand by_hand)
      : context_(context), session_(std::move(session)), by_hand_(std::move(by_hand)) {}

  ScenarioContext& context_;
  std::unique_ptr<OneRankSession> session_;
  NetworkByHand by_hand_;
};

/// The outputs of a step, by name.
NamedOutputs OutputsOf(const SessionStepResult& result);

/// Expects every saved operand that was used to have the same fingerprint at use as at save.
void ExpectSavedUnchanged(ScenarioContext& context, const StepRecords& records);

}  // namespace quantgate
