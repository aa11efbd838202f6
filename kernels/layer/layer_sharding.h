// A whole layer divided over the ranks of a tensor-parallel group: which part of every tensor a
// rank has (docs/ranks.md section 2).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layer/layer.h"

namespace quantgate {

/// What of a tensor each rank has.
struct ShardRule {
  int dim = -1;  ///< Divided along it; -1: everybody has all of it.
  /// Parts of the dim that are divided each by itself: 2 where a gated activation reads two halves.
  int parts = 1;
  friend bool operator==(const ShardRule&, const ShardRule&) = default;
};

/// Some weight of the layer is divided over a tensor-parallel group.
bool HasParallelMode(const LayerSpec& spec);

/// Of a parameter of the layer, and of its gradient.
ShardRule ParameterShardRule(const LayerSpec& spec, const std::string& parameter);
/// Of the columns of x, or of y.
ShardRule InputColumns(const LayerSpec& spec);
ShardRule OutputColumns(const LayerSpec& spec);
/// Whether under sequence parallelism dim 0 of x, or of y, is divided.
bool DividesInputRows(const LayerSpec& spec);
bool DividesOutputRows(const LayerSpec& spec);

/// The part of rank `rank` of `size`. INVALID_ARGUMENT naming `field`, the dim and the rule unless
/// the ranks divide it.
absl::StatusOr<Tensor> ShardOf(Engine& engine, const std::string& field, const Tensor& whole,
                               const ShardRule& rule, int rank, int size);

/// The ranks' parts one after the other along dim 0; an element of a vector is a row of it.
absl::StatusOr<Tensor> JoinRows(Engine& engine, const std::vector<Tensor>& parts,
                                const Cancellation* cancellation);
/// The whole of which ShardOf gave `parts` by a rule that divides.
absl::StatusOr<Tensor> JoinShards(Engine& engine, const std::vector<Tensor>& parts,
                                  const ShardRule& rule, const Cancellation* cancellation);

/// The request of one rank of `parallel`, from the request of the whole layer: tensors are divided,
/// x and grad_output along dim 0 too under sequence parallelism (ParallelStep::rows, of the whole
/// layer; empty: as even as can be); states of delayed scaling are everybody's. INVALID_ARGUMENT as
/// ShardOf, and as CheckLayerSpec.
absl::StatusOr<LayerRequest> ShardLayer(Engine& engine, const LayerRequest& whole,
                                        ParallelStep parallel);

}  // namespace quantgate
