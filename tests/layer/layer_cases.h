// Requests of every kind of layer that every recipe of tests/engine/recipe_cases.h takes, with
// parameters of several dtypes, and helpers to check their results.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/layer/layer.h"

namespace quantgate {

/// 2 x 32 rows of 64 columns in bf16; weights to 96 or from 96, f32 or bf16.
LayerRequest LinearCase();
LayerRequest LayerNormLinearCase(NormKind norm);
LayerRequest LayerNormMlpCase(ActivationKind activation);
/// 64 rows in three experts, one of them empty.
LayerRequest GroupedLinearCase();
/// x -> norm -> linear with bias -> activation -> linear -> add x -> scale.
LayerRequest ResidualChainCase();

/// 32 x 2 rows of 64 columns in four causal heads of two groups, with rotary positions.
LayerRequest AttentionCase();
LayerRequest TransformerLayerCase(NormKind norm, ActivationKind activation);

struct NamedCase {
  std::string name;
  LayerRequest request;
};
/// At least one request of each kind.
std::vector<NamedCase> AllLayerCases();

/// Scales that move every cast: 2^3, 2^5 and 2^-4 for input, weight and grad_output.
inline constexpr float kCaseScales[] = {8, 32, 0.0625f};
/// The request with these scales for all of its delayed-scaling states.
LayerRequest WithScales(LayerRequest request);

/// The recipes of kRecipeCases without an override, each under all three backward overrides;
/// delayed scaling only without one.
std::vector<Recipe> CaseRecipes();

/// RequiresGrad from a mask: bit 0 is x, bit 1 weight, bit 2 bias; `norm` is norm.
RequiresGrad GradientsOf(int mask, bool norm);

/// CheckLayerGemms of a request that CheckLayer accepts.
inline absl::Status CheckGemmsOf(const LayerRequest& request, const Recipe& recipe,
                                 const Arithmetic& arithmetic) {
  QG_ASSIGN_OR_RETURN(const LayerPlanPointer plan, DecideLayer(request, recipe));
  return CheckLayerGemms(*plan, arithmetic);
}

LayerResult RunCase(const LayerRequest& request, const Recipe& recipe);
LayerResult RunCase(const LayerRequest& request, const std::string& recipe);

const Tensor& OutputOf(const LayerResult& result, const std::string& name);
bool HasOutput(const LayerResult& result, const std::string& name);
void ExpectSameOutputs(const LayerResult& subject, const LayerResult& reference);

}  // namespace quantgate
