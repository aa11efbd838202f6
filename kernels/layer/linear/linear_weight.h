// The weight of a linear unit as one forward reads it: quantized from the parameter, from the
// workspace of an earlier microbatch, or held quantized by the parameter itself.
#pragma once

#include "kernels/layer/linear/linear_unit.h"

namespace quantgate {

class LinearWeight {
 public:
  /// `expert_amaxes` as LinearInput's.
  LinearWeight(StepRecorder& recorder, const LinearUnit& unit, LayerState& state,
               const StepOptions& options, ExpertAmaxes* expert_amaxes);

  /// Notes the amax and quantizes nothing.
  absl::Status Calibrate();
  /// Codes, the weight in the activation dtype, or both, as the dataflow reads it.
  absl::StatusOr<KeptOperand> Prepare();

 private:
  absl::StatusOr<Tensor> HighPrecision();
  absl::StatusOr<QuantizedTensor> Codes();
  absl::StatusOr<QuantizedTensor> CodesOfParameter();
  absl::StatusOr<QuantizedTensor> Quantize(Usages usages);
  const Quantizer& quantizer() const { return options_.recipe.QuantizerFor(TensorRole::kWeight); }

  StepRecorder& recorder_;
  const LinearUnit& unit_;
  LayerState& state_;
  const StepOptions& options_;
  Parameter& parameter_;
  ExpertAmaxes* const expert_amaxes_;
  Tensor dequantized_;  ///< Of a quantized parameter, once.
};

}  // namespace quantgate
