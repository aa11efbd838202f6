// The fused step against exact fractions (fused_step_vectors.txt) and against what an H200 was seen
// to do in the corners (docs/tensor-cores.md section 1).
#include "tests/gemm/models/fused_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

std::vector<uint32_t> ParseCodes(const std::string& text) {
  std::vector<uint32_t> codes;
  std::stringstream stream(text);
  for (std::string code; std::getline(stream, code, ',');) {
    codes.push_back(static_cast<uint32_t>(std::stoul(code, nullptr, 16)));
  }
  return codes;
}

template <class Format>
std::vector<typename Format::Storage> As(const std::vector<uint32_t>& codes) {
  return {codes.begin(), codes.end()};
}

template <class Step, class FormatA, class FormatB>
uint32_t Run(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b, uint32_t c) {
  return FusedStep<Step, FormatA, FormatB>(As<FormatA>(a).data(), As<FormatB>(b).data(),
                                           static_cast<int>(a.size()), c);
}

uint32_t RunNamed(const std::string& format_a, const std::string& format_b,
                  const std::vector<uint32_t>& a, const std::vector<uint32_t>& b, uint32_t c) {
  if (format_a == "bf16") return Run<Wgmma16Bit, BFloat16, BFloat16>(a, b, c);
  if (format_a == "f16") return Run<Wgmma16Bit, Float16, Float16>(a, b, c);
  if (format_a == "f32") return Run<Wgmma16Bit, Float32, Float32>(a, b, c);
  if (format_a == "e4m3" && format_b == "e4m3") return Run<WgmmaFp8, E4M3, E4M3>(a, b, c);
  if (format_a == "e4m3") return Run<WgmmaFp8, E4M3, E5M2>(a, b, c);
  if (format_b == "e4m3") return Run<WgmmaFp8, E5M2, E4M3>(a, b, c);
  return Run<WgmmaFp8, E5M2, E5M2>(a, b, c);
}

struct Vector {
  std::string format_a, format_b;
  uint32_t c, result;
  std::vector<uint32_t> a, b;
};

std::vector<Vector> LoadVectors() {
  std::ifstream file(QUANTGATE_SOURCE_DIR "/tests/gemm/models/fused_step_vectors.txt");
  std::vector<Vector> vectors;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::stringstream fields(line);
    Vector vector;
    std::string align, out, c, result, a, b;
    fields >> vector.format_a >> vector.format_b >> align >> out >> c >> result >> a >> b;
    vector.c = ParseCodes(c)[0];
    vector.result = ParseCodes(result)[0];
    vector.a = ParseCodes(a);
    vector.b = ParseCodes(b);
    vectors.push_back(vector);
  }
  EXPECT_GT(vectors.size(), 400u);
  return vectors;
}

TEST(FusedStepTest, EqualsExactFractions) {
  const std::vector<Vector> vectors = LoadVectors();
  for (size_t i = 0; i < vectors.size(); ++i) {
    const Vector& vector = vectors[i];
    EXPECT_EQ(RunNamed(vector.format_a, vector.format_b, vector.a, vector.b, vector.c),
              vector.result)
        << "vector " << i << ": " << vector.format_a << " x " << vector.format_b << std::hex
        << " c=" << vector.c;
  }
}

TEST(FusedStepTest, OrderInsideAStepDoesNotMatter) {
  std::mt19937 random(7);
  for (const Vector& vector : LoadVectors()) {
    std::vector<size_t> order(vector.a.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<uint32_t> a, b;
    for (const size_t i : order) {
      a.push_back(vector.a[i]);
      b.push_back(vector.b[i]);
    }
    EXPECT_EQ(RunNamed(vector.format_a, vector.format_b, a, b, vector.c), vector.result);
  }
}

TEST(FusedStepTest, IsOddInItsOperands) {
  for (const Vector& vector : LoadVectors()) {
    const uint32_t sign = vector.format_a == "f32"                                ? 0x80000000u
                          : vector.format_a == "bf16" || vector.format_a == "f16" ? 0x8000u
                                                                                  : 0x80u;
    std::vector<uint32_t> a = vector.a;
    for (uint32_t& code : a) code ^= sign;
    // NaN and zero have one code each.
    const bool signless = vector.result == 0x7FFFFFFF || vector.result == 0;
    EXPECT_EQ(RunNamed(vector.format_a, vector.format_b, a, vector.b, vector.c ^ 0x80000000u),
              signless ? vector.result : vector.result ^ 0x80000000u);
  }
}

TEST(FusedStepTest, ZeroPaddingChangesNothing) {
  for (Vector vector : LoadVectors()) {
    vector.a.resize(40, 0);
    vector.b.resize(40, 0);
    EXPECT_EQ(RunNamed(vector.format_a, vector.format_b, vector.a, vector.b, vector.c),
              vector.result);
  }
}

/// A bf16 power of two, subnormal below 2^-126.
uint32_t Power(int exponent) {
  return exponent >= -126 ? static_cast<uint32_t>(exponent + 127) << 7 : 1u << (exponent + 133);
}

/// A bf16 step of products 2^exponent_a * 2^exponent_b, `count` of them, the rest zero.
uint32_t PowerStep(int exponent_a, int exponent_b, int count, uint32_t sign = 0) {
  std::vector<uint32_t> a(16, 0), b(16, 0);
  std::fill_n(a.begin(), count, Power(exponent_a) | sign);
  std::fill_n(b.begin(), count, Power(exponent_b));
  return Run<Wgmma16Bit, BFloat16, BFloat16>(a, b, 0);
}

TEST(FusedStepTest, UnderflowIsGradualAndEndsInPositiveZero) {
  EXPECT_EQ(PowerStep(-80, -73, 16), 0x00000001u);  // 16 products of 2^-153.
  EXPECT_EQ(PowerStep(-80, -78, 16), 0u);           // 16 products of 2^-158.
  EXPECT_EQ(PowerStep(-80, -69, 1), 0x00000001u);   // 2^-149 alone.
  EXPECT_EQ(PowerStep(-80, -70, 2), 0x00000001u);   // Two of 2^-150.
  EXPECT_EQ(PowerStep(-80, -70, 1), 0u);
  EXPECT_EQ(PowerStep(-130, -19, 1), 0x00000001u);          // A subnormal operand counts.
  EXPECT_EQ(PowerStep(-75, -78, 16, 0x8000), 0x80000001u);  // Seen on an H200.
  EXPECT_EQ(PowerStep(-80, -78, 16, 0x8000), 0u);           // Likewise: no negative zero.
}

uint32_t BFloatStep(std::vector<uint32_t> a, std::vector<uint32_t> b, uint32_t c = 0) {
  a.resize(16, 0);
  b.resize(16, 0);
  return Run<Wgmma16Bit, BFloat16, BFloat16>(a, b, c);
}

TEST(FusedStepTest, ZerosGivePositiveZero) {
  EXPECT_EQ(BFloatStep({0x8000}, {0x3F80}, 0x80000000u), 0u);     // -0 * 1 + -0.
  EXPECT_EQ(BFloatStep({0x3F80, 0xBF80}, {0x4049, 0x4049}), 0u);  // x - x.
}

TEST(FusedStepTest, SpecialsFollowTheTensorCore) {
  constexpr uint32_t kOne = 0x3F80, kInf = 0x7F80, kMinusInf = 0xFF80;
  EXPECT_EQ(BFloatStep({0xFFC1}, {kOne}), 0x7FFFFFFFu);  // Payload and sign are dropped.
  EXPECT_EQ(BFloatStep({kInf}, {0}), 0x7FFFFFFFu);
  EXPECT_EQ(BFloatStep({kInf, kInf}, {kOne, 0xBF80}), 0x7FFFFFFFu);
  EXPECT_EQ(BFloatStep({kOne}, {kOne}, 0xFF812345u), 0x7FFFFFFFu);  // NaN accumulator.
  EXPECT_EQ(BFloatStep({kOne}, {kOne}, 0xFF800000u), 0xFF800000u);  // -Inf stays.
  EXPECT_EQ(BFloatStep({kMinusInf}, {kOne}), 0xFF800000u);
  EXPECT_EQ(BFloatStep({kInf}, {kOne}, 0xFF800000u), 0x7FFFFFFFu);
}

TEST(FusedStepTest, ProductsBeyondTheRangeMayCancel) {
  const uint32_t p127 = Power(127), one = Power(0), two = Power(1);
  EXPECT_EQ(BFloatStep({p127, p127 | 0x8000}, {p127, p127}), 0u);         // 2^254 - 2^254.
  EXPECT_EQ(BFloatStep({p127, p127 | 0x8000}, {two, one}), 0x7F000000u);  // 2^128 - 2^127.
  EXPECT_EQ(BFloatStep({p127}, {two}), 0x7F800000u);                      // 2^128.
  EXPECT_EQ(BFloatStep({p127 | 0x8000}, {two}), 0xFF800000u);
}

TEST(RoundToTf32Test, RoundsToNearestEvenAtTenBits) {
  EXPECT_EQ(RoundToTf32(0x3F800FFFu), 0x3F800000u);
  EXPECT_EQ(RoundToTf32(0x3F801000u), 0x3F800000u);  // Tie to even, down.
  EXPECT_EQ(RoundToTf32(0x3F801001u), 0x3F802000u);
  EXPECT_EQ(RoundToTf32(0x3F803000u), 0x3F804000u);  // Tie to even, up.
  EXPECT_EQ(RoundToTf32(0xBFFFF000u), 0xC0000000u);  // Carry into the exponent.
  EXPECT_EQ(RoundToTf32(0x7F7FFFFFu), 0x7F800000u);  // Beyond the largest: infinity.
  EXPECT_EQ(RoundToTf32(0x7F800001u), 0x7FFFFFFFu);
  EXPECT_EQ(RoundToTf32(0x00001001u), 0x00002000u);  // Subnormals too.
  EXPECT_EQ(RoundToTf32(0xFF800000u), 0xFF800000u);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
