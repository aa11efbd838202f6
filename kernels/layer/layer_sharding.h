// Dividing a whole layer over the ranks of a tensor-parallel group: which part of every tensor each
// rank has (docs/ranks.md section 2).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layer/layer.h"

namespace quantgate {

/// How a tensor is divided over the ranks.
struct ShardRule {
  int dim = -1;  ///< The dim that is divided; -1: every rank has the whole tensor.
  /// The dim consists of so many equal parts, each of which is divided by itself: 2 where a gated
  /// activation reads two halves.
  int parts = 1;
  friend bool operator==(const ShardRule&, const ShardRule&) = default;
};

/// Whether any weight of the layer is divided over a tensor-parallel group.
bool HasParallelMode(const LayerSpec& spec);

/// How a parameter of the layer, and its gradient, is divided.
ShardRule ParameterShardRule(const LayerSpec& spec, const std::string& parameter);
/// How the columns of x, or of y, are divided.
ShardRule InputColumns(const LayerSpec& spec);
ShardRule OutputColumns(const LayerSpec& spec);
/// Whether sequence parallelism divides dim 0 of x, or of y.
bool DividesInputRows(const LayerSpec& spec);
bool DividesOutputRows(const LayerSpec& spec);

/// How the ranks have a value of a layer's program and its gradient: x, y or what one operation
/// gives the next.
struct ValueDivision {
  ShardRule columns;          ///< How its columns are divided.
  bool divides_rows = false;  ///< Whether sequence parallelism divides its dim 0.
};
/// Those of all values of ProgramsOf's first program, by their numbers.
std::vector<ValueDivision> ValueDivisionsOf(const LayerSpec& spec);

/// The part that rank `rank` of `size` has of `whole`. INVALID_ARGUMENT naming `field`, the dim and
/// the rule if the dim is no multiple of rule.parts * size.
absl::StatusOr<Tensor> ShardOf(Engine& engine, const std::string& field, const Tensor& whole,
                               const ShardRule& rule, int rank, int size);

/// Concatenates the ranks' parts along dim 0; each element of a vector is a row.
absl::StatusOr<Tensor> JoinRows(Engine& engine, const std::vector<Tensor>& parts,
                                const Cancellation* cancellation);
/// The inverse of ShardOf, for a rule that divides: the whole tensor of all ranks' parts.
absl::StatusOr<Tensor> JoinShards(Engine& engine, const std::vector<Tensor>& parts,
                                  const ShardRule& rule, const Cancellation* cancellation);

/// The request of one rank of `parallel`, made of the request of the whole layer: every tensor is
/// divided, x and grad_output also along dim 0 under sequence parallelism (by ParallelStep::rows;
/// if that is empty, as evenly as possible). Every rank has all states of delayed scaling.
/// INVALID_ARGUMENT as ShardOf and CheckLayerSpec.
absl::StatusOr<LayerRequest> ShardLayer(Engine& engine, const LayerRequest& whole,
                                        ParallelStep parallel);

}  // namespace quantgate
