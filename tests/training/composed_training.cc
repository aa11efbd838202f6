#include "tests/training/composed_training.h"

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/scaling_check.h"
#include "kernels/ops/elementwise.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/column_sums.h"
#include "kernels/tensor/convert.h"

namespace quantgate {
namespace {

const ExecutionContext kContext;
/// A linear layer's input, weight and grad_output, in this order.
constexpr uint32_t kCallIdsOfLayer = 3;

Tensor Cast(const Tensor& tensor, DType dtype) {
  return tensor.dtype() == dtype ? tensor : *CastTensor(tensor, dtype, kContext);
}

Tensor Zeros(const Shape& shape) {
  Tensor zeros = *Tensor::Allocate(DType::kF32, shape);
  std::fill_n(zeros.as<float>(), zeros.element_count(), 0.0f);
  return zeros;
}

GemmOperand Plain(const Tensor& tensor) {
  GemmOperand operand;
  operand.data = tensor;
  return operand;
}

Tensor Multiply(GemmDesc desc, const Recipe& recipe, GemmRole role) {
  // Block-scaled operands always accumulate split, per-tensor FP8 as the recipe says.
  desc.use_split_accumulator = IsFp8Block(desc.a.scaling) ||
                               (IsFp8(desc.a.data.dtype()) && recipe.UsesSplitAccumulator(role));
  return GemmCpu(desc, kContext)->d;
}

/// Columnwise codes lie transposed, but for mxfp8's.
bool IsTurned(const QuantizedTensor& codes) {
  return codes.columnwise->format != QuantizerFormat::kMxfp8;
}

}  // namespace

ComposedTraining::ComposedTraining(const Recipe& recipe, uint64_t seed,
                                   const std::map<std::string, Tensor>& parameters)
    : recipe_(recipe), seed_(seed) {
  for (const std::string name : {"fc1", "fc2"}) {
    ComposedLinear layer;
    layer.weight = parameters.at(name + ".weight");
    layer.bias = parameters.at(name + ".bias");
    layer.weight_master = Cast(layer.weight, DType::kF32);
    layer.bias_master = Cast(layer.bias, DType::kF32);
    layer.weight_m = layer.weight_v = Zeros(layer.weight.shape());
    layer.bias_m = layer.bias_v = Zeros(layer.bias.shape());
    for (DelayedScalingState* state : {&layer.input, &layer.weight_state, &layer.grad_output}) {
      *state = *FreshDelayedScaling(recipe.delayed_scaling().amax_history_len);
    }
    layers_.push_back(std::move(layer));
  }
}

QuantizedTensor ComposedTraining::Quantize(const Tensor& source, TensorRole role, Usages usages,
                                           uint32_t call_id, DelayedScalingState& state) {
  QuantizeArguments arguments;
  arguments.seed = seed_;
  arguments.call_id = call_id;
  if (recipe_.is_delayed()) arguments.scale = state.scale;
  QuantizedTensor codes =
      *QuantizeCpu(source, recipe_.QuantizerFor(role), usages, arguments, kContext);
  if (recipe_.is_delayed()) {
    const auto& copy = codes.rowwise.has_value() ? codes.rowwise : codes.columnwise;
    state = *WithCast(state, *copy->amax.as<float>());
  }
  return codes;
}

void ComposedTraining::Update(TensorRole role, DelayedScalingState& state) {
  if (!recipe_.is_delayed()) return;
  const DType element = recipe_.QuantizerFor(role).rowwise.element;
  const float largest = element == DType::kF8E4M3 ? 448.0f : 57344.0f;
  state = *WithUpdate(state, recipe_.delayed_scaling(), largest);
}

Tensor ComposedTraining::ForwardLayer(ComposedLinear& layer, const Tensor& x, uint32_t call_id,
                                      ComposedSaved& saved) {
  const DType activation = recipe_.activation_dtype().value_or(x.dtype());
  saved.x_given = x;
  saved.x = Cast(x, activation);
  saved.weight = layer.weight;
  saved.first_call_id = call_id;
  const Usages usages{true, !has_override()};
  GemmDesc desc;
  desc.out_dtype = activation;
  desc.bias = Cast(layer.bias, activation);
  desc.layout = GemmLayout::kTN;
  if (recipe_.is_quantized()) {
    saved.x_codes = Quantize(saved.x, TensorRole::kInput, usages, call_id, layer.input);
    saved.weight_codes =
        Quantize(layer.weight, TensorRole::kWeight, usages, call_id + 1, layer.weight_state);
    desc.a = OperandOf(*saved.x_codes.rowwise);
    desc.b = OperandOf(*saved.weight_codes.rowwise);
  } else {
    desc.a = Plain(saved.x);
    desc.b = Plain(Cast(layer.weight, activation));
  }
  return Multiply(desc, recipe_, GemmRole::kFprop);
}

ComposedMicrobatch ComposedTraining::Forward(const Tensor& x, bool train) {
  const std::vector<ComposedLinear> before = layers_;
  ComposedMicrobatch microbatch;
  microbatch.y = x;
  for (ComposedLinear& layer : layers_) {
    ComposedSaved saved;
    microbatch.y = ForwardLayer(layer, microbatch.y, next_call_id_, saved);
    microbatch.saved.push_back(std::move(saved));
    next_call_id_ += kCallIdsOfLayer;
  }
  for (ComposedLinear& layer : layers_) {
    Update(TensorRole::kInput, layer.input);
    Update(TensorRole::kWeight, layer.weight_state);
  }
  if (!train) layers_ = before;
  return microbatch;
}

Tensor ComposedTraining::BackwardLayer(ComposedLinear& layer, const ComposedSaved& saved,
                                       const Tensor& grad_output, Tensor& dw, Tensor& db) {
  const DType activation = saved.x.dtype();
  const Tensor dy = Cast(grad_output, activation);
  db = *ColumnSums(dy, activation, kContext);
  GemmDesc dgrad, wgrad;
  dgrad.out_dtype = wgrad.out_dtype = activation;
  dgrad.layout = GemmLayout::kNN;
  wgrad.layout = GemmLayout::kNT;
  dgrad.a = wgrad.a = Plain(dy);
  dgrad.b = Plain(Cast(saved.weight, activation));
  wgrad.b = Plain(saved.x);
  if (recipe_.is_quantized() && !has_override()) {
    const QuantizedTensor codes = Quantize(dy, TensorRole::kGradOutput, {true, true},
                                           saved.first_call_id + 2, layer.grad_output);
    dgrad.a = OperandOf(*codes.rowwise);
    dgrad.b = OperandOf(*saved.weight_codes.columnwise);
    dgrad.layout = IsTurned(saved.weight_codes) ? GemmLayout::kTN : GemmLayout::kNN;
    wgrad.a = OperandOf(*codes.columnwise);
    wgrad.b = OperandOf(*saved.x_codes.columnwise);
    wgrad.layout = IsTurned(saved.x_codes) ? GemmLayout::kTN : GemmLayout::kNT;
    Update(TensorRole::kGradOutput, layer.grad_output);
  } else if (recipe_.backward_override() == BackwardOverride::kDequantized &&
             recipe_.is_quantized()) {
    dgrad.b = Plain(*DequantizeCpu(saved.weight_codes, Usage::kRowwise, activation, kContext));
    wgrad.b = Plain(*DequantizeCpu(saved.x_codes, Usage::kRowwise, activation, kContext));
  }
  dw = Multiply(wgrad, recipe_, GemmRole::kWgrad);
  return Multiply(dgrad, recipe_, GemmRole::kDgrad);
}

ComposedGradients ComposedTraining::Backward(const ComposedMicrobatch& microbatch,
                                             const Tensor& grad_output) {
  ComposedGradients gradients;
  gradients.dx = grad_output;
  for (size_t i = layers_.size(); i-- > 0;) {
    ComposedLinear& layer = layers_[i];
    Tensor dw, db;
    gradients.dx = BackwardLayer(layer, microbatch.saved[i], gradients.dx, dw, db);
    const std::string name = i == 0 ? "fc1." : "fc2.";
    gradients.named[name + "dw"] = dw;
    gradients.named[name + "db"] = db;
    layer.dw = layer.dw.has_value() ? *AddCpu(layer.dw, dw, dw.dtype(), kContext) : dw;
    layer.db = layer.db.has_value() ? *AddCpu(layer.db, db, db.dtype(), kContext) : db;
  }
  return gradients;
}

void ComposedTraining::Adam(const AdamOptions& options) {
  ++updates_;
  for (ComposedLinear& layer : layers_) {
    const AdamResult weight = *AdamStepCpu(
        {layer.weight_master, layer.dw, layer.weight_m, layer.weight_v, options, updates_},
        kContext);
    layer.weight_master = weight.master;
    layer.weight_m = weight.m;
    layer.weight_v = weight.v;
    layer.weight = Cast(weight.master, layer.weight.dtype());
    const AdamResult bias = *AdamStepCpu(
        {layer.bias_master, layer.db, layer.bias_m, layer.bias_v, options, updates_}, kContext);
    layer.bias_master = bias.master;
    layer.bias_m = bias.m;
    layer.bias_v = bias.v;
    layer.bias = Cast(bias.master, layer.bias.dtype());
    layer.dw = layer.db = Tensor();
  }
}

}  // namespace quantgate
