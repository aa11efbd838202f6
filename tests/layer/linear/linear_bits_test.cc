// The layer's bits against a composition by hand, over overrides, dtypes, special values, code
// paths and threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/layer/layer.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/layer_reference.h"

namespace quantgate {
namespace QG_TEST_FILE {

const std::vector<std::string> kModes = {"none", "high_precision", "dequantized"};

struct Spec {
  DType x = DType::kBF16;
  DType weight = DType::kBF16;
  DType bias = DType::kBF16;
  DType grad_output = DType::kBF16;
  Distribution distribution = Distribution::kNormal;
};

LayerRequest MakeRequest(const Spec& spec) {
  LayerRequest request;
  request.x = Generated(spec.distribution, 11, spec.x, {4, 12, 160});
  request.parameters["weight"] = Generated(spec.distribution, 12, spec.weight, {64, 160});
  request.parameters["bias"] = Generated(spec.distribution, 13, spec.bias, {64});
  request.grad_output = Generated(spec.distribution, 14, spec.grad_output, {4, 12, 64});
  return request;
}

LayerResult RunStep(const LayerRequest& request, const std::string& recipe,
                    const CpuEngineOptions& options = {}) {
  const auto engine = MakeCpuEngine(options);
  auto result = RunLayer(*engine, request, *Recipe::Parse(recipe), Arithmetic{}, nullptr);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : LayerResult{};
}

void ExpectComposition(const LayerRequest& request, const std::string& recipe_text,
                       DType activation) {
  SCOPED_TRACE(recipe_text);
  const Recipe recipe = *Recipe::Parse(recipe_text);
  const LayerResult result = RunStep(request, recipe_text);
  const auto expected = ReferenceOf(request, recipe);
  EXPECT_EQ(expected.at("y").dtype(), activation);
  ASSERT_EQ(result.outputs.size(), expected.size());
  for (const NamedTensor& output : result.outputs) {
    ASSERT_TRUE(expected.contains(output.name)) << output.name;
    EXPECT_TRUE(SameBits(output.tensor, expected.at(output.name))) << output.name;
  }
}

void ExpectSameOutputs(const LayerResult& subject, const LayerResult& reference) {
  ASSERT_EQ(subject.outputs.size(), reference.outputs.size());
  for (size_t i = 0; i < reference.outputs.size(); ++i) {
    EXPECT_EQ(subject.outputs[i].name, reference.outputs[i].name);
    EXPECT_TRUE(SameBits(subject.outputs[i].tensor, reference.outputs[i].tensor))
        << reference.outputs[i].name;
  }
}

TEST(LinearBits, EveryModeIsItsComposition) {
  const LayerRequest request = MakeRequest({});
  ExpectComposition(request, "bf16", DType::kBF16);
  for (const std::string& mode : kModes) {
    ExpectComposition(request, "fp8_current:backward_override=" + mode, DType::kBF16);
  }
}

TEST(LinearBits, DTypesMix) {
  const DType f32 = DType::kF32, bf16 = DType::kBF16, f16 = DType::kF16;
  const std::vector<Spec> specs = {
      {bf16, f32, bf16, bf16}, {bf16, f32, f32, f32},  {f16, f16, f16, f16},  {f16, f32, f32, f16},
      {f32, f32, f32, f32},    {f32, bf16, f16, bf16}, {bf16, f16, f32, f16},
  };
  for (const Spec& spec : specs) {
    SCOPED_TRACE(absl::StrCat(
        std::string(DTypeName(spec.x)), " x ", std::string(DTypeName(spec.weight)), " bias ",
        std::string(DTypeName(spec.bias)), " dy ", std::string(DTypeName(spec.grad_output))));
    const LayerRequest request = MakeRequest(spec);
    ExpectComposition(request, "bf16", spec.x);
    for (const std::string& mode : kModes) {
      ExpectComposition(request, "fp8_current:backward_override=" + mode, spec.x);
    }
  }
}

TEST(LinearBits, AnActivationDTypeIsTheBitsOfACastInput) {
  const LayerRequest request = MakeRequest({DType::kF32, DType::kF32, DType::kF32, DType::kF32});
  LayerRequest cast = request;
  cast.x = *CastTensor(request.x, DType::kBF16, ExecutionContext());
  cast.grad_output = *CastTensor(request.grad_output, DType::kBF16, ExecutionContext());
  for (const std::string& mode : kModes) {
    for (const std::string name : {"fp8_current", "bf16"}) {
      SCOPED_TRACE(name + " / " + mode);
      const std::string recipe = name + ":backward_override=" + mode;
      ExpectSameOutputs(RunStep(request, recipe + ",activation_dtype=bf16"), RunStep(cast, recipe));
      ExpectComposition(request, recipe + ",activation_dtype=bf16", DType::kBF16);
    }
  }
}

TEST(LinearBits, TheWeightIsQuantizedFromItsOwnDType) {
  LayerRequest request = MakeRequest({.weight = DType::kF32});
  const LayerResult own = RunStep(request, "fp8_current");
  request.parameters["weight"] =
      *CastTensor(request.parameters.at("weight"), DType::kBF16, ExecutionContext());
  const LayerResult rounded = RunStep(request, "fp8_current");
  EXPECT_FALSE(SameBits(own.gemms[0].desc.b.data, rounded.gemms[0].desc.b.data));
}

TEST(LinearBits, SpecialValuesAreData) {
  for (Distribution distribution :
       {Distribution::kSpecialsLaced, Distribution::kSubnormalHeavy, Distribution::kAllZero,
        Distribution::kOneHuge, Distribution::kLogNormalOutliers}) {
    SCOPED_TRACE(std::string(DistributionName(distribution)));
    const LayerRequest request = MakeRequest({.distribution = distribution});
    ExpectComposition(request, "bf16", DType::kBF16);
    for (const std::string& mode : kModes) {
      ExpectComposition(request, "fp8_current:backward_override=" + mode, DType::kBF16);
    }
  }
}

TEST(LinearBits, MainGradIsAddedToInPlaceAndTheCallersIsLeftAlone) {
  for (const std::string recipe :
       {"bf16", "fp8_current", "fp8_current:backward_override=high_precision",
        "fp8_current:backward_override=dequantized"}) {
    LayerRequest request = MakeRequest({});
    request.main_grads["weight"] = Generated(Distribution::kNormal, 15, DType::kF32, {64, 160});
    const Fingerprint before = FingerprintOf(request.main_grads.at("weight"), ExecutionContext());
    ExpectComposition(request, recipe, DType::kBF16);
    EXPECT_EQ(FingerprintOf(request.main_grads.at("weight"), ExecutionContext()), before);
    const LayerResult result = RunStep(request, recipe);
    const GemmDesc& wgrad = result.gemms.back().desc;
    EXPECT_TRUE(wgrad.in_place);
    EXPECT_EQ(wgrad.beta, 1.0f);
    EXPECT_EQ(wgrad.out_dtype, DType::kF32);
  }
}

TEST(LinearBits, ForwardIsTheSameUnderEveryOverride) {
  const LayerRequest request = MakeRequest({});
  const LayerResult none = RunStep(request, "fp8_current");
  for (const std::string& mode : kModes) {
    const LayerResult result = RunStep(request, "fp8_current:backward_override=" + mode);
    EXPECT_TRUE(SameBits(result.outputs[0].tensor, none.outputs[0].tensor));
  }
}

TEST(LinearBits, AGradientDoesNotDependOnWhichOthersAreAskedFor) {
  for (const std::string& mode : kModes) {
    LayerRequest request = MakeRequest({});
    const std::string recipe = "fp8_current:backward_override=" + mode;
    const LayerResult all = RunStep(request, recipe);
    for (int mask = 0; mask < 8; ++mask) {
      request.requires_grad = {(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0};
      for (const NamedTensor& output : RunStep(request, recipe).outputs) {
        for (const NamedTensor& full : all.outputs) {
          if (full.name != output.name) continue;
          EXPECT_TRUE(SameBits(output.tensor, full.tensor)) << mode << " " << output.name << mask;
        }
      }
    }
  }
}

TEST(LinearBits, SplitAccumulatorsFollowTheRecipePerGemm) {
  const LayerRequest request = MakeRequest({});
  const auto ran = [&](const std::string& recipe) {
    std::string text;
    for (const GemmRecord& gemm : RunStep(request, recipe).gemms) {
      absl::StrAppend(&text, gemm.output, "=", gemm.result.arithmetic.ToString(), " ");
    }
    return text;
  };
  EXPECT_EQ(ran("fp8_current"), "y=sm90:fast dx=sm90:split dw=sm90:split ");
  EXPECT_EQ(ran("fp8_current:split_accumulator_fprop=true"),
            "y=sm90:split dx=sm90:split dw=sm90:split ");
  EXPECT_EQ(ran("fp8_current:split_accumulator_dgrad=false"),
            "y=sm90:fast dx=sm90:fast dw=sm90:split ");
  EXPECT_EQ(ran("fp8_current:split_accumulator_wgrad=false"),
            "y=sm90:fast dx=sm90:split dw=sm90:fast ");
  EXPECT_EQ(ran("fp8_current:backward_override=high_precision"), "y=sm90:fast dx=sm90 dw=sm90 ");
}

TEST(LinearBits, QuantizationsAreRecordedWithTheirScales) {
  const LayerRequest request = MakeRequest({});
  const LayerResult result = RunStep(request, "fp8_current");
  ASSERT_EQ(result.quantizations.size(), 3u);
  const std::vector<Tensor> sources = {request.x, request.parameters.at("weight"),
                                       request.grad_output};
  const std::vector<float> largest = {448, 448, 57344};
  for (size_t i = 0; i < sources.size(); ++i) {
    float amax = 0;
    for (const float value : ToValues(sources[i])) amax = std::max(amax, std::abs(value));
    const QuantizationRecord& record = result.quantizations[i];
    EXPECT_EQ(record.amax, amax);
    EXPECT_EQ(record.scale, largest[i] / amax);
    EXPECT_EQ(record.scale_inv, 1.0f / *record.scale);
    EXPECT_EQ(record.quantizer.substr(0, 7), i == 2 ? "f8_e5m2" : "f8_e4m3");
  }
}

TEST(LinearBits, EveryCodePathAndThreadCountGivesTheSame) {
  std::vector<CpuEngineOptions> options;
  for (Isa isa : RunnableIsas()) {
    for (int threads : {1, 3}) options.push_back({isa, threads});
  }
  for (Distribution distribution : {Distribution::kNormal, Distribution::kSpecialsLaced}) {
    LayerRequest request = MakeRequest({.weight = DType::kF32, .distribution = distribution});
    request.main_grads["weight"] = Generated(distribution, 16, DType::kF32, {64, 160});
    for (const std::string& mode : kModes) {
      const std::string recipe = "fp8_current:backward_override=" + mode;
      const LayerResult first = RunStep(request, recipe, options.front());
      for (const CpuEngineOptions& option : options) {
        SCOPED_TRACE(absl::StrCat(std::string(IsaName(option.isa)), " ", option.threads));
        const LayerResult result = RunStep(request, recipe, option);
        ExpectSameOutputs(result, first);
        ASSERT_EQ(result.saved.size(), first.saved.size());
        for (size_t i = 0; i < first.saved.size(); ++i) {
          EXPECT_EQ(result.saved[i].at_use, first.saved[i].at_use);
        }
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
