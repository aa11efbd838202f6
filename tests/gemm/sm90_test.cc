// Every code path of the sm90 GEMM against the naive loop over the scalar fused step.
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/numerics/cast.h"
#include "tests/gemm/naive_gemm.h"
#include "tests/gemm/operand_codes.h"

namespace quantgate {
namespace QG_TEST_FILE {

struct Mode {
  std::string name;
  DType a, b;
  std::string arithmetic;
  NaiveRule rule;
};

const std::vector<Mode>& Modes() {
  static const std::vector<Mode> modes = {
      {"bf16", DType::kBF16, DType::kBF16, "sm90", {}},
      {"bf16_splitk3", DType::kBF16, DType::kBF16, "sm90:splitk=3", {false, 3}},
      {"f16", DType::kF16, DType::kF16, "sm90", {}},
      {"tf32", DType::kF32, DType::kF32, "sm90", {}},
      {"e4m3_fast", DType::kF8E4M3, DType::kF8E4M3, "sm90:fast", {}},
      {"e4m3_split", DType::kF8E4M3, DType::kF8E4M3, "sm90:split", {true, 1}},
      {"e5m2_e4m3_split", DType::kF8E5M2, DType::kF8E4M3, "sm90:split", {true, 1}},
      {"e4m3_e5m2_fast", DType::kF8E4M3, DType::kF8E5M2, "sm90:fast", {}},
      {"e5m2_fast_splitk2", DType::kF8E5M2, DType::kF8E5M2, "sm90:fast,splitk=2", {false, 2}},
      {"e4m3_split_splitk2", DType::kF8E4M3, DType::kF8E4M3, "sm90:split,splitk=2", {true, 2}},
  };
  return modes;
}

GemmDesc MakeDesc(const Mode& mode, GemmShape shape, GemmLayout layout, CodePattern a,
                  CodePattern b, uint32_t seed) {
  GemmDesc desc;
  desc.layout = layout;
  desc.arithmetic = Arithmetic::Parse(mode.arithmetic).value();
  const bool a_by_k = layout == GemmLayout::kNT;
  const bool b_by_k = layout != GemmLayout::kTN;
  desc.a.data = a_by_k ? MakeCodes(mode.a, shape.k, shape.m, a, seed)
                       : MakeCodes(mode.a, shape.m, shape.k, a, seed);
  desc.b.data = b_by_k ? MakeCodes(mode.b, shape.k, shape.n, b, seed + 1)
                       : MakeCodes(mode.b, shape.n, shape.k, b, seed + 1);
  return desc;
}

/// Counts and reports the outputs whose bits differ.
void ExpectSameBits(const Tensor& actual, const std::vector<float>& expected, int64_t n,
                    const std::string& what) {
  ASSERT_EQ(actual.element_count(), static_cast<int64_t>(expected.size())) << what;
  int64_t mismatches = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const uint32_t want = std::bit_cast<uint32_t>(CanonicalFloat(expected[i]));
    const uint32_t got = actual.as<uint32_t>()[i];
    if (want != got && mismatches++ == 0) {
      ADD_FAILURE() << what << ": first at [" << i / n << "][" << i % n << "]: got 0x" << std::hex
                    << got << ", want 0x" << want;
    }
  }
  EXPECT_EQ(mismatches, 0) << what << ": of " << expected.size();
}

void ExpectEveryPathEqualsNaive(const Mode& mode, GemmShape shape, GemmLayout layout, CodePattern a,
                                CodePattern b, uint32_t seed) {
  const GemmDesc desc = MakeDesc(mode, shape, layout, a, b, seed);
  const std::vector<float> expected = NaiveGemm(desc, shape, mode.rule);
  for (const Isa isa : RunnableIsas()) {
    for (const int threads : {1, 2, 5}) {
      ExecutionContext context;
      context.isa = isa;
      context.threads = threads;
      const auto result = GemmCpu(desc, context);
      ASSERT_TRUE(result.ok()) << result.status();
      ExpectSameBits(result->d, expected, shape.n,
                     GemmText(desc) + " " + PatternName(a) + " x " + PatternName(b) + " " +
                         std::string(IsaName(isa)) + " threads=" + std::to_string(threads));
    }
  }
}

class Sm90Test : public testing::TestWithParam<Mode> {};

TEST_P(Sm90Test, PatternsEqualTheNaiveLoop) {
  using enum CodePattern;
  uint32_t seed = 100;
  for (const auto& [a, b] :
       std::vector<std::pair<CodePattern, CodePattern>>{{kFinite, kFinite},
                                                        {kNear, kNear},
                                                        {kWideRows, kNear},
                                                        {kWideRows, kWideRows},
                                                        {kSmall, kSmall},
                                                        {kSmall, kFinite},
                                                        {kSparse, kFinite},
                                                        {kSparse, kSparse},
                                                        {kMaximal, kMaximal},
                                                        {kMaximal, kNegativeMaximal},
                                                        {kAll, kAll},
                                                        {kLaced, kNear},
                                                        {kNear, kLaced},
                                                        {kLaced, kLaced},
                                                        {kLaced, kMaximal}}) {
    ExpectEveryPathEqualsNaive(GetParam(), {9, 70, 291}, GemmLayout::kTN, a, b, seed++);
  }
}

TEST_P(Sm90Test, OddShapesEqualTheNaiveLoop) {
  uint32_t seed = 200;
  for (const GemmShape shape : std::vector<GemmShape>{
           {1, 1, 1}, {1, 1, 7}, {2, 3, 8}, {3, 33, 17}, {35, 65, 31}, {5, 1, 129}, {70, 31, 96}}) {
    ExpectEveryPathEqualsNaive(GetParam(), shape, GemmLayout::kTN, CodePattern::kFinite,
                               CodePattern::kNear, seed++);
  }
}

TEST_P(Sm90Test, LayoutsEqualTheNaiveLoop) {
  uint32_t seed = 300;
  for (const GemmLayout layout : {GemmLayout::kTN, GemmLayout::kNN, GemmLayout::kNT}) {
    ExpectEveryPathEqualsNaive(GetParam(), {37, 67, 75}, layout, CodePattern::kFinite,
                               CodePattern::kNear, seed);
    ExpectEveryPathEqualsNaive(GetParam(), {6, 35, 140}, layout, CodePattern::kLaced,
                               CodePattern::kFinite, seed++);
  }
}

TEST_P(Sm90Test, SplitKMayLoseTheLastProducts) {
  // 3 * 128 + 5 at three slices of bf16, 2 * 256 + 5 at two of FP8: NaN in the lost part is lost
  // too.
  for (const int64_t k : {389, 517}) {
    ExpectEveryPathEqualsNaive(GetParam(), {6, 33, k}, GemmLayout::kTN, CodePattern::kNear,
                               CodePattern::kNear, 500);
    ExpectEveryPathEqualsNaive(GetParam(), {6, 33, k}, GemmLayout::kTN, CodePattern::kLaced,
                               CodePattern::kNear, 501);
  }
}

TEST_P(Sm90Test, NoRowsGiveAnEmptyOutput) {
  GemmDesc desc = MakeDesc(GetParam(), {0, 5, 16}, GemmLayout::kTN, CodePattern::kFinite,
                           CodePattern::kFinite, 1);
  const auto result = GemmCpu(desc, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->d.shape(), (Shape{0, 5}));
}

TEST_P(Sm90Test, TallOperandsUseEveryBlock) {
  // More rows than one tile has, so that tiles and their ends are covered.
  ExpectEveryPathEqualsNaive(GetParam(), {1031, 3, 40}, GemmLayout::kTN, CodePattern::kFinite,
                             CodePattern::kFinite, 400);
}

INSTANTIATE_TEST_SUITE_P(All, Sm90Test, testing::ValuesIn(Modes()),
                         [](const auto& info) { return info.param.name; });

}  // namespace QG_TEST_FILE
}  // namespace quantgate
