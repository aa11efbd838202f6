// Divided layers of every kind that overlaps, and the ways in which they can.
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

}  // namespace quantgate
