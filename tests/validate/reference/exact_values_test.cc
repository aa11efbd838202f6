// Exact values of a layer's outputs, and that equal operands are computed once.
#include "kernels/validate/reference/exact_values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/engine/forwarding_engine.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

class GemmCounter : public ForwardingEngine {
 public:
  using ForwardingEngine::ForwardingEngine;
  int count() const { return count_; }
  int reads() const { return reads_; }  ///< Of fingerprints: waits for the engine.

 protected:
  void OnOperation(const std::string& name) override {
    count_ += name == "StartGemm" ? 1 : 0;
    reads_ += name == "ReadFingerprints" ? 1 : 0;
  }

 private:
  int count_ = 0;
  int reads_ = 0;
};

// x = [[1, 2], [3, 4], [5, 6]], weight = [[1, 0.5], [-1, 2]]; sums by hand below.
LayerRequest HandRequest() {
  LayerRequest request;
  request.x = FromValues(DType::kBF16, {3, 2}, {1, 2, 3, 4, 5, 6});
  request.parameters["weight"] = FromValues(DType::kF32, {2, 2}, {1, 0.5, -1, 2});
  request.parameters["bias"] = FromValues(DType::kF16, {2}, {10, 0.25});
  request.grad_output = FromValues(DType::kF16, {3, 2}, {1, 0, 0, 1, 2, -1});
  return request;
}

TEST(ExactValues, UnquantizedIsTheLayerOfTheOriginalOperands) {
  const auto engine = MakeCpuEngine({});
  LayerRequest request = HandRequest();
  ExactValues exact(*engine, request, nullptr);
  EXPECT_EQ(ToValues(*exact.Unquantized("y")), (std::vector<float>{12, 3.25, 15, 5.25, 18, 7.25}));
  EXPECT_EQ(ToValues(*exact.Unquantized("dx")), (std::vector<float>{1, 0.5, -1, 2, 3, -1}));
  EXPECT_EQ(ToValues(*exact.Unquantized("dw")), (std::vector<float>{11, 14, -2, -2}));
  EXPECT_EQ(ToValues(*exact.Unquantized("db")), (std::vector<float>{3, 0}));
  request.main_grads["weight"] = FromValues(DType::kF32, {2, 2}, {100, 200, 300, 400});
  ExactValues accumulating(*engine, request, nullptr);
  EXPECT_EQ(ToValues(*accumulating.Unquantized("main_grad")),
            (std::vector<float>{111, 214, 298, 398}));
}

TEST(ExactValues, UnquantizedReadsF32WeightsUnrounded) {
  const auto engine = MakeCpuEngine({});
  LayerRequest request = HandRequest();
  request.x = FromValues(DType::kBF16, {1, 2}, {1, 0});
  request.parameters["weight"] = FromValues(DType::kF32, {1, 2}, {1 + 0x1p-20f, 0});
  request.parameters.erase("bias");
  ExactValues exact(*engine, request, nullptr);
  EXPECT_EQ(ToValues(*exact.Unquantized("y")), std::vector<float>{1 + 0x1p-20f});
}

TEST(ExactValues, RoundsOnceToEachDType) {
  // 1 + 2^-8 + 2^-30: above the middle of two bf16 values, but its f32 is the middle itself.
  GemmDesc desc;
  desc.a.data = FromValues(DType::kF32, {1, 3}, {1, 0x1p-8f, 0x1p-30f});
  desc.b.data = FromValues(DType::kF32, {1, 3}, {1, 1, 1});
  desc.out_dtype = DType::kBF16;
  const auto engine = MakeCpuEngine({});
  const LayerRequest request = HandRequest();
  ExactValues exact(*engine, request, nullptr);
  const ExactValues::Value value = *exact.OfGemm(desc);
  EXPECT_EQ(value.own.dtype(), DType::kBF16);
  EXPECT_EQ(ToValues(value.own), std::vector<float>{1 + 0x1p-7f});
  EXPECT_EQ(value.f32.dtype(), DType::kF32);
  EXPECT_EQ(ToValues(value.f32), std::vector<float>{1 + 0x1p-8f});
  EXPECT_FALSE(value.note()->empty());
}

TEST(ExactValues, IgnoresHowAModelWouldAccumulate) {
  const auto cpu = MakeCpuEngine({});
  GemmCounter engine(*cpu);
  const LayerRequest request = HandRequest();
  ExactValues exact(engine, request, nullptr);
  GemmDesc desc;
  desc.a.data = FromValues(DType::kBF16, {2, 2}, {1, 2, 3, 4});
  desc.b.data = FromValues(DType::kBF16, {1, 2}, {1, 1});
  desc.out_dtype = DType::kBF16;
  const Tensor first = exact.OfGemm(desc)->f32;
  EXPECT_EQ(engine.count(), 1);  // Rounded to bf16 and to f32.

  GemmDesc other = desc;
  other.a.data = FromValues(DType::kBF16, {2, 2}, {1, 2, 3, 4});  // Equal bits elsewhere.
  other.use_split_accumulator = true;
  other.arithmetic = {ArithmeticFamily::kFp32};
  EXPECT_EQ(exact.OfGemm(other)->f32.data(), first.data());
  EXPECT_EQ(engine.count(), 1);
}

TEST(ExactValues, WaitsForContentsOnlyWhereTheyCouldBeKnown) {
  const auto cpu = MakeCpuEngine({});
  GemmCounter engine(*cpu);
  const LayerRequest request = HandRequest();
  ExactValues exact(engine, request, nullptr);
  GemmDesc desc;
  desc.a.data = FromValues(DType::kF32, {2, 2}, {1, 2, 3, 4});
  desc.b.data = FromValues(DType::kF32, {1, 2}, {1, 1});
  GemmDesc taller = desc;
  taller.a.data = FromValues(DType::kF32, {3, 2}, {1, 2, 3, 4, 5, 6});
  ASSERT_TRUE(exact.BeginVariant().ok());
  const std::vector<Tensor> operands = {desc.a.data, desc.b.data, taller.a.data};
  ASSERT_TRUE(exact.contents().Start(operands, ContentKeys::Memory::kUntilForget).ok());
  const Tensor first = exact.OfGemm(desc)->f32;
  EXPECT_EQ(ToValues(exact.OfGemm(taller)->f32), (std::vector<float>{3, 7, 11}));
  EXPECT_EQ(engine.reads(), 0);

  // Of another variant, with other values, and with the same.
  ASSERT_TRUE(exact.BeginVariant().ok());
  EXPECT_EQ(engine.reads(), 1);
  GemmDesc other = desc, same = desc;
  other.a.data = FromValues(DType::kF32, {2, 2}, {1, 2, 3, 5});
  same.a.data = FromValues(DType::kF32, {2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(ToValues(exact.OfGemm(other)->f32), (std::vector<float>{3, 8}));
  EXPECT_EQ(exact.OfGemm(same)->f32.data(), first.data());
  EXPECT_EQ(engine.count(), 3);
}

TEST(ContentKeys, OneWaitReadsAllAndForgettingKeepsWhatIsForGood) {
  const auto cpu = MakeCpuEngine({});
  GemmCounter engine(*cpu);
  ContentKeys keys(engine, nullptr);
  const Tensor input = FromValues(DType::kF32, {2}, {1, 2});
  const Tensor passing = FromValues(DType::kF32, {2}, {3, 4});
  ASSERT_TRUE(keys.Start({&input, 1}, ContentKeys::Memory::kForGood).ok());
  ASSERT_TRUE(keys.Start({&passing, 1}, ContentKeys::Memory::kUntilForget).ok());
  EXPECT_EQ(*keys.FingerprintOf(passing), *cpu->FingerprintOf(passing, nullptr));
  EXPECT_EQ(*keys.FingerprintOf(input), *cpu->FingerprintOf(input, nullptr));
  EXPECT_EQ(engine.reads(), 1);
  keys.Forget();
  EXPECT_EQ(*keys.FingerprintOf(input), *cpu->FingerprintOf(input, nullptr));
  EXPECT_EQ(engine.reads(), 1);
  EXPECT_EQ(*keys.FingerprintOf(passing), *cpu->FingerprintOf(passing, nullptr));
  EXPECT_EQ(engine.reads(), 2);

  // What is forgotten before anybody asked leaves the rest in its place.
  const Tensor gone = FromValues(DType::kF32, {2}, {5, 6});
  const Tensor stays = FromValues(DType::kF32, {2}, {7, 8});
  ASSERT_TRUE(keys.Start({&gone, 1}, ContentKeys::Memory::kUntilForget).ok());
  ASSERT_TRUE(keys.Start({&stays, 1}, ContentKeys::Memory::kForGood).ok());
  keys.Forget();
  EXPECT_EQ(*keys.FingerprintOf(stays), *cpu->FingerprintOf(stays, nullptr));
}

TEST(ExactValues, TellsDifferentGemmsApart) {
  const auto cpu = MakeCpuEngine({});
  GemmCounter engine(*cpu);
  const LayerRequest request = HandRequest();
  ExactValues exact(engine, request, nullptr);
  GemmDesc desc;
  desc.a.data = FromValues(DType::kF32, {2, 2}, {1, 2, 3, 4});
  desc.b.data = FromValues(DType::kF32, {2, 2}, {5, 6, 7, 8});
  std::vector<GemmDesc> descs(7, desc);
  descs[1].layout = GemmLayout::kNN;
  descs[2].alpha = 2;
  descs[3].bias = FromValues(DType::kF32, {2}, {1, 1});
  descs[4].beta = 1;
  descs[4].c = FromValues(DType::kF32, {2, 2}, {1, 1, 1, 1});
  descs[6].beta = 1;
  descs[6].c = FromValues(DType::kF32, {2, 2}, {1, 1, 1, 2});
  descs[5].b.data = FromValues(DType::kF32, {2, 2}, {5, 6, 7, 9});
  const std::vector<std::vector<float>> expected = {
      {17, 23, 39, 53}, {19, 22, 43, 50}, {34, 46, 78, 106}, {18, 24, 40, 54},
      {18, 24, 40, 54}, {17, 25, 39, 57}, {18, 24, 40, 55},
  };
  for (size_t i = 0; i < descs.size(); ++i) {
    EXPECT_EQ(ToValues(exact.OfGemm(descs[i])->f32), expected[i]) << i;
    EXPECT_EQ(engine.count(), static_cast<int>(i) + 1);
  }
}

TEST(ExactValues, ABiasGradientIsSummedWithoutRounding) {
  const auto engine = MakeCpuEngine({});
  LayerRequest request = HandRequest();
  request.x = FromValues(DType::kF32, {3, 1}, {1, 1, 1});
  request.parameters["weight"] = FromValues(DType::kF32, {2, 1}, {1, 1});
  request.grad_output = FromValues(DType::kF32, {3, 2}, {0x1p30f, 1, 1, 2, -0x1p30f, 3});
  ExactValues exact(*engine, request, nullptr);
  EXPECT_EQ(ToValues(exact.OfBiasGradient(request.grad_output, DType::kF32)->own),
            (std::vector<float>{1, 6}));
  // In bf16 the operand is the cast gradient: still 2^30, 1, -2^30.
  Tensor cast = *engine->Cast(request.grad_output, DType::kBF16, nullptr);
  EXPECT_EQ(ToValues(exact.OfBiasGradient(cast, DType::kBF16)->own), (std::vector<float>{1, 6}));
  EXPECT_EQ(exact.OfBiasGradient(cast, DType::kBF16)->own.dtype(), DType::kBF16);
  request.grad_output = FromValues(DType::kF32, {3, 2}, {1 + 0x1p-20f, 1, 1, 2, 0, 3});
  cast = *engine->Cast(request.grad_output, DType::kBF16, nullptr);
  EXPECT_EQ(ToValues(exact.OfBiasGradient(request.grad_output, DType::kF32)->own)[0], 2 + 0x1p-20f);
  EXPECT_EQ(ToValues(exact.OfBiasGradient(cast, DType::kBF16)->f32)[0], 2);
}

TEST(ExactValues, SumsOverNoRowsAreZero) {
  const auto engine = MakeCpuEngine({});
  LayerRequest request = HandRequest();
  request.x = *Tensor::Allocate(DType::kBF16, {0, 2});
  request.grad_output = *Tensor::Allocate(DType::kBF16, {0, 2});
  ExactValues exact(*engine, request, nullptr);
  EXPECT_EQ(ToValues(*exact.Unquantized("dw")), std::vector<float>(4, 0.0f));
  EXPECT_EQ(ToValues(*exact.Unquantized("db")), std::vector<float>(2, 0.0f));
  EXPECT_EQ(exact.Unquantized("y")->shape(), (Shape{0, 2}));
  EXPECT_EQ(exact.OfEmptySum("db", DType::kBF16)->own.dtype(), DType::kBF16);
  EXPECT_EQ(exact.OfEmptySum("dw", DType::kF16)->own.shape(), (Shape{2, 2}));
  request.main_grads["weight"] = FromValues(DType::kF32, {2, 2}, {1, 2, 3, 4});
  EXPECT_TRUE(
      SameBits(exact.OfEmptySum("main_grad", DType::kF32)->own, request.main_grads["weight"]));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
