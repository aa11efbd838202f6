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
  kSubnormalHeavy,     ///< Three in four elements lie below the smallest normal number of the
                       ///< dtype.
  kSpecialsLaced,      ///< Normal with NaN, +Inf, -Inf, -0 and +0, each about one in 64.
  kAllZero,
  kOneHuge,  ///< Normal times 2^-10, but one element, at a seeded index, has the largest finite
             ///< magnitude.
};

/// The name on the wire and on the command line: "normal", "uniform", "lognormal_outliers",
/// "subnormal_heavy", "specials", "zero" or "one_huge".
std::string_view DistributionName(Distribution distribution);
/// INVALID_ARGUMENT naming the value and the known names.
absl::StatusOr<Distribution> ParseDistribution(std::string_view name);
const std::vector<Distribution>& AllDistributions();

/// What to generate.
struct GeneratorSpec {
  Distribution distribution = Distribution::kNormal;
  uint64_t seed = 0;
  DType dtype =
      DType::kBF16;  ///< f32, bf16, f16; FP8 types take the RNE saturated cast of the f32 value.
  Shape shape;
  float scale = 1.0f;  ///< Multiplies every value in fp32 before the cast; finite.
};

struct GenerationRule;  // generated_value.h

/// What `spec` asks for, checked, for the generators of all engines. INVALID_ARGUMENT as Generate.
absl::StatusOr<GenerationRule> GenerationRuleOf(const GeneratorSpec& spec);

/// The tensor in host memory. INVALID_ARGUMENT for a shape, dtype or scale that cannot be
/// generated.
absl::StatusOr<Tensor> Generate(const GeneratorSpec& spec, const ExecutionContext& context);

}  // namespace quantgate
