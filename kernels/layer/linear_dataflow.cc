#include "kernels/layer/linear_dataflow.h"

namespace quantgate {

namespace {

/// A columnwise copy in high precision that stands for the rowwise codes.
bool HasDequantizedCopy(const Quantizer& quantizer) {
  return quantizer.columnwise_source == ColumnwiseSource::kRowwiseDequantized &&
         quantizer.rowwise.is_quantized() && !quantizer.columnwise.is_quantized();
}

void SetQuantizations(const Recipe& recipe, LinearDataflow& flow) {
  const Quantizer& x = recipe.QuantizerFor(TensorRole::kInput);
  const Quantizer& weight = recipe.QuantizerFor(TensorRole::kWeight);
  const Quantizer& grad_output = recipe.QuantizerFor(TensorRole::kGradOutput);
  flow.quantizes_fprop = x.rowwise.is_quantized();
  flow.x_usages.rowwise = flow.weight_usages.rowwise = flow.quantizes_fprop;
  if (flow.backward_override != BackwardOverride::kNone) return;
  flow.quantizes_dgrad = flow.needs_dx && weight.columnwise.is_quantized();
  flow.quantizes_wgrad = flow.needs_dw && x.columnwise.is_quantized();
  flow.x_usages.columnwise = flow.quantizes_wgrad || (flow.needs_dw && HasDequantizedCopy(x));
  flow.weight_usages.columnwise =
      flow.quantizes_dgrad || (flow.needs_dx && HasDequantizedCopy(weight));
  flow.grad_output_usages.rowwise = flow.quantizes_dgrad;
  flow.grad_output_usages.columnwise =
      flow.quantizes_wgrad || (flow.needs_dw && HasDequantizedCopy(grad_output));
}

}  // namespace

LinearDataflow DataflowOf(const LinearRequest& request, const Recipe& recipe) {
  LinearDataflow flow;
  flow.activation_dtype = recipe.activation_dtype().value_or(request.x.dtype());
  flow.is_calibration = request.calibrate && recipe.is_delayed();
  flow.is_empty = request.x.rows() == 0;
  if (request.grad_output.has_value()) {
    flow.needs_dx = request.requires_grad.x;
    flow.needs_dw = request.requires_grad.weight;
    flow.needs_db = request.requires_grad.bias && request.bias.has_value();
  }
  if (recipe.is_quantized() && !flow.is_calibration) {
    flow.backward_override = recipe.backward_override();
    flow.is_delayed = recipe.is_delayed();
    SetQuantizations(recipe, flow);
  }
  // An FP8 GEMM with fp32 output takes its bias in bf16 (docs/quantizers.md section 10.3).
  flow.bias_dtype = flow.quantizes_fprop && flow.activation_dtype == DType::kF32
                        ? DType::kBF16
                        : flow.activation_dtype;
  flow.reads_weight = !flow.quantizes_fprop || flow.keeps_weight();
  return flow;
}

std::vector<std::string> LinearOutputs(const LinearRequest& request) {
  std::vector<std::string> outputs = {"y"};
  if (!request.grad_output.has_value()) return outputs;
  if (request.requires_grad.x) outputs.push_back("dx");
  if (request.requires_grad.weight) {
    outputs.push_back(request.main_grad.has_value() ? "main_grad" : "dw");
  }
  if (request.requires_grad.bias && request.bias.has_value()) outputs.push_back("db");
  return outputs;
}

std::vector<std::string> LinearStages(const LinearRequest& request, const Recipe& recipe) {
  const LinearDataflow flow = DataflowOf(request, recipe);
  const DType activation = flow.activation_dtype;
  std::vector<std::string> stages;
  const auto add_if = [&](bool condition, const char* name) {
    if (condition) stages.push_back(name);
  };

  add_if(request.x.dtype() != activation, kStageCastX);
  add_if(flow.is_calibration, kStageCalibrateX);
  add_if(flow.is_calibration, kStageCalibrateWeight);
  add_if(flow.quantizes_x(), kStageQuantizeX);
  add_if(flow.quantizes_weight(), kStageQuantizeWeight);
  add_if(flow.reads_weight && request.weight.dtype() != activation, kStageCastWeight);
  add_if(flow.has_weight_copy() && request.weight.dtype() != activation, kStageCastWeightCopy);
  add_if(request.bias.has_value() && request.bias.dtype() != flow.bias_dtype, kStageCastBias);
  stages.push_back(kStageFprop);
  if (!flow.has_backward()) return stages;

  add_if(flow.is_delayed, kStageUpdateForward);
  stages.push_back(kStageSave);
  add_if(request.grad_output.dtype() != activation, kStageCastGradOutput);
  add_if(flow.needs_db, kStageBiasGradient);
  add_if(flow.is_calibration, kStageCalibrateGradOutput);
  add_if(flow.quantizes_grad_output(), kStageQuantizeGradOutput);
  // The fingerprints at use are taken right before the operands are read, all in one stage.
  stages.push_back(kStageCheckSaved);
  if (flow.needs_dx) {
    add_if(flow.reads_dequantized(), kStageDequantizeWeight);
    add_if(flow.reads_originals() && request.weight.dtype() != activation, kStageCastSavedWeight);
    stages.push_back(kStageDgrad);
  }
  if (flow.needs_dw) {
    // wgrad of an empty batch is zero without reading x.
    add_if(!flow.is_empty && flow.reads_dequantized(), kStageDequantizeX);
    add_if(!flow.is_empty && flow.reads_originals() && request.x.dtype() != activation,
           kStageCastSavedX);
    stages.push_back(kStageWgrad);
  }
  add_if(flow.is_delayed && flow.quantizes_grad_output(), kStageUpdateBackward);
  return stages;
}

}  // namespace quantgate
