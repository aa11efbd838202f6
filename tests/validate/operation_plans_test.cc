// What the plans of single operations refuse and find out, of tensors without memory.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "kernels/base/refusal.h"
#include "kernels/quantize/quantized_outline.h"
#include "kernels/validate/explain/explain_codes.h"
#include "kernels/validate/explain/explain_gemm.h"
#include "kernels/validate/gemm_plan.h"
#include "kernels/validate/quantize_plan.h"

namespace quantgate {
namespace QG_TEST_FILE {

Tensor Outline(DType dtype, Shape shape) { return *OutlineTensor(dtype, std::move(shape)); }

QuantizeRequest GoodQuantize(const std::string& recipe) {
  return {.source = Outline(DType::kBF16, {4, 32, 64}),
          .state = {},
          .recipe = *Recipe::Parse(recipe),
          .usages = {.rowwise = true, .columnwise = true}};
}

std::string RefusedField(const absl::Status& status) {
  const auto refusal = RefusalOf(status);
  return refusal.has_value() ? refusal->field : status.ToString();
}

TEST(QuantizePlan, NamesTheFieldThatIsWrong) {
  EXPECT_TRUE(QuantizePlan::Create(GoodQuantize("mxfp8")).ok());
  QuantizeRequest request = GoodQuantize("mxfp8");
  request.usages = {.rowwise = false, .columnwise = false};
  EXPECT_EQ(RefusedField(QuantizePlan::Create(request).status()), "rowwise");
  request = GoodQuantize("mxfp8");
  request.seed = 7;
  EXPECT_EQ(QuantizePlan::Create(request).status().message(),
            "seed is 7: recipe mxfp8 does not round input stochastically");
  request = GoodQuantize("mxfp8");
  request.source = Outline(DType::kF8E4M3, {32, 64});
  EXPECT_EQ(QuantizePlan::Create(request).status().message(),
            "tensor is f8_e4m3[32x64]: tensors of f32, bf16 and f16 are quantized");
  request = GoodQuantize("mxfp8");
  request.source = Outline(DType::kBF16, {32, 65});
  EXPECT_EQ(RefusedField(QuantizePlan::Create(request).status()), "tensor");
  request = GoodQuantize("fp8_current");
  request.scale_layout = ScaleLayout::kSwizzled;
  EXPECT_EQ(RefusedField(QuantizePlan::Create(request).status()), "scale_layout");
  request = GoodQuantize("fp8_block:power_2_scales=false");
  request.scale_layout = ScaleLayout::kPackedUe8m0;
  EXPECT_EQ(QuantizePlan::Create(request).status().message(),
            "scale_layout is packed_ue8m0: it holds powers of two: power_2_scales=true makes such "
            "scales");
  request = GoodQuantize("fp8_current");
  request.state.scale = Outline(DType::kF32, {1});
  EXPECT_EQ(RefusedField(QuantizePlan::Create(request).status()), "scale");
  request = GoodQuantize("fp8_delayed");
  request.state.scale = Outline(DType::kF32, {1});
  EXPECT_EQ(RefusedField(QuantizePlan::Create(request).status()), "amax_history");
}

TEST(QuantizePlan, TakesOnlyTensorsOfThePlannedSize) {
  const auto plan = QuantizePlan::Create(GoodQuantize("mxfp8"));
  ASSERT_TRUE(plan.ok());
  const auto other = plan->WithTensors(
      [](const std::string&) -> absl::StatusOr<Tensor> { return Outline(DType::kBF16, {1}); });
  EXPECT_EQ(other.status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(other.status().message(), "tensor was planned as bf16[4x32x64] and is bf16[1]");
}

TEST(DequantizePlan, FindsTheFormatOrAsksForIt) {
  DequantizeRequest request;
  EXPECT_EQ(RefusedField(DequantizePlan::Create(request).status()), "tensors[\"rowwise_data\"]");
  request.parts.data = Outline(DType::kF8E4M3, {32, 64});
  EXPECT_EQ(DequantizePlan::Create(request).status().message(),
            "tensors[\"rowwise_scale_inv\"] is absent: codes need their scales");
  request.parts.scale_inv = Outline(DType::kF8E8M0, {32, 2});
  EXPECT_EQ(DequantizePlan::Create(request)->shape(), (Shape{32, 64}));
  request.out_dtype = DType::kF8E5M2;
  EXPECT_EQ(RefusedField(DequantizePlan::Create(request).status()), "out_dtype");

  request = {};
  request.usage = Usage::kColumnwise;
  request.parts.data = Outline(DType::kU8, {64, 16});
  request.parts.scale_inv = Outline(DType::kF8E4M3, {64, 2});
  const absl::Status columnwise = DequantizePlan::Create(request).status();
  EXPECT_EQ(columnwise.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(RefusedField(columnwise), "usage");
}

TEST(GemmPlan, ReadsOperandsAsTheirScalingSays) {
  GemmRequest request;
  request.a.data = Outline(DType::kF8E4M3, {2, 32, 64});
  request.a.scale_inv = Outline(DType::kU8, {2, 32, 2});
  request.a.scaling = ScaleMode::kMx32;
  request.b.data = Outline(DType::kF8E4M3, {48, 64});
  request.b.scale_inv = Outline(DType::kF8E8M0, {48, 2});
  const auto plan = GemmPlan::Create(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->shape().m, 64);
  EXPECT_EQ(plan->shape().n, 48);
  EXPECT_EQ(plan->desc().b.scaling, ScaleMode::kMx32);
  // Tensors come as the request names them, and are read as the plan does.
  const auto loaded = plan->WithTensors([&](const std::string& slot) -> absl::StatusOr<Tensor> {
    if (slot == "a.tensor") return request.a.data;
    if (slot == "a.scale_inv") return request.a.scale_inv;
    return slot == "b.tensor" ? request.b.data : request.b.scale_inv;
  });
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(TensorText(loaded->desc().a.data), "f8_e4m3[64x64]");
  EXPECT_EQ(TensorText(loaded->desc().a.scale_inv), "f8_e8m0[64x2]");
}

TEST(GemmPlan, NamesTheFieldThatIsWrong) {
  GemmRequest request;
  EXPECT_EQ(RefusedField(GemmPlan::Create(request).status()), "a.tensor");
  request.a.data = Outline(DType::kU8, {32, 64});
  request.b.data = Outline(DType::kF8E4M3, {128, 64});
  EXPECT_EQ(GemmPlan::Create(request).status().message(),
            "a.tensor is u8[32x64]: u8 is no operand dtype; if these are codes, say of which type "
            "(append @f8_e4m3)");
  request.a.data = Outline(DType::kF8E4M3, {1, 64});
  request.a.scale_inv = Outline(DType::kF32, {1});
  EXPECT_EQ(GemmPlan::Create(request).status().message(),
            "a.scaling is absent: scale_inv f32[1] with 1 rows fits tensor and outer; say which of "
            "tensor, outer, 1x128, 128x128, mx32, nv16, 1x32, 32x32, 1x64, 64x64, 1x256, "
            "256x256");
  request.a.scaling = ScaleMode::kTensor;
  request.a.e4m3_max = 256;
  EXPECT_EQ(RefusedField(GemmPlan::Create(request).status()), "a.e4m3_max");
  request.a.e4m3_max.reset();
  request.every_algorithm = true;
  EXPECT_EQ(RefusedField(GemmPlan::Create(request).status()), "every_algorithm");
  request.every_algorithm = false;
  request.out_dtype = DType::kU8;
  EXPECT_EQ(RefusedField(GemmPlan::Create(request).status()), "out_dtype");
}

TEST(ExplainPlans, AreCheckedWithoutMemory) {
  ExplainCodesRequest codes;
  codes.source = Outline(DType::kF32, {32, 64});
  codes.codes = Outline(DType::kF8E4M3, {32, 64});
  codes.scale_inv = Outline(DType::kF32, {1});
  EXPECT_TRUE(CheckExplainCodes(codes).ok());
  codes.codes = Outline(DType::kBF16, {32, 64});
  EXPECT_EQ(RefusedField(CheckExplainCodes(codes)), "codes");

  ExplainGemmRequest gemm;
  gemm.desc.a.data = Outline(DType::kBF16, {32, 64});
  gemm.desc.b.data = Outline(DType::kBF16, {48, 64});
  gemm.d = Outline(DType::kBF16, {32, 48});
  EXPECT_TRUE(CheckExplainGemm(gemm).ok());
  gemm.d = Outline(DType::kBF16, {48, 32});
  EXPECT_EQ(CheckExplainGemm(gemm).status().message(),
            "d is bf16[48x32]: the GEMM's output is 32x48");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
