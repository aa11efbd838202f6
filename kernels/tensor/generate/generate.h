// Seeded tensors, the same bytes for the same seed on every machine and engine: element i is a
// function of (seed, i) alone. Philox4x32-10 with key = seed and counter = i / 4
// (docs/numerics.md section 3).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

enum class Distribution {
  kNormal,             ///< Standard normal.
  kUniform,            ///< [-1, 1).
  kLogNormalOutliers,  ///< Signed log-normal; one element in 1024 is 64 times larger.
  kSubnormalHeavy,     ///< Three in four elements subnormal (or below the smallest normal) in the
                       ///< dtype.
  kSpecialsLaced,      ///< Normal with NaN, +Inf, -Inf, -0 and +0, each about one in 64.
  kAllZero,
  kOneHuge,  ///< Normal times 2^-10 and one element, at a seeded index, of the largest finite
             ///< magnitude.
};

/// Wire and command-line names: "normal", "uniform", "lognormal_outliers", "subnormal_heavy",
/// "specials", "zero", "one_huge".
std::string_view DistributionName(Distribution distribution);
absl::StatusOr<Distribution> ParseDistribution(std::string_view name);
const std::vector<Distribution>& AllDistributions();

struct GeneratorSpec {
  Distribution distribution = Distribution::kNormal;
  uint64_t seed = 0;
  DType dtype =
      DType::kBF16;  ///< f32, bf16, f16; FP8 types take the RNE saturated cast of the f32 value.
  Shape shape;
  float scale = 1.0f;  ///< Multiplies every value in fp32 before the cast; finite.
};

/// INVALID_ARGUMENT for a bad shape, dtype or scale.
absl::StatusOr<Tensor> Generate(const GeneratorSpec& spec, const ExecutionContext& context);

}  // namespace quantgate
