// The kinds of layers and operations, and the one table of what is true of each kind of layer. Code
// asks this table and does not compare kinds. What a new kind takes is in docs/architecture.md
// section 3.6.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace quantgate {

enum class OperationKind {
  kNorm,
  kBasicLinear,
  kBias,
  kActivation,
  kQuantize,
  kAdd,
  kScale,
  kAttention,  ///< Attention between its projections; no operation of a chain.
};
std::string_view OperationKindName(OperationKind kind);  ///< "norm", "basic_linear", ...
/// The kinds that a chain can have.
absl::StatusOr<OperationKind> ParseOperationKind(std::string_view name);

enum class LayerKind {
  kLinear,
  kLayerNormLinear,
  kLayerNormMlp,
  kGroupedLinear,
  kChain,
  kAttention,
  kTransformerLayer,
};
std::string_view LayerKindName(LayerKind kind);
absl::StatusOr<LayerKind> ParseLayerKind(std::string_view name);

/// One of the operations that a kind of layer always has.
struct LayerPart {
  /// kNorm, kBasicLinear (with its bias, where there is one), kActivation, kAttention, kAdd.
  OperationKind operation;
  /// Prefix of its names: "fc1." of "fc1.weight", "norm1." of "norm1.gamma", "add1." of its stages.
  std::string_view prefix = "";
  /// Names of what it gives the next part and of the gradient of that; the last part gives y and
  /// takes grad_output.
  std::string_view output = "", gradient = "";
  std::string_view addend = "";  ///< kAdd: "x", or the output of an earlier part.
};

struct LayerTraits {
  LayerKind kind;
  std::string_view name;
  /// In order. If several are basic_linears, the layer's parallel mode is that of the first, and
  /// they are then column-parallel and row-parallel in turn.
  std::span<const LayerPart> parts;
  /// Takes LayerSpec::m_splits: each expert has the parts once, and rows of x of its own.
  bool has_experts = false;
  /// Takes LayerSpec::operations, each with a parallel mode of its own, in place of parts.
  bool has_operations = false;
  /// Why the layer cannot be row-parallel; empty if it can.
  std::string_view column_alone_rule = "";
  /// What a report adds to "backward_override=MODE of NAME: "; may be empty.
  std::string_view override_note = "";

  bool has(OperationKind operation) const;
  int count(OperationKind operation) const;
  /// Takes LayerSpec::return_norm_output.
  bool has_one_norm() const { return count(OperationKind::kNorm) == 1; }
  bool has_activation() const { return has(OperationKind::kActivation); }
  /// One GEMM gives y, one dx and one dw.
  bool is_one_linear() const { return parts.size() == 1 && !has_experts; }
  /// There are tensors between operations, which a report lists.
  bool has_intermediates() const { return has_operations || parts.size() > 1; }
};

/// "a linear", "an attention".
std::string WithArticle(const LayerTraits& traits);

/// All kinds, in the order of LayerKind.
std::span<const LayerTraits> AllLayerKinds();
inline const LayerTraits& TraitsOf(LayerKind kind) {
  return AllLayerKinds()[static_cast<size_t>(kind)];
}

}  // namespace quantgate
