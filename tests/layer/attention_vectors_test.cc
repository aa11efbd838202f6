// Layers of attention against tests/data/attention_layers.safetensors, which
// tests/vectors/attention_layer_reference.py made from the specification in Python: every output
// bit.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "absl/strings/strip.h"
#include "kernels/tensor/files/tensor_file.h"
#include "tests/base/repository_file.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/layer_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

struct VectorCase {
  const char* name;
  LayerKind kind;
  AttentionOptions attention;
  NormKind norm = NormKind::kLayerNorm;
  ActivationKind activation = ActivationKind::kGelu;
};
constexpr AttentionMask kCausal = AttentionMask::kCausal;
const VectorCase kVectorCases[] = {
    {"grouped_causal_rotary",
     LayerKind::kAttention,
     {.heads = 4, .groups = 2, .mask = kCausal, .rotary_base = 10000.0f}},
    {"plain", LayerKind::kAttention, {.heads = 3}},
    {"gelu_block",
     LayerKind::kTransformerLayer,
     {.heads = 2, .groups = 1, .mask = kCausal, .rotary_base = 100.0f}},
    {"swiglu_block",
     LayerKind::kTransformerLayer,
     {.heads = 4, .groups = 2},
     NormKind::kRmsNorm,
     ActivationKind::kSwiglu},
    {"integers", LayerKind::kAttention, {.heads = 4, .groups = 2, .mask = kCausal}},
};

/// The request of a case, and what the file says that it gives.
struct Recorded {
  LayerRequest request;
  std::map<std::string, Tensor> outputs;
};

Recorded Read(const VectorCase& one) {
  Recorded recorded;
  LayerRequest& request = recorded.request;
  request.layer.kind = one.kind;
  request.layer.attention = one.attention;
  request.layer.norm.kind = one.norm;
  request.layer.activation.kind = one.activation;
  const TensorFile file =
      *ReadSafetensors(RepositoryFile("tests/data/attention_layers.safetensors"));
  for (const NamedTensor& tensor : file.tensors) {
    absl::string_view name = tensor.name;
    if (!absl::ConsumePrefix(&name, std::string(one.name) + ".")) continue;
    if (name == "x") request.x = tensor.tensor;
    if (name == "dy") request.grad_output = tensor.tensor;
    if (absl::ConsumePrefix(&name, "given.")) {
      request.parameters[std::string(name)] = tensor.tensor;
    } else if (absl::ConsumePrefix(&name, "gives.")) {
      recorded.outputs[std::string(name)] = tensor.tensor;
    }
  }
  return recorded;
}

void ExpectRecorded(const Recorded& recorded, const char* arithmetic) {
  SCOPED_TRACE(arithmetic);
  const auto engine = MakeCpuEngine({.threads = 1});
  const auto result = RunLayer(*engine, recorded.request, *Recipe::Parse("bf16"),
                               *Arithmetic::Parse(arithmetic), nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->outputs.size(), recorded.outputs.size());
  for (const auto& [name, tensor] : recorded.outputs) {
    EXPECT_TRUE(SameBits(OutputOf(*result, name), tensor)) << name;
  }
}

TEST(AttentionVectors, HaveTheBitsOfExactGemmsRoundedOnce) {
  for (const VectorCase& one : kVectorCases) {
    SCOPED_TRACE(one.name);
    const Recorded recorded = Read(one);
    ASSERT_GE(recorded.outputs.size(), 5u);
    ExpectRecorded(recorded, "exact");
  }
}

// Sums of small integers, which no order of additions changes.
TEST(AttentionVectors, OfIntegersHaveTheBitsUnderEveryArithmetic) {
  const Recorded recorded = Read(kVectorCases[4]);
  for (const char* arithmetic : {"auto", "sm90", "sm80"}) ExpectRecorded(recorded, arithmetic);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
