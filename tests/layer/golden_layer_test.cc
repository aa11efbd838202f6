// The linear layer on real tensors against what torch computed on an H200: codes, scales and the
// bits of y, dx, dw and main_grad, over recipes and backward overrides
// (tests/data/golden_layer_fc1.json, written by tests/hardware/torch_layer.py). The bias gradient
// is QuantGate's own definition and is tested elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>

#include "kernels/layer/layer.h"
#include "kernels/tensor/convert.h"
#include "tests/layer/golden_outputs.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Json = nlohmann::json;

/// The first `rows` rows of a sample tensor in `dtype`, as torch's .to(dtype) gives them.
Tensor Sample(const TensorFile& samples, const std::string& name, int64_t rows, DType dtype) {
  const Tensor whole = *samples.Find(name);
  Shape shape = whole.shape();
  shape[0] = std::min(shape[0], rows);
  const size_t bytes = whole.byte_size() / whole.shape()[0] * shape[0];
  const Tensor part = *Tensor::FromBytes(whole.dtype(), shape, whole.bytes().first(bytes));
  return dtype == part.dtype() ? part : *CastTensor(part, dtype, ExecutionContext());
}

LayerRequest RequestOf(const Json& one, const TensorFile& samples) {
  constexpr int64_t kAllRows = 1 << 20;
  const DType activation = *ParseDType(one["activation_dtype"].get<std::string>());
  const int64_t rows = one["rows"];
  LayerRequest request;
  request.x = Sample(samples, "fc1.x", rows, activation);
  request.parameters["weight"] = Sample(samples, "fc1.weight", kAllRows, activation);
  if (one["bias"]) request.parameters["bias"] = Sample(samples, "fc1.bias", kAllRows, activation);
  request.grad_output = Sample(samples, "fc1.dy", rows, activation);
  if (one["main_grad"])
    request.main_grads["weight"] = IndexValues(request.parameters.at("weight").shape(), 0x1p-22f);
  return request;
}

Recipe RecipeOf(const Json& one) {
  std::string text = one["recipe"];
  if (text != "bf16") {
    text += ":fp8_format=" + one["fp8_format"].get<std::string>() +
            ",power_2_scales=" + (one["power_2_scales"].get<bool>() ? "true" : "false") +
            ",backward_override=" + one["backward_override"].get<std::string>();
  }
  return *Recipe::Parse(text);
}

void ExpectFloatBits(float value, const Json& golden) {
  EXPECT_EQ(std::bit_cast<uint32_t>(value), std::stoul(golden.get<std::string>(), nullptr, 16));
}

/// The quantized operand of `role`, as one of the layer's GEMMs read it rowwise.
Tensor CodesOf(const LayerResult& result, TensorRole role) {
  const GemmRole gemm = role == TensorRole::kGradOutput ? GemmRole::kDgrad : GemmRole::kFprop;
  for (const GemmRecord& record : result.gemms) {
    if (record.role == gemm) {
      return role == TensorRole::kWeight ? record.desc.b.data : record.desc.a.data;
    }
  }
  return Tensor();
}

void ExpectOperands(const LayerResult& result, const Json& golden) {
  size_t found = 0;
  for (const QuantizationRecord& record : result.quantizations) {
    const std::string role(TensorRoleName(record.role));
    SCOPED_TRACE(role);
    ASSERT_TRUE(golden.contains(role));
    ExpectFloatBits(record.amax.value(), golden[role]["amax"]);
    ExpectFloatBits(record.scale.value(), golden[role]["scale"]);
    ExpectFloatBits(record.scale_inv.value(), golden[role]["scale_inv"]);
    const Tensor codes = CodesOf(result, record.role);
    ASSERT_TRUE(codes.has_value());
    ExpectTensor(codes, golden[role]["codes"]);
    ++found;
  }
  EXPECT_EQ(found, golden.size());
}

TEST(GoldenLayerTest, EveryOutputEqualsTorchOnTheHardware) {
  const Json golden = ReadGolden("golden_layer_fc1.json");
  ASSERT_TRUE(golden.is_object());
  EXPECT_THAT(golden["origin"].get<std::string>(), ::testing::HasSubstr("NVIDIA H200"));
  ASSERT_GT(golden["cases"].size(), 20u);
  const TensorFile samples = ReadSamples(golden);
  const auto engine = MakeCpuEngine({});
  for (const Json& one : golden["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    auto result = RunLayer(*engine, RequestOf(one, samples), RecipeOf(one),
                           *Arithmetic::Parse("sm90"), nullptr);
    ASSERT_TRUE(result.ok()) << result.status();
    ExpectOperands(*result, one["operands"]);
    size_t compared = 0;
    for (const NamedTensor& output : result->outputs) {
      if (!one["outputs"].contains(output.name)) continue;  // db
      SCOPED_TRACE(output.name);
      ExpectTensor(output.tensor, one["outputs"][output.name]);
      ++compared;
    }
    EXPECT_EQ(compared, one["outputs"].size());
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
