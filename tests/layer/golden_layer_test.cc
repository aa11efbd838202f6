// The linear layer on real tensors against what torch computed on an H200: codes, scales and the
// bits of y, dx, dw and main_grad, over recipes and backward overrides
// (tests/data/golden_layer_fc1.json, written by tests/hardware/torch_layer.py). The bias gradient
// is QuantGate's own definition and is tested elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/layer/linear.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/fingerprint.h"
#include "kernels/tensor/tensor_file.h"

namespace quantgate {
namespace {

using Json = nlohmann::json;

Json ReadGolden() {
  std::ifstream file(QUANTGATE_SOURCE_DIR "/tests/data/golden_layer_fc1.json");
  return Json::parse(file, nullptr, /*allow_exceptions=*/false);
}

TensorFile ReadSamples() {
  auto file = ReadSafetensors(QUANTGATE_SOURCE_DIR "/data/bytegpt_block1.safetensors");
  EXPECT_TRUE(file.ok()) << file.status();
  return file.ok() ? *std::move(file) : TensorFile();
}

/// The first `rows` rows of a sample tensor in `dtype`, as torch's .to(dtype) gives them.
Tensor Sample(const TensorFile& samples, const std::string& name, int64_t rows, DType dtype) {
  const Tensor whole = *samples.Find(name);
  Shape shape = whole.shape();
  shape[0] = std::min(shape[0], rows);
  const size_t bytes = whole.byte_size() / whole.shape()[0] * shape[0];
  const Tensor part = *Tensor::FromBytes(whole.dtype(), shape, whole.bytes().first(bytes));
  return dtype == part.dtype() ? part : *CastTensor(part, dtype, ExecutionContext());
}

/// ((i * 2654435761 mod 2^32) >> 16) - 32768, times 2^-22: exact in fp32.
Tensor MainGrad(Shape shape) {
  Tensor tensor = *Tensor::Allocate(DType::kF32, std::move(shape));
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    const uint32_t mixed = static_cast<uint32_t>(i * 2654435761u) >> 16;
    tensor.as<float>()[i] = static_cast<float>(static_cast<int>(mixed) - 32768) * 0x1p-22f;
  }
  return tensor;
}

LinearRequest RequestOf(const Json& one, const TensorFile& samples) {
  constexpr int64_t kAllRows = 1 << 20;
  const DType activation = *ParseDType(one["activation_dtype"].get<std::string>());
  const int64_t rows = one["rows"];
  LinearRequest request;
  request.x = Sample(samples, "fc1.x", rows, activation);
  request.weight = Sample(samples, "fc1.weight", kAllRows, activation);
  if (one["bias"]) request.bias = Sample(samples, "fc1.bias", kAllRows, activation);
  request.grad_output = Sample(samples, "fc1.dy", rows, activation);
  if (one["main_grad"]) request.main_grad = MainGrad(request.weight.shape());
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

/// The codes of the first elements of a row, as torch_layer.py prints them.
std::string HeadOf(const Tensor& tensor, int64_t row, int64_t count) {
  const size_t width = DTypeBytes(tensor.dtype());
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t code = 0;
    std::memcpy(&code, tensor.data() + (row * tensor.columns() + i) * width, width);
    char hex[12];
    std::snprintf(hex, sizeof(hex), "%0*x", static_cast<int>(2 * width), code);
    text += (i > 0 ? " " : "") + std::string(hex);
  }
  return text;
}

/// Digest first; where it differs, the first rows say how.
void ExpectTensor(const Tensor& tensor, const Json& golden) {
  EXPECT_EQ(DTypeName(tensor.dtype()), golden["dtype"].get<std::string>());
  const std::string digest = Sha256Of(tensor.bytes()).Hex();
  EXPECT_EQ(digest, golden["sha256"].get<std::string>());
  if (digest == golden["sha256"]) return;
  for (size_t row = 0; row < golden["head"].size(); ++row) {
    EXPECT_EQ(HeadOf(tensor, static_cast<int64_t>(row), std::min<int64_t>(16, tensor.columns())),
              golden["head"][row].get<std::string>())
        << "row " << row;
  }
}

void ExpectFloatBits(float value, const Json& golden) {
  EXPECT_EQ(std::bit_cast<uint32_t>(value), std::stoul(golden.get<std::string>(), nullptr, 16));
}

/// The quantized operand of `role`, as one of the layer's GEMMs read it rowwise.
Tensor CodesOf(const LinearResult& result, TensorRole role) {
  const GemmRole gemm = role == TensorRole::kGradOutput ? GemmRole::kDgrad : GemmRole::kFprop;
  for (const GemmRecord& record : result.gemms) {
    if (record.role == gemm) {
      return role == TensorRole::kWeight ? record.desc.b.data : record.desc.a.data;
    }
  }
  return Tensor();
}

void ExpectOperands(const LinearResult& result, const Json& golden) {
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

TEST(GoldenLayerTest, TheSampleTensorsAreThoseThatTorchRead) {
  const Json golden = ReadGolden();
  ASSERT_TRUE(golden.is_object());
  EXPECT_THAT(golden["origin"].get<std::string>(), ::testing::HasSubstr("NVIDIA H200"));
  const TensorFile samples = ReadSamples();
  for (const auto& [name, digest] : golden["inputs"].items()) {
    EXPECT_EQ(Sha256Of(samples.Find(name)->bytes()).Hex(), digest.get<std::string>()) << name;
  }
}

TEST(GoldenLayerTest, EveryOutputEqualsTorchOnTheHardware) {
  const Json golden = ReadGolden();
  ASSERT_TRUE(golden.is_object());
  ASSERT_GT(golden["cases"].size(), 20u);
  const TensorFile samples = ReadSamples();
  const auto engine = MakeCpuEngine({});
  for (const Json& one : golden["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    auto result = RunLinear(*engine, RequestOf(one, samples), RecipeOf(one),
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

}  // namespace
}  // namespace quantgate
