// Training by hand: forward, backward and optimizer of a row of linear layers with activations
// between them. Made of the calls of expected_linear.h, the reference engine's activations, and the
// scalar optimizer steps of kernels/numerics; no session and no layer code. Sessions are compared
// with it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/training/training_session.h"
#include "kernels/validate/scenarios/oracles/expected_linear.h"
#include "kernels/validate/scenarios/oracles/history_model.h"

namespace quantgate {

class NetworkByHand {
 public:
  /// Takes from the spec the layers (linear, or a chain of one activation), the recipe, weight
  /// storage, masters and requantization, the optimizer and the seed. `parameters`: as for
  /// OneRankSession::Open, on the host.
  NetworkByHand(Engine& reference, const SessionSpec& spec,
                const std::map<std::string, Tensor>& parameters);

  absl::StatusOr<Tensor> Forward(const std::string& microbatch, const Tensor& x, bool train = true);
  /// Gives "dx", "LAYER.dw", "LAYER.db". With main gradients, those of weights are in main_grads().
  absl::StatusOr<NamedOutputs> Backward(const std::string& microbatch, const Tensor& grad_output,
                                        Microbatch is_first = Microbatch::kUnset);
  absl::Status Optimize();
  /// Changes the recipe of later forwards. Under delayed scaling only the algorithm may change.
  void ChangeRecipe(const Recipe& recipe);

  /// The parameter of this name ("fc1.weight"), as the next forward reads it.
  absl::StatusOr<Tensor> ParameterOf(const std::string& name) const;
  /// "master", "exp_avg" and "exp_avg_sq" of a parameter; f32.
  absl::StatusOr<NamedOutputs> OptimizerStateOf(const std::string& name) const;
  const std::map<std::string, Tensor>& main_grads() const { return main_grads_; }
  const std::map<std::string, HistoryModel>& histories() const { return histories_; }
  std::map<std::string, HistoryModel>& histories() { return histories_; }
  /// Draws the random numbers of network `place` of `networks` that a session runs one after the
  /// other in each forward.
  void DrawAsOneOf(uint32_t place, uint32_t networks) {
    next_call_id_ = place * CallIds();
    call_ids_between_ = (networks - 1) * CallIds();
  }
  /// Later passes only note their amaxes; the caller updates the histories.
  void SkipHistoryUpdates() { skips_history_updates_ = true; }
  /// The only layer quantizes later tensors of `role` with the amaxes of `whole`, of which they are
  /// parts.
  void TakeAmaxesOf(TensorRole role, const Tensor& whole) { wholes_[role] = whole; }
  /// The tensor that a weight is quantized from.
  absl::StatusOr<Tensor> WeightSource(const std::string& name) const;
  /// The sums of gradients since the last update, by parameter, and their replacement before the
  /// next update.
  NamedOutputs gradients() const;
  void ReplaceGradients(const NamedOutputs& gradients);

 private:
  /// An fp32 master, what forward reads of it, and what the optimizer keeps.
  struct Trained {
    std::vector<float> master, m, v;
    DType dtype = DType::kBF16;
    Shape shape;
    Tensor gradient;
  };
  /// What backward needs of its forward.
  struct Flight {
    Recipe recipe;
    uint32_t first_call_id = 0;
    std::vector<LinearOperands> linears;  ///< By layer; activations have x alone.
  };

  /// The number of call ids of one forward.
  uint32_t CallIds() const;
  absl::StatusOr<LinearOperands> OperandsOf(const SessionLayer& layer, const Tensor& x,
                                            uint32_t first_call_id) const;
  /// Fresh under `recipe` if there is none.
  HistoryModel& HistoryOf(const Recipe& recipe, const SessionLayer& layer, TensorRole role);
  absl::Status AddGradient(const std::string& parameter, const Tensor& gradient);
  void Update(Trained& trained);

  Engine& reference_;
  const SessionSpec spec_;
  Recipe recipe_;
  std::map<TensorRole, Tensor> wholes_;  ///< The tensors that TakeAmaxesOf was given.
  uint32_t next_call_id_ = 0;
  uint32_t call_ids_between_ = 0;
  int64_t optimizer_steps_ = 0;
  bool skips_history_updates_ = false;
  std::map<std::string, Trained> trained_;
  std::map<std::string, Tensor> main_grads_;
  std::map<std::string, HistoryModel> histories_;  ///< "fc1.input", "fc1.weight", ...
  std::map<std::string, Flight> flights_;
};

}  // namespace quantgate
