// Outputs of a layer that was computed with a mistake, told by computing the layer on an engine.
#include "kernels/validate/diagnosis/engine_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/tensor/transpose.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kM = 64, kN = 96, kK = 96;

class EngineModelTest : public ::testing::Test {
 protected:
  static LayerRequest LayerOf() {
    LayerRequest request;
    request.x = Generated(Distribution::kNormal, 1, DType::kBF16, {kM, kK});
    request.parameters["weight"] = Generated(Distribution::kNormal, 2, DType::kBF16, {kN, kK});
    request.parameters["bias"] = Generated(Distribution::kNormal, 3, DType::kBF16, {kN});
    request.grad_output = Generated(Distribution::kNormal, 4, DType::kBF16, {kM, kN});
    return request;
  }

  TensorsByName Outputs(const LayerRequest& request, const std::string& recipe) {
    const auto result = RunLayer(*engine_, request, *Recipe::Parse(recipe), arithmetic_, nullptr);
    EXPECT_TRUE(result.ok()) << result.status();
    TensorsByName outputs;
    for (const NamedTensor& output : result->outputs) outputs[output.name] = output.tensor;
    return outputs;
  }

  Diagnosis DiagnosisOf(const std::string& recipe, TensorsByName subject,
                        const DiagnosisBudget& budget = DiagnosisBudget::Unlimited()) {
    const LayerRequest request = LayerOf();
    LayerCase of;
    of.expected = Outputs(request, recipe);
    of.subject = std::move(subject);
    EXPECT_TRUE(ReadOperands(*engine_, request, nullptr, of).ok());
    const Recipe parsed = *Recipe::Parse(recipe);
    EngineLayerModel model(*engine_, request, parsed, arithmetic_, of.expected, nullptr, budget);
    const auto diagnosis = DiagnoseLayer(of, model, budget);
    EXPECT_TRUE(diagnosis.ok()) << diagnosis.status();
    return *diagnosis;
  }

  const std::unique_ptr<Engine> engine_ = MakeCpuEngine({});
  const Arithmetic arithmetic_ = *Arithmetic::Parse("exact");
};

TEST_F(EngineModelTest, AnotherKnobIsNamed) {
  EXPECT_EQ(DiagnosisOf("mxfp8", Outputs(LayerOf(), "mxfp8:scale_rule=floor")).sentence,
            "fits mxfp8:scale_rule=floor in y, dx and dw");
}

TEST_F(EngineModelTest, AFewElementsAreCounted) {
  TensorsByName found = Outputs(LayerOf(), "mxfp8:scale_rule=floor");
  Tensor dx = *Tensor::FromBytes(DType::kBF16, found["dx"].shape(), found["dx"].bytes());
  for (const int i : {5, 500, 1500}) dx.as<uint16_t>()[i] ^= 0x40;
  found["dx"] = dx;
  EXPECT_EQ(DiagnosisOf("mxfp8", found).sentence,
            "fits mxfp8:scale_rule=floor in y and dw, and dx but for 3 of 6,144 elements");
}

TEST_F(EngineModelTest, AnotherRecipeIsNamed) {
  EXPECT_THAT(DiagnosisOf("mxfp8", Outputs(LayerOf(), "fp8_current")).sentence,
              StartsWith("fits fp8_current in y, dx and dw"));
}

TEST_F(EngineModelTest, ATransposedWeightIsNamedUnderAnyRecipe) {
  LayerRequest request = LayerOf();
  request.parameters["weight"] = *Transpose2d(request.parameters["weight"], ExecutionContext());
  for (const char* recipe : {"bf16", "mxfp8", "fp8_current"}) {
    EXPECT_EQ(DiagnosisOf(recipe, Outputs(request, recipe)).sentence,
              "the weight is transposed (weight): that gives y and dx");
    TensorsByName of_dgrad = Outputs(LayerOf(), recipe);
    of_dgrad["dx"] = Outputs(request, recipe)["dx"];
    EXPECT_EQ(DiagnosisOf(recipe, of_dgrad).sentence,
              "the weight of dgrad is transposed (weight): that gives dx");
  }
}

TEST_F(EngineModelTest, NanInOneOutputAloneMayHaveComeFromAnywhere) {
  LayerRequest request = LayerOf();
  request.x = *Tensor::FromBytes(DType::kBF16, {kM, kK}, request.x.bytes());
  request.x.as<uint16_t>()[7 * kK + 5] = 0x7FC0;
  TensorsByName found = Outputs(request, "bf16");
  EXPECT_EQ(DiagnosisOf("bf16", found).sentence,
            "x has a NaN in row 7, column 5: that gives y and dw");
  EXPECT_EQ(DiagnosisOf("bf16", {{"y", found["y"]}}).sentence,
            "x may have a NaN in row 7: that gives y");
}

TEST_F(EngineModelTest, ALayerUnderWayEndsWithTheTime) {
  const LayerRequest request = LayerOf();
  const TensorsByName expected = Outputs(request, "bf16");
  const Recipe recipe = *Recipe::Parse("bf16");
  EngineLayerModel model(*engine_, request, recipe, arithmetic_, expected, nullptr,
                         DiagnosisBudget::Of(absl::Seconds(-1)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(model.Compute({}).status()));
}

TEST_F(EngineModelTest, WhatTheTimeEndedIsNotTried) {
  // The clock stands until the first layer is computed, which takes all of the time.
  bool is_over = false;
  const DiagnosisBudget budget = DiagnosisBudget::Of(absl::Seconds(1), [&] {
    return absl::UnixEpoch() + (is_over ? absl::Seconds(2) : absl::ZeroDuration());
  });
  class Slow : public LayerModel {
   public:
    explicit Slow(bool& is_over) : is_over_(is_over) {}
    absl::StatusOr<TensorsByName> Compute(const LayerChange&) override {
      ++computed;
      is_over_ = true;
      return absl::DeadlineExceededError("the time is over");
    }
    std::vector<std::string> Recipes() const override { return {"mxfp8", "fp8_current"}; }
    int computed = 0;

   private:
    bool& is_over_;
  } model(is_over);
  LayerCase of;
  of.expected = Outputs(LayerOf(), "bf16");
  of.subject = of.expected;
  of.subject["y"] = Generated(Distribution::kNormal, 9, DType::kBF16, {kM, kN});
  const auto diagnosis = DiagnoseLayer(of, model, budget);
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_TRUE(diagnosis->is_unknown);
  EXPECT_EQ(model.computed, 1);
  EXPECT_THAT(diagnosis->not_tried,
              ::testing::ElementsAre("mxfp8 (no time)", "fp8_current (no time)"));
}

TEST_F(EngineModelTest, WhatCannotBeTriedIsListed) {
  TensorsByName found = Outputs(LayerOf(), "bf16");
  found["dw"] = Generated(Distribution::kNormal, 9, DType::kBF16, {kN, kK});
  const Diagnosis diagnosis = DiagnosisOf("bf16", found, DiagnosisBudget::Of(absl::Seconds(-1)));
  EXPECT_TRUE(diagnosis.is_unknown);
  EXPECT_THAT(diagnosis.sentence, StartsWith("unknown: nothing that was tried gives dw"));
  EXPECT_THAT(diagnosis.not_tried, Contains(HasSubstr("mxfp8 (no time)")));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
