#include "kernels/layer/linear_dataflow.h"

namespace quantgate {

LinearDataflow DataflowOf(const LinearRequest& request, const Recipe& recipe) {
  LinearDataflow flow;
  flow.activation_dtype = recipe.activation_dtype().value_or(request.x.dtype());
  flow.is_quantized = recipe.is_quantized();
  // An FP8 GEMM with fp32 output takes its bias in bf16 (docs/quantizers.md section 10.3).
  flow.bias_dtype = flow.is_quantized && flow.activation_dtype == DType::kF32
                        ? DType::kBF16
                        : flow.activation_dtype;
  if (flow.is_quantized) flow.backward_override = recipe.backward_override();
  flow.is_empty = request.x.rows() == 0;
  if (request.grad_output.has_value()) {
    flow.needs_dx = request.requires_grad.x;
    flow.needs_dw = request.requires_grad.weight;
    flow.needs_db = request.requires_grad.bias && request.bias.has_value();
  }
  if (flow.is_quantized && flow.backward_override == BackwardOverride::kNone) {
    flow.x_usages.columnwise = flow.needs_dw;
    flow.weight_usages.columnwise = flow.needs_dx;
    flow.grad_output_usages = {flow.needs_dx, flow.needs_dw};
  }
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
  add_if(flow.is_quantized, kStageQuantizeX);
  add_if(flow.is_quantized, kStageQuantizeWeight);
  add_if(!flow.is_quantized && request.weight.dtype() != activation, kStageCastWeight);
  add_if(request.bias.has_value() && request.bias.dtype() != flow.bias_dtype, kStageCastBias);
  stages.push_back(kStageFprop);
  if (!flow.has_backward()) return stages;

  stages.push_back(kStageSave);
  add_if(request.grad_output.dtype() != activation, kStageCastGradOutput);
  add_if(flow.needs_db, kStageBiasGradient);
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
  return stages;
}

}  // namespace quantgate
