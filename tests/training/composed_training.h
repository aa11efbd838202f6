// Two linear layers trained by hand: plain calls of the CPU functions, one after the other as
// docs/quantizers.md has them, without layers, recorders or sessions. What sessions are compared
// with.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops/optimizer.h"
#include "kernels/quantize/recipe.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// One linear layer and what training keeps of it.
struct ComposedLinear {
  Tensor weight;  ///< As held: bf16.
  Tensor bias;
  Tensor weight_master, bias_master;  ///< f32.
  Tensor weight_m, weight_v, bias_m, bias_v;
  Tensor dw, db;  ///< Sums since the last update; absent: none.
  DelayedScalingState input, weight_state, grad_output;
};

/// What one forward of one layer left.
struct ComposedSaved {
  Tensor x;        ///< In the activation dtype.
  Tensor x_given;  ///< As it came.
  Tensor weight;
  QuantizedTensor x_codes, weight_codes;
  uint32_t first_call_id = 0;
};

struct ComposedMicrobatch {
  std::vector<ComposedSaved> saved;
  Tensor y;
};

struct ComposedGradients {
  Tensor dx;
  std::map<std::string, Tensor> named;  ///< "fc1.dw", ...
};

class ComposedTraining {
 public:
  /// `parameters` by "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias".
  ComposedTraining(const Recipe& recipe, uint64_t seed,
                   const std::map<std::string, Tensor>& parameters);

  /// In training; `updates_scales` false: as an evaluation, which leaves no trace.
  ComposedMicrobatch Forward(const Tensor& x, bool train = true);
  ComposedGradients Backward(const ComposedMicrobatch& microbatch, const Tensor& grad_output);
  void Adam(const AdamOptions& options);

  const ComposedLinear& layer(size_t index) const { return layers_[index]; }
  void ChangeRecipe(const Recipe& recipe) { recipe_ = recipe; }

 private:
  QuantizedTensor Quantize(const Tensor& source, TensorRole role, Usages usages, uint32_t call_id,
                           DelayedScalingState& state);
  void Update(TensorRole role, DelayedScalingState& state);
  Tensor ForwardLayer(ComposedLinear& layer, const Tensor& x, uint32_t call_id,
                      ComposedSaved& saved);
  Tensor BackwardLayer(ComposedLinear& layer, const ComposedSaved& saved, const Tensor& grad_output,
                       Tensor& dw, Tensor& db);
  bool has_override() const {
    return recipe_.is_quantized() && recipe_.backward_override() != BackwardOverride::kNone;
  }

  Recipe recipe_;
  const uint64_t seed_;
  uint32_t next_call_id_ = 0;
  int64_t updates_ = 0;
  std::vector<ComposedLinear> layers_;
};

}  // namespace quantgate
