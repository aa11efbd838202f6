// Wrong results that invite a false cause: two mistakes at once, nearly a mistake that is known,
// and tensors in which several causes give the same numbers. What a diagnosis says of them is true,
// and where it cannot be sure it says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/validate/diagnosis/gemm_hypotheses.h"
#include "kernels/validate/diagnosis/layer_hypotheses.h"
#include "kernels/validate/diagnosis/tensor_hypotheses.h"
#include "tests/validate/diagnosis/mutants.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kRows = 32, kColumns = 48;
const float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr char kDoubt[] = "(too few different values to be sure)";

Matrix Drawn(uint64_t seed = 7, int64_t rows = kRows, int64_t columns = kColumns) {
  return Rounded(Draw(seed).Normals(rows, columns, 1), "bf16");
}

Matrix Constant(double value, int64_t rows = kRows, int64_t columns = kColumns) {
  return Matrix(rows, columns).Mapped([=](double) { return value; });
}

Matrix Times(const Matrix& values, double factor) {
  return values.Mapped([=](double v) { return v * factor; });
}

std::string SentenceOf(TensorCase of) {
  if (of.name.empty()) of.name = "y";
  const auto diagnosis = DiagnoseTensor(of, DiagnosisBudget::Unlimited());
  EXPECT_TRUE(diagnosis.ok()) << diagnosis.status();
  return diagnosis->sentence;
}

/// Of bf16 tensors.
std::string SentenceOf(const Matrix& expected, const Matrix& subject,
                       std::vector<NamedTensor> related = {}) {
  return SentenceOf({"",
                     TensorOfMatrix(expected, DType::kBF16),
                     TensorOfMatrix(subject, DType::kBF16),
                     std::move(related),
                     {}});
}

/// dw and main_grad of one weight.
std::string LayerSentenceOf(const TensorsByName& expected, const TensorsByName& subject,
                            TensorsByName operands = {}, TensorsByName main_grads = {}) {
  UnknownLayer model;
  LayerCase of;
  of.expected = expected;
  of.subject = subject;
  of.operands = std::move(operands);
  of.main_grads = std::move(main_grads);
  const auto diagnosis = DiagnoseLayer(of, model, DiagnosisBudget::Unlimited());
  EXPECT_TRUE(diagnosis.ok()) << diagnosis.status();
  return diagnosis->sentence;
}

TEST(FalseCausesTest, ARowInPlaceOfOthersIsNoPermutation) {
  const Matrix y = Drawn();
  Matrix broadcast = y;
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) broadcast(i, j) = y(3, j);
  }
  EXPECT_EQ(SentenceOf(y, broadcast), "y has row 3 of the expected in place of others");
  Matrix clamped = y;
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) clamped(i, j) = y(std::min(i + 1, kRows - 1), j);
  }
  EXPECT_EQ(SentenceOf(y, clamped),
            "y has rows of the expected in place of others, some more than once");
}

TEST(FalseCausesTest, FewValuesAreNoPermutation) {
  // Each column of the subject is found in the expected, and yet nothing was moved.
  Matrix y(1, kColumns), other(1, kColumns);
  for (int64_t j = 0; j < kColumns; ++j) {
    y(0, j) = j % 3 == 0 ? 1 : 0;
    other(0, j) = j % 2 == 0 ? 1 : 0;
  }
  EXPECT_THAT(SentenceOf(y, other), StartsWith("unknown"));
}

TEST(FalseCausesTest, RowsOfZerosAreNotThoseOfPadding) {
  Matrix y = Drawn(), found = y;
  for (int64_t j = 0; j < kColumns; ++j) y(kRows - 1, j) = found(kRows - 1, j) = 0;
  for (int64_t i = 8; i < 20; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) found(i, j) = 0;
  }
  EXPECT_EQ(SentenceOf(y, found), "y is 0 in rows 8 to 19");
}

TEST(FalseCausesTest, ZerosAreNotAnotherTensorThatIsZero) {
  const NamedTensor other{"the expected dx", TensorOfMatrix(Constant(0), DType::kBF16)};
  EXPECT_THAT(SentenceOf(Drawn(), Constant(0), {other}), StartsWith("y is 0 everywhere"));
}

TEST(FalseCausesTest, ConstantsAreNoEvidence) {
  const NamedTensor other{"dw", TensorOfMatrix(Constant(1), DType::kBF16)};
  EXPECT_THAT(SentenceOf(Constant(1), Constant(2), {other}),
              AllOf(HasSubstr("is twice the expected"), HasSubstr("has dw added once more"),
                    HasSubstr(kDoubt)));
  EXPECT_THAT(SentenceOf(Constant(1), Constant(-1)), HasSubstr(kDoubt));
  EXPECT_THAT(SentenceOf(Constant(3, 1, 1), Constant(4.5, 1, 1)), HasSubstr(kDoubt));
  const NamedTensor one{"dx", TensorOfMatrix(Constant(4, 1, 1), DType::kBF16)};
  EXPECT_THAT(SentenceOf(Constant(3, 1, 1), Constant(4, 1, 1), {one}), HasSubstr(kDoubt));
}

TEST(FalseCausesTest, AConstantUnderAnotherShapeMayBeTransposedOrNot) {
  const auto sentence = [](double value) {
    return SentenceOf({"",
                       TensorOfMatrix(Constant(value, 4, 6), DType::kBF16),
                       TensorOfMatrix(Constant(value, 6, 4), DType::kF32),
                       {},
                       {}});
  };
  EXPECT_THAT(sentence(1), AllOf(HasSubstr(" or "), HasSubstr(kDoubt)));
  EXPECT_THAT(sentence(kNan), AllOf(HasSubstr(" or "), HasSubstr(kDoubt)));
  // The same bytes.
  EXPECT_THAT(SentenceOf(Constant(1, 4, 6), Constant(1, 6, 4)),
              HasSubstr("or is transposed, which is the same here"));
  const Matrix row = Drawn(7, 1, 6);
  EXPECT_THAT(SentenceOf(row, row.Transposed()),
              HasSubstr("or is transposed, which is the same here"));
}

TEST(FalseCausesTest, ASecondCauseIsNotCalledRounding) {
  // Twice the expected, and a bias of 2^-13 of it: far more than f32 rounds off.
  const Matrix y = Rounded(Draw(7).Normals(kRows, kColumns, 1), "f32");
  Matrix found = Times(y, 2);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) found(i, j) += 0x1p-13 * (1 + j % 5);
  }
  found = Rounded(found, "f32");
  const std::string sentence =
      SentenceOf({"", TensorOfMatrix(y, DType::kF32), TensorOfMatrix(found, DType::kF32), {}, {}});
  EXPECT_THAT(sentence, Not(HasSubstr("rounding")));
  EXPECT_THAT(sentence, AnyOf(StartsWith("unknown"), HasSubstr("of the difference")));
}

TEST(FalseCausesTest, OneCodeFurtherEverywhereIsNotCalledRounding) {
  // A factor of 1 + 2^-8 is no rounding.
  Tensor codes = TensorOfMatrix(Drawn(), DType::kBF16);
  const Tensor y = TensorOfMatrix(Drawn(), DType::kBF16);
  for (int64_t i = 0; i < codes.element_count(); ++i) ++codes.as<uint16_t>()[i];
  EXPECT_EQ(SentenceOf({"", y, codes, {}, {}}), "y differs by 1 ulp in 1,536 of 1,536 elements");
}

TEST(FalseCausesTest, NearlyACauseCountsWhatItDoesNotGive) {
  const Matrix y = Drawn();
  const auto twice_but = [&](int64_t count) {
    Matrix found = Times(y, 2);
    for (int64_t i = 0; i < count; ++i) found.at[size_t(i * 31)] += 1;
    return SentenceOf(y, Rounded(found, "bf16"));
  };
  EXPECT_EQ(twice_but(5), "y is twice the expected but for 5 of 1,536 elements");
  EXPECT_THAT(twice_but(45), StartsWith("unknown"));
}

TEST(FalseCausesTest, TwoCausesAtOnceAreUnknown) {
  const Matrix y = Drawn(), square = Drawn(8, kRows, kRows);
  EXPECT_THAT(SentenceOf(square, Times(square.Transposed(), 2)), StartsWith("unknown"));
  Matrix moved = y;
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) moved(i, j) = -3 * y((i + 5) % kRows, j);
  }
  EXPECT_THAT(SentenceOf(y, Rounded(moved, "bf16")), StartsWith("unknown"));
  // Twice the expected, and something else added that is given nowhere.
  Matrix sum = Times(y, 2);
  const Matrix other = Drawn(99);
  for (size_t i = 0; i < sum.at.size(); ++i) sum.at[i] += other.at[i];
  EXPECT_THAT(SentenceOf(y, Rounded(sum, "bf16")), StartsWith("unknown"));
  EXPECT_EQ(SentenceOf(y, Times(y, -2)), "y is -2^1 times the expected");
}

TEST(FalseCausesTest, WhatHasNoRuleIsUnknown) {
  const Matrix y = Drawn();
  Matrix one = y;
  one(4, 7) += 1;
  EXPECT_THAT(SentenceOf(y, Rounded(one, "bf16")),
              AllOf(StartsWith("unknown"), HasSubstr("1 of 1,536 elements differs")));
  Matrix swapped = y;
  std::swap(swapped(3, 5), swapped(9, 40));
  EXPECT_THAT(SentenceOf(y, swapped), StartsWith("unknown"));
  EXPECT_THAT(SentenceOf(y, Constant(kNan)), StartsWith("unknown"));
  int count = 0;
  const Matrix noisy =
      Rounded(y.Mapped([&](double v) { return v * (1 + (++count % 7 - 3) * 0.01); }), "bf16");
  EXPECT_THAT(SentenceOf(y, noisy), StartsWith("unknown"));
  const Matrix clipped = y.Mapped([](double v) { return std::min(1.0, std::max(-1.0, v)); });
  EXPECT_THAT(SentenceOf(y, clipped), StartsWith("unknown"));
  const Matrix absolute = y.Mapped([](double v) { return std::abs(v); });
  EXPECT_THAT(SentenceOf(y, absolute), StartsWith("unknown"));
}

TEST(FalseCausesTest, TensorsThatAreEqualAreNamedTogether) {
  const Matrix other = Drawn(99);
  const NamedTensor dx{"dx", TensorOfMatrix(other, DType::kBF16)},
      x{"x", TensorOfMatrix(other, DType::kBF16)};
  EXPECT_EQ(SentenceOf(Drawn(), other, {dx, x}), "y is dx, or is x");
}

TEST(FalseCausesTest, ANanOfABiasIsNoneOfItsGradient) {
  Matrix db = Drawn(7, 1, kColumns), found = db, bias = Drawn(8, 1, kColumns);
  found(0, 4) = bias(0, 9) = kNan;
  TensorCase of{"db",
                TensorOfMatrix(db, DType::kBF16, true),
                TensorOfMatrix(found, DType::kBF16, true),
                {},
                {}};
  of.inputs = {{"bias", TensorOfMatrix(bias, DType::kBF16, true)}};
  EXPECT_THAT(SentenceOf(of), StartsWith("unknown"));
}

TEST(FalseCausesTest, WaysToTheSameMainGradientAreNamedTogether) {
  // What was there before is the gradient itself: that of a step that was repeated.
  const Matrix dw = Drawn();
  const TensorsByName expected = {{"dw", TensorOfMatrix(dw, DType::kBF16)},
                                  {"main_grad", TensorOfMatrix(Times(dw, 2), DType::kF32)}};
  TensorsByName found = expected;
  found["main_grad"] = TensorOfMatrix(dw, DType::kF32);
  EXPECT_EQ(
      LayerSentenceOf(expected, found, {}, {{"weight", TensorOfMatrix(dw, DType::kF32)}}),
      "main_grad is overwritten by the gradient in place of accumulated into, or is as it was: "
      "no gradient was accumulated");
}

TEST(FalseCausesTest, OneOutputOfAGemmIsNoEvidence) {
  GemmDesc desc;
  desc.a.data = TensorOfMatrix(Drawn(1, 1, 64), DType::kBF16);
  desc.b.data = TensorOfMatrix(Drawn(2, 1, 64), DType::kBF16);
  desc.bias = TensorOfMatrix(Constant(0.75, 1, 1), DType::kBF16, true);
  desc.out_dtype = DType::kBF16;
  desc.arithmetic = Arithmetic{ArithmeticFamily::kFp32};
  const Matrix product = Product(Drawn(1, 1, 64), Drawn(2, 1, 64));
  const auto diagnosis = DiagnoseGemm(desc, TensorOfMatrix(Rounded(product, "bf16"), DType::kBF16),
                                      DiagnosisBudget::Unlimited());
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_THAT(diagnosis->sentence, AllOf(HasSubstr("the bias is missing"), HasSubstr(kDoubt)));
}

TEST(FalseCausesTest, ASampleOfAGemmIsSaidToBeOne) {
  // Every output lacks the bias, but not all of them are looked at.
  constexpr int64_t kK = 4096, kSide = 64;
  const Matrix a = Drawn(1, kSide, kK), b = Drawn(2, kSide, kK);
  GemmDesc desc;
  desc.a.data = TensorOfMatrix(a, DType::kBF16);
  desc.b.data = TensorOfMatrix(b, DType::kBF16);
  desc.bias = TensorOfMatrix(Times(Drawn(3, 1, kSide), 64), DType::kBF16, true);
  desc.out_dtype = DType::kBF16;
  desc.arithmetic = Arithmetic{ArithmeticFamily::kFp32};
  const auto diagnosis =
      DiagnoseGemm(desc, TensorOfMatrix(Rounded(Product(a, b), "bf16"), DType::kBF16),
                   DiagnosisBudget::Unlimited());
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_EQ(diagnosis->sentence,
            "the bias is missing, in the 1,024 of 4,096 outputs that were looked at");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
