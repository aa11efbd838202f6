// Training by hand: a row of linear layers with activations between them, forward, backward and
// optimizer, from the calls of expected_linear.h, the reference engine's activations, and the
// scalar optimizer steps of kernels/numerics. What sessions are compared with; no session and no
// layer code.
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
  /// Of the spec: the layers (linear, or a chain of one activation), the recipe, how weights are
  /// held and followed, the optimizer, the seed. Parameters as TrainingSession::Open takes them, on
  /// the host.
  NetworkByHand(Engine& reference, const SessionSpec& spec,
                const std::map<std::string, Tensor>& parameters);

  absl::StatusOr<Tensor> Forward(const std::string& microbatch, const Tensor& x, bool train = true);
  /// "dx", "LAYER.dw", "LAYER.db"; with main gradients those of weights are in main_grads().
  absl::StatusOr<NamedOutputs> Backward(const std::string& microbatch, const Tensor& grad_output,
                                        Microbatch is_first = Microbatch::kUnset);
  absl::Status Optimize();
  /// From the next forward on. Of delayed scaling only the algorithm may change.
  void ChangeRecipe(const Recipe& recipe);

  /// Parameters as the next forward reads them: "fc1.weight".
  absl::StatusOr<Tensor> ParameterOf(const std::string& name) const;
  /// "master", "exp_avg" and "exp_avg_sq" of a parameter; f32.
  absl::StatusOr<NamedOutputs> OptimizerStateOf(const std::string& name) const;
  const std::map<std::string, Tensor>& main_grads() const { return main_grads_; }
  const std::map<std::string, HistoryModel>& histories() const { return histories_; }
  std::map<std::string, HistoryModel>& histories() { return histories_; }
  /// The random numbers of one of several networks that a session runs together, one after the
  /// other in each forward.
  void DrawAsOneOf(uint32_t place, uint32_t networks) {
    next_call_id_ = place * CallIds();
    call_ids_between_ = (networks - 1) * CallIds();
  }
  /// From now on passes note their amaxes, and somebody else updates the histories.
  void LeaveUpdates() { leaves_updates_ = true; }
  /// From now on what the one layer quantizes of the role is under the amaxes of this tensor, of
  /// which it is a part.
  void TakeAmaxesOf(TensorRole role, const Tensor& whole) { wholes_[role] = whole; }
  /// What a weight is quantized from.
  absl::StatusOr<Tensor> WeightSource(const std::string& name) const;
  /// What backwards have added up since the last update, by parameter, and what the next update
  /// takes in its place.
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
  /// What backward reads again.
  struct Flight {
    Recipe recipe;
    uint32_t first_call_id = 0;
    std::vector<LinearOperands> linears;  ///< By layer; activations have x alone.
  };

  /// Of one forward.
  uint32_t CallIds() const;
  absl::StatusOr<LinearOperands> OperandsOf(const SessionLayer& layer, const Tensor& x,
                                            uint32_t first_call_id) const;
  HistoryModel& HistoryOf(const SessionLayer& layer, TensorRole role);
  absl::Status AddGradient(const std::string& parameter, const Tensor& gradient);
  void Update(Trained& trained);

  Engine& reference_;
  const SessionSpec spec_;
  Recipe recipe_;
  std::map<TensorRole, Tensor> wholes_;  ///< TakeAmaxesOf.
  uint32_t next_call_id_ = 0;
  uint32_t call_ids_between_ = 0;
  int64_t optimizer_steps_ = 0;
  bool leaves_updates_ = false;
  std::map<std::string, Trained> trained_;
  std::map<std::string, Tensor> main_grads_;
  std::map<std::string, HistoryModel> histories_;  ///< "fc1.input", "fc1.weight", ...
  std::map<std::string, Flight> flights_;
};

}  // namespace quantgate
