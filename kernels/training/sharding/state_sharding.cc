#include "kernels/training/sharding/state_sharding.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quantgate {
namespace {

/// The number of elements of a weight of `shape` along `dim` that share one scale of this
/// direction.
int64_t BlockAlong(const QuantizedCopy& copy, const Shape& shape, Usage usage, int dim) {
  const int blocks_run_along = usage == Usage::kRowwise ? 1 : 0;
  if (TraitsOf(copy.format).scales == ScaleKind::kLine) {
    return dim == blocks_run_along ? std::max<int64_t>(shape[static_cast<size_t>(dim)], 1) : 1;
  }
  return copy.block_dim == 1 && dim != blocks_run_along ? 1 : BlockLength(copy.format);
}

std::optional<ShardRule> CodesRule(const QuantizedTensor& quantized, Usage usage, ShardRule rule) {
  const QuantizedCopy& copy = *quantized.copy(usage);
  if (quantized.shape.size() != 2) return std::nullopt;
  const int64_t piece = quantized.shape[static_cast<size_t>(rule.dim)] / rule.parts;
  if (piece % BlockAlong(copy, quantized.shape, usage, rule.dim) != 0) return std::nullopt;
  if (IsStoredTransposed(copy, usage)) rule.dim = 1 - rule.dim;
  return rule;
}

/// Whether each element of y depends only on the same element of x, so that the layer can run on
/// any part of x.
bool IsElementwise(const LayerSpec& layer) {
  return layer.traits().has_operations &&
         std::all_of(layer.operations.begin(), layer.operations.end(),
                     [](const OperationSpec& operation) {
                       return operation.kind == OperationKind::kActivation &&
                              !IsGated(operation.activation.kind);
                     });
}

/// How amaxes are divided: there is one for each row if row-scaled, else one.
ShardRule AmaxRule(const QuantizedTensor& quantized, Usage usage, const ShardRule& rule) {
  const int scaled_dim = usage == Usage::kRowwise ? 0 : 1;
  if (!quantized.copy(usage)->is_row_scaled() || rule.dim != scaled_dim) return {};
  return {0, rule.parts};
}

}  // namespace

bool IsStoredTransposed(const QuantizedCopy& copy, Usage usage) {
  return usage == Usage::kColumnwise && TraitsOf(copy.format).turns_columnwise;
}

std::optional<ShardRule> StateShardRule(const SessionSpec& spec, const TensorPlace& place) {
  using Kind = TensorPlace::Kind;
  const bool is_divided = spec.parallel.has_value() && spec.parallel->tensor_parallel > 1;
  if (!is_divided || place.parameter.empty() || place.kind == Kind::kScale) return ShardRule{};
  const ShardRule rule = ParameterShardRule(spec.layers[place.layer].spec, place.parameter);
  if (rule.dim == -1 || place.quantized == nullptr) return rule;
  if (place.kind == Kind::kAmax) return AmaxRule(*place.quantized, place.usage, rule);
  return CodesRule(*place.quantized, place.usage, rule);
}

bool DividesExperts(const SessionSpec& spec, size_t layer) {
  return spec.parallel.has_value() && spec.parallel->tensor_parallel == 1 &&
         spec.layers[layer].spec.traits().has_experts;
}

bool DividesExpertWeights(const SessionSpec& spec, size_t layer) {
  const LayerSpec& of = spec.layers[layer].spec;
  return spec.parallel.has_value() && spec.parallel->tensor_parallel > 1 &&
         of.traits().has_experts && HasParallelMode(of);
}

bool RoutesRows(const SessionSpec& spec) {
  if (!spec.parallel.has_value()) return false;
  if (spec.parallel->tensor_parallel > 1 && spec.parallel->data_parallel == 1) return false;
  return std::any_of(spec.layers.begin(), spec.layers.end(),
                     [](const SessionLayer& layer) { return layer.spec.traits().has_experts; });
}

ProcessGroup* CopiesOfLayer(const SessionSpec& spec, size_t layer, const SessionRank& rank) {
  return DividesExperts(spec, layer) ? rank.expert_copies : rank.copies;
}

RankLayout InputLayout(const SessionSpec& spec, size_t layer) {
  const LayerSpec& of = spec.layers[layer].spec;
  if (!spec.parallel.has_value() || spec.parallel->tensor_parallel == 1) return {};
  if (IsElementwise(of)) return layer == 0 ? RankLayout{} : OutputLayout(spec, layer - 1);
  const bool is_gathered =
      of.traits().has_experts ? of.parallel_mode == ParallelMode::kColumn : DividesInputRows(of);
  return {InputColumns(of), spec.parallel->sequence_parallel && is_gathered};
}

RankLayout OutputLayout(const SessionSpec& spec, size_t layer) {
  const LayerSpec& of = spec.layers[layer].spec;
  if (!spec.parallel.has_value() || spec.parallel->tensor_parallel == 1) return {};
  if (IsElementwise(of)) return InputLayout(spec, layer);
  const bool is_scattered =
      of.traits().has_experts ? of.parallel_mode == ParallelMode::kRow : DividesOutputRows(of);
  return {OutputColumns(of), spec.parallel->sequence_parallel && is_scattered};
}

bool IsOfOwnRows(const SessionSpec& spec, size_t layer, const std::string& parameter) {
  if (!spec.parallel.has_value()) return false;
  const LayerSpec& of = spec.layers[layer].spec;
  return spec.parallel->tensor_parallel > 1 && spec.parallel->sequence_parallel &&
         HasParallelMode(of) && ParameterShardRule(of, parameter).dim == -1;
}

bool IsSummedByOptimizer(const SessionSpec& spec, size_t layer, const std::string& parameter) {
  if (!spec.parallel.has_value()) return false;
  if (spec.parallel->data_parallel > 1) return true;
  if (DividesExperts(spec, layer)) return false;
  return spec.parallel->expert_parallel > 1 || IsOfOwnRows(spec, layer, parameter);
}

std::string RanksText(const SessionSpec& spec) {
  const ParallelSpec& parallel = *spec.parallel;
  std::vector<std::string> modes;
  for (const SessionLayer& layer : spec.layers) {
    std::vector<std::string> of_layer = {std::string(ParallelModeName(layer.spec.parallel_mode))};
    for (const OperationSpec& operation : layer.spec.operations) {
      of_layer.emplace_back(ParallelModeName(operation.parallel_mode));
    }
    modes.push_back(absl::StrJoin(of_layer, " "));
  }
  const std::string experts =
      parallel.expert_parallel > 1 ? absl::StrCat(" ep", parallel.expert_parallel) : "";
  return absl::StrCat("tp", parallel.tensor_parallel, " dp", parallel.data_parallel, experts,
                      parallel.sequence_parallel ? " sp" : "", ": ", absl::StrJoin(modes, ", "));
}

std::string RankPrefix(int rank) { return absl::StrCat("rank", rank, "."); }

}  // namespace quantgate
