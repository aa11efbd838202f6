// Runs whose operands are given as codes, and whose experts' weights are given as one tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/validate/quantized_plan.h"
#include "tests/validate/run_watched.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

const ExecutionContext kContext;

/// A linear layer whose dims are whole blocks of every format.
LayerRunRequest LinearRequest(const std::vector<std::string>& recipes,
                              const std::string& arithmetic = "auto") {
  LayerRunRequest request = RequestOf(recipes, arithmetic);
  request.step.parameters["weight"] = Generated(Distribution::kNormal, 2, DType::kBF16, {64, 96});
  request.step.parameters["bias"] = Generated(Distribution::kNormal, 3, DType::kBF16, {64});
  request.step.grad_output = Generated(Distribution::kNormal, 4, DType::kBF16, {2, 16, 64});
  return request;
}

QuantizedTensor CodesOf(const Tensor& tensor, const std::string& recipe, TensorRole role) {
  return *QuantizeCpu(tensor, Recipe::Parse(recipe)->QuantizerFor(role), {true, true}, {},
                      kContext);
}

/// Gives the operand as codes, with their values beside them.
void Give(const std::string& name, const std::string& recipe, TensorRole role,
          LayerRunRequest& request) {
  Tensor& tensor = name == "x"             ? request.step.x
                   : name == "grad_output" ? request.step.grad_output
                                           : request.step.parameters.at(name);
  const QuantizedTensor codes = CodesOf(tensor, recipe, role);
  tensor = *DequantizeCpu(codes, Usage::kRowwise, tensor.dtype(), kContext);
  request.step.codes[name] = codes;
}

TEST(GivenOperands, HaveTheBitsOfTheirTensorsAndAreSaidInTheReport) {
  for (const char* recipe : {"mxfp8", "fp8_current", "fp8_rowwise", "fp8_block"}) {
    SCOPED_TRACE(recipe);
    LayerRunRequest request = LinearRequest({recipe});
    const RunReport plain = RunOk(request);
    Give("x", recipe, TensorRole::kInput, request);
    Give("weight", recipe, TensorRole::kWeight, request);
    request.given_parts["x"] = {{"rowwise_data", request.step.codes.at("x").rowwise->data}};
    const RunReport report = RunOk(request);
    for (const char* output : {"y", "dx", "dw", "db"}) {
      EXPECT_TRUE(SameBits(OutputOf(report.variants[0], output).value,
                           OutputOf(plain.variants[0], output).value))
          << output;
    }
    EXPECT_THAT(report.variants[0].notes,
                Contains(AllOf(HasSubstr("x: given as "), HasSubstr("read as it is"),
                               HasSubstr("the unquantized reference reads its values, dequantized "
                                         "to bf16"))));
    std::map<std::string, Fingerprint> inputs;
    for (const RunReport::Input& input : report.inputs) inputs[input.name] = input.fingerprint;
    ASSERT_TRUE(inputs.contains("x.rowwise_data"));
    EXPECT_FALSE(inputs.contains("x"));
    EXPECT_EQ(inputs.at("x.rowwise_data"),
              FingerprintOf(request.step.codes.at("x").rowwise->data, kContext));
  }
}

// Of exact sums nothing but the rounding of y is left between the codes and the values that they
// stand for.
TEST(GivenOperands, AreHeldToTheUnquantizedLayerOfTheirValues) {
  LayerRunRequest request = LinearRequest({"mxfp8"}, "exact");
  request.step.grad_output = Tensor();
  request.step.parameters.erase("bias");
  for (const auto& [name, role] : std::map<std::string, TensorRole>{
           {"x", TensorRole::kInput}, {"weight", TensorRole::kWeight}}) {
    Give(name, "mxfp8", role, request);
  }
  const RunReport report = RunOk(request);
  const OutputReport& y = OutputOf(report.variants[0], "y");
  // The reference is the sum of the same values in f32, y that sum rounded to bf16 once: half a
  // unit in the last of eight places.
  EXPECT_LE(y.against_unquantized.max_rel, 0x1p-8);
  EXPECT_GT(y.against_unquantized.max_rel, 0);
  const LayerRunRequest values = [&] {
    LayerRunRequest of_values = request;
    of_values.step.codes.clear();
    of_values.variants[0].recipe = *Recipe::Parse("bf16");
    return of_values;
  }();
  EXPECT_TRUE(SameBits(y.value, OutputOf(RunOk(values).variants[0], "y").value));
}

TEST(GivenOperands, AreLoadedByTheirName) {
  LayerRunRequest request = LinearRequest({"mxfp8"});
  const Tensor x = request.step.x;
  Give("x", "mxfp8", TensorRole::kInput, request);
  const QuantizedTensor codes = request.step.codes.at("x");
  const Tensor values = request.step.x;
  const LayerRunRequest given = request;
  const Plan plan = *Plan::Create(request);
  const auto load = [&](const std::string& name, const Tensor& outline) -> absl::StatusOr<Tensor> {
    EXPECT_NE(name, "x");
    return outline;
  };
  const auto load_codes = [&](const std::string& name) -> absl::StatusOr<LoadedCodes> {
    EXPECT_EQ(name, "x");
    return LoadedCodes{codes, values, {{"rowwise_data", codes.rowwise->data}}};
  };
  const absl::StatusOr<Plan> loaded = plan.WithTensors(load, load_codes);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(SameBits(loaded->request().step.x, values));
  EXPECT_EQ(loaded->request().given_parts.at("x")[0].name, "rowwise_data");
  EXPECT_EQ(plan.WithTensors(load).status().code(), absl::StatusCode::kInternal);
}

TEST(GivenOperands, WhatARunCannotDoWithThemIsRefused) {
  LayerRunRequest budget = LinearRequest({"mxfp8"});
  Give("x", "mxfp8", TensorRole::kInput, budget);
  budget.error_budget = true;
  EXPECT_THAT(std::string(Plan::Create(budget).status().message()),
              HasSubstr("error_budget is true: it measures what quantizing makes of the operands, "
                        "and x is given as codes"));
  LayerRunRequest other = LinearRequest({"mxfp8", "fp8_current"});
  Give("weight", "mxfp8", TensorRole::kWeight, other);
  EXPECT_THAT(std::string(Plan::Create(other).status().message()),
              AllOf(HasSubstr("variants[1].recipe is fp8_current: step.parameters[weight] is given "
                              "as mxfp8 (f8_e4m3, block_dim 1)"),
                    HasSubstr("as fp8_tensor (f8_e4m3)")));
}

TEST(QuantizedPlan, PutsScalesOfEveryLayoutBackAndRefusesWhatDoesNotFit) {
  const auto engine = MakeCpuEngine({});
  const Tensor source = Generated(Distribution::kNormal, 3, DType::kBF16, {64, 160});
  const QuantizedTensor codes = CodesOf(source, "mxfp8", TensorRole::kInput);
  for (const ScaleLayout layout : kScaleLayouts) {
    if (layout == ScaleLayout::kUe8m0) continue;  // Of fp32 scales alone.
    QuantizedTensor stored = codes;
    ASSERT_TRUE(ConvertAllScales(*engine, ScaleLayout::kLogical, layout, stored).ok());
    QuantizedParts parts;
    parts.rowwise = *stored.rowwise;
    parts.columnwise = *stored.columnwise;
    parts.of_rowwise.shape = {64, 160};
    parts.of_rowwise.scale_layout = layout;
    // Packed exponents may also be of fp32 scales.
    if (layout == ScaleLayout::kPackedUe8m0) {
      parts.of_rowwise.spec = QuantizerSpec{.format = QuantizerFormat::kMxfp8};
    }
    parts.of_columnwise = parts.of_rowwise;
    const absl::StatusOr<QuantizedPlan> plan = QuantizedPlan::Create(parts);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const QuantizedTensor read = *plan->Codes(*engine);
    EXPECT_TRUE(SameBits(read.rowwise->scale_inv, codes.rowwise->scale_inv));
    EXPECT_TRUE(SameBits(read.columnwise->scale_inv, codes.columnwise->scale_inv));
    EXPECT_EQ(plan->outline().rowwise->scale_inv.shape(), codes.rowwise->scale_inv.shape());
  }
  // fp32 scales come back from E8M0 with the same bits, of rows and of tiles.
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight}) {
    const QuantizedTensor blocks = CodesOf(source, "fp8_block", role);
    for (const ScaleLayout layout : {ScaleLayout::kUe8m0, ScaleLayout::kPackedUe8m0}) {
      QuantizedTensor stored = blocks;
      ASSERT_TRUE(ConvertAllScales(*engine, ScaleLayout::kLogical, layout, stored).ok());
      QuantizedParts parts;
      parts.rowwise = *stored.rowwise;
      parts.of_rowwise.scale_layout = layout;
      if (layout == ScaleLayout::kPackedUe8m0) {
        // The scales of 64 rows and those of a tile lie alike.
        EXPECT_THAT(std::string(QuantizedPlan::Create(parts).status().message()),
                    HasSubstr("packed_ue8m0 scales i32[1x64] may be of several formats"));
        parts.of_rowwise.spec = QuantizerSpec{.format = QuantizerFormat::kFp8Block,
                                              .block_dim = blocks.rowwise->block_dim};
      }
      const absl::StatusOr<QuantizedPlan> plan = QuantizedPlan::Create(parts);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->outline().rowwise->block_dim, blocks.rowwise->block_dim);
      EXPECT_TRUE(SameBits(plan->Codes(*engine)->rowwise->scale_inv, blocks.rowwise->scale_inv));
    }
  }
  // Without a description the shape of the scales tells the length of blocks.
  const Tensor longer = Generated(Distribution::kNormal, 3, DType::kBF16, {64, 640});
  for (const char* recipe : {"fp8_block", "fp8_block:group_size=32", "fp8_block:group_size=64",
                             "fp8_block:group_size=256"}) {
    const QuantizedTensor blocks = CodesOf(longer, recipe, TensorRole::kInput);
    QuantizedParts parts;
    parts.rowwise = *blocks.rowwise;
    const absl::StatusOr<QuantizedPlan> plan = QuantizedPlan::Create(parts);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->outline().rowwise->format, blocks.rowwise->format);
    EXPECT_EQ(plan->outline().rowwise->block_dim, 1);
  }
  QuantizedParts none;
  EXPECT_THAT(std::string(QuantizedPlan::Create(none).status().message()),
              HasSubstr("tensors[\"rowwise_data\"] is absent"));
  // Each part alone, beside whole codes of the other direction: none is left unread.
  for (Tensor QuantizedCopy::*const member : {&QuantizedCopy::scale_inv, &QuantizedCopy::zero_point,
                                              &QuantizedCopy::amax, &QuantizedCopy::scale}) {
    QuantizedParts alone;
    alone.rowwise = *codes.rowwise;
    alone.columnwise.*member = *Tensor::Allocate(DType::kF32, {1});
    EXPECT_EQ(std::string(QuantizedPlan::Create(alone).status().message()),
              "tensors[\"columnwise_data\"] is absent: scales and zero points come with their "
              "codes");
  }
  QuantizedParts plain;
  plain.rowwise.data = source;
  EXPECT_THAT(std::string(QuantizedPlan::Create(plain).status().message()),
              HasSubstr("identity has no codes"));
  QuantizedParts differ;
  differ.rowwise = *codes.rowwise;
  differ.columnwise = *CodesOf(Generated(Distribution::kNormal, 3, DType::kBF16, {32, 160}),
                               "mxfp8", TensorRole::kInput)
                           .columnwise;
  EXPECT_THAT(std::string(QuantizedPlan::Create(differ).status().message()),
              AllOf(HasSubstr("columnwise_data"), HasSubstr("the rowwise codes are of 64x160")));
  QuantizedTensor padded = codes;
  ASSERT_TRUE(ConvertAllScales(*engine, ScaleLayout::kLogical, ScaleLayout::kPadded, padded).ok());
  QuantizedParts two_layouts;
  two_layouts.rowwise = *padded.rowwise;
  two_layouts.of_rowwise.scale_layout = ScaleLayout::kPadded;
  two_layouts.columnwise = *codes.columnwise;
  EXPECT_THAT(std::string(QuantizedPlan::Create(two_layouts).status().message()),
              HasSubstr("description.scale_layout is logical: both directions have one, and "
                        "rowwise scales are padded"));
  QuantizedParts nvfp4;
  nvfp4.columnwise =
      *CodesOf(source, "nvfp4:scale_rule=single_level", TensorRole::kInput).columnwise;
  const absl::StatusOr<QuantizedPlan> plan = QuantizedPlan::Create(nvfp4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(std::string(plan->CheckValues().message()),
              HasSubstr("columnwise nvfp4 codes are not dequantized"));
}

/// Two experts with rows and one without.
LayerRunRequest GroupedRequest() {
  LayerRunRequest request = LinearRequest({"mxfp8"});
  request.step = LayerRequest{};
  request.step.layer.kind = LayerKind::kGroupedLinear;
  request.step.layer.m_splits = {32, 0, 64};
  request.step.x = Generated(Distribution::kNormal, 5, DType::kBF16, {96, 64});
  request.step.grad_output = Generated(Distribution::kNormal, 6, DType::kBF16, {96, 32});
  return request;
}

TEST(StackedExperts, AreTheirExpertsAndGiveTheirGradientsStacked) {
  const Tensor stack = Generated(Distribution::kNormal, 7, DType::kBF16, {3, 32, 64});
  LayerRunRequest apart = GroupedRequest();
  const size_t bytes = 32 * 64 * sizeof(uint16_t);
  for (size_t expert = 0; expert < 3; ++expert) {
    const Tensor weight =
        *Tensor::FromBytes(DType::kBF16, {32, 64}, std::span(stack.data() + expert * bytes, bytes));
    apart.step.parameters[absl::StrCat("weight.", expert)] = weight;
  }
  const RunReport expected = RunOk(apart);
  LayerRunRequest stacked = GroupedRequest();
  stacked.step.parameters["weight"] = stack;
  const RunReport report = RunOk(stacked);
  const VariantReport& variant = report.variants[0];
  ASSERT_EQ(variant.outputs.size(), expected.variants[0].outputs.size());
  for (const OutputReport& output : expected.variants[0].outputs) {
    EXPECT_TRUE(SameBits(OutputOf(variant, output.tensor).value, output.value)) << output.tensor;
  }
  ASSERT_EQ(variant.stacks.size(), 1u);
  EXPECT_EQ(variant.stacks[0].name, "dw");
  const Tensor& dw = variant.stacks[0].tensor;
  EXPECT_EQ(dw.shape(), (Shape{3, 32, 64}));
  for (size_t expert = 0; expert < 3; ++expert) {
    const Tensor& part = OutputOf(variant, absl::StrCat("dw.", expert)).value;
    EXPECT_EQ(std::memcmp(dw.data() + expert * bytes, part.data(), bytes), 0) << expert;
  }
  std::vector<std::string> inputs;
  for (const RunReport::Input& input : report.inputs) inputs.push_back(input.name);
  EXPECT_THAT(inputs, ::testing::UnorderedElementsAre("x", "grad_output", "parameters[weight]"));
  EXPECT_TRUE(expected.variants[0].stacks.empty());
}

TEST(StackedExperts, OfAnotherShapeOrBesideTheirExpertsAreRefused) {
  LayerRunRequest request = GroupedRequest();
  request.step.parameters["weight"] =
      Generated(Distribution::kNormal, 7, DType::kBF16, {2, 32, 64});
  EXPECT_EQ(std::string(Plan::Create(request).status().message()),
            "parameters[weight] is bf16[2x32x64]: its shape must be [E][N][K], with E = 3, the "
            "number of experts; or give one for each expert");
  request.step.parameters["weight"] =
      Generated(Distribution::kNormal, 7, DType::kBF16, {3, 32, 64});
  request.step.parameters["weight.1"] = Generated(Distribution::kNormal, 7, DType::kBF16, {32, 64});
  EXPECT_THAT(std::string(Plan::Create(request).status().message()),
              HasSubstr("parameters[weight.1] is given too"));
}

TEST(StackedExperts, MainGradientsComeBackStackedToo) {
  LayerRunRequest request = GroupedRequest();
  request.step.parameters["weight"] =
      Generated(Distribution::kNormal, 7, DType::kBF16, {3, 32, 64});
  request.step.main_grads["weight"] = Generated(Distribution::kNormal, 8, DType::kF32, {3, 32, 64});
  const Tensor given = request.step.main_grads.at("weight");
  const VariantReport variant = RunOk(request).variants[0];
  ASSERT_EQ(variant.stacks.size(), 1u);
  EXPECT_EQ(variant.stacks[0].name, "main_grad");
  // The expert without rows leaves its part as it was.
  const size_t bytes = 32 * 64 * sizeof(float);
  const Tensor& stack = variant.stacks[0].tensor;
  EXPECT_EQ(std::memcmp(stack.data() + bytes, given.data() + bytes, bytes), 0);
  EXPECT_NE(std::memcmp(stack.data(), given.data(), bytes), 0);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
