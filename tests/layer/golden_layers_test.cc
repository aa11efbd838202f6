// Layers of several operations on real tensors against what torch computed on an H200
// (tests/data/golden_layers.json, written by tests/hardware/torch_layers.py, where norms and
// activations are numpy's float32): every output and gradient, bit for bit.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "kernels/layer/layer.h"
#include "kernels/tensor/convert.h"
#include "tests/layer/golden_outputs.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Json = nlohmann::json;

Tensor InBf16(const Tensor& tensor) {
  return *CastTensor(tensor, DType::kBF16, ExecutionContext());
}

NormOptions NormOf(const Json& one) {
  NormOptions norm;
  norm.kind = *ParseNormKind(one["norm"].get<std::string>());
  return norm;
}

void AddNorm(const Json& one, const TensorFile& samples, LayerRequest& request) {
  request.layer.norm = NormOf(one);
  request.parameters["gamma"] = *samples.Find("ln2.weight");
  if (request.layer.norm.kind == NormKind::kLayerNorm) {
    request.parameters["beta"] = *samples.Find("ln2.bias");
  }
}

void AddLayerNormLinear(const Json& one, const TensorFile& samples, LayerRequest& request) {
  AddNorm(one, samples, request);
  request.layer.return_norm_output = true;
  request.x = *samples.Find("ln2.x");
  request.parameters["weight"] = *samples.Find("fc1.weight");
  request.parameters["bias"] = *samples.Find("fc1.bias");
  request.grad_output = *samples.Find("fc1.dy");
}

void AddLayerNormMlp(const Json& one, const TensorFile& samples, LayerRequest& request) {
  AddNorm(one, samples, request);
  const bool is_gated = one["activation"] == "swiglu";
  request.layer.activation.kind = is_gated ? ActivationKind::kSwiglu : ActivationKind::kGelu;
  request.x = *samples.Find("ln2.x");
  const Tensor fc1 = *samples.Find("fc1.weight");
  request.parameters["fc1.weight"] = fc1;
  request.parameters["fc1.bias"] = *samples.Find("fc1.bias");
  const int64_t hidden = fc1.shape()[0] / (is_gated ? 2 : 1);
  request.parameters["fc2.weight"] = InBf16(IndexValues({512, hidden}, 0x1p-20f));
  request.parameters["fc2.bias"] = InBf16(IndexValues({512}, 0x1p-17f));
  request.grad_output = *samples.Find("ln2.dy");
}

void AddGroupedLinear(const Json& one, const TensorFile& samples, LayerRequest& request) {
  request.layer.m_splits = one["m_splits"].get<std::vector<int64_t>>();
  request.x = *samples.Find("fc1.x");
  request.grad_output = *samples.Find("fc1.dy");
  const Tensor weight = *samples.Find("fc1.weight"), bias = *samples.Find("fc1.bias");
  for (size_t expert = 0; expert < request.layer.m_splits.size(); ++expert) {
    const std::string suffix = "." + std::to_string(expert);
    const bool is_sample = expert % 2 == 0;
    request.parameters["weight" + suffix] =
        is_sample ? weight : InBf16(IndexValues(weight.shape(), 0x1p-20f));
    request.parameters["bias" + suffix] =
        is_sample ? bias : InBf16(IndexValues(bias.shape(), 0x1p-17f));
  }
}

LayerRequest RequestOf(const Json& one, const TensorFile& samples) {
  LayerRequest request;
  request.layer.kind = *ParseLayerKind(one["layer"].get<std::string>());
  switch (request.layer.kind) {
    case LayerKind::kLayerNormLinear:
      AddLayerNormLinear(one, samples, request);
      break;
    case LayerKind::kLayerNormMlp:
      AddLayerNormMlp(one, samples, request);
      break;
    default:
      AddGroupedLinear(one, samples, request);
      break;
  }
  return request;
}

TEST(GoldenLayersTest, EveryOutputEqualsTorchOnTheHardware) {
  const Json golden = ReadGolden("golden_layers.json");
  ASSERT_TRUE(golden.is_object());
  EXPECT_THAT(golden["origin"].get<std::string>(), ::testing::HasSubstr("NVIDIA H200"));
  ASSERT_EQ(golden["cases"].size(), 20u);
  const TensorFile samples = ReadSamples(golden);
  const auto engine = MakeCpuEngine({});
  for (const Json& one : golden["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const Recipe recipe = *Recipe::Parse(one["recipe"].get<std::string>() + ":backward_override=" +
                                         one["backward_override"].get<std::string>());
    const LayerRequest request = RequestOf(one, samples);
    auto result = RunLayer(*engine, request, recipe, *Arithmetic::Parse("sm90"), nullptr);
    ASSERT_TRUE(result.ok()) << result.status();
    size_t compared = 0;
    for (const NamedTensor& output : result->outputs) {
      SCOPED_TRACE(output.name);
      ASSERT_TRUE(one["outputs"].contains(output.name));
      ExpectTensor(output.tensor, one["outputs"][output.name]);
      ++compared;
    }
    EXPECT_EQ(compared, one["outputs"].size());
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
