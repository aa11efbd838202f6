// What a plan refuses, with the words a user reads; labels and step counts.
#include "kernels/validate/plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

Tensor Blank(DType dtype, Shape shape) { return *Tensor::Allocate(dtype, std::move(shape)); }

Variant VariantOf(const std::string& recipe, const std::string& arithmetic = "sm90") {
  return {*Recipe::Parse(recipe), *Arithmetic::Parse(arithmetic)};
}

LayerRunRequest GoodRequest() {
  LayerRunRequest request;
  request.step.x = Blank(DType::kBF16, {32, 32});
  request.step.parameters["weight"] = Blank(DType::kBF16, {48, 32});
  request.step.parameters["bias"] = Blank(DType::kBF16, {48});
  request.step.grad_output = Blank(DType::kBF16, {32, 48});
  request.variants = {VariantOf("bf16"), VariantOf("fp8_current")};
  return request;
}

TEST(Variant, LabelSaysRecipeKnobsOverrideAndArithmetic) {
  EXPECT_EQ(VariantOf("bf16").Label(), "bf16 / none / sm90");
  EXPECT_EQ(VariantOf("fp8_current:backward_override=dequant", "sm90:split,splitk=3").Label(),
            "fp8_current / dequantized / sm90:split,splitk=3");
  EXPECT_EQ(VariantOf("fp8_current:backward_override=unquant,power_2_scales=true", "exact").Label(),
            "fp8_current:power_2_scales=true / high_precision / exact");
}

struct Case {
  std::string message;
  std::function<void(LayerRunRequest&)> spoil;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

TEST(Plan, NamesFieldValueAndRule) {
  const std::vector<Case> cases = {
      {"x is absent: a linear layer needs it", [](LayerRunRequest& r) { r.step.x = Tensor(); }},
      {"parameters[bias] is bf16[32]: its shape must be 48, N of weight",
       [](LayerRunRequest& r) { r.step.parameters["bias"] = Blank(DType::kBF16, {32}); }},
      {"variants is 0 given: a run takes 1 to 64", [](LayerRunRequest& r) { r.variants.clear(); }},
      {"variants is 65 given: a run takes 1 to 64",
       [](LayerRunRequest& r) { r.variants.assign(65, VariantOf("bf16")); }},
      {"variants[2] is \"fp8_current / none / sm90\": variants must differ, and variants[1] is the "
       "same",
       [](LayerRunRequest& r) {
         r.variants.push_back(VariantOf("fp8_current:fp8_format=hybrid"));
       }},
      {"variants[1].recipe is fp8_current: step.x is bf16[32x24]: K is 24 and must be a multiple "
       "of 16 "
       "under an FP8 recipe: fprop contracts over K",
       [](LayerRunRequest& r) {
         r.step.x = Blank(DType::kBF16, {32, 24});
         r.step.parameters["weight"] = Blank(DType::kBF16, {48, 24});
       }},
      {"variants[0].arithmetic is exact with split_k = 2: only sm90 takes parameters, and split_k "
       "must be at least 1",
       [](LayerRunRequest& r) {
         r.variants[0].arithmetic = {ArithmeticFamily::kExact, Accumulation::kRecipe, 2};
       }},
      {"variants[0].arithmetic is fp32 with split_k = 1 and a named accumulation: only sm90 takes "
       "parameters, and split_k must be at least 1",
       [](LayerRunRequest& r) {
         r.variants[0].arithmetic = {ArithmeticFamily::kFp32, Accumulation::kFast, 1};
       }},
      {"variants[1].recipe is mxfp8: step.parameters[weight] is bf16[48x32]: N is 48 and must be a "
       "multiple of 32 under mxfp8: both dims of a quantized tensor are in whole blocks",
       [](LayerRunRequest& r) { r.variants[1] = VariantOf("mxfp8"); }},
      {"variants[1].recipe is fp8_delayed:backward_override=high_precision: "
       "step.backward_override is high_precision: delayed scaling has no backward override",
       [](LayerRunRequest& r) {
         r.variants[1].recipe =
             Recipe::Parse("fp8_delayed")->WithBackwardOverride(BackwardOverride::kHighPrecision);
       }},
      {"variants[1].arithmetic is sm100: it does not take fp8_block:power_2_scales=false: "
       "fprop.arithmetic is sm100: Blackwell takes block scales that are powers of two; give the "
       "recipe power_2_scales=true, or an sm90 arithmetic",
       [](LayerRunRequest& r) {
         r.variants[1] = VariantOf("fp8_block:power_2_scales=false", "sm100");
       }},
      {"requires_grad is norm: the layer is given no such parameter",
       [](LayerRunRequest& r) {
         r.step.requires_grad = {false, false, false, true};
       }},
      {"requires_grad is bias: the layer is given no such parameter",
       [](LayerRunRequest& r) {
         r.step.parameters.erase("bias");
         r.step.requires_grad = {true, true, true, false};
       }},
      {"variants[1].recipe is custom:rules=[{\"quantizer\":{\"element\":\"bf16\",\"format\":"
       "\"identity\"},\"tensor_type\":\"input\"},{\"quantizer\":\"bf16\"}]: no arithmetic takes "
       "its GEMMs: fprop.b is f32: operands are both codes (FP8, FP6, FP4) or of one "
       "high-precision "
       "type, and a is bf16",
       [](LayerRunRequest& r) {
         r.step.x = Blank(DType::kF32, {32, 32});
         r.variants[1] =
             VariantOf(R"(custom:rules=[{"tensor_type":"input","quantizer":{"format":"identity",)"
                       R"("element":"bf16"}},{"quantizer":"bf16"}])");
       }},
      {"seed is 5: no variant rounds stochastically", [](LayerRunRequest& r) { r.step.seed = 5; }},
      {"calibrate is true: no variant is fp8_delayed: there is no scale to learn",
       [](LayerRunRequest& r) { r.step.calibrate = true; }},
      {"delayed_state is 1 states: no variant is fp8_delayed, and only fp8_delayed has them",
       [](LayerRunRequest& r) { r.step.delayed["input"] = *FreshDelayedScaling(2); }},
      {"reference is 2: it must be the index of a variant, 0 to 1",
       [](LayerRunRequest& r) { r.reference = 2; }},
      {"reference is -1: it must be the index of a variant, 0 to 1",
       [](LayerRunRequest& r) { r.reference = -1; }},
      {"reference is 0: requirement bitwise needs a variant beside the reference; leave the "
       "reference out to compare with exact",
       [](LayerRunRequest& r) {
         r.variants.pop_back();
         r.reference = 0;
         r.requirement = Requirement::kBitwise;
       }},
      {"variants[0].arithmetic is sm90:splitk=2: split-K of f32 (tf32) GEMMs has not been measured "
       "on Hopper, and bf16 / none / sm90:splitk=2 runs them in f32",
       [](LayerRunRequest& r) {
         r.step.x = Blank(DType::kF32, {32, 32});
         r.variants[0].arithmetic.split_k = 2;
       },
       absl::StatusCode::kUnimplemented},
  };
  for (const Case& expected : cases) {
    LayerRunRequest request = GoodRequest();
    expected.spoil(request);
    const absl::Status status = Plan::Create(std::move(request)).status();
    EXPECT_EQ(std::string(status.message()), expected.message);
    EXPECT_EQ(status.code(), expected.code) << expected.message;
  }
}

TEST(Plan, TakesWhatOneVariantLooksAt) {
  LayerRunRequest request = GoodRequest();
  request.variants.push_back(VariantOf("nvfp4", "auto"));
  request.variants.push_back(VariantOf("fp8_delayed"));
  request.step.seed = 5;
  request.step.delayed["input"] = *FreshDelayedScaling(2);
  request.step.calibrate = true;
  EXPECT_TRUE(Plan::Create(request).ok()) << Plan::Create(request).status();
}

// A rule for results may be the only one that draws random numbers.
TEST(Plan, TakesASeedThatAResultAloneReads) {
  LayerRunRequest request = GoodRequest();
  request.step.seed = 5;
  const auto rules_with = [](const std::string& role) {
    return R"(custom:rules=[{"tensor_type":")" + role +
           R"(","quantizer":"nvfp4"},{"quantizer":"bf16"}])";
  };
  // nvfp4 rounds gradients stochastically, and nothing else.
  request.variants = {VariantOf(rules_with("output"))};
  EXPECT_EQ(Plan::Create(request).status().message(),
            "seed is 5: no variant rounds stochastically");
  request.variants = {VariantOf(rules_with("grad_input"))};
  const auto plan = Plan::Create(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->request().step.seed, 5u);
}

TEST(Plan, RefusesAnArithmeticThatARecipeCannotUse) {
  LayerRunRequest request = GoodRequest();
  request.variants.push_back(VariantOf("nvfp4", "sm90"));
  const absl::Status status = Plan::Create(request).status();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(std::string(status.message())
                .find("variants[2].arithmetic is sm90: it does not take nvfp4: fprop."),
            0u)
      << status;
}

TEST(Plan, RefusesSplitKSlicesBelowOne) {
  for (int slices : {0, -4}) {
    LayerRunRequest request = GoodRequest();
    request.variants[1].arithmetic.split_k = slices;
    const absl::Status status = Plan::Create(std::move(request)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()).find("variants[1].arithmetic is "), 0u) << status;
  }
}

TEST(Plan, TakesSplitKWhereEveryGemmIsModelled) {
  LayerRunRequest request = GoodRequest();
  request.step.x = Blank(DType::kF32, {32, 32});
  request.variants = {VariantOf("fp8_current", "sm90:splitk=2"),
                      VariantOf("bf16:activation_dtype=bf16", "sm90:splitk=2")};
  EXPECT_TRUE(Plan::Create(request).ok());
  request.variants = {VariantOf("fp8_current:backward_override=dequantized", "sm90:splitk=2")};
  EXPECT_EQ(Plan::Create(request).status().code(), absl::StatusCode::kUnimplemented);
  request.step.grad_output = Tensor();
  EXPECT_TRUE(Plan::Create(request).ok());
}

TEST(Plan, TakesTheLargestNumberOfVariants) {
  LayerRunRequest request = GoodRequest();
  request.variants.clear();
  for (int slices = 1; slices <= kVariantsMax; ++slices) {
    request.variants.push_back(VariantOf("fp8_current"));
    request.variants.back().arithmetic.split_k = slices;
  }
  EXPECT_TRUE(Plan::Create(request).ok());
}

TEST(Plan, TakesTensorsOfItsOutlinesOnly) {
  LayerRunRequest request = GoodRequest();
  request.step.main_grads["weight"] = Blank(DType::kF32, {48, 32});
  request.subjects["y"] = Blank(DType::kBF16, {32, 48});
  const absl::StatusOr<Plan> outline = Plan::Create(std::move(request));
  ASSERT_TRUE(outline.ok()) << outline.status();
  std::vector<std::string> names;
  const absl::StatusOr<Plan> plan =
      outline->WithTensors([&](const std::string& name, const Tensor& tensor) {
        names.push_back(name);
        return Tensor::Allocate(tensor.dtype(), tensor.shape());
      });
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(names,
            (std::vector<std::string>{"x", "grad_output", "parameters[bias]", "parameters[weight]",
                                      "main_grads[weight]", "subjects[y]"}));
  EXPECT_NE(plan->request().step.x.data(), outline->request().step.x.data());
  EXPECT_NE(plan->request().subjects.at("y").data(), outline->request().subjects.at("y").data());

  const absl::Status other =
      outline
          ->WithTensors([](const std::string& name, const Tensor& tensor) {
            return Tensor::Allocate(name == "grad_output" ? DType::kF16 : tensor.dtype(),
                                    tensor.shape());
          })
          .status();
  EXPECT_EQ(other, absl::InternalError("grad_output was planned as bf16[32x48] and is f16[32x48]"));
  const absl::Status refused =
      outline
          ->WithTensors([](const std::string&, const Tensor&) -> absl::StatusOr<Tensor> {
            return absl::CancelledError("no more");
          })
          .status();
  EXPECT_TRUE(absl::IsCancelled(refused));
}

TEST(Plan, CountsItsSteps) {
  LayerRunRequest request = GoodRequest();
  // Each variant is run, and its four outputs are reported, as they are once as the unquantized
  // reference; then the matrix of pairs.
  EXPECT_EQ(Plan::Create(request)->StepCount(), 4 + (1 + 4) + (1 + 4) + 1);
  request.variants.pop_back();
  EXPECT_EQ(Plan::Create(request)->StepCount(), 4 + (1 + 4));
  request.step.grad_output = Tensor();
  EXPECT_EQ(Plan::Create(request)->StepCount(), 1 + (1 + 1));
}

// A rule of a custom recipe that a module refuses: the recipe is named once.
TEST(PlanRefusals, OfARecipeNameItOnce) {
  LayerRunRequest request = GoodRequest();
  request.variants[0].recipe =
      *Recipe::Parse(R"(custom:rules=[{"layer_name":"elsewhere","quantizer":"mxfp8"}])");
  const absl::Status status = Plan::Create(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::string message(status.message());
  EXPECT_EQ(message.find("recipe is "), message.rfind("recipe is ")) << message;
  EXPECT_NE(message.find(": no rule fits input of a linear"), std::string::npos) << message;
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
