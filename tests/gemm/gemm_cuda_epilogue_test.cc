// What GemmCuda does around the accumulators: the epilogue in all its parts against GemmCpu, byte
// for byte, and what it does where a GEMM cannot be done.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/gemm/gemm_on_device.h"
#include "tests/gemm/scaled_operand.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;
using enum DType;
using enum ScaleMode;

constexpr GemmShape kShape{21, 70, 256};

GemmDesc MakeDesc(DType dtype, ScaleMode a, ScaleMode b, const std::string& arithmetic,
                  CodePattern pattern) {
  GemmDesc desc;
  desc.a = MakeOperand(dtype, a, kShape.m, kShape.k, false, pattern, ScalePattern::kUsual, 1);
  desc.b = MakeOperand(dtype, b, kShape.n, kShape.k, false, pattern, ScalePattern::kUsual, 2);
  desc.arithmetic = Arithmetic::Parse(arithmetic).value();
  return desc;
}

Tensor Vector(DType dtype, int64_t count, uint32_t seed, CodePattern pattern = CodePattern::kNear) {
  return MakeCodes(dtype, 1, count, pattern, seed).Reinterpret(dtype, {count}).value();
}

/// Operands of every kind of scale that an epilogue knows.
std::vector<GemmDesc> Operands(CodePattern pattern) {
  std::vector<GemmDesc> all;
  for (const char* arithmetic :
       {"sm90:fast", "sm90:split", "sm90:split,splitk=2", "sm100", "sm89:acc=f16", "fp32"}) {
    all.push_back(MakeDesc(kF8E4M3, kNone, kNone, arithmetic, pattern));
    GemmDesc desc = all.back();
    desc.a.scaling = kTensor;
    desc.a.scale_inv = Tensor::FromScalar(0.0371f).value();
    all.push_back(desc);
    desc.b.scaling = kTensor;
    desc.b.scale_inv = Tensor::FromScalar(-1.93f).value();
    all.push_back(desc);
    desc.a.scaling = desc.b.scaling = kOuter;
    desc.a.scale_inv = Vector(kF32, kShape.m, 3, pattern);
    desc.b.scale_inv = Vector(kF32, kShape.n, 4, pattern);
    all.push_back(desc);
  }
  all.push_back(MakeDesc(kBF16, kNone, kNone, "sm90", pattern));
  all.push_back(MakeDesc(kBF16, kNone, kNone, "sm90:splitk=3", pattern));
  all.push_back(MakeDesc(kF16, kNone, kNone, "sm80", pattern));
  all.push_back(MakeDesc(kF8E4M3, k1x128, k128x128, "sm90", pattern));
  all.push_back(MakeDesc(kF8E4M3, kMx32, kMx32, "sm100", pattern));
  all.push_back(MakeDesc(kF4E2M1x2, kNv16, kNv16, "sm100", pattern));
  GemmDesc desc = all.back();
  desc.b.amax = Tensor::FromScalar(0.0717f).value();
  desc.b.e4m3_max = 256;
  all.push_back(desc);
  desc.a.amax = Tensor::FromScalar(3.3f).value();
  all.push_back(desc);
  desc.arithmetic = Arithmetic::Parse("fp32").value();
  all.push_back(desc);
  return all;
}

/// alpha, beta and in place.
struct Factors {
  float alpha, beta;
  bool in_place;
};

void ExpectEveryEpilogue(GemmDesc desc, CodePattern pattern) {
  uint32_t seed = 10;
  for (const DType out : {kF32, kBF16, kF16, kF8E4M3, kF8E5M2}) {
    desc.out_dtype = out;
    for (const Factors& factors : std::vector<Factors>{{1, 0, false},
                                                       {-0.7f, 0, false},
                                                       {0, 0, false},
                                                       {1, 1, false},
                                                       {1.3f, -0.3f, false},
                                                       {1, 1, true},
                                                       {0.9f, 1, true},
                                                       {1, 0.5f, true}}) {
      if (factors.in_place && IsFp8(out)) continue;
      desc.alpha = factors.alpha;
      desc.beta = factors.beta;
      desc.in_place = factors.in_place;
      desc.c = Tensor();
      if (desc.beta != 0) {
        const DType c = IsFp8(out) && seed % 2 == 0 ? kBF16 : out;
        desc.c = MakeCodes(c, kShape.m, kShape.n, pattern, seed);
      }
      for (const DType bias : {kU8, kF32, kBF16, kF16}) {
        desc.bias = bias == kU8 ? Tensor() : Vector(bias, kShape.n, seed++, pattern);
        desc.d_scale = Tensor();
        if (IsFp8(out) && seed % 3 != 0) desc.d_scale = Tensor::FromScalar(-2.7f).value();
        ExpectTheCpusBytes(desc, PatternName(pattern) + " epilogue");
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(GemmCudaEpilogueTest, EveryPartEqualsTheCpu) {
  for (const CodePattern pattern :
       {CodePattern::kNear, CodePattern::kFinite, CodePattern::kSparse, CodePattern::kAll}) {
    for (const GemmDesc& desc : Operands(pattern)) {
      ExpectEveryEpilogue(desc, pattern);
      if (HasFailure()) return;
    }
  }
}

TEST(GemmCudaEpilogueTest, RowScalesEqualTheCpu) {
  GemmDesc desc = MakeDesc(kF4E2M1x2, kNv16, kNv16, "sm100", CodePattern::kFinite);
  desc.a.amax = Vector(kF32, kShape.m, 7);
  for (const bool has_column_amax : {false, true}) {
    if (has_column_amax) desc.b.amax = Tensor::FromScalar(0.0717f).value();
    for (const DType out : {kF32, kBF16, kF16}) {
      desc.out_dtype = out;
      desc.bias = Tensor();
      ExpectTheCpusBytes(desc, "row-scaled");
      desc.bias = Vector(kBF16, kShape.n, 8);
      desc.alpha = 1.7f;
      ExpectTheCpusBytes(desc, "row-scaled");
    }
  }
}

TEST(GemmCudaEpilogueTest, NoRowsGiveAnEmptyOutput) {
  GemmDesc desc;
  desc.a.data = Tensor::Allocate(kF8E4M3, {0, 64}).value();
  desc.b.data = MakeCodes(kF8E4M3, 32, 64, CodePattern::kNear, 1);
  const auto expect_the_cpus_bytes = [&](std::vector<const char*> arithmetics) {
    for (const DType out : {kF32, kBF16, kF8E4M3}) {
      for (const char* arithmetic : arithmetics) {
        desc.out_dtype = out;
        desc.arithmetic = Arithmetic::Parse(arithmetic).value();
        ExpectTheCpusBytes(desc, "no rows");
      }
    }
  };
  expect_the_cpus_bytes({"sm90", "sm100", "fp32"});
  // No scales to look at either.
  desc.a.scaling = desc.b.scaling = k1x128;
  desc.a.scale_inv = Tensor::Allocate(kF32, {0, 1}).value();
  desc.b.scale_inv = Tensor::Allocate(kF32, {32, 1}).value();
  for (int i = 0; i < 32; ++i) desc.b.scale_inv.as<float>()[i] = 0.5f;
  expect_the_cpus_bytes({"sm90", "sm100", "fp32"});
}

TEST(GemmCudaEpilogueTest, RefusesAsTheCpuDoes) {
  const auto expect_same_refusal = [](const GemmDesc& desc) {
    const absl::Status expected = GemmCpu(desc, {}).status();
    ASSERT_FALSE(expected.ok());
    EXPECT_EQ(GemmCuda(TestDevice(), OnDevice(desc), nullptr).status(), expected);
  };
  // Scales whose values are looked at on the device.
  expect_same_refusal(MakeDesc(kF8E4M3, k1x128, k1x128, "sm100", CodePattern::kNear));
  GemmDesc desc = MakeDesc(kF8E4M3, k1x128, k128x128, "sm120", CodePattern::kNear);
  const auto fill = [](Tensor& scale) {
    for (int64_t i = 0; i < scale.element_count(); ++i) scale.as<float>()[i] = 0x1p-127f;
  };
  fill(desc.a.scale_inv);
  expect_same_refusal(desc);
  fill(desc.b.scale_inv);
  desc.b.scale_inv.as<float>()[1] = 3;
  expect_same_refusal(desc);
  desc.b.scale_inv.as<float>()[1] = 0x1p127f;
  ExpectTheCpusBytes(desc, "powers of two");
  expect_same_refusal(MakeDesc(kF8E4M3, kMx32, kMx32, "sm90", CodePattern::kNear));
  desc = MakeDesc(kBF16, kNone, kNone, "sm90", CodePattern::kNear);
  desc.arithmetic.family = ArithmeticFamily::kCublasLt;
  EXPECT_THAT(GemmCuda(TestDevice(), OnDevice(desc), nullptr).status().message(),
              HasSubstr("hardware"));
}

TEST(GemmCudaEpilogueTest, CancelledBeforeItBegins) {
  const GemmDesc desc = OnDevice(MakeDesc(kBF16, kNone, kNone, "sm90", CodePattern::kNear));
  Cancellation cancellation;
  cancellation.Cancel();
  EXPECT_EQ(GemmCuda(TestDevice(), desc, &cancellation).status(), cancellation.Check());
}

/// Each allocation fails once: an error, nothing kept, and the next call is whole.
TEST(GemmCudaEpilogueTest, SurvivesAFullDevice) {
  CudaDevice& device = TestDevice();
  for (const char* arithmetic : {"sm90:split,splitk=2", "fp32"}) {
    GemmDesc desc = MakeDesc(kF8E4M3, kNone, kNone, arithmetic, CodePattern::kNear);
    desc.out_dtype = kF8E4M3;
    const GemmResult expected = GemmCpu(desc, {}).value();
    const GemmDesc on_device = OnDevice(desc);
    const int64_t before = device.allocation_count();
    ExpectSame(expected, GemmCuda(device, on_device, nullptr), "whole");
    const int64_t allocations = device.allocation_count() - before;
    EXPECT_GE(allocations, 5);
    const int64_t in_use = device.bytes_in_use();
    for (int64_t k = 1; k <= allocations; ++k) {
      device.FailAllocation(k);
      EXPECT_TRUE(absl::IsResourceExhausted(GemmCuda(device, on_device, nullptr).status())) << k;
      device.FailAllocation(0);
      EXPECT_EQ(device.bytes_in_use(), in_use) << k;
    }
    ExpectSame(expected, GemmCuda(device, on_device, nullptr), "after failures");
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
