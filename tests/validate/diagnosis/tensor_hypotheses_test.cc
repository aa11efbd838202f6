// Each hypothesis about two tensors is named where it is so, in the words that a user reads first;
// where nothing is so, the cause is unknown.
#include "kernels/validate/diagnosis/tensor_hypotheses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/validate/diagnosis/mutants.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kRows = 32, kColumns = 48;

Matrix Drawn(int64_t rows = kRows, int64_t columns = kColumns) {
  return Rounded(Draw(7).Normals(rows, columns, 1), "bf16");
}

Diagnosis DiagnosisOf(TensorCase of) {
  of.name = "y";
  const auto diagnosis = DiagnoseTensor(of, DiagnosisBudget::Unlimited());
  EXPECT_TRUE(diagnosis.ok()) << diagnosis.status();
  return *diagnosis;
}

/// Of bf16 tensors.
std::string SentenceOf(const Matrix& expected, const Matrix& subject,
                       std::vector<NamedTensor> related = {},
                       std::vector<NamedTensor> inputs = {}) {
  return DiagnosisOf({"", TensorOfMatrix(expected, DType::kBF16),
                      TensorOfMatrix(subject, DType::kBF16), std::move(related), std::move(inputs)})
      .sentence;
}

Matrix RowsOf(const Matrix& values, const std::function<int64_t(int64_t)>& from) {
  Matrix moved = values;
  for (int64_t i = 0; i < values.rows; ++i) {
    for (int64_t j = 0; j < values.columns; ++j) moved(i, j) = values(from(i), j);
  }
  return moved;
}

Matrix ColumnsOf(const Matrix& values, const std::function<int64_t(int64_t)>& from) {
  return RowsOf(values.Transposed(), from).Transposed();
}

Matrix PlusPerColumn(const Matrix& values, const Matrix& row, double factor) {
  Matrix sum = values;
  for (int64_t i = 0; i < values.rows; ++i) {
    for (int64_t j = 0; j < values.columns; ++j) sum(i, j) += factor * row(0, j);
  }
  return Rounded(sum, "bf16");
}

TEST(TensorHypothesesTest, FactorsAreNamed) {
  const Matrix y = Drawn();
  const auto scaled = [&](double factor) {
    return SentenceOf(y, Rounded(y.Mapped([=](double v) { return v * factor; }), "bf16"));
  };
  EXPECT_EQ(scaled(2), "y is twice the expected");
  EXPECT_EQ(scaled(0.5), "y is half the expected");
  EXPECT_EQ(scaled(1024), "y is 2^10 times the expected");
  EXPECT_THAT(scaled(1.0 / 3), StartsWith("y is 1/3 of the expected"));
  EXPECT_THAT(scaled(0.75), StartsWith("y is 0.75 times the expected"));
  EXPECT_THAT(scaled(3), StartsWith("y is 3 times the expected"));
  EXPECT_EQ(scaled(-1), "y is negated");
}

TEST(TensorHypothesesTest, TranspositionIsNamed) {
  const Matrix square = Drawn(kRows, kRows);
  EXPECT_EQ(SentenceOf(square, square.Transposed()), "y is transposed");
  const Matrix y = Drawn();
  EXPECT_EQ(SentenceOf(y, y.Transposed()), "y is transposed: 48x32 in place of 32x48");
  Matrix bytes = y.Transposed();
  std::swap(bytes.rows, bytes.columns);
  EXPECT_EQ(SentenceOf(y, bytes), "y has the elements of the transpose under its own shape");
  Matrix reshaped = y;
  std::swap(reshaped.rows, reshaped.columns);
  EXPECT_EQ(SentenceOf(y, reshaped),
            "y has the expected elements under another shape: 48x32 in place of 32x48");
}

TEST(TensorHypothesesTest, OrdersOfRowsAndColumnsAreNamed) {
  const Matrix y = Drawn();
  const auto rotated = [](int64_t from, int64_t by, int64_t size) {
    return [=](int64_t i) { return i < from ? i : from + (i - from + by) % (size - from); };
  };
  EXPECT_EQ(SentenceOf(y, RowsOf(y, rotated(12, 3, kRows))),
            "y has its rows permuted from row 12 on: row i is row i + 3 of the expected, rotated");
  EXPECT_EQ(SentenceOf(y, ColumnsOf(y, rotated(0, kColumns / 2, kColumns))),
            "y has the halves of its columns swapped, as of a gated activation");
  EXPECT_EQ(SentenceOf(y, RowsOf(y, [](int64_t i) { return kRows - 1 - i; })),
            "y has its rows reversed");
  EXPECT_EQ(SentenceOf(y, RowsOf(y, [](int64_t i) { return i < 8 ? i : i ^ 1; })),
            "y has its rows permuted from row 8 on");
  // Rounded differently on the way, rows are found by their nearest.
  int count = 0;
  const Matrix noisy =
      Rounded(y.Mapped([&](double v) { return ++count % 2 == 0 ? v : v * (1 + 0x1p-8); }), "bf16");
  EXPECT_EQ(SentenceOf(y, RowsOf(noisy, rotated(0, 5, kRows))),
            "y has its rows permuted: row i is row i + 5 of the expected, rotated within rounding");
}

TEST(TensorHypothesesTest, BiasesAreNamed) {
  const Matrix y = Drawn(), bias = Rounded(Draw(8).Normals(1, kColumns, 0.5), "bf16");
  const NamedTensor given = {"fc1.bias", TensorOfMatrix(bias, DType::kBF16, true)};
  EXPECT_THAT(SentenceOf(y, PlusPerColumn(y, bias, -1), {given}),
              StartsWith("y lacks the bias: the difference is fc1.bias (bias missing)"));
  EXPECT_THAT(SentenceOf(y, PlusPerColumn(y, bias, 1), {given}),
              StartsWith("y has the bias twice: the difference is fc1.bias (bias added twice)"));
  EXPECT_THAT(SentenceOf(y, PlusPerColumn(y, bias, 1)),
              StartsWith("y differs by a constant per column"));
  const Matrix other = Rounded(Draw(8).Normals(1, kRows, 0.5), "bf16");
  EXPECT_THAT(SentenceOf(y, PlusPerColumn(y.Transposed(), other, 1).Transposed()),
              StartsWith("y differs by a constant per row"));
}

TEST(TensorHypothesesTest, OtherTensorsAreNamed) {
  const Matrix y = Drawn(), dw = Rounded(Draw(9).Normals(kRows, kColumns, 1), "bf16");
  const NamedTensor given = {"dw", TensorOfMatrix(dw, DType::kBF16)};
  EXPECT_EQ(SentenceOf(y, dw, {given}), "y is dw");
  Matrix sum = y;
  for (size_t i = 0; i < sum.at.size(); ++i) sum.at[i] += dw.at[i];
  EXPECT_EQ(SentenceOf(y, Rounded(sum, "bf16"), {given}), "y has dw added once more");
}

TEST(TensorHypothesesTest, ZerosAreNamed) {
  const Matrix y = Drawn();
  Matrix zero = y;
  for (int64_t i = 20; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) zero(i, j) = 0;
  }
  EXPECT_EQ(SentenceOf(y, zero), "y is 0 in rows from 20 on");
}

TEST(TensorHypothesesTest, RoundingsAreNamed) {
  const Matrix y = Rounded(Draw(7).Normals(kRows, kColumns, 1), "f32");
  const auto sentence = [&](const Matrix& subject, DType dtype) {
    return DiagnosisOf({"", TensorOfMatrix(y, DType::kF32), TensorOfMatrix(subject, dtype), {}, {}})
        .sentence;
  };
  EXPECT_EQ(sentence(Rounded(y, "bf16"), DType::kF32), "y is the expected rounded to bf16");
  EXPECT_EQ(sentence(Rounded(y, "bf16"), DType::kBF16), "y is the expected rounded to bf16");
  EXPECT_EQ(sentence(Rounded(y, "f16"), DType::kF32), "y is the expected rounded to f16");
}

TEST(TensorHypothesesTest, BitsByThemselvesAreNamed) {
  Matrix y = Drawn();
  y.at[5] = 0;
  Matrix signs = y;
  signs.at[5] = -0.0;
  EXPECT_EQ(SentenceOf(y, signs), "y differs in the sign of 1 zeros only");
  // One code further away from zero.
  Tensor codes = TensorOfMatrix(y, DType::kBF16);
  for (int i = 100; i < 110; ++i) ++codes.as<uint16_t>()[i];
  EXPECT_EQ(DiagnosisOf({"", TensorOfMatrix(y, DType::kBF16), codes, {}, {}}).sentence,
            "y differs by 1 ulp in 10 of 1,536 elements");
}

TEST(TensorHypothesesTest, BytesReadAsAnotherTypeAreNamed) {
  const Tensor codes = TensorOfMatrix(Drawn(), DType::kF8E4M3);
  const Tensor bytes = *codes.Reinterpret(DType::kU8, codes.shape());
  EXPECT_EQ(DiagnosisOf({"", codes, bytes, {}, {}}).sentence,
            "y has the expected bytes, read as u8 in place of f8_e4m3");
  EXPECT_EQ(
      DiagnosisOf({"", codes, *codes.Reinterpret(DType::kF8E5M2, codes.shape()), {}, {}}).sentence,
      "y has the expected bytes, read as f8_e5m2 in place of f8_e4m3");
}

TEST(TensorHypothesesTest, NanOfAnInputIsNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Matrix y = Drawn();
  Matrix x = Drawn(kRows, 16), found = y;
  for (int64_t k = 0; k < 3; ++k) x(4, k) = nan;
  for (int64_t j = 0; j < kColumns; ++j) found(4, j) = nan;
  EXPECT_EQ(SentenceOf(y, found, {}, {{"x", TensorOfMatrix(x, DType::kBF16)}}),
            "y has 48 NaN: 3 NaN in x, so 48 in y");
  EXPECT_EQ(SentenceOf(found, y, {}, {{"x", TensorOfMatrix(x, DType::kBF16)}}),
            "y has numbers where NaN are expected: 3 NaN in x, so 48 in the expected y");
}

TEST(TensorHypothesesTest, WhatHasNoRuleIsUnknown) {
  const Matrix y = Drawn();
  const Matrix other = Rounded(Draw(99).Normals(kRows, kColumns, 1), "bf16");
  const std::string sentence = SentenceOf(y, other);
  EXPECT_THAT(sentence, StartsWith("unknown: nothing that was tried gives y"));
  // A part of the way to twice the expected is not twice the expected.
  Matrix half_way = y.Mapped([](double v) { return 2 * v; });
  for (size_t i = 0; i < half_way.at.size(); i += 2) half_way.at[i] = other.at[i];
  EXPECT_THAT(SentenceOf(y, half_way), StartsWith("unknown"));
  // Where the wrong elements lie is told, and is no cause.
  Matrix block = y;
  for (int64_t i = 20; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) block(i, j) = other(i, j);
  }
  EXPECT_THAT(SentenceOf(y, block), AllOf(StartsWith("unknown"), HasSubstr("rows from 20 on")));
}

TEST(TensorHypothesesTest, ASpentBudgetSaysWhatWasNotTried) {
  const Matrix y = Drawn();
  const Matrix other = Rounded(Draw(99).Normals(kRows, kColumns, 1), "bf16");
  TensorCase of{"y", TensorOfMatrix(y, DType::kBF16), TensorOfMatrix(other, DType::kBF16), {}, {}};
  const auto diagnosis = DiagnoseTensor(of, DiagnosisBudget::Of(absl::Seconds(-1)));
  ASSERT_TRUE(diagnosis.ok());
  EXPECT_TRUE(diagnosis->is_unknown);
  EXPECT_THAT(diagnosis->not_tried, ::testing::Contains("transposed (no time)"));
}

/// The clock ticks with each look.
TEST(TensorHypothesesTest, EachHypothesisIsTriedOrListed) {
  const Matrix y = Drawn();
  const Matrix other = Rounded(Draw(99).Normals(kRows, kColumns, 1), "bf16");
  const TensorCase of{
      "y", TensorOfMatrix(y, DType::kBF16), TensorOfMatrix(other, DType::kBF16), {}, {}};
  const auto findings_after = [&](int looks) {
    int ticks = 0;
    const auto findings = FindCause(of, DiagnosisBudget::Of(absl::Seconds(looks), [&] {
                                      return absl::UnixEpoch() + absl::Seconds(ticks++);
                                    }));
    EXPECT_TRUE(findings.ok()) << findings.status();
    return *findings;
  };
  const TensorFindings all = findings_after(1000);
  EXPECT_TRUE(all.not_tried.empty());
  for (int looks = 0; looks < 30; ++looks) {
    const TensorFindings some = findings_after(looks);
    EXPECT_EQ(some.tried.size() + some.not_tried.size(), all.tried.size()) << looks;
    // A look at the clock before each hypothesis that is held against all elements.
    EXPECT_LE(some.whole_fits, looks) << looks;
  }
  EXPECT_EQ(findings_after(0).tried.size(), 1u);
}

/// What a large tensor costs: hardly a hypothesis that does not fit is held against all of it.
TEST(TensorHypothesesTest, FewPlacesRefuteMostHypotheses) {
  const Matrix y = Drawn(256, 256), other = Rounded(Draw(99).Normals(256, 256, 1), "bf16");
  const NamedTensor related{
      "dx", TensorOfMatrix(Rounded(Draw(98).Normals(256, 256, 1), "bf16"), DType::kBF16)};
  const auto findings = [&](const Matrix& subject) {
    const auto found = FindCause({"y",
                                  TensorOfMatrix(y, DType::kBF16),
                                  TensorOfMatrix(subject, DType::kBF16),
                                  {related},
                                  {}},
                                 DiagnosisBudget::Unlimited());
    EXPECT_TRUE(found.ok()) << found.status();
    return *found;
  };
  // Where differences are largest, the other tensor looks a little as if it were negated.
  EXPECT_LE(findings(other).whole_fits, 1);
  const TensorFindings twice = findings(y.Mapped([](double v) { return 2 * v; }));
  EXPECT_EQ(twice.cause->predicate, "is twice the expected");
  EXPECT_EQ(twice.whole_fits, 1);
  // What is wrong in the largest differences alone is not refuted by them.
  Matrix spoilt = y.Mapped([](double v) { return 2 * v; });
  for (size_t i = 0; i < spoilt.at.size(); i += 128) spoilt.at[i] = 1024;
  EXPECT_EQ(findings(spoilt).cause->Text(), "is twice the expected but for 512 of 65,536 elements");
  EXPECT_EQ(findings(y.Transposed()).cause->Text(), "is transposed");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
