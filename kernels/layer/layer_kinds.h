// The kinds of layers and operations, and the one table of what is true of a kind of layer: whoever
// must know asks it. What a new kind takes is in docs/architecture.md section 3.6.
#pragma once

#include <span>
#include <string_view>

#include "absl/status/statusor.h"

namespace quantgate {

enum class OperationKind { kNorm, kBasicLinear, kBias, kActivation, kQuantize, kAdd, kScale };
std::string_view OperationKindName(OperationKind kind);  ///< "norm", "basic_linear", ...
absl::StatusOr<OperationKind> ParseOperationKind(std::string_view name);

enum class LayerKind { kLinear, kLayerNormLinear, kLayerNormMlp, kGroupedLinear, kChain };
std::string_view LayerKindName(LayerKind kind);
absl::StatusOr<LayerKind> ParseLayerKind(std::string_view name);

/// One of the operations that a kind of layer always has.
struct LayerPart {
  OperationKind
      operation;  ///< kNorm, kBasicLinear (with its bias, where there is one), kActivation.
  std::string_view prefix = "";  ///< kBasicLinear: of its names, "fc1." of "fc1.weight".
  /// What it gives the next part, and the gradient of that; of the last part y and grad_output.
  std::string_view output = "", gradient = "";
};

struct LayerTraits {
  LayerKind kind;
  std::string_view name;
  /// In order. Of several basic_linears the layer's parallel mode is the first one's, and those
  /// behind it are row-parallel then.
  std::span<const LayerPart> parts;
  /// LayerSpec::m_splits: the parts are there once for each expert, which has rows of x of its own.
  bool has_experts = false;
  /// LayerSpec::operations, each with a parallel mode of its own, in place of parts.
  bool has_operations = false;
  /// Why the layer cannot be row-parallel; empty: it can.
  std::string_view column_alone_rule = "";
  /// What a report says of a backward override beside "backward_override=MODE of NAME: "; or empty.
  std::string_view override_note = "";

  bool has(OperationKind operation) const;
  bool has_norm() const { return has(OperationKind::kNorm); }
  bool has_activation() const { return has(OperationKind::kActivation); }
  /// One GEMM gives y, and one each of the gradients of x and weight.
  bool is_one_linear() const { return parts.size() == 1 && !has_experts; }
  /// Tensors lie between operations, of which a report tells.
  bool has_intermediates() const { return has_operations || parts.size() > 1; }
};

/// All kinds, in the order of LayerKind.
std::span<const LayerTraits> AllLayerKinds();
inline const LayerTraits& TraitsOf(LayerKind kind) {
  return AllLayerKinds()[static_cast<size_t>(kind)];
}

}  // namespace quantgate
