// Verdicts over hand-made reports: criterion, threshold, where it comes from, finding.
#include "kernels/validate/run/verdict.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

OutputReport Output(const std::string& tensor) {
  OutputReport output;
  output.tensor = tensor;
  output.value = FromValues(DType::kBF16, {2, 2}, {1, 2, 3, 4});
  output.against_exact.tensor = tensor;
  output.against_exact.reference = "exact";
  output.against_exact.parity.equal = true;
  output.against_exact.parity.element_count = 4;
  return output;
}

TensorComparison Against(const std::string& reference, const std::string& tensor, bool equal) {
  TensorComparison comparison;
  comparison.tensor = tensor;
  comparison.reference = reference;
  comparison.parity.equal = equal;
  comparison.parity.element_count = 4;
  if (!equal) {
    comparison.parity.mismatch_count = 3;
    comparison.parity.first.coordinate = {0, 1};
  }
  return comparison;
}

std::vector<VariantReport> TwoVariants() {
  std::vector<VariantReport> variants(2);
  variants[0].label = "L0";
  variants[1].label = "L1";
  for (VariantReport& variant : variants) {
    variant.outputs.push_back(Output("y"));
    variant.outputs.push_back(Output("dx"));
  }
  variants[1].against_reference = {Against("L0", "y", true), Against("L0", "dx", true)};
  return variants;
}

BoundCheck Check(bool pass, double ratio) {
  BoundCheck check;
  check.pass = pass;
  check.violation_count = pass ? 0 : 2;
  check.worst_ratio = ratio;
  check.bound.factor = 0.5;
  check.bound.derivation = "1 step";
  return check;
}

TEST(Verdict, WithoutARequirementInforms) {
  std::vector<VariantReport> variants = TwoVariants();
  variants[1].against_reference[0].parity.equal = false;
  variants[1].outputs[0].bound = Check(false, 3);
  const Verdict verdict = JudgeRun(Requirement::kNone, 0, variants);
  EXPECT_TRUE(verdict.pass);
  EXPECT_EQ(verdict.criterion, Requirement::kNone);
  EXPECT_EQ(verdict.source, "nothing was required of this run");
}

TEST(Verdict, BitwisePassesOnEqualBits) {
  const Verdict verdict = JudgeRun(Requirement::kBitwise, 0, TwoVariants());
  EXPECT_TRUE(verdict.pass);
  EXPECT_EQ(verdict.criterion, Requirement::kBitwise);
  EXPECT_EQ(verdict.threshold, "0 differing elements");
  EXPECT_EQ(verdict.found, "0");
  EXPECT_EQ(verdict.non_finite, "");
  EXPECT_EQ(verdict.source, "the outputs of L0");
  EXPECT_EQ(verdict.finding, "all 2 outputs have the bits of L0");
}

TEST(Verdict, BitwiseNamesTheFirstDifference) {
  std::vector<VariantReport> variants = TwoVariants();
  variants[1].against_reference[1] = Against("L0", "dx", false);
  Verdict verdict = JudgeRun(Requirement::kBitwise, 0, variants);
  EXPECT_FALSE(verdict.pass);
  EXPECT_EQ(verdict.finding, "dx of L1 differs from L0 in 3 of 4 elements, first at (0, 1)");
  variants[1].against_reference[0] = Against("L0", "y", false);
  verdict = JudgeRun(Requirement::kBitwise, 0, variants);
  EXPECT_EQ(verdict.finding,
            "y of L1 differs from L0 in 3 of 4 elements, first at (0, 1); and 1 more of 2 outputs");
  EXPECT_EQ(verdict.found, "3 in y of L1, 3 in dx of L1");
}

TEST(Verdict, BitwiseFailsWhereDTypesDiffer) {
  std::vector<VariantReport> variants = TwoVariants();
  variants[1].outputs[0].value = FromValues(DType::kF32, {2, 2}, {1, 2, 3, 4});
  variants[1].against_reference.erase(variants[1].against_reference.begin());
  const Verdict verdict = JudgeRun(Requirement::kBitwise, 0, variants);
  EXPECT_FALSE(verdict.pass);
  EXPECT_EQ(verdict.finding, "y of L1 is f32[2x2], and L0 has bf16[2x2]");
}

TEST(Verdict, BitwiseWithoutAReferenceMeansExact) {
  std::vector<VariantReport> variants = TwoVariants();
  Verdict verdict = JudgeRun(Requirement::kBitwise, std::nullopt, variants);
  EXPECT_TRUE(verdict.pass);
  EXPECT_EQ(verdict.finding, "all 4 outputs have the bits of exact");
  variants[0].outputs[1].against_exact = Against("exact", "dx", false);
  verdict = JudgeRun(Requirement::kBitwise, std::nullopt, variants);
  EXPECT_FALSE(verdict.pass);
  EXPECT_EQ(verdict.finding, "dx of L0 differs from exact in 3 of 4 elements, first at (0, 1)");
}

TEST(Verdict, BoundStatesTheGemmNearestToItsOwn) {
  std::vector<VariantReport> variants = TwoVariants();
  variants[0].outputs[0].bound = Check(true, 0.25);
  variants[1].outputs[1].bound = Check(true, 0.75);
  const Verdict verdict = JudgeRun(Requirement::kBound, std::nullopt, variants);
  EXPECT_TRUE(verdict.pass);
  EXPECT_EQ(verdict.threshold,
            "|error| <= 0.5 x sum|a||b| + the epilogue's roundings + half an ulp of the output");
  EXPECT_EQ(verdict.source, "dx of L1: 1 step");
  EXPECT_EQ(
      verdict.finding,
      "all 2 outputs lie within their bounds; nearest: dx of L1 at 0.75 of its bound; without "
      "a bound: dx of L0, y of L1");
}

TEST(Verdict, BoundOfAnOperationIsInItsDerivation) {
  std::vector<VariantReport> variants = TwoVariants();
  variants[0].outputs[0].bound = Check(true, 0.5);
  variants[0].outputs[0].bound->bound = {0, 0, "9 levels"};
  const Verdict verdict = JudgeRun(Requirement::kBound, std::nullopt, variants);
  EXPECT_EQ(verdict.threshold, "|error| <= its own fp32 roundings + half an ulp of the output");
  EXPECT_EQ(verdict.source, "y of L0: 9 levels");
}

TEST(Verdict, IntermediatesAreJudgedAgainstExactAndNotAgainstAVariant) {
  std::vector<VariantReport> variants = TwoVariants();
  for (VariantReport& variant : variants) {
    variant.outputs.push_back(Output("fc1.y"));
    variant.outputs.back().is_intermediate = true;
  }
  variants[1].against_reference.push_back(Against("L0", "fc1.y", false));
  Verdict verdict = JudgeRun(Requirement::kBitwise, 0, variants);
  EXPECT_TRUE(verdict.pass) << verdict.finding;
  EXPECT_EQ(verdict.finding, "all 2 outputs have the bits of L0");
  variants[0].outputs.pop_back();  // One recipe rounds where the other does not.
  EXPECT_TRUE(JudgeRun(Requirement::kBitwise, 0, variants).pass);
  variants[1].outputs[2].against_exact = Against("exact", "fc1.y", false);
  verdict = JudgeRun(Requirement::kBitwise, std::nullopt, variants);
  EXPECT_FALSE(verdict.pass);
  EXPECT_EQ(verdict.finding, "fc1.y of L1 differs from exact in 3 of 4 elements, first at (0, 1)");
  variants[1].outputs[2].bound = Check(false, 2);
  EXPECT_FALSE(JudgeRun(Requirement::kBound, std::nullopt, variants).pass);
}

TEST(Verdict, BoundNamesTheFirstViolation) {
  std::vector<VariantReport> variants = TwoVariants();
  variants[0].outputs[0].bound = Check(true, 0.25);
  variants[1].outputs[0].bound = Check(false, 1.5);
  const Verdict verdict = JudgeRun(Requirement::kBound, std::nullopt, variants);
  EXPECT_FALSE(verdict.pass);
  EXPECT_EQ(verdict.finding, "y of L1 leaves its bound in 2 of 4 elements, by up to 1.5 times");
  EXPECT_EQ(verdict.found, "2 beyond it in y of L1");
}

TEST(Verdict, ABoundThatNoOutputHasIsNotKept) {
  Verdict verdict = JudgeRun(Requirement::kBound, std::nullopt, TwoVariants());
  EXPECT_FALSE(verdict.pass);
  EXPECT_EQ(verdict.finding, "no output of this run has a bound to keep");
  EXPECT_EQ(verdict.found, "nothing to judge");
  verdict = JudgeRun(Requirement::kBound, std::nullopt, {});
  EXPECT_FALSE(verdict.pass);
}

// Its bound is half an ulp: another number than the right one is beyond it.
TEST(Verdict, TheBoundOfExactIsItsOneRounding) {
  std::vector<VariantReport> variants = TwoVariants();
  variants[0].outputs[0].bound = Check(false, 2);
  variants[0].outputs[0].bound->bound = {0, 0, kCorrectlyRounded};
  const Verdict verdict = JudgeRun(Requirement::kBound, std::nullopt, variants);
  EXPECT_FALSE(verdict.pass);
  EXPECT_EQ(verdict.threshold, "|error| <= half an ulp of the output");
  EXPECT_EQ(verdict.source, "y of L0: correctly rounded");
}

/// Elements of the subject's class where exact has its own.
int64_t& Confusion(OutputReport& output, ValueClass subject, ValueClass exact) {
  return output.against_exact.parity
      .class_confusion[static_cast<int>(subject)][static_cast<int>(exact)];
}

// 5.15e37 times 2^-150 is an error of 3.6e-8: the bound is no scale to measure that by.
TEST(Verdict, ABoundNextToZeroIsSaid) {
  std::vector<VariantReport> variants = TwoVariants();
  variants[1].outputs[0].bound = Check(false, 5.15e37);
  Confusion(variants[1].outputs[0], ValueClass::kPositive, ValueClass::kPositiveZero) = 1;
  Confusion(variants[1].outputs[0], ValueClass::kNegative, ValueClass::kNegativeZero) = 1;
  Confusion(variants[1].outputs[0], ValueClass::kPositive, ValueClass::kPositive) = 2;
  const Verdict verdict = JudgeRun(Requirement::kBound, std::nullopt, variants);
  EXPECT_EQ(verdict.finding,
            "y of L1 leaves its bound in 2 of 4 elements, by more than 2^64 times: the bound is "
            "next to 0 where all that is added up is 0, and 2 are not 0 where exact is");
  EXPECT_EQ(verdict.found, "2 beyond it in y of L1");
}

// A NaN passes where exact has one; the verdict says how many did, and whether they came in.
TEST(Verdict, CountsWhatIsNotFinite) {
  std::vector<VariantReport> variants = TwoVariants();
  for (VariantReport& variant : variants) {
    for (OutputReport& output : variant.outputs) output.bound = Check(true, 0.5);
  }
  OutputReport& y = variants[1].outputs[0];
  Confusion(y, ValueClass::kNan, ValueClass::kNan) = 2;
  Confusion(y, ValueClass::kPositiveInfinity, ValueClass::kPositive) = 1;
  Confusion(y, ValueClass::kPositive, ValueClass::kPositive) = 1;
  OutputReport& dx = variants[1].outputs[1];
  Confusion(dx, ValueClass::kNan, ValueClass::kNan) = 4;
  for (const Requirement requirement :
       {Requirement::kBound, Requirement::kBitwise, Requirement::kNone}) {
    const Verdict verdict =
        JudgeRun(requirement, std::nullopt, variants, {{"x", 2, 0}, {"parameters[weight]", 0, 0}});
    EXPECT_TRUE(verdict.pass);
    EXPECT_EQ(verdict.non_finite,
              "y of L1: 2 NaN and 1 infinite of 4 elements, exact has 2 of them too; dx of L1: 4 "
              "NaN of 4 elements, exact has all of them too");
    EXPECT_EQ(verdict.non_finite_inputs, "x has 2 NaN");
  }
  EXPECT_EQ(JudgeRun(Requirement::kBound, 0, variants).found,
            "0 beyond it, not finite: 6 NaN and 1 infinite, in exact 6 NaN");
  EXPECT_EQ(JudgeRun(Requirement::kBound, 0, variants, {{"x", 0, 0}}).non_finite_inputs,
            "no input has any");
}

// Quantization saturates an infinity of x: the outputs are finite, and the verdict still says so.
TEST(Verdict, NamesInputsThatNoOutputShows) {
  const std::vector<VariantReport> variants = TwoVariants();
  ASSERT_FALSE(HasNonFinite(variants));
  for (const Requirement requirement : {Requirement::kBound, Requirement::kNone}) {
    const Verdict verdict =
        JudgeRun(requirement, std::nullopt, variants, {{"x", 0, 1}, {"parameters[weight]", 0, 0}});
    EXPECT_EQ(verdict.non_finite, "");
    EXPECT_EQ(verdict.non_finite_inputs, "x has 1 infinite");
  }
  EXPECT_EQ(JudgeRun(Requirement::kBound, 0, variants, {{"x", 0, 0}}).non_finite_inputs, "");
}

// A number where exact has a NaN is no less to be seen than a NaN where exact has a number.
TEST(Verdict, CountsWhatIsNotFiniteInExactAlone) {
  std::vector<VariantReport> variants = TwoVariants();
  variants[0].outputs[1].bound = Check(true, 0.5);
  OutputReport& y = variants[1].outputs[0];
  y.bound = Check(false, std::numeric_limits<double>::infinity());
  Confusion(y, ValueClass::kPositive, ValueClass::kNan) = 2;
  Confusion(y, ValueClass::kNegative, ValueClass::kPositiveInfinity) = 1;
  EXPECT_TRUE(HasNonFinite(variants));
  Verdict verdict = JudgeRun(Requirement::kBound, std::nullopt, variants, {{"x", 1, 0}});
  EXPECT_FALSE(verdict.pass);
  EXPECT_EQ(verdict.found,
            "2 beyond it in y of L1, not finite: none, in exact 2 NaN and 1 infinite");
  EXPECT_EQ(verdict.finding,
            "y of L1 leaves its bound in 2 of 4 elements, not finite: none, in exact 2 NaN and 1 "
            "infinite, where both must have the same");
  EXPECT_EQ(verdict.non_finite, "y of L1: none of 4 elements, exact has 2 NaN and 1 infinite");
  EXPECT_EQ(verdict.non_finite_inputs, "x has 1 NaN");
  // Of its own and of exact's; the same infinity is shared, another is not.
  Confusion(y, ValueClass::kNan, ValueClass::kNan) = 1;
  Confusion(y, ValueClass::kNegativeInfinity, ValueClass::kPositiveInfinity) = 1;
  y.bound.reset();
  y.against_exact.parity.equal = false;
  verdict = JudgeRun(Requirement::kBitwise, std::nullopt, variants);
  EXPECT_FALSE(verdict.pass);
  EXPECT_EQ(verdict.non_finite,
            "y of L1: 1 NaN and 1 infinite of 4 elements, exact has 1 of them too and 2 NaN and 2 "
            "infinite more");
  EXPECT_TRUE(absl::StrContains(
      verdict.found, ", not finite: 1 NaN and 1 infinite, in exact 3 NaN and 2 infinite"))
      << verdict.found;
}

// The reported rank's bits may be right: what another rank has then is not.
TEST(Verdict, RanksThatDisagreeMeetNoRequirement) {
  std::vector<VariantReport> variants = TwoVariants();
  for (VariantReport& variant : variants) {
    for (OutputReport& output : variant.outputs) output.bound = Check(true, 0.5);
  }
  const auto judge = [&](Requirement requirement, std::optional<int> reference) {
    return JudgeRun(requirement, reference, variants);
  };
  EXPECT_TRUE(judge(Requirement::kBitwise, 0).pass);
  EXPECT_TRUE(judge(Requirement::kBitwise, std::nullopt).pass);
  EXPECT_TRUE(judge(Requirement::kBound, 0).pass);
  variants[1].outputs[1].rank_difference = "rank 2's differs from rank 0's";
  for (const Verdict& verdict :
       {judge(Requirement::kBitwise, 0), judge(Requirement::kBitwise, std::nullopt),
        judge(Requirement::kBound, 0)}) {
    EXPECT_FALSE(verdict.pass);
    EXPECT_EQ(verdict.finding, "dx of L1: rank 2's differs from rank 0's");
  }
  for (VariantReport& variant : variants) {
    for (OutputReport& output : variant.outputs) output.bound.reset();
  }
  EXPECT_FALSE(judge(Requirement::kBound, 0).pass);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
