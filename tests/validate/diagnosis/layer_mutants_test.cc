// Each mutant of a layer (tests/data/mutants.json) has a diagnosis that names its cause, and those
// that nothing has a rule for have none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/validate/diagnosis/layer_hypotheses.h"
#include "tests/validate/diagnosis/mutants.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// The layer of the mutants, in binary64.
class ActivatedLinear : public LayerModel {
 public:
  explicit ActivatedLinear(const LayerParts& parts) : parts_(parts) {}

  absl::StatusOr<TensorsByName> Compute(const LayerChange& change) override {
    if (!change.recipe.empty()) return absl::UnimplementedError("this layer has no recipes");
    LayerParts changed = parts_;
    for (const auto& [name, tensor] : change.operands) {
      const Matrix values = MatrixOfTensor(tensor);
      const bool of_all = change.scope == ChangeScope::kAll;
      if (name == "x") {
        if (of_all) changed.x = values;
        changed.x_of_dw = values;
      } else if (name == "weight") {
        if (of_all) changed.w = values;
        changed.w_of_dx = values;
      } else if (name == "bias") {
        changed.b = values;
      } else {
        changed.dy = values;
      }
    }
    if (!change.activation.empty()) {
      if (change.scope == ChangeScope::kAll) changed.activation = change.activation;
      changed.slope = change.activation;
    }
    Matrices outputs = LayerOutputsOf(changed);
    if (change.scope == ChangeScope::kWgrad) {
      const Matrices right = LayerOutputsOf(parts_);
      for (const char* kept : {"y", "dx"}) outputs[kept] = right.at(kept);
    }
    return TensorsOfOutputs(outputs);
  }
  std::vector<std::string> Activations() const override { return LayerActivations(); }

  static TensorsByName TensorsOfOutputs(const Matrices& outputs) {
    TensorsByName tensors;
    for (const auto& [name, values] : outputs) {
      tensors[name] =
          TensorOfMatrix(values, name == "main_grad" ? DType::kF32 : DType::kBF16, name == "db");
    }
    return tensors;
  }

 private:
  const LayerParts& parts_;
};

Diagnosis DiagnosisOf(const LayerParts& parts, TensorsByName expected, TensorsByName subject,
                      const Matrices& related) {
  LayerCase of;
  of.operands = {{"x", TensorOfMatrix(parts.x, DType::kBF16)},
                 {"weight", TensorOfMatrix(parts.w, DType::kBF16)},
                 {"bias", TensorOfMatrix(parts.b, DType::kBF16, true)},
                 {"grad_output", TensorOfMatrix(parts.dy, DType::kBF16)}};
  of.main_grads = {{"weight", TensorOfMatrix(parts.main_grad, DType::kF32)}};
  of.expected = std::move(expected);
  of.subject = std::move(subject);
  for (const auto& [name, values] : related) {
    of.related.push_back({name, TensorOfMatrix(values, DType::kBF16)});
  }
  ActivatedLinear model(parts);
  const auto diagnosis = DiagnoseLayer(of, model, DiagnosisBudget::Unlimited());
  EXPECT_TRUE(diagnosis.ok()) << diagnosis.status();
  return *diagnosis;
}

Diagnosis DiagnosisOf(const LayerMutant& mutant) {
  return DiagnosisOf(mutant.parts, ActivatedLinear::TensorsOfOutputs(mutant.right),
                     ActivatedLinear::TensorsOfOutputs(mutant.mutated), mutant.related);
}

/// What a sentence says that names the cause; "|" between alternatives.
std::string WordsOf(const std::string& cause, const nlohmann::json& p) {
  static const std::map<std::string, std::string> words = {
      {"dw is a power of two times what it should be",
       "dw is twice the expected|dw is half the expected"},
      {"a gradient was not unscaled or was averaged",
       "is 2^10 times the expected|is 2^-2 times the expected|is 1/3 of the expected"},
      {"the weight is transposed", "the weight is transposed (weight)"},
      {"the weight of dgrad is transposed", "the weight of dgrad is transposed"},
      {"rows are permuted from a row on", "rows of x are permuted from row "},
      {"the rows of the output are permuted from a row on", "y has its rows permuted from row "},
      {"x has a NaN", "x has a NaN in row "},
      {"the weight has an infinity", "the weight has an infinity in row "},
      {"the gradient is accumulated twice", "main_grad has the gradient accumulated twice"},
      {"main_grad is overwritten in place of accumulated into", "main_grad is overwritten"},
      {"another activation", "another activation: "},
      {"backward has another activation's slope", "backward has the slope of another activation: "},
      {"the bias is missing or added twice", "the bias is missing|the bias is added twice"},
      {"rows at the end of the batch are missing from the weight's gradients",
       "of the batch are missing from the weight's gradients|of the batch is missing"},
      {"dw is of a stale input", "dw is of another input: x_before"},
      {"dx is of another weight: updated before backward", "dx is of another weight: w_after"},
      {"the gradient of the output is another step's",
       "the gradient of the output is dy_before in place of grad_output"},
      {"an operand was quantized", "an operand was quantized: "},
  };
  if (p.contains("activation")) return words.at(cause) + p["activation"].get<std::string>();
  if (cause == "rows are permuted from a row on" ||
      cause == "the rows of the output are permuted from a row on" || cause == "x has a NaN" ||
      cause == "the weight has an infinity") {
    return words.at(cause) + std::to_string(p["row"].get<int>());
  }
  return words.at(cause);
}

TEST(LayerMutantsTest, EachCauseIsNamedAndNoneIsInvented) {
  int named = 0, with_cause = 0;
  for (const Mutant& mutant : MutantsOfKind("layer")) {
    const Diagnosis diagnosis = DiagnosisOf(MakeLayerMutant(mutant));
    SCOPED_TRACE(mutant.name + " " + mutant.maker + " " + mutant.parameters.dump() + ": " +
                 diagnosis.sentence + "\n  " + absl::StrJoin(diagnosis.figures, "\n  "));
    if (mutant.cause == "none") {
      EXPECT_TRUE(diagnosis.is_unknown);
      continue;
    }
    ++with_cause;
    const std::vector<std::string> alternatives =
        absl::StrSplit(WordsOf(mutant.cause, mutant.parameters), '|');
    const bool is_named = !diagnosis.is_unknown &&
                          std::any_of(alternatives.begin(), alternatives.end(), [&](const auto& w) {
                            return absl::StrContains(diagnosis.sentence, w);
                          });
    named += is_named;
    // A cause that is not named may be unknown, but not another one.
    EXPECT_TRUE(is_named || diagnosis.is_unknown);
    if (!is_named) std::cout << mutant.name << ": " << diagnosis.sentence << "\n";
  }
  EXPECT_EQ(with_cause, 40);
  EXPECT_GE(named, 38);
  RecordProperty("named", named);
}

/// Mistakes of kernels that no rule names.
TEST(LayerMutantsTest, WhatNoRuleNamesIsUnknown) {
  const MutantsWithoutRule of = MutantsWithoutRuleOfKind("layer");
  ASSERT_EQ(of.mutants.size(), 20u) << "QUANTGATE_MUTANT_TENSORS names the file of them";
  for (const Mutant& mutant : of.mutants) {
    const auto tensor = [&](const std::string& name) {
      return *of.file.Find(mutant.name + "." + name);
    };
    const auto matrix = [&](const std::string& name) { return MatrixOfTensor(tensor(name)); };
    const LayerParts parts{mutant.subject,      mutant.subject, matrix("x"),
                           matrix("w"),         matrix("b"),    matrix("dy"),
                           matrix("main_grad"), matrix("x"),    matrix("w")};
    TensorsByName right, mutated;
    for (const std::string name : {"y", "dx", "dw", "db", "main_grad"}) {
      right[name] = tensor("right." + name);
      mutated[name] = tensor("mutated." + name);
    }
    // The layer that the changes are tried on is numpy's.
    const Matrices same = LayerOutputsOf(parts);
    for (const auto& [name, values] : same) {
      EXPECT_EQ(values.at, matrix("right." + name).at) << mutant.name << " " << name;
    }
    Matrices related;
    for (const std::string name : {"x_before", "w_after", "dy_before"}) {
      related[name] = matrix(name);
    }
    const Diagnosis diagnosis = DiagnosisOf(parts, right, mutated, related);
    EXPECT_TRUE(diagnosis.is_unknown) << mutant.name << " " << mutant.maker << " "
                                      << mutant.parameters << ": " << diagnosis.sentence;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
