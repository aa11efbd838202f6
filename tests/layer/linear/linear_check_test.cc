// What CheckLinear refuses, with the words a user reads.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/layer/layer_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

Tensor Blank(DType dtype, Shape shape) { return *Tensor::Allocate(dtype, std::move(shape)); }

LayerRequest GoodRequest() {
  LayerRequest request;
  request.x = Blank(DType::kBF16, {2, 16, 32});
  request.parameters["weight"] = Blank(DType::kF32, {48, 32});
  request.parameters["bias"] = Blank(DType::kF16, {48});
  request.grad_output = Blank(DType::kBF16, {2, 16, 48});
  request.main_grads["weight"] = Blank(DType::kF32, {48, 32});
  return request;
}

struct Case {
  std::string message;
  std::function<void(LayerRequest&)> spoil;
};

void ExpectRefusals(const std::string& recipe, const std::vector<Case>& cases) {
  for (const Case& expected : cases) {
    LayerRequest request = GoodRequest();
    expected.spoil(request);
    const absl::Status status = CheckLayer(request, *Recipe::Parse(recipe));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << expected.message;
    EXPECT_EQ(std::string(status.message()), expected.message);
    const auto engine = MakeCpuEngine({});
    EXPECT_EQ(RunLayer(*engine, request, *Recipe::Parse(recipe), Arithmetic{}, nullptr).status(),
              status);
  }
}

TEST(CheckLinear, TakesAGoodRequestUnderEveryRecipe) {
  for (const RecipeDescription& recipe : AllRecipes()) {
    if (recipe.is_codes_only) continue;
    LayerRequest request = GoodRequest();
    request.parameters["weight"] = Blank(DType::kF32, {64, 32});
    request.parameters["bias"] = Blank(DType::kF16, {64});
    request.grad_output = Blank(DType::kBF16, {2, 16, 64});
    request.main_grads["weight"] = Blank(DType::kF32, {64, 32});
    const absl::Status status = CheckLayer(request, *Recipe::Parse(recipe.name));
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(CheckLinear, NamesFieldValueAndRuleOfBadTensors) {
  const std::vector<Case> cases = {
      {"x is absent: a linear layer needs it", [](LayerRequest& r) { r.x = Tensor(); }},
      {"parameters[weight] is absent: a linear layer needs it",
       [](LayerRequest& r) { r.parameters["weight"] = Tensor(); }},
      {"x is f8_e4m3[2x16x32]: its dtype must be f32, bf16 or f16",
       [](LayerRequest& r) {
         r.x = Blank(DType::kF8E4M3, {2, 16, 32});
       }},
      {"parameters[weight] is f64[48x32]: its dtype must be f32, bf16 or f16",
       [](LayerRequest& r) {
         r.parameters["weight"] = Blank(DType::kF64, {48, 32});
       }},
      {"x is bf16[scalar]: its rank must be at least 1, [..., K]",
       [](LayerRequest& r) { r.x = Blank(DType::kBF16, {}); }},
      {"parameters[weight] is bf16[4x12x32]: its rank must be 2, [N][K]",
       [](LayerRequest& r) {
         r.parameters["weight"] = Blank(DType::kBF16, {4, 12, 32});
       }},
      {"parameters[weight] is bf16[0x32]: N, its first dim, must be at least 1",
       [](LayerRequest& r) {
         r.parameters["weight"] = Blank(DType::kBF16, {0, 32});
       }},
      {"parameters[weight] is bf16[48x0]: K, its last dim, must be at least 1",
       [](LayerRequest& r) {
         r.parameters["weight"] = Blank(DType::kBF16, {48, 0});
       }},
      {"x is bf16[32x64]: its last dim must be K = 32 of weight f32[48x32]",
       [](LayerRequest& r) {
         r.x = Blank(DType::kBF16, {32, 64});
       }},
      {"x is bf16[32x48]: its last dim must be K = 32 of weight f32[48x32]; is the weight "
       "transposed? It is [N][K]",
       [](LayerRequest& r) {
         r.x = Blank(DType::kBF16, {32, 48});
       }},
      {"parameters[bias] is i32[48]: its dtype must be f32, bf16 or f16",
       [](LayerRequest& r) { r.parameters["bias"] = Blank(DType::kI32, {48}); }},
      {"parameters[bias] is bf16[32]: its shape must be 48, N of weight",
       [](LayerRequest& r) { r.parameters["bias"] = Blank(DType::kBF16, {32}); }},
      {"parameters[bias] is bf16[1x48]: its shape must be 48, N of weight",
       [](LayerRequest& r) {
         r.parameters["bias"] = Blank(DType::kBF16, {1, 48});
       }},
      {"grad_output is u8[2x16x48]: its dtype must be f32, bf16 or f16",
       [](LayerRequest& r) {
         r.grad_output = Blank(DType::kU8, {2, 16, 48});
       }},
      {"grad_output is bf16[32x48]: its shape must be 2x16x48, as y's",
       [](LayerRequest& r) {
         r.grad_output = Blank(DType::kBF16, {32, 48});
       }},
      {"main_grads[weight] is bf16[48x32]: its dtype must be f32",
       [](LayerRequest& r) {
         r.main_grads["weight"] = Blank(DType::kBF16, {48, 32});
       }},
      {"main_grads[weight] is f32[32x48]: its shape must be 48x32, as weight's",
       [](LayerRequest& r) {
         r.main_grads["weight"] = Blank(DType::kF32, {32, 48});
       }},
      {"main_grads[weight] is f32[48x32]: nothing accumulates into it without grad_output",
       [](LayerRequest& r) { r.grad_output = Tensor(); }},
      {"main_grads[weight] is f32[48x32]: nothing accumulates into it where weight requires no "
       "gradient",
       [](LayerRequest& r) { r.requires_grad.weight = false; }},
  };
  ExpectRefusals("bf16", cases);
  ExpectRefusals("fp8_current", cases);
}

LayerRequest Shaped(int64_t m, int64_t n, int64_t k) {
  LayerRequest request;
  request.x = Blank(DType::kBF16, {m, k});
  request.parameters["weight"] = Blank(DType::kBF16, {n, k});
  request.grad_output = Blank(DType::kBF16, {m, n});
  return request;
}

TEST(CheckLinear, NamesTheDimThatFp8GemmsDoNotTake) {
  const auto shape = [](int64_t m, int64_t n, int64_t k) {
    return [=](LayerRequest& request) { request = Shaped(m, n, k); };
  };
  ExpectRefusals(
      "fp8_current",
      {{"x is bf16[32x24]: K is 24 and must be a multiple of 16 under an FP8 recipe: fprop "
        "contracts "
        "over K",
        shape(32, 48, 24)},
       {"x is bf16[12x32]: M is 12 and must be a multiple of 8 under an FP8 recipe: the product of "
        "its leading dims is a GEMM dim",
        shape(12, 48, 32)},
       {"parameters[weight] is bf16[20x32]: N is 20 and must be a multiple of 8 under an FP8 "
        "recipe: "
        "N is a GEMM "
        "dim",
        shape(32, 20, 32)},
       {"parameters[weight] is bf16[24x32]: N is 24 and must be a multiple of 16 under an FP8 "
        "recipe: dgrad "
        "contracts over N",
        shape(32, 24, 32)},
       {"x is bf16[24x32]: M is 24 and must be a multiple of 16 under an FP8 recipe: wgrad "
        "contracts "
        "over M",
        shape(24, 48, 32)}});
}

TEST(CheckLinear, AsksOfABackwardGemmOnlyWhereItRunsInFp8) {
  const Recipe none = *Recipe::Parse("fp8_current");
  LayerRequest narrow = Shaped(32, 24, 32);
  EXPECT_FALSE(CheckLayer(narrow, none).ok());
  narrow.requires_grad.x = false;
  EXPECT_TRUE(CheckLayer(narrow, none).ok());
  LayerRequest short_batch = Shaped(24, 48, 32);
  EXPECT_FALSE(CheckLayer(short_batch, none).ok());
  short_batch.requires_grad.weight = false;
  EXPECT_TRUE(CheckLayer(short_batch, none).ok());
  LayerRequest forward = Shaped(24, 24, 32);
  forward.grad_output = Tensor();
  EXPECT_TRUE(CheckLayer(forward, none).ok());
  for (const char* text : {"fp8_current:backward_override=high_precision",
                           "fp8_current:backward_override=dequantized"}) {
    EXPECT_TRUE(CheckLayer(Shaped(24, 24, 32), *Recipe::Parse(text)).ok());
    EXPECT_FALSE(CheckLayer(Shaped(24, 24, 24), *Recipe::Parse(text)).ok());
  }
}

TEST(CheckLinear, NamesTheDimThatIsOffTheBlocks) {
  const auto shape = [](int64_t m, int64_t n, int64_t k) {
    return [=](LayerRequest& request) { request = Shaped(m, n, k); };
  };
  ExpectRefusals(
      "mxfp8",
      {{"x is bf16[16x32]: M is 16 and must be a multiple of 32 under mxfp8: both dims of a "
        "quantized tensor are in whole blocks",
        shape(16, 32, 32)},
       {"parameters[weight] is bf16[48x32]: N is 48 and must be a multiple of 32 under "
        "mxfp8: both dims of a "
        "quantized tensor are in whole blocks",
        shape(32, 48, 32)},
       {"x is bf16[32x48]: K is 48 and must be a multiple of 32 under mxfp8: both dims of a "
        "quantized tensor are in whole blocks",
        shape(32, 32, 48)}});
  ExpectRefusals("nvfp4",
                 {{"x is bf16[24x32]: M is 24 and must be a multiple of 16 under nvfp4: both "
                   "dims of a quantized tensor are in whole blocks",
                   shape(24, 32, 32)}});
  // Blocks of 128 may be partial; the FP8 GEMMs still have their rules.
  EXPECT_TRUE(CheckLayer(Shaped(16, 16, 48), *Recipe::Parse("fp8_block")).ok());
  ExpectRefusals("fp8_block",
                 {{"x is bf16[32x24]: K is 24 and must be a multiple of 16 under an FP8 "
                   "recipe: fprop contracts over K",
                   shape(32, 48, 24)}});
  // Blocks count also for the forward pass alone, and where there are no rows.
  LayerRequest forward = Shaped(16, 32, 32);
  forward.grad_output = Tensor();
  EXPECT_FALSE(CheckLayer(forward, *Recipe::Parse("mxfp8")).ok());
  EXPECT_TRUE(CheckLayer(Shaped(0, 32, 32), *Recipe::Parse("mxfp8")).ok());
  EXPECT_FALSE(CheckLayer(Shaped(0, 32, 7), *Recipe::Parse("mxfp8")).ok());
}

TEST(CheckLinear, NamesWhatAQuantizerDoesNotTake) {
  const auto f32 = [](LayerRequest& request) {
    request = Shaped(32, 32, 32);
    request.x = Blank(DType::kF32, {32, 32});
  };
  ExpectRefusals(
      "nvfp4",
      {{"x is f32[32x32]: quantizer.columnwise.hadamard is true: needs a bf16 source, not f32",
        f32}});
  LayerRequest request;
  f32(request);
  EXPECT_TRUE(CheckLayer(request, *Recipe::Parse("nvfp4:disable_rht=true")).ok());
  EXPECT_TRUE(CheckLayer(request, *Recipe::Parse("nvfp4:activation_dtype=bf16")).ok());
}

TEST(CheckLinear, DelayedScalingHasNoOverrideAndCheckedStates) {
  const Recipe recipe = *Recipe::Parse("fp8_delayed");
  const LayerRequest request = Shaped(32, 32, 32);
  for (const auto mode : {BackwardOverride::kHighPrecision, BackwardOverride::kDequantized}) {
    EXPECT_EQ(std::string(CheckLayer(request, recipe.WithBackwardOverride(mode)).message()),
              "backward_override is " + std::string(BackwardOverrideName(mode)) +
                  ": delayed scaling has no backward override");
  }
  LayerRequest bad = request;
  bad.delayed["weight"] = *FreshDelayedScaling(4);
  *bad.delayed["weight"].scale.as<float>() = -1;
  EXPECT_EQ(std::string(CheckLayer(bad, recipe).message()),
            "delayed_state[weight].scale is -1: must be positive and finite");
  EXPECT_TRUE(CheckLayer(bad, *Recipe::Parse("fp8_current")).ok());
}

TEST(CheckLinearGemms, NamesTheGemmThatAnArithmeticDoesNotTake) {
  const LayerRequest request = Shaped(32, 32, 32);
  const auto message = [&](const char* recipe, const char* arithmetic) {
    const absl::Status status =
        CheckGemmsOf(request, *Recipe::Parse(recipe), *Arithmetic::Parse(arithmetic));
    EXPECT_FALSE(status.ok()) << recipe << " " << arithmetic;
    return std::string(status.message());
  };
  for (const RecipeDescription& recipe : AllRecipes()) {
    if (recipe.is_codes_only) continue;
    for (const char* arithmetic : {"auto", "exact", "fp32"}) {
      const absl::Status status =
          CheckGemmsOf(request, *Recipe::Parse(recipe.name), *Arithmetic::Parse(arithmetic));
      EXPECT_TRUE(status.ok()) << recipe.name << " " << arithmetic << " " << status;
    }
  }
  EXPECT_EQ(message("mxfp8", "sm90").substr(0, 6), "fprop.");
  EXPECT_EQ(message("hybrid:dgrad=nvfp4", "sm90").substr(0, 6), "dgrad.");
  EXPECT_EQ(message("hybrid:wgrad=mxfp8", "sm90").substr(0, 6), "wgrad.");
  EXPECT_EQ(message("fp8_block:power_2_scales=false", "sm100"),
            "fprop.arithmetic is sm100: Blackwell takes block scales that are powers of two; give "
            "the recipe power_2_scales=true, or an sm90 arithmetic");
  EXPECT_TRUE(CheckGemmsOf(request, *Recipe::Parse("fp8_block"), *Arithmetic::Parse("sm100")).ok());
}

TEST(CheckLinear, AsksForNoAlignmentWithoutFp8OrRows) {
  EXPECT_TRUE(CheckLayer(Shaped(3, 5, 7), *Recipe::Parse("bf16")).ok());
  EXPECT_TRUE(CheckLayer(Shaped(0, 5, 7), *Recipe::Parse("fp8_current")).ok());
}

TEST(CheckLinear, TakesAVectorAsOneRow) {
  LayerRequest request = Shaped(1, 5, 7);
  request.x = Blank(DType::kBF16, {7});
  request.grad_output = Blank(DType::kBF16, {5});
  EXPECT_TRUE(CheckLayer(request, *Recipe::Parse("bf16")).ok());
}

TEST(CheckLinear, RefusesAnOutputWhoseSizeOverflows) {
  // The buffer says 4 GiB and has nothing behind it: a check reads no element and allocates none.
  const int64_t rows = int64_t{1} << 31;
  const auto buffer = Buffer::Wrap(nullptr, size_t{2} * rows, nullptr);
  LayerRequest request;
  request.x = *Tensor::View(DType::kBF16, {rows, 1}, buffer);
  request.parameters["weight"] = *Tensor::View(DType::kBF16, {rows, 1}, buffer);
  for (const char* recipe : {"bf16", "fp8_current"}) {
    EXPECT_EQ(std::string(CheckLayer(request, *Recipe::Parse(recipe)).message()),
              "y is 2147483648x2147483648 of f32: the size in bytes must fit int64");
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
