// Each mutant of a GEMM (tests/data/mutants.json) has a diagnosis that names its cause, and those
// that nothing has a rule for have none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/validate/diagnosis/gemm_hypotheses.h"
#include "kernels/validate/explain/explain_gemm.h"
#include "tests/validate/diagnosis/mutants.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// The words that name a cause with its parameters.
std::string WordsOf(const std::string& maker, const nlohmann::json& p) {
  const auto elements = [](int count) {
    return count == 1 ? std::string("element") : absl::StrCat(count, " elements");
  };
  const std::string operand = p.value("operand", "");
  if (maker == "partial_sums_in_bf16") {
    return absl::StrCat("partial sums are kept in bf16, each over ", p["length"].get<int>());
  }
  if (maker == "rounded_slices") {
    return absl::StrCat("split-K results are rounded to bf16 before they are added: ",
                        p["slices"].get<int>());
  }
  if (maker == "other_operands_scale") {
    return absl::StrCat(operand, " has the scale of ", operand == "a" ? "b" : "a");
  }
  if (maker == "scale_twice") return absl::StrCat("the scale of ", operand, " is applied twice");
  if (maker == "scale_missing") return absl::StrCat("the scale of ", operand, " is not applied");
  if (maker == "missing_tail") {
    return absl::StrCat("the tail of K is missing: the last ", elements(p["tail"]));
  }
  if (maker == "repeated_stretch") {
    return absl::StrCat("a stretch of K is counted twice: the first ", elements(p["length"]));
  }
  if (maker == "wrong_alpha") {
    const std::string how = p["how"];
    return how == "missing" ? "alpha is missing"
           : how == "twice" ? "alpha is applied twice"
                            : "alpha is applied to the bias too";
  }
  if (maker == "wrong_beta") {
    return p["how"] == "missing" ? "beta: c is missing" : "beta: c is added without its factor";
  }
  if (maker == "wrong_bias") {
    return p["times"] == 0 ? "the bias is missing" : "the bias is added twice";
  }
  if (maker == "bias_along_m") return "the bias is added along the other dimension";
  if (maker == "transposed_result") return "the result is transposed";
  if (maker == "transposed_operand") return absl::StrCat("operand ", operand, " is transposed");
  if (maker == "read_as_another_format") {
    return absl::StrCat("the codes of ", operand, " were read as ",
                        p["element"].get<std::string>());
  }
  if (maker == "k_major_block_scales") {
    return absl::StrCat("the block scales of ", operand, " are read as if they lay K-major");
  }
  if (maker == "wrong_output_rounding") {
    return p["how"] == "truncated" ? "the output is truncated to bf16" : "to f16 first";
  }
  return absl::StrCat("rows of the result are those of a neighbour, ", p["by"].get<int>(),
                      " further on");
}

Diagnosis DiagnosisOf(const GemmMutant& mutant) {
  GemmDesc desc = mutant.desc;
  desc.out_dtype = mutant.out;
  desc.arithmetic = Arithmetic{ArithmeticFamily::kFp32};
  const auto diagnosis =
      DiagnoseGemm(desc, TensorOfMatrix(mutant.mutated, mutant.out), DiagnosisBudget::Unlimited());
  EXPECT_TRUE(diagnosis.ok()) << diagnosis.status();
  return *diagnosis;
}

TEST(GemmMutantsTest, EachCauseIsNamedAndNoneIsInvented) {
  int named = 0, with_cause = 0;
  for (const Mutant& mutant : MutantsOfKind("gemm")) {
    const Diagnosis diagnosis = DiagnosisOf(MakeGemmMutant(mutant));
    SCOPED_TRACE(absl::StrCat(mutant.name, " ", mutant.maker, " ", mutant.parameters.dump(), ": ",
                              diagnosis.sentence, "\n  ",
                              absl::StrJoin(diagnosis.figures, "\n  ")));
    if (mutant.cause == "none") {
      EXPECT_TRUE(diagnosis.is_unknown);
      continue;
    }
    ++with_cause;
    const bool is_named =
        !diagnosis.is_unknown &&
        absl::StrContains(diagnosis.sentence, WordsOf(mutant.maker, mutant.parameters));
    named += is_named;
    // A cause that is not named may be unknown, but not another one.
    EXPECT_TRUE(is_named || diagnosis.is_unknown);
    if (!is_named) std::cout << mutant.name << ": " << diagnosis.sentence << "\n";
  }
  EXPECT_EQ(with_cause, 50);
  EXPECT_GE(named, 48);
}

GemmDesc DescOf(const MutantsWithoutRule& of, const Mutant& mutant) {
  const auto tensor = [&](const std::string& part) {
    return *of.file.Find(absl::StrCat(mutant.name, ".", part));
  };
  GemmDesc desc;
  desc.alpha = mutant.input["alpha"];
  desc.beta = mutant.input["beta"];
  desc.bias = tensor("bias");
  if (desc.beta != 0) desc.c = tensor("c");
  for (const auto& [name, operand] : {std::pair("a", &desc.a), {"b", &desc.b}}) {
    operand->data = tensor(name);
    if (mutant.subject == "bf16") continue;
    operand->scale_inv = tensor(absl::StrCat(name, "_scale_inv"));
    operand->scaling = mutant.subject == "fp8"     ? ScaleMode::kTensor
                       : mutant.subject == "mxfp8" ? ScaleMode::kMx32
                                                   : ScaleMode::k1x128;
  }
  return desc;
}

/// Mistakes of kernels that no rule names: neither the diagnosis nor an arithmetic explains them.
TEST(GemmMutantsTest, WhatNoRuleNamesIsUnknown) {
  const MutantsWithoutRule of = MutantsWithoutRuleOfKind("gemm");
  ASSERT_EQ(of.mutants.size(), 18u) << "QUANTGATE_MUTANT_TENSORS names the file of them";
  for (const Mutant& mutant : of.mutants) {
    const Tensor d = *of.file.Find(mutant.name + ".d");
    GemmDesc desc = DescOf(of, mutant);
    desc.out_dtype = d.dtype();
    desc.arithmetic = Arithmetic{ArithmeticFamily::kFp32};
    const auto diagnosis = DiagnoseGemm(desc, d, DiagnosisBudget::Unlimited());
    ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
    // The operands are read as numpy has them: they give what d should be.
    const Tensor right = *of.file.Find(mutant.name + ".right");
    const auto of_right = DiagnoseGemm(desc, right, DiagnosisBudget::Unlimited());
    ASSERT_TRUE(of_right.ok()) << of_right.status();
    EXPECT_TRUE(absl::StrContains(of_right->sentence, "d has the exact product"))
        << mutant.name << ": " << of_right->sentence;
    EXPECT_TRUE(diagnosis->is_unknown) << mutant.name << " " << mutant.maker << " "
                                       << mutant.parameters << ": " << diagnosis->sentence;
    const auto explanation = ExplainGemm({desc, d}, {});
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    EXPECT_FALSE(explanation->is_established) << mutant.name << " " << mutant.maker;
  }
}

/// The operands give the right result, so that no mistake is found in it.
TEST(GemmMutantsTest, ARightResultHasNoMistake) {
  const std::vector<Mutant> mutants = MutantsOfKind("gemm");
  for (size_t i = 0; i < 8; ++i) {
    GemmMutant mutant = MakeGemmMutant(mutants[i]);
    mutant.mutated = mutant.right;
    EXPECT_TRUE(DiagnosisOf(mutant).is_unknown) << mutants[i].name;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
