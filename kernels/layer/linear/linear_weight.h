// The weight of a linear unit as one forward reads it: quantized from the parameter, taken from the
// workspace of an earlier microbatch, or held quantized by the parameter itself.
#pragma once

#include "kernels/layer/linear/linear_unit.h"

namespace quantgate {

class LinearWeight {
 public:
  /// `expert_amaxes`: as LinearInput::expert_amaxes. References must outlive this object.
  LinearWeight(StepRecorder& recorder, const LinearUnit& unit, LayerState& state,
               const StepOptions& options, ExpertAmaxes* expert_amaxes);

  /// Notes the weight's amax; quantizes nothing.
  absl::Status Calibrate();
  /// The codes, the weight in the activation dtype, or both, as the dataflow reads them.
  absl::StatusOr<KeptOperand> Prepare();

 private:
  absl::StatusOr<Tensor> HighPrecision();
  absl::StatusOr<QuantizedTensor> Codes();
  absl::StatusOr<QuantizedTensor> CodesOfParameter();
  absl::StatusOr<QuantizedTensor> Quantize(Usages usages);
  absl::Status SeedSkippedCastInPart(QuantizedTensor& kept);
  const Quantizer& quantizer() const { return unit_.recipe->QuantizerFor(TensorRole::kWeight); }

  StepRecorder& recorder_;
  const LinearUnit& unit_;
  LayerState& state_;
  const StepOptions& options_;
  Parameter& parameter_;
  ExpertAmaxes* const expert_amaxes_;
  Tensor dequantized_;  ///< The values of a quantized parameter, computed once.
};

}  // namespace quantgate
