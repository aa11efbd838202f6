// What cuBLASLt on Hopper does not take is refused by name, before it is asked
// (docs/tensor-cores.md section 4; the dims as `cublaslt_alignment` measured them).
#include "kernels/gemm/cublaslt/cublaslt_algorithm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

Tensor Zeros(DType dtype, Shape shape) {
  Tensor tensor = Tensor::Allocate(dtype, std::move(shape)).value();
  std::fill(tensor.data(), tensor.data() + tensor.byte_size(), std::byte{0});
  return tensor;
}

/// m x n x k in layout tn.
GemmDesc DescWith(DType a, DType b, DType out, GemmShape shape) {
  GemmDesc desc;
  desc.a.data = Zeros(a, {shape.m, shape.k});
  desc.b.data = Zeros(b, {shape.n, shape.k});
  desc.out_dtype = out;
  desc.arithmetic.family = ArithmeticFamily::kCublasLt;
  return desc;
}

GemmDesc Fp8Desc(DType out, GemmShape shape) {
  return DescWith(DType::kF8E4M3, DType::kF8E4M3, out, shape);
}

void Scale(GemmOperand& operand, ScaleMode mode, DType dtype, Shape shape) {
  operand.scaling = mode;
  operand.scale_inv = Zeros(dtype, std::move(shape));
}

void ExpectRefused(const GemmDesc& desc, absl::StatusCode code, const std::string& what) {
  const absl::Status status = CheckCublasLtGemm(desc).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kLacking = absl::StatusCode::kUnimplemented;

TEST(CublasLtAlgorithmTest, TextNamesEveryAttribute) {
  CublasLtAlgorithm algorithm;
  algorithm.index = 7;
  algorithm.id = 66;
  algorithm.tile = 20;
  algorithm.stages = 36;
  algorithm.split_k = 3;
  algorithm.reduction_scheme = 2;
  algorithm.swizzle = 1;
  algorithm.custom_option = 4;
  algorithm.inner_shape = 5;
  algorithm.cluster_shape = 6;
  algorithm.workspace_bytes = 1024;
  EXPECT_EQ(algorithm.ToString(),
            "id=66 tile=20 stages=36 splitk=3 reduction=2 swizzle=1 custom=4 inner=5 cluster=6 "
            "workspace=1024");
}

TEST(CheckCublasLtGemmTest, TakesAnyMAndGivesTheShape) {
  for (const int64_t m : {0, 1, 3, 64}) {
    const auto shape = CheckCublasLtGemm(Fp8Desc(DType::kBF16, {m, 24, 48}));
    ASSERT_TRUE(shape.ok()) << shape.status();
    EXPECT_EQ(shape->m, m);
    EXPECT_EQ(shape->n, 24);
    EXPECT_EQ(shape->k, 48);
  }
}

TEST(CheckCublasLtGemmTest, RunsCublasLtAlone) {
  GemmDesc desc = Fp8Desc(DType::kBF16, {16, 16, 16});
  desc.arithmetic.family = ArithmeticFamily::kSm90;
  ExpectRefused(desc, kInvalid, "arithmetic is sm90");
}

TEST(CheckCublasLtGemmTest, WhatNoGemmHasIsRefusedAsEverywhere) {
  GemmDesc desc = Fp8Desc(DType::kBF16, {16, 16, 16});
  desc.beta = 1;
  EXPECT_EQ(CheckCublasLtGemm(desc).status(), CheckGemm(desc).status());
  EXPECT_FALSE(CheckGemm(desc).ok());
}

TEST(CheckCublasLtGemmTest, Fp8DimsOffTheMultipleAreNamed) {
  for (const int64_t k : {8, 24, 40}) {
    ExpectRefused(Fp8Desc(DType::kBF16, {16, 16, k}), kInvalid,
                  "cuBLASLt on sm_90 takes a multiple of 16 with FP8 operands");
  }
  const std::pair<DType, int64_t> multiples[] = {
      {DType::kF32, 4}, {DType::kBF16, 8}, {DType::kF16, 8}, {DType::kF8E4M3, 16}};
  for (const auto& [out, multiple] : multiples) {
    for (int64_t n = 1; n <= 48; ++n) {
      const absl::Status status = CheckCublasLtGemm(Fp8Desc(out, {16, n, 32})).status();
      EXPECT_EQ(status.ok(), n % multiple == 0) << n << ": " << status;
    }
    ExpectRefused(Fp8Desc(out, {16, multiple + 1, 32}), kInvalid, "n is ");
  }
}

TEST(CheckCublasLtGemmTest, Fp8LayoutsAndPairsThatHopperLacksAreNamed) {
  for (const GemmLayout layout : {GemmLayout::kNN, GemmLayout::kNT}) {
    GemmDesc desc = Fp8Desc(DType::kBF16, {16, 16, 16});
    desc.layout = layout;
    ExpectRefused(desc, kLacking, "layout tn only");
    desc = DescWith(DType::kBF16, DType::kBF16, DType::kBF16, {16, 16, 16});
    desc.layout = layout;
    EXPECT_TRUE(CheckCublasLtGemm(desc).ok());
  }
  const DType e4 = DType::kF8E4M3, e5 = DType::kF8E5M2;
  ExpectRefused(DescWith(e5, e5, DType::kBF16, {16, 16, 16}), kLacking, "no e5m2 x e5m2");
  ExpectRefused(DescWith(e4, e4, e5, {16, 16, 16}), kLacking, "out_dtype is f8_e5m2");
  EXPECT_TRUE(CheckCublasLtGemm(DescWith(e5, e4, e5, {16, 16, 16})).ok());
  EXPECT_TRUE(CheckCublasLtGemm(DescWith(e4, e5, e5, {16, 16, 16})).ok());
}

TEST(CheckCublasLtGemmTest, BlackwellsFormatsAreNamed) {
  GemmDesc mx = Fp8Desc(DType::kBF16, {32, 32, 32});
  Scale(mx.a, ScaleMode::kMx32, DType::kF8E8M0, {32, 1});
  Scale(mx.b, ScaleMode::kMx32, DType::kF8E8M0, {32, 1});
  ExpectRefused(mx, kLacking, "a.scaling is mx32: cuBLASLt on sm_90 has no MXFP8");
  GemmDesc nv;
  nv.a.data = Zeros(DType::kF4E2M1x2, {16, 8});
  nv.b.data = Zeros(DType::kF4E2M1x2, {16, 8});
  nv.arithmetic.family = ArithmeticFamily::kCublasLt;
  ExpectRefused(nv, kLacking, "no FP6 and FP4 operands");
  Scale(nv.a, ScaleMode::kNv16, DType::kF8E4M3, {16, 1});
  Scale(nv.b, ScaleMode::kNv16, DType::kF8E4M3, {16, 1});
  ExpectRefused(nv, kLacking, "a.scaling is nv16: cuBLASLt on sm_90 has no NVFP4");
  ExpectRefused(DescWith(DType::kF8E4M3, DType::kF6E2M3, DType::kF32, {16, 16, 16}), kLacking,
                "b is f6_e2m3[16x16]");
}

TEST(CheckCublasLtGemmTest, BlockScalesHaveTheirOwnRules) {
  const auto desc_with = [](int64_t m, ScaleMode a, ScaleMode b) {
    GemmDesc desc = Fp8Desc(DType::kBF16, {m, 16, 160});
    const auto shape = [](ScaleMode mode, int64_t rows) {
      return mode == ScaleMode::k1x128 ? Shape{rows, 2} : Shape{(rows + 127) / 128, 2};
    };
    Scale(desc.a, a, DType::kF32, shape(a, m));
    Scale(desc.b, b, DType::kF32, shape(b, 16));
    return desc;
  };
  const ScaleMode row = ScaleMode::k1x128, tile = ScaleMode::k128x128;
  EXPECT_TRUE(CheckCublasLtGemm(desc_with(12, row, row)).ok());
  EXPECT_TRUE(CheckCublasLtGemm(desc_with(12, row, tile)).ok());
  EXPECT_TRUE(CheckCublasLtGemm(desc_with(3, tile, row)).ok());
  for (const ScaleMode b : {row, tile}) {
    ExpectRefused(desc_with(3, row, b), kInvalid,
                  "m is 3: cuBLASLt on sm_90 takes a multiple of 4 where a has 1x128 scales");
  }
  GemmDesc fast = desc_with(12, row, row);
  fast.arithmetic.accumulation = Accumulation::kFast;
  ExpectRefused(fast, kInvalid, "no fast accumulation");
}

TEST(CheckCublasLtGemmTest, OutputsCAndBiasesOfOtherTypesAreNamed) {
  const GemmShape shape{16, 16, 16};
  const DType f32 = DType::kF32, bf16 = DType::kBF16, f16 = DType::kF16, e4 = DType::kF8E4M3;
  ExpectRefused(DescWith(bf16, bf16, f16, shape), kLacking, "out_dtype is f16");
  ExpectRefused(DescWith(f32, f32, bf16, shape), kLacking, "out_dtype is bf16");
  ExpectRefused(DescWith(bf16, bf16, e4, shape), kLacking, "out_dtype is f8_e4m3");
  GemmDesc with_c = Fp8Desc(e4, shape);
  with_c.beta = 1;
  with_c.c = Zeros(e4, {16, 16});
  ExpectRefused(with_c, kLacking, "c is f8_e4m3[16x16]");
  with_c.c = Zeros(bf16, {16, 16});
  EXPECT_TRUE(CheckCublasLtGemm(with_c).ok());
  const struct {
    DType operand, out, bias;
  } biases[] = {{bf16, bf16, bf16}, {bf16, f32, f32}, {f16, f16, f16},
                {f16, f32, f32},    {f32, f32, f32},  {e4, bf16, bf16},
                {e4, f16, f16},     {e4, f32, bf16},  {e4, e4, bf16}};
  for (const auto& [operand, out, taken] : biases) {
    for (const DType bias : {f32, bf16, f16}) {
      GemmDesc desc = DescWith(operand, operand, out, shape);
      desc.bias = Zeros(bias, {16});
      EXPECT_EQ(CheckCublasLtGemm(desc).ok(), bias == taken) << GemmText(desc);
      if (bias != taken) ExpectRefused(desc, kLacking, "bias is ");
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
