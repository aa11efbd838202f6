// Bad GEMMs are refused with the field, the value and the rule; good ones describe themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;

Tensor Zeros(DType dtype, Shape shape) {
  Tensor tensor = Tensor::Allocate(dtype, std::move(shape)).value();
  std::fill(tensor.data(), tensor.data() + tensor.byte_size(), std::byte{0});
  return tensor;
}

GemmOperand Scaled(Tensor data, ScaleMode scaling, Tensor scale_inv) {
  GemmOperand operand;
  operand.data = std::move(data);
  operand.scaling = scaling;
  operand.scale_inv = std::move(scale_inv);
  return operand;
}

/// 4 x 6 x 32, FP8 with per-tensor scales to bf16.
GemmDesc GoodDesc() {
  GemmDesc desc;
  desc.a = Scaled(Zeros(DType::kF8E4M3, {4, 32}), ScaleMode::kTensor, Zeros(DType::kF32, {1}));
  desc.b = Scaled(Zeros(DType::kF8E5M2, {6, 32}), ScaleMode::kTensor, Zeros(DType::kF32, {1}));
  desc.arithmetic = Arithmetic::Parse("sm90").value();
  desc.out_dtype = DType::kBF16;
  return desc;
}

GemmDesc HighPrecisionDesc(DType dtype) {
  GemmDesc desc;
  desc.a.data = Zeros(dtype, {4, 32});
  desc.b.data = Zeros(dtype, {6, 32});
  desc.arithmetic = Arithmetic::Parse("sm90").value();
  return desc;
}

/// The refusal of a GEMM, from CheckGemm and from GemmCpu alike.
std::string Refusal(const GemmDesc& desc) {
  const absl::Status checked = CheckGemm(desc).status();
  EXPECT_EQ(checked.code(), absl::StatusCode::kInvalidArgument) << checked;
  EXPECT_EQ(GemmCpu(desc, {}).status(), checked);
  return std::string(checked.message());
}

/// Rows 2 to 6 of 9 are the result's; what is around them stays.
TEST(GemmTest, WritesWhereItIsToldTo) {
  for (const char* arithmetic : {"sm90", "exact", "fp32"}) {
    GemmDesc desc = HighPrecisionDesc(DType::kBF16);
    std::fill_n(desc.a.data.as<uint16_t>(), 4 * 32, uint16_t{0x3F80});  // 1.0
    std::fill_n(desc.b.data.as<uint16_t>(), 6 * 32, uint16_t{0x4000});  // 2.0
    desc.arithmetic = Arithmetic::Parse(arithmetic).value();
    desc.out_dtype = DType::kF32;
    Tensor whole = Zeros(DType::kF32, {9, 6});
    std::fill_n(whole.as<float>(), 9 * 6, -1.0f);
    desc.d = whole.RowRange(2, 4).value();
    const absl::StatusOr<GemmResult> result = GemmCpu(desc, {});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->d.data(), desc.d.data());
    for (int i = 0; i < 9 * 6; ++i) {
      const bool is_result = i >= 2 * 6 && i < 6 * 6;
      ASSERT_EQ(whole.as<float>()[i], is_result ? 64.0f : -1.0f) << arithmetic << " at " << i;
    }
  }
}

TEST(CheckGemmTest, RefusesAnOutputOfAnotherTypeOrShape) {
  GemmDesc desc = GoodDesc();
  desc.d = Zeros(DType::kF32, {4, 6});
  EXPECT_THAT(Refusal(desc), AllOf(HasSubstr("d is f32[4x6]"), HasSubstr("must be bf16[4x6]")));
  desc.d = Zeros(DType::kBF16, {6, 4});
  EXPECT_THAT(Refusal(desc), HasSubstr("d is bf16[6x4]"));
}

TEST(CheckGemmTest, ReturnsTheShapeOfEveryLayout) {
  GemmDesc desc = HighPrecisionDesc(DType::kBF16);
  EXPECT_EQ(CheckGemm(desc)->m, 4);
  EXPECT_EQ(CheckGemm(desc)->n, 6);
  EXPECT_EQ(CheckGemm(desc)->k, 32);
  desc.layout = GemmLayout::kNN;
  desc.b.data = Zeros(DType::kBF16, {32, 7});
  EXPECT_EQ(CheckGemm(desc)->n, 7);
  desc.layout = GemmLayout::kNT;
  desc.a.data = Zeros(DType::kBF16, {32, 5});
  EXPECT_EQ(CheckGemm(desc)->m, 5);
  EXPECT_EQ(CheckGemm(desc)->k, 32);
}

TEST(CheckGemmTest, RefusesBadOperands) {
  GemmDesc desc = GoodDesc();
  desc.a.data = Tensor();
  EXPECT_THAT(Refusal(desc), HasSubstr("a is absent"));
  desc = GoodDesc();
  desc.b.data = Zeros(DType::kF8E4M3, {6, 4, 8});
  EXPECT_THAT(Refusal(desc), AllOf(HasSubstr("b is"), HasSubstr("6x4x8"), HasSubstr("2-D")));
  desc = GoodDesc();
  desc.a.data = Zeros(DType::kI16, {4, 32});
  EXPECT_THAT(Refusal(desc), HasSubstr("a is i16"));
  desc = GoodDesc();
  desc.b.data = Zeros(DType::kBF16, {6, 32});
  EXPECT_THAT(Refusal(desc), AllOf(HasSubstr("b is bf16"), HasSubstr("a is f8_e4m3")));
  desc = HighPrecisionDesc(DType::kBF16);
  desc.b.data = Zeros(DType::kF16, {6, 32});
  EXPECT_THAT(Refusal(desc), HasSubstr("one high-precision type"));
}

TEST(CheckGemmTest, RefusesBadShapes) {
  GemmDesc desc = GoodDesc();
  desc.b.data = Zeros(DType::kF8E4M3, {6, 48});
  EXPECT_THAT(Refusal(desc), AllOf(HasSubstr("48"), HasSubstr("32"), HasSubstr("layout tn")));
  desc = HighPrecisionDesc(DType::kBF16);
  desc.a.data = Zeros(DType::kBF16, {4, 0});
  desc.b.data = Zeros(DType::kBF16, {6, 0});
  EXPECT_THAT(Refusal(desc), HasSubstr("k is 0"));
  desc = HighPrecisionDesc(DType::kBF16);
  desc.b.data = Zeros(DType::kBF16, {0, 32});
  EXPECT_THAT(Refusal(desc), HasSubstr("n is 0"));
}

TEST(CheckGemmTest, RefusesBadScales) {
  GemmDesc desc = GoodDesc();
  desc.a.scale_inv = Tensor();
  EXPECT_THAT(Refusal(desc), HasSubstr("a.scale_inv is absent"));
  desc = GoodDesc();
  desc.b.scaling = ScaleMode::kNone;
  EXPECT_THAT(Refusal(desc), HasSubstr("b.scale_inv is f32"));
  desc = GoodDesc();
  desc.a.scale_inv = Zeros(DType::kF32, {4});
  EXPECT_THAT(Refusal(desc), AllOf(HasSubstr("a.scale_inv"), HasSubstr("must be f32[1]")));
  desc = GoodDesc();
  desc.a.scaling = ScaleMode::kOuter;
  desc.a.scale_inv = Zeros(DType::kF32, {4});
  EXPECT_THAT(Refusal(desc), HasSubstr("b.scaling is tensor: outer-vector scales"));
  desc.b.scaling = ScaleMode::kOuter;
  desc.b.scale_inv = Zeros(DType::kF32, {4});
  EXPECT_THAT(Refusal(desc), HasSubstr("must be f32[6]"));
  desc = HighPrecisionDesc(DType::kBF16);
  desc.a.scaling = ScaleMode::kTensor;
  desc.a.scale_inv = Zeros(DType::kF32, {1});
  EXPECT_THAT(Refusal(desc), HasSubstr("only FP8 operands have scales"));
}

TEST(CheckGemmTest, RefusesBadEpilogues) {
  GemmDesc desc = GoodDesc();
  desc.out_dtype = DType::kI32;
  EXPECT_THAT(Refusal(desc), HasSubstr("out_dtype is i32"));
  desc = GoodDesc();
  desc.alpha = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(Refusal(desc), HasSubstr("alpha is nan"));
  desc = GoodDesc();
  desc.beta = std::numeric_limits<float>::infinity();
  EXPECT_THAT(Refusal(desc), HasSubstr("beta is inf"));
  desc = GoodDesc();
  desc.beta = 1;
  EXPECT_THAT(Refusal(desc), HasSubstr("c is absent"));
  desc = GoodDesc();
  desc.c = Zeros(DType::kBF16, {4, 6});
  EXPECT_THAT(Refusal(desc), HasSubstr("beta is 0"));
  desc = GoodDesc();
  desc.beta = 1;
  desc.c = Zeros(DType::kF32, {4, 6});
  EXPECT_THAT(Refusal(desc), HasSubstr("must be bf16"));
  desc = GoodDesc();
  desc.also_f32 = true;
  EXPECT_THAT(Refusal(desc), AllOf(HasSubstr("also_f32"), HasSubstr("sm90")));
  desc.arithmetic.family = ArithmeticFamily::kExact;
  EXPECT_TRUE(CheckGemm(desc).ok());
  desc.out_dtype = DType::kF32;
  EXPECT_THAT(Refusal(desc), AllOf(HasSubstr("also_f32"), HasSubstr("f32")));
  desc.out_dtype = DType::kF8E4M3;
  EXPECT_THAT(Refusal(desc), HasSubstr("also_f32"));
  desc = GoodDesc();
  desc.in_place = true;
  EXPECT_THAT(Refusal(desc), HasSubstr("in_place"));
  desc = GoodDesc();
  desc.out_dtype = DType::kF8E4M3;
  desc.beta = 1;
  desc.c = Zeros(DType::kF32, {4, 6});
  EXPECT_THAT(Refusal(desc), HasSubstr("must be f8_e4m3 or bf16"));
  desc.c = Zeros(DType::kBF16, {4, 6});
  EXPECT_TRUE(CheckGemm(desc).ok());
  desc.in_place = true;
  EXPECT_THAT(Refusal(desc), HasSubstr("not accumulated in place"));
  desc = GoodDesc();
  desc.beta = 1;
  desc.c = Zeros(DType::kBF16, {6, 4});
  EXPECT_THAT(Refusal(desc), AllOf(HasSubstr("bf16[6x4]"), HasSubstr("4x6")));
  desc = GoodDesc();
  desc.bias = Zeros(DType::kBF16, {4});
  EXPECT_THAT(Refusal(desc), AllOf(HasSubstr("bias is bf16[4]"), HasSubstr("[6]")));
  desc = GoodDesc();
  desc.d_scale = Zeros(DType::kF32, {1});
  EXPECT_THAT(Refusal(desc), HasSubstr("only FP8 outputs"));
}

TEST(CheckGemmTest, RefusesSplitKOfTf32WhichNoRulePredicts) {
  GemmDesc desc = HighPrecisionDesc(DType::kF32);
  desc.arithmetic = Arithmetic::Parse("sm90:splitk=2").value();
  const absl::Status refused = CheckGemm(desc).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << refused;
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("sm90:splitk=2"), HasSubstr("tf32")));
  desc.arithmetic.split_k = 1;
  EXPECT_TRUE(CheckGemm(desc).ok());
  desc = HighPrecisionDesc(DType::kBF16);
  desc.arithmetic = Arithmetic::Parse("sm90:splitk=2").value();
  EXPECT_TRUE(CheckGemm(desc).ok());
  desc.arithmetic.split_k = 0;  // No text gives it, but a caller of the library may.
  EXPECT_THAT(std::string(CheckGemm(desc).status().message()),
              AllOf(HasSubstr("arithmetic.split_k is 0"), HasSubstr("at least 1")));
}

TEST(GemmCpuTest, SaysWhichArithmeticRan) {
  GemmDesc desc = GoodDesc();
  EXPECT_EQ(GemmCpu(desc, {})->arithmetic.ToString(), "sm90:fast");
  desc.use_split_accumulator = true;
  EXPECT_EQ(GemmCpu(desc, {})->arithmetic.ToString(), "sm90:split");
  desc.arithmetic = Arithmetic::Parse("sm90:fast,splitk=2").value();
  EXPECT_EQ(GemmCpu(desc, {})->arithmetic.ToString(), "sm90:fast,splitk=2");
  desc = HighPrecisionDesc(DType::kBF16);
  desc.arithmetic = Arithmetic::Parse("auto").value();
  desc.use_split_accumulator = true;  // Means nothing for bf16.
  EXPECT_EQ(GemmCpu(desc, {})->arithmetic.ToString(), "sm90");
  desc.arithmetic = Arithmetic::Parse("exact").value();
  EXPECT_EQ(GemmCpu(desc, {})->arithmetic.ToString(), "exact");
}

TEST(GemmCpuTest, StopsWhenCancelled) {
  Cancellation cancelled;
  cancelled.Cancel();
  ExecutionContext context;
  context.cancellation = &cancelled;
  EXPECT_EQ(GemmCpu(GoodDesc(), context).status().code(), absl::StatusCode::kCancelled);
  const Cancellation late(absl::Now() - absl::Seconds(1));
  context.cancellation = &late;
  EXPECT_EQ(GemmCpu(GoodDesc(), context).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(GemmTextTest, IsOneLineThatRepeatsTheGemm) {
  GemmDesc desc = GoodDesc();
  desc.bias = Zeros(DType::kBF16, {6});
  EXPECT_EQ(GemmText(desc),
            "m=4 n=6 k=32 f8_e4m3[tensor] x f8_e5m2[tensor] -> bf16, sm90 fast, bias");
  desc = HighPrecisionDesc(DType::kF32);
  desc.alpha = 0.5f;
  desc.beta = 1;
  desc.in_place = true;
  EXPECT_EQ(GemmText(desc), "m=4 n=6 k=32 f32 x f32 -> f32, sm90, alpha=0.5, beta=1 in place");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
