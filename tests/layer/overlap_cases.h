// Divided layers of every kind that overlaps, the ways in which they can, and what must be the same
// however they do.
#pragma once

#include <string>
#include <vector>

#include "tests/layer/parallel_cases.h"

namespace quantgate {

/// A way to overlap, of columns and of rows. Sums have the order of `profile` with and without.
struct OverlapWay {
  std::string name;
  OverlapPlan column, row;
  const char* profile = "rank_asc_fp32";
};
std::vector<OverlapWay> OverlapWays(bool is_mxfp8);
ParallelSetup SetupOf(const OverlapWay& way, int size);
ParallelSetup WithoutOverlap(ParallelSetup setup);

/// Rows on each rank, and columns of each rank's part: one multiple of what the recipe is cut in.
int64_t UnitOf(const std::string& recipe);
LayerRequest LinearOf(ParallelMode mode, const std::string& recipe, int size);
Tensor NormalTensor(uint64_t seed, Shape shape);
/// A layernorm_linear or a layernorm_mlp.
LayerRequest NormLayerOf(LayerKind kind, const std::string& recipe, int size);

void ExpectSameTensors(const std::vector<NamedTensor>& subject,
                       const std::vector<NamedTensor>& reference);
/// Each GEMM with its operands whole and its product before any sum over the ranks.
void ExpectSameGemms(const LayerResult& subject, const LayerResult& reference);
/// Everything that a step gives and keeps, byte for byte.
void ExpectSameResult(const LayerResult& subject, const LayerResult& reference);

}  // namespace quantgate
