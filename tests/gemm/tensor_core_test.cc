// Every arithmetic's vector paths against the scalar rule: shapes, layouts, threads, and operands
// chosen to hurt. The scalar rule itself is held to rational arithmetic in rule_vectors_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/gemm/models/rules.h"
#include "kernels/numerics/cast.h"
#include "tests/gemm/models/scalar_outputs.h"
#include "tests/gemm/scaled_operand.h"

namespace quantgate {
namespace QG_TEST_FILE {

struct Mode {
  std::string name;
  std::string arithmetic;
  DType a, b;
  ScaleMode a_scaling = ScaleMode::kNone, b_scaling = ScaleMode::kNone;
};

const std::vector<Mode>& Modes() {
  using enum DType;
  using enum ScaleMode;
  static const std::vector<Mode> modes = {
      {"sm70_f16", "sm70", kF16, kF16},
      {"sm75_f16", "sm75", kF16, kF16},
      {"sm75_f16_acc", "sm75:acc=f16", kF16, kF16},
      {"sm80_bf16", "sm80", kBF16, kBF16},
      {"sm80_tf32", "sm80", kF32, kF32},
      {"sm86_f16", "sm86", kF16, kF16},
      {"sm89_e4m3", "sm89", kF8E4M3, kF8E4M3},
      {"sm89_e5m2_e4m3", "sm89", kF8E5M2, kF8E4M3},
      {"sm90_mma_e4m3", "sm90_mma_fp8", kF8E4M3, kF8E4M3},
      {"sm90_mma_e5m2", "sm90_mma_fp8", kF8E5M2, kF8E5M2},
      {"sm100_mma_e4m3", "sm100:mma", kF8E4M3, kF8E4M3},
      {"sm90_1x128", "sm90", kF8E4M3, kF8E4M3, k1x128, k1x128},
      {"sm90_1x128_128x128", "sm90", kF8E4M3, kF8E4M3, k1x128, k128x128},
      {"sm90_128x128_1x128", "sm90", kF8E4M3, kF8E5M2, k128x128, k1x128},
      {"sm90_1x128_splitk", "sm90:splitk=2", kF8E5M2, kF8E4M3, k1x128, k128x128},
      {"sm100_bf16", "sm100", kBF16, kBF16},
      {"sm100_tf32", "sm100", kF32, kF32},
      {"sm100_e4m3", "sm100", kF8E4M3, kF8E4M3},
      {"sm100_e5m2_e2m3", "sm100", kF8E5M2, kF6E2M3},
      {"sm100_e3m2_e2m1", "sm100", kF6E3M2, kF4E2M1x2},
      {"sm100_mx_e4m3", "sm100", kF8E4M3, kF8E4M3, kMx32, kMx32},
      {"sm100_mx_e5m2_e2m1", "sm100", kF8E5M2, kF4E2M1x2, kMx32, kMx32},
      {"sm100_mx_e3m2_e4m3", "sm120", kF6E3M2, kF8E4M3, kMx32, kMx32},
      {"sm100_nv16", "sm100", kF4E2M1x2, kF4E2M1x2, kNv16, kNv16},
      {"sm100_1x128_128x128", "sm100", kF8E4M3, kF8E4M3, k1x128, k128x128},
  };
  return modes;
}

bool IsPacked(DType dtype) { return dtype == DType::kF4E2M1x2; }

int64_t BlockOf(const Mode& mode) {
  if (mode.a_scaling == ScaleMode::kMx32) return 32;
  if (mode.a_scaling == ScaleMode::kNv16) return 16;
  return IsPacked(mode.a) || IsPacked(mode.b) ? 2 : 1;
}

GemmDesc MakeDesc(const Mode& mode, GemmShape shape, GemmLayout layout, CodePattern a,
                  CodePattern b, ScalePattern scales, uint32_t seed) {
  GemmDesc desc;
  desc.layout = layout;
  desc.arithmetic = Arithmetic::Parse(mode.arithmetic).value();
  // Blackwell takes only powers of two of 128.
  const bool has_powers = mode.name.starts_with("sm100_1x128");
  const ScalePattern pattern = has_powers ? ScalePattern::kPowers : scales;
  desc.a = MakeOperand(mode.a, mode.a_scaling, shape.m, shape.k, layout == GemmLayout::kNT, a,
                       pattern, seed);
  desc.b = MakeOperand(mode.b, mode.b_scaling, shape.n, shape.k, layout != GemmLayout::kTN, b,
                       pattern, seed + 1);
  return desc;
}

std::vector<uint32_t> EveryScalarOutput(const GemmDesc& desc, GemmShape shape) {
  std::vector<OutputCoordinate> outputs;
  for (int64_t i = 0; i < shape.m * shape.n; ++i) outputs.push_back({i / shape.n, i % shape.n});
  const auto codes = ScalarOutputs(desc, outputs);
  EXPECT_TRUE(codes.ok()) << codes.status();
  return codes.value();
}

void ExpectEveryPathIsScalar(const GemmDesc& desc, GemmShape shape, const std::string& what) {
  const std::vector<uint32_t> expected = EveryScalarOutput(desc, shape);
  for (const Isa isa : RunnableIsas()) {
    for (const int threads : {1, 3}) {
      ExecutionContext context;
      context.isa = isa;
      context.threads = threads;
      const auto result = GemmCpu(desc, context);
      ASSERT_TRUE(result.ok()) << result.status();
      int64_t mismatches = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        const uint32_t got = result->d.as<uint32_t>()[i];
        if (got != expected[i] && mismatches++ == 0) {
          ADD_FAILURE() << GemmText(desc) << " " << what << " " << IsaName(isa)
                        << " threads=" << threads << " first at " << i << ": got 0x" << std::hex
                        << got << ", want 0x" << expected[i];
        }
      }
      EXPECT_EQ(mismatches, 0) << "of " << expected.size();
    }
  }
}

class TensorCoreTest : public testing::TestWithParam<Mode> {};

TEST_P(TensorCoreTest, PatternsEqualTheScalarRule) {
  using enum CodePattern;
  const Mode& mode = GetParam();
  const int64_t k = 291 / BlockOf(mode) * BlockOf(mode);
  const GemmShape shape{9, 70, k};
  uint32_t seed = 100;
  for (const auto& [a, b] :
       std::vector<std::pair<CodePattern, CodePattern>>{{kFinite, kFinite},
                                                        {kNear, kNear},
                                                        {kWideRows, kWideRows},
                                                        {kSmall, kFinite},
                                                        {kSparse, kSparse},
                                                        {kMaximal, kMaximal},
                                                        {kMaximal, kNegativeMaximal},
                                                        {kAll, kAll},
                                                        {kLaced, kNear}}) {
    for (const ScalePattern scales :
         {ScalePattern::kUsual, ScalePattern::kWide, ScalePattern::kSmall, ScalePattern::kLaced}) {
      if (mode.a_scaling == ScaleMode::kNone && scales != ScalePattern::kUsual) continue;
      ExpectEveryPathIsScalar(MakeDesc(mode, shape, GemmLayout::kTN, a, b, scales, seed++), shape,
                              PatternName(a) + " x " + PatternName(b) + " scales " +
                                  std::to_string(static_cast<int>(scales)));
      if (HasFailure()) return;
    }
  }
}

TEST_P(TensorCoreTest, OddShapesEqualTheScalarRule) {
  const Mode& mode = GetParam();
  uint32_t seed = 200;
  for (GemmShape shape : std::vector<GemmShape>{
           {1, 1, 1}, {2, 3, 8}, {3, 33, 17}, {35, 65, 31}, {5, 1, 129}, {131, 31, 96}}) {
    shape.k = (shape.k + BlockOf(mode) - 1) / BlockOf(mode) * BlockOf(mode);
    ExpectEveryPathIsScalar(MakeDesc(mode, shape, GemmLayout::kTN, CodePattern::kFinite,
                                     CodePattern::kNear, ScalePattern::kUsual, seed++),
                            shape, "odd shape");
  }
}

TEST_P(TensorCoreTest, LayoutsEqualTheScalarRule) {
  const Mode& mode = GetParam();
  const bool is_packed = IsPacked(mode.a) || IsPacked(mode.b);
  if (is_packed && BlockOf(mode) != 32) return;  // FP4 is packed along k, but for mx32.
  const GemmShape shape = is_packed ? GemmShape{38, 134, 160} : GemmShape{37, 133, 160};
  uint32_t seed = 300;
  for (const GemmLayout layout : {GemmLayout::kNN, GemmLayout::kNT}) {
    for (const ScalePattern scales : {ScalePattern::kWide, ScalePattern::kLaced}) {
      ExpectEveryPathIsScalar(
          MakeDesc(mode, shape, layout, CodePattern::kFinite, CodePattern::kLaced, scales, seed++),
          shape, "layout");
    }
  }
}

TEST_P(TensorCoreTest, NegatedOperandsNegateTheOutputs) {
  const Mode& mode = GetParam();
  const int64_t k = 160;
  GemmDesc desc = MakeDesc(mode, {6, 40, k}, GemmLayout::kTN, CodePattern::kFinite,
                           CodePattern::kFinite, ScalePattern::kUsual, 7);
  const GemmResult plain = GemmCpu(desc, {}).value();
  const uint32_t sign = IsPacked(mode.a)          ? 0x88
                        : DTypeBytes(mode.a) == 4 ? 0x80000000
                        : DTypeBytes(mode.a) == 2 ? 0x8000
                        : IsFp8(mode.a)           ? 0x80
                                                  : 0x20;
  std::vector<std::byte> flipped(desc.a.data.bytes().begin(), desc.a.data.bytes().end());
  for (size_t i = 0; i < flipped.size(); i += DTypeBytes(mode.a)) {
    for (int byte = 0; byte < DTypeBytes(mode.a); ++byte) {
      flipped[i + byte] ^= static_cast<std::byte>(sign >> (8 * byte));
    }
  }
  desc.a.data = Tensor::FromBytes(mode.a, desc.a.data.shape(), flipped).value();
  const GemmResult negated = GemmCpu(desc, {}).value();
  for (int64_t i = 0; i < plain.d.element_count(); ++i) {
    const float x = plain.d.as<float>()[i], y = negated.d.as<float>()[i];
    ASSERT_TRUE(x == 0 ? y == 0 : y == -x) << i << ": " << x << " and " << y;
  }
}

/// Moves columns of an operand's codes: to[i] = from[order[i]], two codes a byte of FP4.
Tensor Permuted(const Tensor& data, const std::vector<int64_t>& order) {
  Tensor result = Tensor::Allocate(data.dtype(), data.shape()).value();
  const auto k = static_cast<int64_t>(order.size());
  const int bytes = DTypeBytes(data.dtype());
  for (int64_t row = 0; row < data.rows(); ++row) {
    for (int64_t i = 0; i < k; ++i) {
      const int64_t from = row * k + order[i], to = row * k + i;
      if (!IsPacked(data.dtype())) {
        std::copy_n(data.data() + from * bytes, bytes, result.data() + to * bytes);
        continue;
      }
      const int code = static_cast<int>(data.data()[from / 2]) >> (from % 2 * 4) & 15;
      auto& byte = result.data()[to / 2];
      byte = to % 2 == 0 ? static_cast<std::byte>(code) : byte | static_cast<std::byte>(code << 4);
    }
  }
  return result;
}

TEST_P(TensorCoreTest, OrderInsideAStepChangesNothing) {
  const Mode& mode = GetParam();
  const FusedRule rule = RuleFor(MakeDesc(mode, {1, 1, 32}, GemmLayout::kTN, CodePattern::kNear,
                                          CodePattern::kNear, ScalePattern::kUsual, 1))
                             .value();
  // Within a step, and within a block of scales; in pairs of four, the halves of an instruction are
  // no runs of k: pairs are.
  const int64_t run = rule.order == ProductOrder::kPairsOfFour ? 2
                      : rule.group > 1                         ? rule.group
                                                               : rule.step;
  constexpr int64_t kDepth = 256;
  std::vector<int64_t> order(kDepth);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(3);
  for (int64_t k = 0; k < kDepth; k += run) {
    std::shuffle(order.begin() + k, order.begin() + std::min(kDepth, k + run), random);
  }
  for (const CodePattern pattern : {CodePattern::kFinite, CodePattern::kAll}) {
    GemmDesc desc = MakeDesc(mode, {5, 37, kDepth}, GemmLayout::kTN, pattern, pattern,
                             ScalePattern::kUsual, 11);
    const GemmResult before = GemmCpu(desc, {}).value();
    desc.a.data = Permuted(desc.a.data, order);
    desc.b.data = Permuted(desc.b.data, order);
    const GemmResult after = GemmCpu(desc, {}).value();
    EXPECT_TRUE(std::ranges::equal(before.d.bytes(), after.d.bytes())) << GemmText(desc);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TensorCoreTest, testing::ValuesIn(Modes()),
                         [](const auto& info) { return info.param.name; });

}  // namespace QG_TEST_FILE
}  // namespace quantgate
