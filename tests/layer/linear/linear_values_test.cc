// The layer against sums of integers, where FP8 and every accumulator are exact: values do not come
// from any engine.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/layer/layer.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int64_t kM = 16, kN = 16, kK = 32;

// Small integers with amax 7 = 1.75 * 4: the scales 448 / 7 and 57344 / 7 are powers of two, and 0
// to 7 need no more than E5M2's two mantissa bits, so that quantization loses nothing.
std::vector<float> Integers(int64_t count, int seed) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((i * 7 + seed * 5 + i / 3) % 5 - 2);
  values[seed % count] = 7;
  values[count - 1 - seed % count] = -7;
  return values;
}

struct Values {
  std::vector<float> x = Integers(kM * kK, 1);
  std::vector<float> weight = Integers(kN * kK, 2);
  std::vector<float> bias = Integers(kN, 3);
  std::vector<float> grad_output = Integers(kM * kN, 4);
};

LayerRequest RequestOf(const Values& values, DType dtype) {
  LayerRequest request;
  request.x = FromValues(dtype, {kM, kK}, values.x);
  request.parameters["weight"] = FromValues(dtype, {kN, kK}, values.weight);
  request.parameters["bias"] = FromValues(dtype, {kN}, values.bias);
  request.grad_output = FromValues(dtype, {kM, kN}, values.grad_output);
  return request;
}

struct Sums {
  std::vector<float> y = std::vector<float>(kM * kN);
  std::vector<float> dx = std::vector<float>(kM * kK);
  std::vector<float> dw = std::vector<float>(kN * kK);
  std::vector<float> db = std::vector<float>(kN);
};

Sums SumsOf(const Values& v) {
  Sums sums;
  for (int64_t m = 0; m < kM; ++m) {
    for (int64_t n = 0; n < kN; ++n) {
      sums.y[m * kN + n] += v.bias[n];
      sums.db[n] += v.grad_output[m * kN + n];
      for (int64_t k = 0; k < kK; ++k) {
        sums.y[m * kN + n] += v.x[m * kK + k] * v.weight[n * kK + k];
        sums.dx[m * kK + k] += v.grad_output[m * kN + n] * v.weight[n * kK + k];
        sums.dw[n * kK + k] += v.grad_output[m * kN + n] * v.x[m * kK + k];
      }
    }
  }
  // Integers up to 2^8 are exact in bf16, so no output is rounded.
  for (const auto* values : {&sums.y, &sums.dx, &sums.dw, &sums.db}) {
    for (const float value : *values) EXPECT_LE(std::abs(value), 256.0f);
  }
  return sums;
}

LayerResult RunStep(const LayerRequest& request, const std::string& recipe,
                    const std::string& arithmetic) {
  const auto engine = MakeCpuEngine({});
  auto result =
      RunLayer(*engine, request, *Recipe::Parse(recipe), *Arithmetic::Parse(arithmetic), nullptr);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : LayerResult{};
}

Tensor Output(const LayerResult& result, const std::string& name) {
  for (const NamedTensor& output : result.outputs) {
    if (output.name == name) return output.tensor;
  }
  return Tensor();
}

const std::vector<std::string> kRecipes = {
    "bf16", "fp8_current", "fp8_current:backward_override=high_precision",
    "fp8_current:backward_override=dequantized", "fp8_current:fp8_format=e4m3"};

TEST(LinearValues, IntegerSumsAreExactUnderEveryRecipeDTypeAndArithmetic) {
  const Values values;
  const Sums sums = SumsOf(values);
  for (const std::string& recipe : kRecipes) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const char* arithmetic : {"auto", "sm90:fast", "sm90:split", "exact", "fp32"}) {
        SCOPED_TRACE(recipe + " " + std::string(DTypeName(dtype)) + " " + arithmetic);
        const LayerResult result = RunStep(RequestOf(values, dtype), recipe, arithmetic);
        EXPECT_EQ(ToValues(Output(result, "y")), sums.y);
        EXPECT_EQ(ToValues(Output(result, "dx")), sums.dx);
        EXPECT_EQ(ToValues(Output(result, "dw")), sums.dw);
        EXPECT_EQ(ToValues(Output(result, "db")), sums.db);
        for (const NamedTensor& output : result.outputs) EXPECT_EQ(output.tensor.dtype(), dtype);
      }
    }
  }
}

TEST(LinearValues, AFrozenWeightWithATrainableBiasStillYieldsItsGradient) {
  const Values values;
  LayerRequest request = RequestOf(values, DType::kBF16);
  request.requires_grad = {false, false, true};
  for (const std::string& recipe : kRecipes) {
    EXPECT_EQ(ToValues(Output(RunStep(request, recipe, "auto"), "db")), SumsOf(values).db)
        << recipe;
  }
}

TEST(LinearValues, WgradAddsToTheMainGradientInF32) {
  const Values values;
  const Sums sums = SumsOf(values);
  LayerRequest request = RequestOf(values, DType::kBF16);
  // Beside 2^20 a bf16 could not hold what is added.
  std::vector<float> main_grad(kN * kK);
  std::vector<float> expected(kN * kK);
  for (size_t i = 0; i < main_grad.size(); ++i) {
    main_grad[i] = 0x1p20f + static_cast<float>(i);
    expected[i] = main_grad[i] + sums.dw[i];
  }
  request.main_grads["weight"] = FromValues(DType::kF32, {kN, kK}, main_grad);
  for (const std::string& recipe : kRecipes) {
    const LayerResult result = RunStep(request, recipe, "auto");
    EXPECT_EQ(Output(result, "main_grad").dtype(), DType::kF32);
    EXPECT_EQ(ToValues(Output(result, "main_grad")), expected) << recipe;
    EXPECT_FALSE(Output(result, "dw").has_value());
    EXPECT_EQ(ToValues(request.main_grads.at("weight")), main_grad);
  }
}

TEST(LinearValues, NoRowsGiveEmptyOutputsAndZeroGradients) {
  const Values values;
  for (const std::string& recipe : kRecipes) {
    SCOPED_TRACE(recipe);
    LayerRequest request = RequestOf(values, DType::kBF16);
    request.x = *Tensor::Allocate(DType::kBF16, {3, 0, kK});
    request.grad_output = *Tensor::Allocate(DType::kBF16, {3, 0, kN});
    const LayerResult result = RunStep(request, recipe, "auto");
    EXPECT_EQ(Output(result, "y").shape(), (Shape{3, 0, kN}));
    EXPECT_EQ(Output(result, "dx").shape(), (Shape{3, 0, kK}));
    const Tensor zero_dw = FromValues(DType::kBF16, {kN, kK}, std::vector<float>(kN * kK, 0.0f));
    EXPECT_TRUE(SameBits(Output(result, "dw"), zero_dw));
    EXPECT_TRUE(SameBits(Output(result, "db"),
                         FromValues(DType::kBF16, {kN}, std::vector<float>(kN, 0.0f))));
    for (const QuantizationRecord& record : result.quantizations) {
      if (record.role == TensorRole::kWeight) continue;
      EXPECT_EQ(record.amax, 0.0f);
      EXPECT_EQ(record.scale, 1.0f);
    }

    // What is added is nothing, not +0: the sign of a zero stays.
    request.main_grads["weight"] =
        FromValues(DType::kF32, {kN, kK}, std::vector<float>(kN * kK, -0.0f));
    EXPECT_TRUE(SameBits(Output(RunStep(request, recipe, "auto"), "main_grad"),
                         request.main_grads.at("weight")));
  }
}

TEST(LinearValues, AVectorIsOneRow) {
  const Values values;
  const Sums sums = SumsOf(values);
  LayerRequest request = RequestOf(values, DType::kBF16);
  request.x = FromValues(DType::kBF16, {kK}, {values.x.begin(), values.x.begin() + kK});
  request.grad_output = Tensor();
  const Tensor y = Output(RunStep(request, "bf16", "auto"), "y");
  EXPECT_EQ(y.shape(), Shape{kN});
  EXPECT_EQ(ToValues(y), std::vector<float>(sums.y.begin(), sums.y.begin() + kN));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
