// The exact GEMM of every pair of formats, with block scales: against rational arithmetic
// (tests/vectors/exact_scaled_reference.py), against expansions on 10^5 random dots a pair, and
// against itself in other orders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/gemm/exact/exact.h"
#include "kernels/gemm/operand_formats.h"
#include "kernels/gemm/operand_view.h"
#include "kernels/tensor/visit_format.h"
#include "tests/gemm/exact/exact_expansion.h"
#include "tests/gemm/exact/exact_vectors.h"
#include "tests/gemm/scaled_operand.h"
#include "tests/gemm/scaled_vectors.h"

namespace quantgate {
namespace QG_TEST_FILE {

TEST(ExactScaledTest, EqualsRationalArithmetic) {
  const std::vector<ExactVector> vectors = ReadExactScaledVectors();
  ASSERT_GT(vectors.size(), 1000u);
  for (const ExactVector& vector : vectors) {
    for (const Isa isa : RunnableIsas()) {
      ExecutionContext context;
      context.isa = isa;
      const auto result = GemmCpu(vector.desc, context);
      ASSERT_TRUE(result.ok()) << result.status() << "\n" << vector.text;
      ASSERT_EQ(CodeAt(result->d, 0), vector.d) << vector.text << "\n" << result->note;
      if (result->amax.has_value()) {
        ASSERT_EQ(CodeAt(result->amax, 0), vector.amax) << vector.text;
      }
    }
  }
}

struct Pair {
  DType a, b;
  ScaleMode a_scaling, b_scaling;
};

std::vector<Pair> Pairs() {
  using enum DType;
  using enum ScaleMode;
  const std::vector<DType> small = {kF8E4M3, kF8E5M2, kF6E2M3, kF6E3M2, kF4E2M1x2};
  std::vector<Pair> pairs;
  for (const DType a : small) {
    for (const DType b : small) {
      pairs.push_back({a, b, kNone, kNone});
      pairs.push_back({a, b, kMx32, kMx32});
      if (!IsFp8(a) || !IsFp8(b)) continue;
      pairs.push_back({a, b, k1x128, k1x128});
      pairs.push_back({a, b, k1x128, k128x128});
    }
  }
  pairs.push_back({kF4E2M1x2, kF4E2M1x2, kNv16, kNv16});
  return pairs;
}

std::string NameOf(const GemmDesc& desc) { return GemmText(desc); }

GemmDesc MakeDesc(const Pair& pair, GemmShape shape, CodePattern codes, ScalePattern scales,
                  uint32_t seed) {
  GemmDesc desc;
  desc.arithmetic.family = ArithmeticFamily::kExact;
  desc.a = MakeOperand(pair.a, pair.a_scaling, shape.m, shape.k, false, codes, scales, seed);
  desc.b = MakeOperand(pair.b, pair.b_scaling, shape.n, shape.k, false, codes, scales, seed + 1);
  return desc;
}

/// Element * scale of every element, exact in fp64.
std::vector<double> Values(const OperandView& view) {
  std::vector<double> values(view.rows * view.k);
  VisitFormat<OperandFormats>(view.dtype, [&]<class F>() {
    for (int64_t i = 0; i < view.rows * view.k; ++i) {
      const int64_t row = i / view.k, k = i % view.k;
      values[i] = DecodeFloat<F>(*view.at<typename F::Storage>(row, k));
      if (view.scales.has_value()) values[i] *= view.scales.At(row, k);
    }
  });
  return values;
}

template <class F>
void ExpectRounded(const GemmDesc& desc, const Tensor& d, const std::vector<Expansion>& sums) {
  for (size_t i = 0; i < sums.size(); ++i) {
    const auto code = static_cast<typename F::Storage>(CodeAt(d, i));
    const auto neighbour = static_cast<typename F::Storage>(code ^ 1);
    const bool only_this =
        IsCorrectlyRounded<F>(sums[i], code) && !IsCorrectlyRounded<F>(sums[i], neighbour);
    ASSERT_TRUE(only_this) << NameOf(desc) << " output " << i << " code " << code;
  }
}

class ExactPairTest : public testing::TestWithParam<Pair> {};

INSTANTIATE_TEST_SUITE_P(All, ExactPairTest, testing::ValuesIn(Pairs()), [](const auto& info) {
  const Pair& pair = info.param;
  std::string name = std::string(DTypeName(pair.a)) + "_" + std::string(DTypeName(pair.b)) + "_" +
                     std::string(ScaleModeName(pair.a_scaling)) + "_" +
                     std::string(ScaleModeName(pair.b_scaling));
  return name;
});

TEST_P(ExactPairTest, EveryRandomDotIsCorrectlyRounded) {
  constexpr GemmShape kShape{131, 129, 64};
  int64_t dots = 0;
  for (const CodePattern codes : {CodePattern::kFinite, CodePattern::kNear, CodePattern::kSparse}) {
    for (const ScalePattern scales : {ScalePattern::kUsual, ScalePattern::kWide}) {
      GemmDesc desc = MakeDesc(GetParam(), kShape, codes, scales, 11 + dots);
      const std::vector<double> a = Values(ViewOfA(desc, kShape).value());
      const std::vector<double> b = Values(ViewOfB(desc, kShape).value());
      std::vector<Expansion> sums(kShape.m * kShape.n);
      for (size_t i = 0; i < sums.size(); ++i) {
        const double* x = &a[i / kShape.n * kShape.k];
        const double* y = &b[i % kShape.n * kShape.k];
        for (int64_t k = 0; k < kShape.k; ++k) {
          const double product = x[k] * y[k];
          sums[i].Add(product);
          sums[i].Add(std::fma(x[k], y[k], -product));
        }
      }
      dots += static_cast<int64_t>(sums.size());
      ExpectRounded<Float32>(desc, GemmCpu(desc, {})->d, sums);
      desc.out_dtype = DType::kBF16;
      ExpectRounded<BFloat16>(desc, GemmCpu(desc, {})->d, sums);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(dots, 100'000);
}

/// Moves whole blocks along k, and elements inside each: codes by `order`, scales by its blocks.
GemmOperand Reordered(const GemmOperand& operand, const std::vector<int64_t>& order,
                      int64_t k_block) {
  const auto k = static_cast<int64_t>(order.size());
  const bool packed = operand.data.dtype() == DType::kF4E2M1x2;
  GemmOperand result = operand;
  result.data = Tensor::Allocate(operand.data.dtype(), operand.data.shape()).value();
  std::fill_n(result.data.as<uint8_t>(), result.data.element_count(), uint8_t(0));
  for (int64_t row = 0; row < operand.data.rows(); ++row) {
    for (int64_t i = 0; i < k; ++i) {
      const int64_t from = row * k + order[i], to = row * k + i;
      const auto* in = operand.data.as<uint8_t>();
      auto* out = result.data.as<uint8_t>();
      if (packed) {
        out[to / 2] |= (in[from / 2] >> (from % 2 * 4) & 15) << (to % 2 * 4);
      } else {
        out[to] = in[from];
      }
    }
  }
  if (operand.scaling == ScaleMode::kNone) return result;
  const int bytes = DTypeBytes(operand.scale_inv.dtype());
  result.scale_inv = Tensor::Allocate(operand.scale_inv.dtype(), operand.scale_inv.shape()).value();
  const int64_t blocks = k / k_block;
  for (int64_t i = 0; i < operand.scale_inv.element_count(); ++i) {
    const int64_t from = i / blocks * blocks + order[i % blocks * k_block] / k_block;
    std::copy_n(operand.scale_inv.data() + from * bytes, bytes,
                result.scale_inv.data() + i * bytes);
  }
  return result;
}

TEST_P(ExactPairTest, OrderAndSplitsOfKChangeNothing) {
  const Pair& pair = GetParam();
  const int64_t k_block = pair.a_scaling == ScaleMode::kMx32   ? 32
                          : pair.a_scaling == ScaleMode::kNv16 ? 16
                          : pair.a_scaling == ScaleMode::kNone ? 64
                                                               : 128;
  constexpr GemmShape kShape{20, 23, 512};
  std::mt19937 random(9);
  std::vector<int64_t> blocks(kShape.k / k_block);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), random);
  std::vector<int64_t> order;
  for (const int64_t block : blocks) {
    std::vector<int64_t> inside(k_block);
    std::iota(inside.begin(), inside.end(), block * k_block);
    std::shuffle(inside.begin(), inside.end(), random);
    order.insert(order.end(), inside.begin(), inside.end());
  }
  for (const ScalePattern scales : {ScalePattern::kUsual, ScalePattern::kWide}) {
    GemmDesc desc = MakeDesc(pair, kShape, CodePattern::kFinite, scales, 17);
    const Tensor expected = GemmCpu(desc, {})->d;
    GemmDesc split = desc;
    split.arithmetic.split_k = 3;
    split.use_split_accumulator = true;
    EXPECT_TRUE(std::ranges::equal(GemmCpu(split, {})->d.bytes(), expected.bytes()));
    desc.a = Reordered(desc.a, order, k_block);
    desc.b = Reordered(desc.b, order, k_block);
    EXPECT_TRUE(std::ranges::equal(GemmCpu(desc, {})->d.bytes(), expected.bytes())) << NameOf(desc);
  }
}

TEST(ExactScaledTest, NoteSaysWhatWasNeeded) {
  GemmDesc desc = MakeDesc({DType::kF4E2M1x2, DType::kF4E2M1x2, ScaleMode::kNv16, ScaleMode::kNv16},
                           {8, 8, 1184}, CodePattern::kFinite, ScalePattern::kWide, 5);
  EXPECT_THAT(GemmCpu(desc, {})->note, testing::StartsWith("fp64 exact: needs "));
  desc = MakeDesc({DType::kF8E5M2, DType::kF8E5M2, ScaleMode::kMx32, ScaleMode::kMx32},
                  {8, 8, 1024}, CodePattern::kFinite, ScalePattern::kWide, 5);
  EXPECT_THAT(GemmCpu(desc, {})->note, testing::StartsWith("certified fp64: needs up to "));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
