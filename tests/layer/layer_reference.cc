#include "tests/layer/layer_reference.h"

#include "kernels/ops/elementwise/elementwise.h"
#include "kernels/validate/scenarios/oracles/expected_linear.h"
#include "tests/layer/attention_by_hand.h"
#include "tests/layer/layer_cases.h"

namespace quantgate {
namespace {

const ExecutionContext kContext;

Tensor Flat(const Tensor& tensor) {
  return *tensor.Reinterpret(tensor.dtype(), {tensor.rows(), tensor.columns()});
}

/// Rows [begin, begin + count) of a matrix, copied.
Tensor Rows(const Tensor& matrix, int64_t begin, int64_t count) {
  const size_t row = matrix.columns() * DTypeBytes(matrix.dtype());
  return *Tensor::FromBytes(matrix.dtype(), {count, matrix.columns()},
                            matrix.bytes().subspan(begin * row, count * row));
}

/// Activations whose backward is one kernel with the bias gradient and the cast (section 10.6).
bool IsOneKernel(ActivationKind kind) {
  return kind == ActivationKind::kGelu || kind == ActivationKind::kQgelu ||
         kind == ActivationKind::kRelu || kind == ActivationKind::kSrelu ||
         kind == ActivationKind::kSilu;
}

class Reference {
 public:
  Reference(const LayerRequest& request, const Recipe& recipe)
      : request_(request),
        recipe_(recipe),
        activation_(recipe.activation_dtype().value_or(request.x.dtype())),
        x_(Cast(Flat(request.x))),
        dy_(Cast(Flat(request.grad_output))) {}

  NamedOutputs Linear();
  NamedOutputs LayerNormLinear();
  NamedOutputs LayerNormMlp();
  NamedOutputs GroupedLinear();
  NamedOutputs ResidualChain();
  NamedOutputs Attention();
  NamedOutputs TransformerLayer();

 private:
  Tensor Cast(const Tensor& tensor) const { return *ExpectedCast(tensor, activation_); }
  Tensor Parameter(const std::string& name) const {
    const auto found = request_.parameters.find(name);
    return found == request_.parameters.end() ? Tensor() : found->second;
  }
  /// "y", "dx", "dw" and, with a bias, "db" of the layer's linear unit of this number; forward
  /// alone without a gradient.
  NamedOutputs Unit(uint32_t number, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const Tensor& grad_output = {}, const Tensor& main_grad = {}) const;
  Tensor Db(const Tensor& dy) const { return *ExpectedColumnSums(dy, activation_); }
  /// What goes to a quantizer: under delayed scaling without a rounding in between.
  DType Handed() const { return recipe_.is_delayed() ? DType::kF32 : activation_; }
  NormForwardResult Norm(const NormOptions& options, const std::string& prefix) const {
    return NormOf(x_, options, prefix);
  }
  NormForwardResult NormOf(const Tensor& x, const NormOptions& options,
                           const std::string& prefix) const;
  NormGradients NormBackward(const NormOptions& options, const std::string& prefix,
                             const Tensor& dz, const Tensor& residual) const {
    return NormBackwardOf(x_, options, prefix, dz, residual);
  }
  NormGradients NormBackwardOf(const Tensor& x, const NormOptions& options,
                               const std::string& prefix, const Tensor& dz,
                               const Tensor& residual) const;
  HandAttentionResult Core(const Tensor& qkv, const Tensor& dcontext = {}) const;
  /// Gradient of an activation's input as its linear unit takes it, and as the bias sums it.
  std::pair<Tensor, Tensor> Dact(const Tensor& dy, const Tensor& h,
                                 const ActivationOptions& options) const;

  const LayerRequest& request_;
  const Recipe& recipe_;
  const DType activation_;
  const Tensor x_, dy_;
};

NamedOutputs Reference::Unit(uint32_t number, const Tensor& x, const Tensor& weight,
                             const Tensor& bias, const Tensor& grad_output,
                             const Tensor& main_grad) const {
  static Engine& engine = *MakeCpuEngine({Isa::kScalar, 1}).release();
  LinearOperands operands;
  operands.x = x;
  operands.weight = weight;
  operands.bias = bias;
  operands.grad_output = grad_output;
  operands.main_grad = main_grad;
  operands.seed = request_.seed;
  operands.first_call_id = 3 * number;
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput}) {
    operands.scales[role] = *Tensor::FromScalar(kCaseScales[static_cast<size_t>(role)]);
  }
  operands.activation = activation_;
  return ExpectedLinear(engine, operands, recipe_).value();
}

NamedOutputs Reference::Linear() {
  const auto main_grad = request_.main_grads.find("weight");
  return Unit(0, x_, Parameter("weight"), Parameter("bias"), dy_,
              main_grad == request_.main_grads.end() ? Tensor() : main_grad->second);
}

NormForwardResult Reference::NormOf(const Tensor& x, const NormOptions& options,
                                    const std::string& prefix) const {
  NormForwardDesc desc;
  desc.x = x;
  desc.gamma = Cast(Parameter(prefix + "gamma"));
  if (Parameter(prefix + "beta").has_value()) desc.beta = Cast(Parameter(prefix + "beta"));
  desc.options = options;
  desc.out = request_.layer.return_norm_output ? activation_ : Handed();
  return *NormForwardCpu(desc, kContext);
}

NormGradients Reference::NormBackwardOf(const Tensor& x, const NormOptions& options,
                                        const std::string& prefix, const Tensor& dz,
                                        const Tensor& residual) const {
  const NormForwardResult forward = NormOf(x, options, prefix);
  NormBackwardDesc desc;
  desc.dz = dz;
  desc.x = x;
  desc.gamma = Cast(Parameter(prefix + "gamma"));
  desc.mean = forward.mean;
  desc.rstd = forward.rstd;
  desc.residual = residual;
  desc.options = options;
  desc.wanted.dbeta = Parameter(prefix + "beta").has_value();
  return *NormBackwardCpu(desc, kContext);
}

NamedOutputs Reference::LayerNormLinear() {
  const NormOptions& options = request_.layer.norm;
  const Tensor weight = Parameter("weight");
  const Tensor h = Norm(options, "").y;
  NamedOutputs out = Unit(0, h, weight, Parameter("bias"), dy_);
  if (request_.layer.return_norm_output) out["norm_out"] = h;
  const NormGradients norm = NormBackward(options, "", out["dx"], {});
  out["dx"] = norm.dx;
  out["dgamma"] = norm.dgamma;
  if (norm.dbeta.has_value()) out["dbeta"] = norm.dbeta;
  return out;
}

std::pair<Tensor, Tensor> Reference::Dact(const Tensor& dy, const Tensor& h,
                                          const ActivationOptions& options) const {
  const Tensor exact = *ActivationBackwardCpu(dy, h, options, DType::kF32, kContext);
  const Tensor rounded = Cast(exact);
  if (!IsOneKernel(options.kind)) return {rounded, rounded};
  if (recipe_.is_delayed()) return {exact, exact};
  const bool is_mxfp8 =
      recipe_.name() == "mxfp8" && recipe_.backward_override() == BackwardOverride::kNone;
  return {rounded, is_mxfp8 ? exact : rounded};
}

NamedOutputs Reference::LayerNormMlp() {
  const LayerSpec& layer = request_.layer;
  const Tensor w1 = Parameter("fc1.weight"), w2 = Parameter("fc2.weight");
  const Tensor h = Norm(layer.norm, "").y;
  const Tensor fc1 = Unit(0, h, w1, Parameter("fc1.bias"))["y"];
  const Tensor act = *ActivationForwardCpu(fc1, layer.activation, Handed(), kContext);
  NamedOutputs fc2 = Unit(1, act, w2, Parameter("fc2.bias"), dy_);
  const auto [dfc1, for_bias] = Dact(fc2["dx"], fc1, layer.activation);
  NamedOutputs backward = Unit(0, h, w1, {}, dfc1);
  NamedOutputs out = {{"y", fc2["y"]},
                      {"fc2.dw", fc2["dw"]},
                      {"fc2.db", fc2["db"]},
                      {"fc1.dw", backward["dw"]},
                      {"fc1.db", Db(for_bias)}};
  const NormGradients norm = NormBackward(layer.norm, "", backward["dx"], {});
  out["dx"] = norm.dx;
  out["dgamma"] = norm.dgamma;
  out["dbeta"] = norm.dbeta;
  return out;
}

NamedOutputs Reference::GroupedLinear() {
  NamedOutputs out;
  std::vector<Tensor> ys, dxs;
  int64_t row = 0;
  for (size_t i = 0; i < request_.layer.m_splits.size(); ++i) {
    const int64_t rows = request_.layer.m_splits[i];
    const std::string suffix = "." + std::to_string(i);
    const Tensor x = Rows(x_, row, rows), dy = Rows(dy_, row, rows);
    const Tensor weight = Parameter("weight" + suffix);
    row += rows;
    if (rows == 0) {
      GeneratorSpec zeros;
      zeros.distribution = Distribution::kAllZero;
      zeros.dtype = activation_;
      zeros.shape = weight.shape();
      out["dw" + suffix] = *Generate(zeros, kContext);
      zeros.shape = {weight.shape()[0]};
      out["db" + suffix] = *Generate(zeros, kContext);
      continue;
    }
    NamedOutputs unit = Unit(static_cast<uint32_t>(i), x, weight, Parameter("bias" + suffix), dy);
    ys.push_back(unit["y"]);
    dxs.push_back(unit["dx"]);
    out["dw" + suffix] = unit["dw"];
    out["db" + suffix] = unit["db"];
  }
  out["y"] = *ConcatenateRowsCpu(ys, kContext);
  out["dx"] = *ConcatenateRowsCpu(dxs, kContext);
  return out;
}

NamedOutputs Reference::ResidualChain() {
  const std::vector<OperationSpec>& operations = request_.layer.operations;
  const NormOptions& norm_options = operations[0].norm;
  const ActivationOptions& act_options = operations[3].activation;
  const float factor = operations[6].factor;
  const Tensor w1 = Parameter("up.weight"), w2 = Parameter("down.weight");
  const Tensor h = Norm(norm_options, "ln.").y;
  const Tensor up = Unit(0, h, w1, Parameter("up_bias.bias"))["y"];
  const Tensor act = *ActivationForwardCpu(up, act_options, Handed(), kContext);
  const Tensor dsum = *ScaleCpu(dy_, factor, activation_, kContext);
  NamedOutputs down = Unit(1, act, w2, {}, dsum);
  const auto [dup, for_bias] = Dact(down["dx"], up, act_options);
  NamedOutputs backward = Unit(0, h, w1, {}, dup);
  const Tensor sum = *AddCpu(down["y"], x_, activation_, kContext);
  NamedOutputs out = {{"y", *ScaleCpu(sum, factor, activation_, kContext)},
                      {"down.dw", down["dw"]},
                      {"up.dw", backward["dw"]},
                      {"up_bias.db", Db(for_bias)}};
  const NormGradients norm = NormBackward(norm_options, "ln.", backward["dx"], dsum);
  out["dx"] = norm.dx;
  out["ln.dgamma"] = norm.dgamma;
  return out;
}

HandAttentionResult Reference::Core(const Tensor& qkv, const Tensor& dcontext) const {
  const Shape& x = request_.x.shape();
  const int64_t batch = x.size() == 3 ? x[1] : 1;
  return AttentionByHand({request_.layer.attention, x[0], batch, qkv, dcontext});
}

NamedOutputs Reference::Attention() {
  const Tensor w1 = Parameter("qkv.weight"), w2 = Parameter("proj.weight");
  const Tensor qkv = Unit(0, x_, w1, Parameter("qkv.bias"))["y"];
  NamedOutputs proj = Unit(1, Core(qkv).context, w2, Parameter("proj.bias"), dy_);
  const Tensor dqkv = Core(qkv, proj["dx"]).dqkv;
  NamedOutputs backward = Unit(0, x_, w1, {}, dqkv);
  return {{"y", proj["y"]},     {"dx", backward["dx"]},  {"qkv.dw", backward["dw"]},
          {"qkv.db", Db(dqkv)}, {"proj.dw", proj["dw"]}, {"proj.db", proj["db"]}};
}

NamedOutputs Reference::TransformerLayer() {
  const LayerSpec& layer = request_.layer;
  const Tensor w1 = Parameter("qkv.weight"), w2 = Parameter("proj.weight");
  const Tensor w3 = Parameter("fc1.weight"), w4 = Parameter("fc2.weight");
  const Tensor n1 = Norm(layer.norm, "norm1.").y;
  const Tensor qkv = Unit(0, n1, w1, Parameter("qkv.bias"))["y"];
  const Tensor context = Core(qkv).context;
  const Tensor branch = Unit(1, context, w2, Parameter("proj.bias"))["y"];
  const Tensor sum = *AddCpu(branch, x_, activation_, kContext);
  const Tensor n2 = NormOf(sum, layer.norm, "norm2.").y;
  const Tensor fc1 = Unit(2, n2, w3, Parameter("fc1.bias"))["y"];
  const Tensor act = *ActivationForwardCpu(fc1, layer.activation, Handed(), kContext);

  NamedOutputs fc2 = Unit(3, act, w4, Parameter("fc2.bias"), dy_);
  const auto [dfc1, for_bias] = Dact(fc2["dx"], fc1, layer.activation);
  NamedOutputs fc1_backward = Unit(2, n2, w3, {}, dfc1);
  const NormGradients norm2 = NormBackwardOf(sum, layer.norm, "norm2.", fc1_backward["dx"], dy_);
  NamedOutputs proj = Unit(1, context, w2, Parameter("proj.bias"), norm2.dx);
  const Tensor dqkv = Core(qkv, proj["dx"]).dqkv;
  NamedOutputs qkv_backward = Unit(0, n1, w1, {}, dqkv);
  const NormGradients norm1 = NormBackward(layer.norm, "norm1.", qkv_backward["dx"], norm2.dx);
  NamedOutputs out = {{"y", *AddCpu(fc2["y"], sum, activation_, kContext)},
                      {"dx", norm1.dx},
                      {"qkv.dw", qkv_backward["dw"]},
                      {"qkv.db", Db(dqkv)},
                      {"proj.dw", proj["dw"]},
                      {"proj.db", proj["db"]},
                      {"fc1.dw", fc1_backward["dw"]},
                      {"fc1.db", Db(for_bias)},
                      {"fc2.dw", fc2["dw"]},
                      {"fc2.db", fc2["db"]},
                      {"norm1.dgamma", norm1.dgamma},
                      {"norm2.dgamma", norm2.dgamma}};
  if (norm1.dbeta.has_value()) out["norm1.dbeta"] = norm1.dbeta;
  if (norm2.dbeta.has_value()) out["norm2.dbeta"] = norm2.dbeta;
  return out;
}

}  // namespace

NamedOutputs ReferenceOf(const LayerRequest& request, const Recipe& recipe) {
  Reference reference(request, recipe);
  NamedOutputs out;
  switch (request.layer.kind) {
    case LayerKind::kLinear:
      out = reference.Linear();
      break;
    case LayerKind::kLayerNormLinear:
      out = reference.LayerNormLinear();
      break;
    case LayerKind::kLayerNormMlp:
      out = reference.LayerNormMlp();
      break;
    case LayerKind::kGroupedLinear:
      out = reference.GroupedLinear();
      break;
    case LayerKind::kChain:
      out = reference.ResidualChain();
      break;
    case LayerKind::kAttention:
      out = reference.Attention();
      break;
    case LayerKind::kTransformerLayer:
      out = reference.TransformerLayer();
      break;
  }
  for (const char* name : {"y", "dx", "norm_out"}) {
    const auto found = out.find(name);
    if (found == out.end()) continue;
    Shape shape = request.x.shape();
    shape.back() = found->second.columns();
    found->second = *found->second.Reinterpret(found->second.dtype(), shape);
  }
  return out;
}

}  // namespace quantgate
