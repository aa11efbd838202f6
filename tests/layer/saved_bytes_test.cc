// The bytes that a layer saves for backward, by operand, against products of dims, bytes of dtypes
// and block lengths written down by hand (docs/quantizers.md section 9, docs/file-formats.md
// section 2).
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/engine/tensor_values.h"
#include "tests/layer/layer_trainee.h"

namespace quantgate {
namespace QG_TEST_FILE {

// x [M][K], weight [N][K], bf16.
constexpr int64_t kM = 256, kK = 128, kN = 384;
constexpr int64_t kBf16 = 2, kF32 = 4;

struct Expected {
  std::string name, format;
  int64_t data = 0, scales = 0, held = 0;
};
struct Case {
  std::string recipe;
  std::vector<Expected> operands;
};

LayerRequest Linear() {
  LayerRequest request;
  request.x = Generated(Distribution::kNormal, 1, DType::kBF16, {kM, kK});
  request.parameters["weight"] = Generated(Distribution::kNormal, 2, DType::kBF16, {kN, kK});
  request.grad_output = Generated(Distribution::kNormal, 3, DType::kBF16, {kM, kN});
  return request;
}

void ExpectSaved(const std::vector<SavedOperand>& saved, const std::vector<Expected>& expected) {
  ASSERT_EQ(saved.size(), expected.size());
  SavedSize sum;
  for (size_t i = 0; i < expected.size(); ++i) {
    const Expected& of = expected[i];
    EXPECT_EQ(saved[i].name, of.name);
    EXPECT_EQ(saved[i].format, of.format) << of.name;
    const SavedSize size = {of.data, of.scales, of.held};
    EXPECT_EQ(saved[i].size, size) << of.name << ": " << saved[i].size.data << " + "
                                   << saved[i].size.scales << ", " << saved[i].size.held;
    EXPECT_EQ(saved[i].counted, size) << of.name;
    sum.Add(size);
  }
  EXPECT_EQ(SumOf(saved), sum);
}

std::vector<Case> Cases() {
  const int64_t x_values = kM * kK * kBf16, weight_values = kN * kK * kBf16;
  const Expected x_given = {"x", "bf16", x_values, 0, 0};
  const Expected weight_given = {"weight", "bf16", weight_values, 0, weight_values};
  const auto workspace = [](const char* format, int64_t data, int64_t scales) {
    return Expected{"weight workspace", format, data, scales, 0};
  };
  // Scales of blocks along K, along M or N.
  const int64_t x_mx = kM * (kK / 32), x_mx_columns = (kM / 32) * kK;
  const int64_t w_mx = kN * (kK / 32), w_mx_columns = (kN / 32) * kK;
  const int64_t w_nv = kN * (kK / 16) + kF32, w_nv_columns = kK * (kN / 16) + kF32;
  const int64_t w_tiles = (kN / 128) * (kK / 128) * kF32;
  return {
      {"bf16", {x_given, weight_given}},
      // One scale for both directions.
      {"fp8_current",
       {{"x", "fp8_tensor", kM * kK, kF32}, {"weight", "fp8_tensor", 2 * kN * kK, kF32}}},
      {"fp8_current:backward_override=high_precision",
       {x_given, weight_given, workspace("fp8_tensor", kN * kK, kF32)}},
      {"fp8_current:backward_override=dequantized",
       {{"x", "fp8_tensor", kM * kK, kF32}, {"weight", "fp8_tensor", kN * kK, kF32}}},
      {"fp8_block",
       {{"x", "fp8_block", kM * kK, kK * (kM / 128) * kF32},
        {"weight", "fp8_block", 2 * kN * kK, 2 * w_tiles}}},
      {"mxfp8",
       {{"x", "mxfp8", kM * kK, x_mx_columns},
        {"weight", "mxfp8", 2 * kN * kK, w_mx + w_mx_columns}}},
      {"mxfp8:backward_override=high_precision",
       {x_given, weight_given, workspace("mxfp8", kN * kK, w_mx)}},
      {"mxfp8:backward_override=dequantized",
       {{"x", "mxfp8", kM * kK, x_mx}, {"weight", "mxfp8", kN * kK, w_mx}}},
      {"nvfp4",
       {{"x", "nvfp4", kM * kK / 2, kK * (kM / 16) + kF32},
        {"weight", "nvfp4", 2 * (kN * kK / 2), w_nv + w_nv_columns}}},
      {"nvfp4:backward_override=dequantized",
       {{"x", "nvfp4", kM * kK / 2, kM * (kK / 16) + kF32},
        {"weight", "nvfp4", kN * kK / 2, w_nv}}},
      // Rowwise by fprop's rule, columnwise by dgrad's (weight) and wgrad's (x).
      {"hybrid:fprop=mxfp8,dgrad=fp8_current,wgrad=nvfp4",
       {{"x", "nvfp4", kM * kK / 2, kK * (kM / 16) + kF32},
        {"weight", "mxfp8 and fp8_tensor", 2 * kN * kK, w_mx + kF32}}},
  };
}

TEST(SavedBytes, AreDimsTimesBytesAndScalesOfBlocks) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.recipe);
    ExpectSaved(RunCase(Linear(), one.recipe).saved, one.operands);
  }
}

TEST(SavedBytes, AreThoseOfGradientsThatAreAskedFor) {
  LayerRequest request = Linear();
  request.requires_grad = {.x = true, .weight = false};
  // Without dw no x; dgrad reads the weight columnwise.
  ExpectSaved(RunCase(request, "mxfp8").saved,
              {{"weight", "mxfp8", 2 * kN * kK, kN * (kK / 32) + (kN / 32) * kK}});
  request.requires_grad = {.x = false, .weight = true};
  ExpectSaved(RunCase(request, "mxfp8").saved, {{"x", "mxfp8", kM * kK, (kM / 32) * kK},
                                                {"weight", "mxfp8", kN * kK, kN * (kK / 32)}});
  request.grad_output = Tensor();
  ExpectSaved(RunCase(request, "mxfp8").saved, {});
}

TEST(SavedBytes, OfANormAreItsInputGammaAndTwoNumbersARow) {
  LayerRequest request = Linear();
  request.layer.kind = LayerKind::kLayerNormLinear;
  request.parameters["gamma"] = Generated(Distribution::kNormal, 4, DType::kBF16, {kK});
  const std::vector<SavedOperand> saved = RunCase(request, "bf16").saved;
  const int64_t values = kM * kK * kBf16, gamma = kK * kBf16, weight = kN * kK * kBf16;
  ASSERT_EQ(saved.size(), 6u);
  const std::vector<std::pair<SavedSize, const char*>> expected = {
      {{values, 0, 0}, "bf16"},   {{gamma, 0, gamma}, "bf16"}, {{kM * kF32, 0, 0}, "f32"},
      {{kM * kF32, 0, 0}, "f32"}, {{values, 0, 0}, "bf16"},    {{weight, 0, weight}, "bf16"}};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(saved[i].size, expected[i].first) << saved[i].name;
    EXPECT_EQ(saved[i].format, expected[i].second) << saved[i].name;
  }
}

TEST(SavedBytes, OfACachedWeightAreHeldAnyway) {
  Trainee layer(Linear());
  StepOptions options = OptionsOf("mxfp8");
  const int64_t scales = kN * (kK / 32) + (kN / 32) * kK;
  for (const Microbatch microbatch : {Microbatch::kFirst, Microbatch::kLater}) {
    options.microbatch = microbatch;
    ASSERT_TRUE(layer.Forward(Linear().x, options).ok());
    const SavedOperand& weight = layer.records.saved.at(1);
    EXPECT_EQ(weight.counted, (SavedSize{2 * kN * kK, scales, 2 * kN * kK + scales}));
  }
}

TEST(SavedBytes, OfAWeightHeldQuantizedAreHeldAnyway) {
  Trainee layer(Linear());
  const StepOptions options = OptionsOf("mxfp8");
  layer.Quantize("weight", options.recipe, {true, true});
  ASSERT_TRUE(layer.Forward(Linear().x, options).ok());
  const SavedSize& weight = layer.records.saved.at(1).counted;
  EXPECT_EQ(weight.bytes(), 2 * kN * kK + kN * (kK / 32) + (kN / 32) * kK);
  EXPECT_EQ(weight.held, weight.bytes());
}

TEST(SavedBytes, OfTensorsThatSeveralOperandsShareCountOnce) {
  const Tensor shared = Generated(Distribution::kNormal, 5, DType::kF32, {6, 5});  // 120 bytes.
  const Tensor other = Generated(Distribution::kNormal, 6, DType::kF32, {2});
  const auto rows = [&](int64_t begin, int64_t count) { return *shared.RowRange(begin, count); };
  const SavedTensor first[] = {{rows(1, 2)}, {rows(1, 2)}, {Tensor()}};
  const SavedTensor second[] = {{rows(0, 4)}, {other, true}};
  const SavedTensor third[] = {{shared}, {other, true}};
  StorageCount count;
  count.HoldAnyway(rows(0, 1));
  count.HoldAnyway(rows(5, 1));
  count.HoldAnyway(Tensor());
  const StorageCount::Sizes one = count.Add(first), two = count.Add(second), all = count.Add(third);
  EXPECT_EQ(one.all, (SavedSize{40, 0, 0}));
  EXPECT_EQ(one.counted, one.all);
  EXPECT_EQ(two.all, (SavedSize{80, 8, 20}));
  EXPECT_EQ(two.counted, (SavedSize{40, 8, 20}));
  EXPECT_EQ(all.all, (SavedSize{120, 8, 40}));
  EXPECT_EQ(all.counted, (SavedSize{40, 0, 20}));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
