#include "tests/layer/layer_reference.h"

#include "kernels/ops/elementwise.h"
#include "kernels/tensor/column_sums.h"
#include "kernels/tensor/convert.h"
#include "tests/layer/layer_cases.h"
#include "tests/layer/unit_reference.h"

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

  std::map<std::string, Tensor> Linear();
  std::map<std::string, Tensor> LayerNormLinear();
  std::map<std::string, Tensor> LayerNormMlp();
  std::map<std::string, Tensor> GroupedLinear();
  std::map<std::string, Tensor> ResidualChain();

 private:
  Tensor Cast(const Tensor& tensor) const { return *CastTensor(tensor, activation_, kContext); }
  Tensor Parameter(const std::string& name) const {
    const auto found = request_.parameters.find(name);
    return found == request_.parameters.end() ? Tensor() : found->second;
  }
  UnitReference Unit(uint32_t number) const {
    return {recipe_,
            activation_,
            request_.seed,
            3 * number,
            {kCaseScales[0], kCaseScales[1], kCaseScales[2]}};
  }
  Tensor Db(const Tensor& dy) const { return *ColumnSums(dy, activation_, kContext); }
  /// What goes to a quantizer: under delayed scaling without a rounding in between.
  DType Handed() const { return recipe_.is_delayed() ? DType::kF32 : activation_; }
  NormForwardResult Norm(const NormOptions& options, const std::string& prefix) const;
  NormGradients NormBackward(const NormOptions& options, const std::string& prefix,
                             const Tensor& dz, const Tensor& residual) const;
  /// Gradient of an activation's input as its linear unit takes it, and as the bias sums it.
  std::pair<Tensor, Tensor> Dact(const Tensor& dy, const Tensor& h,
                                 const ActivationOptions& options) const;

  const LayerRequest& request_;
  const Recipe& recipe_;
  const DType activation_;
  const Tensor x_, dy_;
};

std::map<std::string, Tensor> Reference::Linear() {
  const Tensor weight = Parameter("weight");
  return {{"y", Unit(0).Fprop(x_, weight, Parameter("bias"))},
          {"dx", Unit(0).Dgrad(dy_, weight)},
          {"dw", Unit(0).Wgrad(dy_, x_, {})},
          {"db", Db(dy_)}};
}

NormForwardResult Reference::Norm(const NormOptions& options, const std::string& prefix) const {
  NormForwardDesc desc;
  desc.x = x_;
  desc.gamma = Cast(Parameter(prefix + "gamma"));
  if (Parameter(prefix + "beta").has_value()) desc.beta = Cast(Parameter(prefix + "beta"));
  desc.options = options;
  desc.out = request_.layer.return_norm_output ? activation_ : Handed();
  return *NormForwardCpu(desc, kContext);
}

NormGradients Reference::NormBackward(const NormOptions& options, const std::string& prefix,
                                      const Tensor& dz, const Tensor& residual) const {
  const NormForwardResult forward = Norm(options, prefix);
  NormBackwardDesc desc;
  desc.dz = dz;
  desc.x = x_;
  desc.gamma = Cast(Parameter(prefix + "gamma"));
  desc.mean = forward.mean;
  desc.rstd = forward.rstd;
  desc.residual = residual;
  desc.options = options;
  desc.wanted.dbeta = Parameter(prefix + "beta").has_value();
  return *NormBackwardCpu(desc, kContext);
}

std::map<std::string, Tensor> Reference::LayerNormLinear() {
  const NormOptions& options = request_.layer.norm;
  const Tensor weight = Parameter("weight");
  const Tensor h = Norm(options, "").y;
  std::map<std::string, Tensor> out = {{"y", Unit(0).Fprop(h, weight, Parameter("bias"))},
                                       {"dw", Unit(0).Wgrad(dy_, h, {})},
                                       {"db", Db(dy_)}};
  if (request_.layer.return_norm_output) out["norm_out"] = h;
  const NormGradients norm = NormBackward(options, "", Unit(0).Dgrad(dy_, weight), {});
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

std::map<std::string, Tensor> Reference::LayerNormMlp() {
  const LayerSpec& layer = request_.layer;
  const Tensor w1 = Parameter("fc1.weight"), w2 = Parameter("fc2.weight");
  const Tensor h = Norm(layer.norm, "").y;
  const Tensor fc1 = Unit(0).Fprop(h, w1, Parameter("fc1.bias"));
  const Tensor act = *ActivationForwardCpu(fc1, layer.activation, Handed(), kContext);
  std::map<std::string, Tensor> out;
  out["y"] = Unit(1).Fprop(act, w2, Parameter("fc2.bias"));
  out["fc2.dw"] = Unit(1).Wgrad(dy_, act, {});
  out["fc2.db"] = Db(dy_);
  const auto [dfc1, for_bias] = Dact(Unit(1).Dgrad(dy_, w2), fc1, layer.activation);
  out["fc1.dw"] = Unit(0).Wgrad(dfc1, h, {});
  out["fc1.db"] = Db(for_bias);
  const NormGradients norm = NormBackward(layer.norm, "", Unit(0).Dgrad(dfc1, w1), {});
  out["dx"] = norm.dx;
  out["dgamma"] = norm.dgamma;
  out["dbeta"] = norm.dbeta;
  return out;
}

std::map<std::string, Tensor> Reference::GroupedLinear() {
  std::map<std::string, Tensor> out;
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
    const UnitReference unit = Unit(static_cast<uint32_t>(i));
    ys.push_back(unit.Fprop(x, weight, Parameter("bias" + suffix)));
    dxs.push_back(unit.Dgrad(dy, weight));
    out["dw" + suffix] = unit.Wgrad(dy, x, {});
    out["db" + suffix] = Db(dy);
  }
  out["y"] = *ConcatenateRowsCpu(ys, kContext);
  out["dx"] = *ConcatenateRowsCpu(dxs, kContext);
  return out;
}

std::map<std::string, Tensor> Reference::ResidualChain() {
  const std::vector<OperationSpec>& operations = request_.layer.operations;
  const NormOptions& norm_options = operations[0].norm;
  const ActivationOptions& act_options = operations[3].activation;
  const float factor = operations[6].factor;
  const Tensor w1 = Parameter("up.weight"), w2 = Parameter("down.weight");
  const Tensor h = Norm(norm_options, "ln.").y;
  const Tensor up = Unit(0).Fprop(h, w1, Parameter("up_bias.bias"));
  const Tensor act = *ActivationForwardCpu(up, act_options, Handed(), kContext);
  const Tensor down = Unit(1).Fprop(act, w2, {});
  std::map<std::string, Tensor> out;
  out["y"] = *ScaleCpu(*AddCpu(down, x_, activation_, kContext), factor, activation_, kContext);
  const Tensor dsum = *ScaleCpu(dy_, factor, activation_, kContext);
  out["down.dw"] = Unit(1).Wgrad(dsum, act, {});
  const auto [dup, for_bias] = Dact(Unit(1).Dgrad(dsum, w2), up, act_options);
  out["up.dw"] = Unit(0).Wgrad(dup, h, {});
  out["up_bias.db"] = Db(for_bias);
  const NormGradients norm = NormBackward(norm_options, "ln.", Unit(0).Dgrad(dup, w1), dsum);
  out["dx"] = norm.dx;
  out["ln.dgamma"] = norm.dgamma;
  return out;
}

}  // namespace

std::map<std::string, Tensor> ReferenceOf(const LayerRequest& request, const Recipe& recipe) {
  Reference reference(request, recipe);
  std::map<std::string, Tensor> out;
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
