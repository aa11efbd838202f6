#include "tests/layer/layer_cases.h"

#include <set>

#include "kernels/layer/layer_program.h"
#include "tests/engine/recipe_cases.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace {

constexpr int64_t kColumns = 64, kHidden = 96;

Tensor Normal(uint64_t seed, DType dtype, Shape shape) {
  return Generated(Distribution::kNormal, seed, dtype, std::move(shape));
}

LayerRequest Base(LayerKind kind, int64_t out_columns) {
  LayerRequest request;
  request.layer.kind = kind;
  request.x = Normal(1, DType::kBF16, {2, 32, kColumns});
  request.grad_output = Normal(2, DType::kBF16, {2, 32, out_columns});
  request.seed = 7;
  return request;
}

}  // namespace

LayerRequest LinearCase() {
  LayerRequest request = Base(LayerKind::kLinear, kHidden);
  request.parameters["weight"] = Normal(3, DType::kF32, {kHidden, kColumns});
  request.parameters["bias"] = Normal(4, DType::kBF16, {kHidden});
  return request;
}

LayerRequest LayerNormLinearCase(NormKind norm) {
  LayerRequest request = LinearCase();
  request.layer.kind = LayerKind::kLayerNormLinear;
  request.layer.norm.kind = norm;
  request.layer.norm.zero_centered_gamma = norm == NormKind::kRmsNorm;
  request.parameters["gamma"] = Normal(5, DType::kF32, {kColumns});
  if (norm == NormKind::kLayerNorm) {
    request.parameters["beta"] = Normal(6, DType::kBF16, {kColumns});
  }
  return request;
}

LayerRequest LayerNormMlpCase(ActivationKind activation) {
  LayerRequest request = Base(LayerKind::kLayerNormMlp, kColumns);
  request.layer.activation.kind = activation;
  const int64_t fc1 = IsGated(activation) ? 2 * kHidden : kHidden;
  request.parameters["gamma"] = Normal(5, DType::kBF16, {kColumns});
  request.parameters["beta"] = Normal(6, DType::kF32, {kColumns});
  request.parameters["fc1.weight"] = Normal(7, DType::kF32, {fc1, kColumns});
  request.parameters["fc1.bias"] = Normal(8, DType::kF32, {fc1});
  request.parameters["fc2.weight"] = Normal(9, DType::kBF16, {kColumns, kHidden});
  request.parameters["fc2.bias"] = Normal(10, DType::kBF16, {kColumns});
  return request;
}

LayerRequest GroupedLinearCase() {
  LayerRequest request = Base(LayerKind::kGroupedLinear, kHidden);
  request.layer.m_splits = {32, 0, 32};
  for (uint64_t expert = 0; expert < 3; ++expert) {
    const std::string suffix = "." + std::to_string(expert);
    request.parameters["weight" + suffix] = Normal(11 + expert, DType::kBF16, {kHidden, kColumns});
    request.parameters["bias" + suffix] = Normal(14 + expert, DType::kF32, {kHidden});
  }
  return request;
}

LayerRequest ResidualChainCase() {
  LayerRequest request = Base(LayerKind::kChain, kColumns);
  std::vector<OperationSpec>& operations = request.layer.operations;
  const auto add = [&](OperationKind kind, const std::string& name) -> OperationSpec& {
    operations.emplace_back();
    operations.back().kind = kind;
    operations.back().name = name;
    return operations.back();
  };
  add(OperationKind::kNorm, "ln").norm.kind = NormKind::kRmsNorm;
  add(OperationKind::kBasicLinear, "up");
  add(OperationKind::kBias, "up_bias");
  add(OperationKind::kActivation, "act").activation.kind = ActivationKind::kSilu;
  add(OperationKind::kBasicLinear, "down");
  add(OperationKind::kAdd, "residual").addend = "x";
  add(OperationKind::kScale, "half").factor = 0.5f;
  request.parameters["ln.gamma"] = Normal(17, DType::kBF16, {kColumns});
  request.parameters["up.weight"] = Normal(18, DType::kBF16, {kHidden, kColumns});
  request.parameters["up_bias.bias"] = Normal(19, DType::kBF16, {kHidden});
  request.parameters["down.weight"] = Normal(20, DType::kF32, {kColumns, kHidden});
  return request;
}

LayerRequest AttentionCase() {
  LayerRequest request;
  request.layer.kind = LayerKind::kAttention;
  request.layer.attention = {
      .heads = 4, .groups = 2, .mask = AttentionMask::kCausal, .rotary_base = 10000.0f};
  request.x = Normal(1, DType::kBF16, {32, 2, kColumns});
  request.grad_output = Normal(2, DType::kBF16, {32, 2, kColumns});
  request.seed = 7;
  // Heads of 16 columns: four queries, two keys and two values.
  request.parameters["qkv.weight"] = Normal(21, DType::kF32, {128, kColumns});
  request.parameters["qkv.bias"] = Normal(22, DType::kBF16, {128});
  request.parameters["proj.weight"] = Normal(23, DType::kBF16, {kColumns, 64});
  request.parameters["proj.bias"] = Normal(24, DType::kF32, {kColumns});
  return request;
}

LayerRequest TransformerLayerCase(NormKind norm, ActivationKind activation) {
  LayerRequest request = AttentionCase();
  request.layer.kind = LayerKind::kTransformerLayer;
  request.layer.norm.kind = norm;
  request.layer.activation.kind = activation;
  const bool is_gated = IsGated(activation);
  if (is_gated) request.layer.attention = {.heads = 2, .groups = 0};
  if (is_gated) {
    request.parameters["qkv.weight"] = Normal(21, DType::kF32, {192, kColumns});
    request.parameters["qkv.bias"] = Normal(22, DType::kBF16, {192});
  }
  const int64_t fc1 = is_gated ? 2 * kHidden : kHidden;
  for (const std::string prefix : {"norm1.", "norm2."}) {
    const uint64_t seed = prefix == "norm1." ? 25 : 27;
    request.parameters[prefix + "gamma"] = Normal(seed, DType::kBF16, {kColumns});
    if (norm == NormKind::kRmsNorm) continue;
    request.parameters[prefix + "beta"] = Normal(seed + 1, DType::kF32, {kColumns});
  }
  request.parameters["fc1.weight"] = Normal(29, DType::kF32, {fc1, kColumns});
  request.parameters["fc1.bias"] = Normal(30, DType::kF32, {fc1});
  request.parameters["fc2.weight"] = Normal(31, DType::kBF16, {kColumns, kHidden});
  request.parameters["fc2.bias"] = Normal(32, DType::kBF16, {kColumns});
  return request;
}

std::vector<NamedCase> AllLayerCases() {
  return {
      {"linear", LinearCase()},
      {"layernorm_linear", LayerNormLinearCase(NormKind::kLayerNorm)},
      {"rmsnorm_linear", LayerNormLinearCase(NormKind::kRmsNorm)},
      {"gelu_mlp", LayerNormMlpCase(ActivationKind::kGelu)},
      {"swiglu_mlp", LayerNormMlpCase(ActivationKind::kSwiglu)},
      {"grouped_linear", GroupedLinearCase()},
      {"chain", ResidualChainCase()},
      {"attention", AttentionCase()},
      {"gelu_transformer_layer", TransformerLayerCase(NormKind::kLayerNorm, ActivationKind::kGelu)},
      {"swiglu_transformer_layer",
       TransformerLayerCase(NormKind::kRmsNorm, ActivationKind::kSwiglu)}};
}

LayerRequest WithScales(LayerRequest request) {
  for (const LayerDelayedState& state :
       DelayedStatesOf(request.layer, *Recipe::Parse("fp8_delayed"))) {
    DelayedScalingState& delayed = request.delayed[state.name];
    delayed = *FreshDelayedScaling(4);
    *delayed.scale.as<float>() = kCaseScales[static_cast<size_t>(state.role)];
  }
  return request;
}

std::vector<Recipe> CaseRecipes() {
  std::set<std::string> seen;
  std::vector<Recipe> recipes;
  for (const char* text : kRecipeCases) {
    const Recipe recipe = *Recipe::Parse(text);
    for (const auto mode : {BackwardOverride::kNone, BackwardOverride::kHighPrecision,
                            BackwardOverride::kDequantized}) {
      if (recipe.is_delayed() && mode != BackwardOverride::kNone) continue;
      // No GEMM takes a row-scaled b, which wgrad's x would be.
      const auto row_scaled = recipe.knobs().find("row_scaled_activation");
      if (row_scaled != recipe.knobs().end() && row_scaled->second == "true" &&
          mode == BackwardOverride::kNone) {
        continue;
      }
      Recipe one = recipe.WithBackwardOverride(mode);
      if (seen.insert(one.CanonicalText()).second) recipes.push_back(std::move(one));
    }
  }
  return recipes;
}

RequiresGrad GradientsOf(int mask, bool norm) {
  return {(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0, norm};
}

LayerResult RunCase(const LayerRequest& request, const Recipe& recipe) {
  // The tensors are small: threads would cost more than they save.
  const auto engine = MakeCpuEngine({.threads = 1});
  auto result = RunLayer(*engine, request, recipe, Arithmetic{}, nullptr);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : LayerResult{};
}

LayerResult RunCase(const LayerRequest& request, const std::string& recipe) {
  return RunCase(request, *Recipe::Parse(recipe));
}

bool HasOutput(const LayerResult& result, const std::string& name) {
  for (const NamedTensor& output : result.outputs) {
    if (output.name == name) return true;
  }
  return false;
}

const Tensor& OutputOf(const LayerResult& result, const std::string& name) {
  for (const NamedTensor& output : result.outputs) {
    if (output.name == name) return output.tensor;
  }
  static const Tensor kAbsent;
  ADD_FAILURE() << "no output " << name;
  return kAbsent;
}

void ExpectSameOutputs(const LayerResult& subject, const LayerResult& reference) {
  ASSERT_EQ(subject.outputs.size(), reference.outputs.size());
  for (size_t i = 0; i < reference.outputs.size(); ++i) {
    EXPECT_EQ(subject.outputs[i].name, reference.outputs[i].name);
    EXPECT_TRUE(SameBits(subject.outputs[i].tensor, reference.outputs[i].tensor))
        << reference.outputs[i].name;
  }
}

}  // namespace quantgate
