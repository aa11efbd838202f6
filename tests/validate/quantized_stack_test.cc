// Weights [E][N][K]: each matrix is quantized as it is alone, scales have the first dim too, and
// what was quantized is dequantized from every layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/quantize/quantized_outline.h"
#include "kernels/tensor/generate/generate.h"
#include "kernels/validate/quantize_plan.h"
#include "kernels/validate/quantized_stack.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

Tensor Source(Shape shape) {
  GeneratorSpec spec;
  spec.distribution = Distribution::kNormal;
  spec.seed = 5;
  spec.dtype = DType::kBF16;
  spec.shape = std::move(shape);
  return *Generate(spec, {});
}

Tensor Outline(const Tensor& tensor) { return *OutlineTensor(tensor.dtype(), tensor.shape()); }

bool SameBytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.byte_size() == b.byte_size() &&
         std::memcmp(a.data(), b.data(), a.byte_size()) == 0;
}

QuantizeRequest Request(const Tensor& source, const std::string& recipe, Usages usages,
                        ScaleLayout layout = ScaleLayout::kLogical) {
  return {.source = Outline(source),
          .state = {},
          .recipe = *Recipe::Parse(recipe),
          .role = TensorRole::kWeight,
          .usages = usages,
          .scale_layout = layout};
}

QuantizeResult Quantized(Engine& engine, const Tensor& source, const QuantizeRequest& request) {
  const auto plan = QuantizePlan::Create(request);
  EXPECT_TRUE(plan.ok()) << plan.status();
  const auto load = [&](const std::string&) -> absl::StatusOr<Tensor> { return source; };
  auto result = plan->WithTensors(load)->Run(engine, nullptr);
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

absl::StatusOr<DequantizePlan> PlanOf(const QuantizedCopy& copy, Usage usage, Shape shape,
                                      ScaleLayout layout) {
  DequantizeRequest request;
  request.usage = usage;
  for (Tensor QuantizedCopy::*const member : {&QuantizedCopy::data, &QuantizedCopy::scale_inv,
                                              &QuantizedCopy::zero_point, &QuantizedCopy::amax}) {
    if ((copy.*member).has_value()) request.parts.*member = Outline(copy.*member);
  }
  request.description.spec = QuantizerSpec{.format = copy.format,
                                           .element = copy.element,
                                           .block_dim = copy.block_dim,
                                           .e4m3_max = copy.e4m3_max,
                                           .group = copy.group};
  request.description.shape = std::move(shape);
  request.description.scale_layout = layout;
  return DequantizePlan::Create(std::move(request));
}

Tensor Values(Engine& engine, const QuantizedCopy& copy, Usage usage, Shape shape,
              ScaleLayout layout) {
  const auto plan = PlanOf(copy, usage, std::move(shape), layout);
  EXPECT_TRUE(plan.ok()) << plan.status();
  const auto load = [&](const std::string& slot) -> absl::StatusOr<Tensor> {
    if (slot == PartField(usage, "data")) return copy.data;
    if (slot == PartField(usage, "zero_point")) return copy.zero_point;
    return slot == PartField(usage, "amax") ? copy.amax : copy.scale_inv;
  };
  const auto values = plan->WithTensors(load)->Run(engine, nullptr);
  EXPECT_TRUE(values.ok()) << values.status();
  return *values;
}

struct StackCase {
  const char* recipe;
  ScaleLayout layout;
};

class QuantizedStack : public ::testing::TestWithParam<StackCase> {};

TEST_P(QuantizedStack, EveryMatrixIsAsAlone) {
  const auto engine = MakeCpuEngine({});
  const Shape shape = {3, 160, 192};
  const Tensor source = Source(shape);
  const auto [recipe, layout] = GetParam();
  const QuantizeResult stack =
      Quantized(*engine, source, Request(source, recipe, {true, true}, layout));
  EXPECT_EQ(stack.quantized.shape, shape);
  QuantizationCounts counts;
  for (int64_t e = 0; e < 3; ++e) {
    const Tensor alone = *source.RowRange(e, 1)->Reinterpret(DType::kBF16, {160, 192});
    const QuantizeResult expected =
        Quantized(*engine, alone, Request(alone, recipe, {true, true}, layout));
    counts.normal += expected.record.counts.normal;
    counts.subnormal += expected.record.counts.subnormal;
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      const QuantizedCopy& one = *expected.quantized.copy(usage);
      const QuantizedCopy& all = *stack.quantized.copy(usage);
      for (Tensor QuantizedCopy::*const member :
           {&QuantizedCopy::data, &QuantizedCopy::scale_inv, &QuantizedCopy::zero_point,
            &QuantizedCopy::amax}) {
        ASSERT_EQ((all.*member).has_value(), (one.*member).has_value());
        if (!(one.*member).has_value()) continue;
        Shape with_experts = (one.*member).shape();
        with_experts.insert(with_experts.begin(), 3);
        EXPECT_EQ((all.*member).shape(), with_experts);
        EXPECT_TRUE(SameBytes(*(all.*member).RowRange(e, 1), one.*member));
      }
      if (TraitsOf(one.format).scales == ScaleKind::kTwoLevel && usage == Usage::kColumnwise) {
        continue;  // Not dequantized.
      }
      const Tensor values = Values(*engine, all, usage, shape, layout);
      EXPECT_EQ(values.shape(), shape);
      EXPECT_TRUE(
          SameBytes(*values.RowRange(e, 1), Values(*engine, one, usage, {160, 192}, layout)));
    }
  }
  EXPECT_EQ(stack.record.counts.normal, counts.normal);
  EXPECT_EQ(stack.record.counts.subnormal, counts.subnormal);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, QuantizedStack,
    ::testing::Values(StackCase{"fp8_current", ScaleLayout::kLogical},
                      StackCase{"fp8_rowwise", ScaleLayout::kLogical},
                      StackCase{"fp8_block", ScaleLayout::kLogical},
                      StackCase{"fp8_block", ScaleLayout::kPackedUe8m0},
                      StackCase{"fp8_block:w_block_dim=1", ScaleLayout::kTmaAligned},
                      StackCase{"fp8_block:group_size=64", ScaleLayout::kUe8m0},
                      StackCase{"fp8_block:group_size=32", ScaleLayout::kLogical},
                      StackCase{"fp8_block:group_size=32", ScaleLayout::kPackedUe8m0},
                      StackCase{"mxfp8", ScaleLayout::kLogical},
                      StackCase{"mxfp8", ScaleLayout::kPackedUe8m0},
                      StackCase{"mxfp8", ScaleLayout::kSwizzled},
                      StackCase{"mxfp4:enable_2d_quantization=true", ScaleLayout::kPadded},
                      StackCase{"nvfp4", ScaleLayout::kLogical},
                      StackCase{"nvfp4", ScaleLayout::kSwizzled}));

// Formats of levels are quantized rowwise alone. Their zero points are stacked as the scales are,
// and without them the values are others.
TEST(QuantizedStackOthers, ZeroPointsAreStackedWithTheirScales) {
  const auto engine = MakeCpuEngine({});
  const Shape shape = {3, 64, 128};
  const Tensor source = Source(shape);
  for (const char* const recipe :
       {"int4:group=32,zero_point=integer,element=u4x2", "int4:scale_rule=tinygemm,group=32",
        "int8:group=row,zero_point=integer"}) {
    SCOPED_TRACE(recipe);
    const QuantizedCopy all =
        *Quantized(*engine, source, Request(source, recipe, {true, false})).quantized.rowwise;
    ASSERT_TRUE(all.zero_point.has_value());
    const Tensor values = Values(*engine, all, Usage::kRowwise, shape, ScaleLayout::kLogical);
    for (int64_t e = 0; e < 3; ++e) {
      const Tensor alone = *source.RowRange(e, 1)->Reinterpret(DType::kBF16, {64, 128});
      const QuantizedCopy one =
          *Quantized(*engine, alone, Request(alone, recipe, {true, false})).quantized.rowwise;
      Shape with_experts = one.zero_point.shape();
      with_experts.insert(with_experts.begin(), 3);
      EXPECT_EQ(all.zero_point.shape(), with_experts);
      EXPECT_TRUE(SameBytes(*all.zero_point.RowRange(e, 1), one.zero_point));
      EXPECT_TRUE(SameBytes(*values.RowRange(e, 1), Values(*engine, one, Usage::kRowwise, {64, 128},
                                                           ScaleLayout::kLogical)));
    }
    QuantizedCopy of_two = all;
    of_two.zero_point = *all.zero_point.RowRange(0, 2);
    EXPECT_THAT(
        std::string(
            PlanOf(of_two, Usage::kRowwise, shape, ScaleLayout::kLogical).status().message()),
        HasSubstr("tensors[\"rowwise_zero_point\"] is "));
  }
}

TEST(QuantizedStackOthers, OtherRolesAreOneMatrix) {
  const auto engine = MakeCpuEngine({});
  const Tensor source = Source({3, 32, 64});
  QuantizeRequest request = Request(source, "fp8_current", {true, false});
  request.role = TensorRole::kInput;
  const QuantizeResult result = Quantized(*engine, source, request);
  EXPECT_EQ(result.quantized.rowwise->scale_inv.shape(), Shape{1});
}

TEST(QuantizedStackOthers, RefusalsNameShapeAndRule) {
  const auto message = [](const absl::Status& status) { return std::string(status.message()); };
  const Tensor source = Source({2, 160, 192});
  EXPECT_THAT(
      message(QuantizePlan::Create(Request(Source({0, 32, 64}), "mxfp8", {true, false})).status()),
      HasSubstr("tensor is bf16[0x32x64]: a weight [E][N][K] has at least one expert"));
  EXPECT_THAT(
      message(QuantizePlan::Create(Request(Source({2, 40, 72}), "mxfp8", {true, false})).status()),
      HasSubstr("mxfp8 needs the last dim in multiples of 32"));
  EXPECT_THAT(message(QuantizePlan::Create(Request(source, "fp8_delayed", {true, false})).status()),
              HasSubstr("have a delayed scale each; quantize them one by one"));
  const auto engine = MakeCpuEngine({});
  const QuantizeResult stack =
      Quantized(*engine, source, Request(source, "fp8_block", {true, true}));
  QuantizedCopy short_scales = *stack.quantized.rowwise;
  short_scales.scale_inv = *Tensor::Allocate(DType::kF32, {2, 2, 3});
  EXPECT_THAT(message(PlanOf(short_scales, Usage::kRowwise, {}, ScaleLayout::kLogical).status()),
              HasSubstr("tensors[\"rowwise_scale_inv\"] is f32[2x3]: expected f32[2x2]"));
  EXPECT_THAT(message(PlanOf(*stack.quantized.rowwise, Usage::kRowwise, {3, 160, 192},
                             ScaleLayout::kLogical)
                          .status()),
              HasSubstr("description.shape is 3x160x192: the codes are of 2 matrices, [E][N][K]"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
