// Divided layers of every kind that can overlap, the ways in which they overlap, and what must be
// the same under all of them.
#pragma once

#include <string>
#include <vector>

#include "tests/layer/parallel_cases.h"

namespace quantgate {

/// A way to overlap column-parallel and row-parallel units. Sums have the order of `profile` with
/// and without overlap.
struct OverlapWay {
  std::string name;
  OverlapPlan column, row;
  const char* profile = "rank_asc_fp32";
};
std::vector<OverlapWay> OverlapWays(bool is_mxfp8);
ParallelSetup SetupOf(const OverlapWay& way, int size);
ParallelSetup WithoutOverlap(ParallelSetup setup);

/// Rows on each rank, and columns of each rank's part: a multiple of the recipe's blocks.
int64_t UnitOf(const std::string& recipe);
LayerRequest LinearOf(ParallelMode mode, const std::string& recipe, int size);
Tensor NormalTensor(uint64_t seed, Shape shape);
/// A layernorm_linear or a layernorm_mlp.
LayerRequest NormLayerOf(LayerKind kind, const std::string& recipe, int size);

/// An attention or a transformer_layer of the recipe's blocks: one group of four heads on each
/// rank.
LayerRequest AttentionLayerOf(LayerKind kind, const std::string& recipe, int size);

void ExpectSameTensors(const std::vector<NamedTensor>& subject,
                       const std::vector<NamedTensor>& reference);
/// Each GEMM, with whole operands and its product before any sum over the ranks.
void ExpectSameGemms(const LayerResult& subject, const LayerResult& reference);
/// All bytes that a step returns and keeps.
void ExpectSameResult(const LayerResult& subject, const LayerResult& reference);

}  // namespace quantgate
