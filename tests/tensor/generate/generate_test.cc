// Seeded tensors against an independent implementation (tests/vectors/generate_reference.py), and
// the properties that their definition promises.
#include "kernels/tensor/generate/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>

#include "kernels/tensor/fingerprint.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

std::string HexBytes(std::span<const std::byte> bytes) {
  std::string hex;
  for (const std::byte byte : bytes) {
    char text[3];
    std::snprintf(text, sizeof(text), "%02x", static_cast<unsigned>(byte));
    hex += text;
  }
  return hex;
}

TEST(Generate, IndependentVectors) {
  std::ifstream file(std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/generate_vectors.txt");
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line[0] == '#') continue;
    std::stringstream words(line);
    std::string distribution, dtype, digest, first;
    GeneratorSpec spec;
    int64_t count;
    words >> distribution >> spec.seed >> dtype >> count >> spec.scale >> digest >> first;
    spec.distribution = *ParseDistribution(distribution);
    spec.dtype = *ParseDType(dtype);
    spec.shape = {count};
    for (const Isa isa : RunnableIsas()) {
      for (const int threads : {1, 2}) {
        ExecutionContext context;
        context.isa = isa;
        context.threads = threads;
        const Tensor tensor = *Generate(spec, context);
        EXPECT_EQ(HexBytes(tensor.bytes().subspan(0, first.size() / 2)), first) << line;
        EXPECT_EQ(Sha256Of(tensor.bytes()).Hex(), digest) << line;
      }
    }
    ++cases;
  }
  EXPECT_EQ(cases, 7 * 5 * 2);
}

/// An element depends on its index alone, so the shape and the number of elements do not matter.
TEST(Generate, ElementsDoNotDependOnTheShape) {
  for (const Distribution distribution : AllDistributions()) {
    if (distribution == Distribution::kOneHuge) continue;  // Its index is drawn from the count.
    GeneratorSpec spec = {
        .distribution = distribution, .seed = 9, .dtype = DType::kF32, .shape = {70001}};
    const Tensor full = *Generate(spec, {});
    spec.shape = {3, 11};
    const Tensor part = *Generate(spec, {});
    EXPECT_EQ(std::memcmp(full.data(), part.data(), part.byte_size()), 0)
        << DistributionName(distribution);
  }
}

TEST(Generate, SeedsDiffer) {
  GeneratorSpec spec = {.seed = 1, .shape = {64}};
  const Tensor one = *Generate(spec, {});
  spec.seed = uint64_t{1} << 32;
  const Tensor other = *Generate(spec, {});
  EXPECT_NE(std::memcmp(one.data(), other.data(), one.byte_size()), 0);
}

/// Mean and variance of 2^18 normal numbers: their standard errors are 2^-9 and 2^-8.5, and five of
/// them are allowed.
TEST(Generate, NormalMoments) {
  const int64_t count = 1 << 18;
  const Tensor x = *Generate({.dtype = DType::kF32, .shape = {count}}, {});
  double sum = 0, sum_squared = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double value = x.as<float>()[i];
    sum += value;
    sum_squared += value * value;
  }
  EXPECT_LT(std::abs(sum / count), 5 * 0x1p-9);
  EXPECT_LT(std::abs(sum_squared / count - 1), 5 * std::sqrt(2.0) * 0x1p-9);
}

TEST(Generate, DistributionsAreWhatTheyAreCalled) {
  const int64_t count = 1 << 16;
  const auto of = [&](Distribution distribution) {
    return *Generate(
        {.distribution = distribution, .seed = 4, .dtype = DType::kF32, .shape = {count}}, {});
  };
  int64_t subnormal = 0, nan = 0, infinite = 0, huge = 0, inside = 0;
  const Tensor subnormals = of(Distribution::kSubnormalHeavy),
               laced = of(Distribution::kSpecialsLaced);
  const Tensor one_huge = of(Distribution::kOneHuge), uniform = of(Distribution::kUniform);
  for (int64_t i = 0; i < count; ++i) {
    subnormal += std::abs(subnormals.as<float>()[i]) < std::numeric_limits<float>::min();
    nan += std::isnan(laced.as<float>()[i]);
    infinite += std::isinf(laced.as<float>()[i]);
    huge += std::abs(one_huge.as<float>()[i]) == std::numeric_limits<float>::max();
    inside += uniform.as<float>()[i] >= -1 && uniform.as<float>()[i] < 1;
  }
  // Binomial counts within six standard deviations, sqrt(n p (1 - p)).
  const auto is_binomial = [&](int64_t observed, double p) {
    return std::abs(observed - count * p) <= 6 * std::sqrt(count * p * (1 - p));
  };
  EXPECT_TRUE(is_binomial(subnormal, 3.0 / 4)) << subnormal;
  EXPECT_TRUE(is_binomial(nan, 1.0 / 64)) << nan;
  EXPECT_TRUE(is_binomial(infinite, 1.0 / 32)) << infinite;
  EXPECT_EQ(huge, 1);
  EXPECT_EQ(inside, count);
}

TEST(Generate, RefusesBadSpecs) {
  const auto message = [](const GeneratorSpec& spec) {
    const auto result = Generate(spec, {});
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(result.status().message());
  };
  EXPECT_THAT(message({.dtype = DType::kI32, .shape = {4}}),
              HasSubstr("dtype is i32: tensors of f32, "));
  EXPECT_THAT(message({.shape = {-4}}), HasSubstr("shape[0] is -4"));
  EXPECT_THAT(message({.shape = {4}, .scale = std::numeric_limits<float>::infinity()}),
              HasSubstr("scale is inf: a scale is finite"));
  EXPECT_TRUE(Generate({.shape = {0, 5}}, {}).ok());
}

TEST(Distributions, NamesRoundTrip) {
  EXPECT_EQ(AllDistributions().size(), 7u);
  for (const Distribution distribution : AllDistributions()) {
    EXPECT_EQ(*ParseDistribution(DistributionName(distribution)), distribution);
  }
  EXPECT_THAT(std::string(ParseDistribution("gauss").status().message()),
              HasSubstr("distribution is \"gauss\": known distributions are normal, uniform"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
