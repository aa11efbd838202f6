// The exact GEMM on a GPU: rational arithmetic's results, and the CPU's bytes, amax and note, by
// tensor cores and plainly.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "kernels/gemm/exact/exact.h"
#include "kernels/gemm/exact/exact_products.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/base/repository_file.h"
#include "tests/gemm/exact/exact_vectors.h"
#include "tests/gemm/gemm_on_device.h"
#include "tests/gemm/scaled_operand.h"
#include "tests/gemm/scaled_vectors.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr ExactCudaPath kPaths[] = {ExactCudaPath::kTensorCores, ExactCudaPath::kPlain};

void ExpectTheCpus(const GemmDesc& desc, const std::string& what = "") {
  const std::string text = GemmText(desc) + " " + what;
  const absl::StatusOr<GemmResult> expected = ExactGemm(desc, {});
  ASSERT_TRUE(expected.ok()) << text << ": " << expected.status();
  const GemmDesc on_device = OnDevice(desc);
  for (const ExactCudaPath path : kPaths) {
    const auto actual = ExactGemmCudaBy(path, TestDevice(), on_device, nullptr);
    ExpectSame(*expected, actual, text + (path == ExactCudaPath::kPlain ? " plain" : ""));
    ASSERT_TRUE(actual.ok());
    EXPECT_EQ(actual->note, expected->note) << text;
  }
}

void ExpectVectors(const std::vector<ExactVector>& vectors) {
  ASSERT_GT(vectors.size(), 1000u);
  for (const ExactVector& vector : vectors) {
    const auto result = ExactGemmCuda(TestDevice(), OnDevice(vector.desc), nullptr);
    ASSERT_TRUE(result.ok()) << result.status() << "\n" << vector.text;
    ASSERT_EQ(CodeAt(OnHost(result->d), 0), vector.d) << vector.text << "\n" << result->note;
    ASSERT_EQ(result->amax.has_value(), IsFp8(vector.desc.out_dtype));
    if (!result->amax.has_value()) continue;
    ASSERT_EQ(CodeAt(OnHost(result->amax), 0), vector.amax) << vector.text;
  }
}

TEST(ExactCudaTest, EqualsRationalArithmetic) { ExpectVectors(ReadExactVectors()); }
TEST(ExactCudaTest, EqualsRationalArithmeticUnderBlockScales) {
  ExpectVectors(ReadExactScaledVectors());
}

struct Pair {
  DType a, b;
  ScaleMode a_scaling = ScaleMode::kNone, b_scaling = ScaleMode::kNone;
};

std::vector<Pair> Pairs() {
  using enum DType;
  using enum ScaleMode;
  std::vector<Pair> pairs = {{kF32, kF32}, {kBF16, kBF16}, {kF16, kF16}};
  const std::vector<DType> small = {kF8E4M3, kF8E5M2, kF6E2M3, kF6E3M2, kF4E2M1x2};
  for (const DType a : small) {
    for (const DType b : small) {
      pairs.push_back({a, b});
      pairs.push_back({a, b, kMx32, kMx32});
      if (!IsFp8(a) || !IsFp8(b)) continue;
      pairs.push_back({a, b, k1x128, k1x128});
      pairs.push_back({a, b, k1x128, k128x128});
      pairs.push_back({a, b, k128x128, k1x128});
    }
  }
  pairs.push_back({kF4E2M1x2, kF4E2M1x2, kNv16, kNv16});
  return pairs;
}

bool HasFp4(const Pair& pair) { return pair.a == DType::kF4E2M1x2 || pair.b == DType::kF4E2M1x2; }

GemmDesc MakeDesc(const Pair& pair, GemmShape shape, CodePattern codes, ScalePattern scales,
                  uint32_t seed, GemmLayout layout = GemmLayout::kTN) {
  GemmDesc desc;
  desc.arithmetic.family = ArithmeticFamily::kExact;
  desc.layout = layout;
  desc.a = MakeOperand(pair.a, pair.a_scaling, shape.m, shape.k, layout == GemmLayout::kNT, codes,
                       scales, seed);
  desc.b = MakeOperand(pair.b, pair.b_scaling, shape.n, shape.k, layout != GemmLayout::kTN, codes,
                       scales, seed + 1);
  return desc;
}

class ExactCudaPairTest : public testing::TestWithParam<Pair> {};

INSTANTIATE_TEST_SUITE_P(All, ExactCudaPairTest, testing::ValuesIn(Pairs()), [](const auto& info) {
  const Pair& pair = info.param;
  return std::string(DTypeName(pair.a)) + "_" + std::string(DTypeName(pair.b)) + "_" +
         std::string(ScaleModeName(pair.a_scaling)) + "_" +
         std::string(ScaleModeName(pair.b_scaling));
});

TEST_P(ExactCudaPairTest, EveryPatternGivesTheCpusBytes) {
  using enum CodePattern;
  uint32_t seed = 1;
  for (const CodePattern codes :
       {kFinite, kNear, kWideRows, kSmall, kSparse, kMaximal, kNegativeMaximal, kAll, kLaced}) {
    for (const ScalePattern scales :
         {ScalePattern::kUsual, ScalePattern::kWide, ScalePattern::kSmall, ScalePattern::kLaced}) {
      if (GetParam().a_scaling == ScaleMode::kNone && scales != ScalePattern::kUsual) continue;
      // More than two blocks of sums, the last one short.
      GemmDesc desc = MakeDesc(GetParam(), {37, 131, 608}, codes, scales, ++seed);
      for (const DType out : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
        desc.out_dtype = out;
        desc.also_f32 = out == DType::kBF16;
        ExpectTheCpus(desc, PatternName(codes) + " scales " + std::to_string(int(scales)));
      }
      if (HasFailure()) return;
    }
  }
}

TEST_P(ExactCudaPairTest, EveryShapeAndLayoutGivesTheCpusBytes) {
  const int64_t block = GetParam().a_scaling == ScaleMode::kMx32   ? 32
                        : GetParam().a_scaling == ScaleMode::kNv16 ? 16
                        : HasFp4(GetParam())                       ? 2
                                                                   : 1;
  for (const GemmLayout layout : {GemmLayout::kTN, GemmLayout::kNN, GemmLayout::kNT}) {
    if (HasFp4(GetParam()) && layout != GemmLayout::kTN) continue;
    for (const GemmShape& each :
         {GemmShape{0, 3, 5}, GemmShape{1, 1, 1}, GemmShape{3, 5, 7}, GemmShape{129, 257, 33},
          GemmShape{5, 2, 1023}, GemmShape{300, 127, 256}, GemmShape{2, 400, 513}}) {
      const GemmShape shape{each.m, each.n, (each.k + block - 1) / block * block};
      GemmDesc desc =
          MakeDesc(GetParam(), shape, CodePattern::kFinite, ScalePattern::kUsual, 7, layout);
      desc.out_dtype = DType::kF16;
      ExpectTheCpus(desc);
      if (HasFailure()) return;
    }
  }
}

Tensor Vector(DType dtype, int64_t count, CodePattern pattern, uint32_t seed) {
  return MakeCodes(dtype, 1, count, pattern, seed).Reinterpret(dtype, {count}).value();
}

/// One value of each part of an epilogue and a few that are special.
std::vector<GemmDesc> Epilogues(const GemmDesc& desc, GemmShape shape) {
  std::vector<GemmDesc> descs;
  for (const DType out : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2}) {
    for (const CodePattern pattern :
         {CodePattern::kNear, CodePattern::kFinite, CodePattern::kAll}) {
      GemmDesc each = desc;
      each.out_dtype = out;
      each.alpha = pattern == CodePattern::kNear ? -0.37f : 0x1.8p-90f;
      descs.push_back(each);
      each.bias = Vector(DType::kBF16, shape.n, pattern, 3);
      if (IsFp8(out)) each.d_scale = Tensor::FromScalar(0.0137f).value();
      descs.push_back(each);
      each.beta = 1.7f;
      each.c = MakeCodes(IsFp8(out) ? DType::kBF16 : out, shape.m, shape.n, pattern, 4);
      each.bias = Vector(DType::kF32, shape.n, pattern, 5);
      descs.push_back(each);
    }
  }
  return descs;
}

TEST(ExactCudaTest, EveryEpilogueGivesTheCpusBytes) {
  using enum DType;
  constexpr GemmShape kShape{70, 133, 300};
  for (const Pair& pair :
       {Pair{kF8E4M3, kF8E4M3}, Pair{kF8E5M2, kF8E4M3}, Pair{kBF16, kBF16}, Pair{kF32, kF32}}) {
    const GemmDesc desc = MakeDesc(pair, kShape, CodePattern::kNear, ScalePattern::kUsual, 5);
    for (const GemmDesc& each : Epilogues(desc, kShape)) ExpectTheCpus(each);
  }
}

TEST(ExactCudaTest, WholeScalesGiveTheCpusBytes) {
  constexpr GemmShape kShape{70, 133, 304};
  GemmDesc desc = MakeDesc({DType::kF8E4M3, DType::kF8E4M3}, kShape, CodePattern::kFinite,
                           ScalePattern::kUsual, 5);
  desc.a.scaling = desc.b.scaling = ScaleMode::kTensor;
  desc.a.scale_inv = Tensor::FromScalar(0x1.23456p-7f).value();
  desc.b.scale_inv = Tensor::FromScalar(-0x1.fedcbap11f).value();
  for (const GemmDesc& each : Epilogues(desc, kShape)) ExpectTheCpus(each);
  desc.a.scaling = desc.b.scaling = ScaleMode::kOuter;
  for (const CodePattern pattern : {CodePattern::kNear, CodePattern::kFinite, CodePattern::kAll}) {
    desc.a.scale_inv = Vector(DType::kF32, kShape.m, pattern, 1);
    desc.b.scale_inv = Vector(DType::kF32, kShape.n, pattern, 2);
    for (const GemmDesc& each : Epilogues(desc, kShape)) ExpectTheCpus(each);
  }
  // The global scales of nv16 and their divisor, row-scaled on either side.
  const Pair nvfp4{DType::kF4E2M1x2, DType::kF4E2M1x2, ScaleMode::kNv16, ScaleMode::kNv16};
  for (const ScalePattern scales : {ScalePattern::kUsual, ScalePattern::kWide}) {
    for (int kind = 0; kind < 4; ++kind) {
      desc = MakeDesc(nvfp4, kShape, CodePattern::kFinite, scales, 9);
      desc.a.amax = kind % 2 == 0 ? Tensor::FromScalar(3.7f).value()
                                  : Vector(DType::kF32, kShape.m, CodePattern::kNear, 6);
      if (kind < 2) desc.b.amax = Tensor::FromScalar(0x1.23p-30f).value();
      if (kind == 3) desc.b.amax = Vector(DType::kF32, kShape.n, CodePattern::kLaced, 8);
      desc.b.e4m3_max = 256;
      for (const GemmDesc& each : Epilogues(desc, kShape)) ExpectTheCpus(each);
    }
  }
}

// The second half of k takes the first away: every dot product needs wide integers.
TEST(ExactCudaTest, CancellingSumsGiveTheCpusBytes) {
  constexpr int64_t kRows = 90, kDepth = 700;
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF8E5M2}) {
    GemmDesc desc = MakeDesc({dtype, dtype}, {kRows, kRows, kDepth}, CodePattern::kFinite,
                             ScalePattern::kUsual, 3);
    const uint32_t sign = 1u << (8 * DTypeBytes(dtype) - 1);
    for (GemmOperand* operand : {&desc.a, &desc.b}) {
      std::vector<uint32_t> codes(operand->data.element_count());
      for (size_t i = 0; i < codes.size(); ++i) {
        const auto k = static_cast<int64_t>(i) % kDepth;
        codes[i] = CodeAt(operand->data, k < kDepth / 2 ? i : i - kDepth / 2);
        if (k >= kDepth / 2 && operand == &desc.a) codes[i] ^= sign;
      }
      codes[kDepth - 1] = CodeAt(operand->data, 1);
      operand->data = TensorOfCodes(dtype, operand->data.shape(), codes);
    }
    for (const DType out : {DType::kF32, DType::kF8E4M3}) {
      desc.out_dtype = out;
      ExpectTheCpus(desc, "cancelling");
    }
  }
}

TEST(ExactCudaTest, EveryDistributionGivesTheCpusBytes) {
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2}) {
    for (const Distribution distribution : AllDistributions()) {
      GemmDesc desc;
      desc.arithmetic.family = ArithmeticFamily::kExact;
      desc.a.data = Generate({distribution, 1, dtype, {140, 515}}, {}).value();
      desc.b.data = Generate({distribution, 2, dtype, {150, 515}}, {}).value();
      desc.out_dtype = DType::kBF16;
      ExpectTheCpus(desc, std::string(DistributionName(distribution)));
    }
  }
}

TEST(ExactCudaTest, RealTensorsGiveTheCpusBytes) {
  const TensorFile file =
      ValueOrAbort(ReadSafetensors(RepositoryFile("data/bytegpt_block1.safetensors")));
  int products = 0;
  for (const NamedTensor& x : file.tensors) {
    for (const NamedTensor& w : file.tensors) {
      const bool fits = x.tensor.rank() == 2 && w.tensor.rank() == 2 && products < 6 &&
                        x.tensor.columns() == w.tensor.columns() && x.name != w.name &&
                        x.tensor.dtype() == w.tensor.dtype() && IsHighPrecision(x.tensor.dtype());
      if (!fits) continue;
      GemmDesc desc;
      desc.arithmetic.family = ArithmeticFamily::kExact;
      desc.a.data = x.tensor;
      desc.b.data = w.tensor;
      ExpectTheCpus(desc, x.name + " " + w.name);
      ++products;
    }
  }
  EXPECT_GT(products, 0);
}

TEST(ExactCudaTest, OperandsMayLieAnywhere) {
  for (const DType dtype : {DType::kF8E4M3, DType::kBF16, DType::kF32}) {
    const GemmDesc desc =
        MakeDesc({dtype, dtype}, {45, 33, 301}, CodePattern::kNear, ScalePattern::kUsual, 8);
    GemmDesc shifted = desc;
    shifted.a.data = OnDeviceShifted(desc.a.data, 1);
    shifted.b.data = OnDeviceShifted(desc.b.data, 3);
    ExpectSame(ExactGemm(desc, {}).value(), ExactGemmCuda(TestDevice(), shifted, nullptr),
               GemmText(desc));
  }
}

// Nothing behind the end of k meets the scale of the last block.
TEST(ExactCudaTest, InfiniteScalesGiveTheCpusBytes) {
  using enum ScaleMode;
  GemmDesc desc = MakeDesc({DType::kF8E4M3, DType::kF8E4M3, k1x128, k1x128}, {20, 30, 229},
                           CodePattern::kMaximal, ScalePattern::kUsual, 8);
  desc.a.scale_inv.as<float>()[3] = std::numeric_limits<float>::infinity();
  desc.b.scale_inv.as<float>()[7] = -std::numeric_limits<float>::infinity();
  desc.b.scale_inv.as<float>()[8] = 0;
  ExpectTheCpus(desc);
}

// More outputs than a strip has room for.
TEST(ExactCudaTest, StripsGiveTheCpusBytes) {
  GemmDesc desc = MakeDesc({DType::kBF16, DType::kBF16}, {300, 70'001, 8}, CodePattern::kNear,
                           ScalePattern::kUsual, 8);
  desc.out_dtype = DType::kF8E4M3;
  ExpectTheCpus(desc, "in strips");
}

TEST(ExactCudaTest, StopsWhenCancelled) {
  const GemmDesc desc = OnDevice(MakeDesc({DType::kBF16, DType::kBF16}, {8, 8, 8},
                                          CodePattern::kNear, ScalePattern::kUsual, 8));
  Cancellation cancellation;
  EXPECT_TRUE(ExactGemmCuda(TestDevice(), desc, &cancellation).ok());
  cancellation.Cancel();
  EXPECT_EQ(ExactGemmCuda(TestDevice(), desc, &cancellation).status().code(),
            absl::StatusCode::kCancelled);
}

TEST(ExactCudaTest, AFullDeviceIsAnErrorAndNoMore) {
  GemmDesc desc = MakeDesc({DType::kBF16, DType::kBF16}, {40, 50, 60}, CodePattern::kFinite,
                           ScalePattern::kUsual, 8);
  desc.out_dtype = DType::kF8E5M2;
  const GemmResult expected = ExactGemm(desc, {}).value();
  const GemmDesc on_device = OnDevice(desc);
  const int64_t before = TestDevice().allocation_count();
  ASSERT_TRUE(ExactGemmCuda(TestDevice(), on_device, nullptr).ok());
  const int64_t allocations = TestDevice().allocation_count() - before;
  ASSERT_GT(allocations, 4);
  for (int64_t k = 1; k <= allocations; ++k) {
    const int64_t in_use = TestDevice().bytes_in_use();
    TestDevice().FailAllocation(k);
    EXPECT_EQ(ExactGemmCuda(TestDevice(), on_device, nullptr).status().code(),
              absl::StatusCode::kResourceExhausted);
    TestDevice().FailAllocation(0);
    EXPECT_EQ(TestDevice().bytes_in_use(), in_use);
  }
  ExpectSame(expected, ExactGemmCuda(TestDevice(), on_device, nullptr), "afterwards");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
