#include "kernels/layer/layer_kinds.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/parse_name.h"

namespace quantgate {
namespace {

constexpr std::string_view kOperationKindNames[] = {
    "norm", "basic_linear", "bias", "activation", "quantize", "add", "scale", "attention"};
static_assert(std::size(kOperationKindNames) == static_cast<size_t>(OperationKind::kAttention) + 1);

constexpr LayerPart kLinearParts[] = {{OperationKind::kBasicLinear}};
constexpr LayerPart kLayerNormLinearParts[] = {{OperationKind::kNorm, "", "norm_out", "dnorm_out"},
                                               {OperationKind::kBasicLinear}};
constexpr LayerPart kLayerNormMlpParts[] = {
    {OperationKind::kNorm, "", "norm_out", "dnorm_out"},
    {OperationKind::kBasicLinear, "fc1.", "fc1.y", "fc1.grad_output"},
    {OperationKind::kActivation, "", "fc2.x", "fc2.dx"},
    {OperationKind::kBasicLinear, "fc2."}};
constexpr LayerPart kAttentionParts[] = {
    {OperationKind::kBasicLinear, "qkv.", "qkv.y", "qkv.grad_output"},
    {OperationKind::kAttention, "core.", "proj.x", "proj.dx"},
    {OperationKind::kBasicLinear, "proj."}};
constexpr LayerPart kTransformerLayerParts[] = {
    {OperationKind::kNorm, "norm1.", "qkv.x", "qkv.dx"},
    {OperationKind::kBasicLinear, "qkv.", "qkv.y", "qkv.grad_output"},
    {OperationKind::kAttention, "core.", "proj.x", "proj.dx"},
    {OperationKind::kBasicLinear, "proj.", "proj.y", "proj.grad_output"},
    {OperationKind::kAdd, "add1.", "add1.y", "add1.grad_output", "x"},
    {OperationKind::kNorm, "norm2.", "fc1.x", "fc1.dx"},
    {OperationKind::kBasicLinear, "fc1.", "fc1.y", "fc1.grad_output"},
    {OperationKind::kActivation, "", "fc2.x", "fc2.dx"},
    {OperationKind::kBasicLinear, "fc2.", "fc2.y", "fc2.grad_output"},
    {.operation = OperationKind::kAdd, .prefix = "add2.", .addend = "add1.y"}};

constexpr LayerTraits kLayerKinds[] = {
    {.kind = LayerKind::kLinear, .name = "linear", .parts = kLinearParts},
    {.kind = LayerKind::kLayerNormLinear,
     .name = "layernorm_linear",
     .parts = kLayerNormLinearParts,
     .column_alone_rule =
         "a norm needs all columns of x, so a layernorm_linear is column-parallel or none"},
    {.kind = LayerKind::kLayerNormMlp,
     .name = "layernorm_mlp",
     .parts = kLayerNormMlpParts,
     .column_alone_rule =
         "a layernorm_mlp is column-parallel, which makes fc2 row-parallel, or none",
     .override_note = "computed as norm, fc1, activation and fc2 one by one; Transformer Engine "
                      "refuses it"},
    {.kind = LayerKind::kGroupedLinear,
     .name = "grouped_linear",
     .parts = kLinearParts,
     .has_experts = true},
    {.kind = LayerKind::kChain, .name = "chain", .parts = {}, .has_operations = true},
    {.kind = LayerKind::kAttention,
     .name = "attention",
     .parts = kAttentionParts,
     .column_alone_rule =
         "an attention is column-parallel, which makes proj row-parallel, or none"},
    {.kind = LayerKind::kTransformerLayer,
     .name = "transformer_layer",
     .parts = kTransformerLayerParts,
     .column_alone_rule = "a transformer_layer is column-parallel, which makes proj and fc2 "
                          "row-parallel, or none",
     .override_note = "computed as norms, projections, attention, fc1, activation and fc2 one by "
                      "one; Transformer Engine refuses it for its layernorm_mlp"},
};

constexpr bool StandInOrder() {
  for (size_t i = 0; i < std::size(kLayerKinds); ++i) {
    if (static_cast<size_t>(kLayerKinds[i].kind) != i) return false;
  }
  return true;
}
static_assert(StandInOrder(), "TraitsOf finds a kind by its number");

std::vector<std::string_view> LayerKindNames() {
  std::vector<std::string_view> names;
  for (const LayerTraits& traits : kLayerKinds) names.push_back(traits.name);
  return names;
}

}  // namespace

int LayerTraits::count(OperationKind operation) const {
  return static_cast<int>(std::count_if(parts.begin(), parts.end(), [&](const LayerPart& part) {
    return part.operation == operation;
  }));
}

bool LayerTraits::has(OperationKind operation) const { return count(operation) != 0; }

std::string WithArticle(const LayerTraits& traits) {
  const bool begins_with_vowel =
      std::string_view("aeiou").find(traits.name[0]) != std::string::npos;
  return absl::StrCat(begins_with_vowel ? "an " : "a ", std::string(traits.name));
}

std::span<const LayerTraits> AllLayerKinds() { return kLayerKinds; }

std::string_view LayerKindName(LayerKind kind) { return TraitsOf(kind).name; }

absl::StatusOr<LayerKind> ParseLayerKind(std::string_view name) {
  return ParseName<LayerKind>(LayerKindNames(), "layer kind", name);
}

std::string_view OperationKindName(OperationKind kind) {
  return kOperationKindNames[static_cast<size_t>(kind)];
}

absl::StatusOr<OperationKind> ParseOperationKind(std::string_view name) {
  const std::span<const std::string_view> all(kOperationKindNames);
  const auto of_chains = all.first(static_cast<size_t>(OperationKind::kAttention));
  return ParseName<OperationKind>(of_chains, "operation kind", name);
}

}  // namespace quantgate
