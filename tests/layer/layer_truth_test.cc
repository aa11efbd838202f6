// The table of docs/quantizers.md section 9 for every linear unit of every kind of layer: for every
// recipe, override and choice of gradients, what is saved and read, what each GEMM reads, and which
// gradients come back.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/base/exhaustive.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/layer_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Strings = std::vector<std::string>;

/// What a unit saves: for dx, dw and db asked for or not, as letters.
struct SavedRow {
  const char* override_mode;
  const char* wanted;
  const char* x;       ///< "columnwise", "rowwise", "given"; empty: not saved.
  const char* weight;  ///< Likewise, or "rowwise and columnwise".
  bool has_workspace;
};

// clang-format off
const SavedRow kSavedRows[] = {
    {"none", "xwb", "columnwise", "rowwise and columnwise", false},
    {"none", "xw",  "columnwise", "rowwise and columnwise", false},
    {"none", "xb",  "",           "rowwise and columnwise", false},
    {"none", "x",   "",           "rowwise and columnwise", false},
    {"none", "wb",  "columnwise", "rowwise",                false},
    {"none", "w",   "columnwise", "rowwise",                false},
    {"none", "b",   "",           "rowwise",                false},
    {"none", "",    "",           "",                       false},
    {"high_precision", "xwb", "given", "given", true},
    {"high_precision", "xw",  "given", "given", true},
    {"high_precision", "xb",  "",      "given", true},
    {"high_precision", "x",   "",      "given", true},
    {"high_precision", "wb",  "given", "given", true},
    {"high_precision", "w",   "given", "given", true},
    {"high_precision", "b",   "",      "given", true},
    {"high_precision", "",    "",      "",      false},
    {"dequantized", "xwb", "rowwise", "rowwise", false},
    {"dequantized", "xw",  "rowwise", "rowwise", false},
    {"dequantized", "xb",  "",        "rowwise", false},
    {"dequantized", "x",   "",        "rowwise", false},
    {"dequantized", "wb",  "rowwise", "rowwise", false},
    {"dequantized", "w",   "rowwise", "rowwise", false},
    {"dequantized", "b",   "",        "rowwise", false},
    {"dequantized", "",    "",        "",        false},
    {"not quantized", "xwb", "activation", "activation", false},
    {"not quantized", "xw",  "activation", "activation", false},
    {"not quantized", "xb",  "",           "activation", false},
    {"not quantized", "x",   "",           "activation", false},
    {"not quantized", "wb",  "activation", "activation", false},
    {"not quantized", "w",   "activation", "activation", false},
    {"not quantized", "b",   "",           "activation", false},
    {"not quantized", "",    "",           "",           false},
};

/// What backward's GEMMs read, after the operands' names.
struct ReadRow {
  const char* override_mode;
  const char* dgrad_a; const char* dgrad_b; const char* wgrad_a; const char* wgrad_b;
};
const ReadRow kReadRows[] = {
    {"none", " quantized rowwise", " quantized columnwise",
             " quantized columnwise", " quantized columnwise"},
    {"high_precision", "", "", "", ""},
    {"dequantized", "", " dequantized", "", " dequantized"},
    {"not quantized", "", "", "", ""},
};

/// One linear unit of a layer. Letters: any of x, w, b, n (norm) among what is asked for.
struct UnitRow {
  std::string x; bool x_is_given; std::string weight; DType weight_dtype; std::string grad_output;
  std::string dx_if, dw_if, db_if;
  bool is_empty = false;
};
/// What an operation keeps, where one of the letters is asked for.
struct OperationRow { std::string before_unit, saved, if_any; };
struct OutputRow { std::string name, if_any; };

struct LayerTable {
  std::string name;
  LayerRequest request;
  std::vector<UnitRow> units;
  std::vector<OperationRow> operations;  ///< In order, before the unit with this weight.
  std::vector<OutputRow> outputs;        ///< After y.
};

std::vector<LayerTable> Tables() {
  const DType f32 = DType::kF32, bf16 = DType::kBF16;
  return {
      {"linear", LinearCase(),
       {{"x", true, "weight", f32, "grad_output", "x", "w", "b"}},
       {},
       {{"dx", "x"}, {"dw", "w"}, {"db", "b"}}},
      {"layernorm_linear", LayerNormLinearCase(NormKind::kLayerNorm),
       {{"norm_out", false, "weight", f32, "grad_output", "xn", "w", "b"}},
       {{"weight", "norm x", "xn"}, {"weight", "norm gamma", "xn"}, {"weight", "norm mean", "xn"},
        {"weight", "norm rstd", "xn"}},
       {{"dx", "x"}, {"dw", "w"}, {"db", "b"}, {"dgamma", "n"}, {"dbeta", "n"}}},
      {"rmsnorm_linear", LayerNormLinearCase(NormKind::kRmsNorm),
       {{"norm_out", false, "weight", f32, "grad_output", "xn", "w", "b"}},
       {{"weight", "norm x", "xn"}, {"weight", "norm gamma", "xn"}, {"weight", "norm rstd", "xn"}},
       {{"dx", "x"}, {"dw", "w"}, {"db", "b"}, {"dgamma", "n"}}},
      {"swiglu_mlp", LayerNormMlpCase(ActivationKind::kSwiglu),
       {{"norm_out", false, "fc1.weight", f32, "fc1.grad_output", "xn", "w", "b"},
        {"fc2.x", false, "fc2.weight", bf16, "grad_output", "xnwb", "w", "b"}},
       {{"fc1.weight", "norm x", "xn"}, {"fc1.weight", "norm gamma", "xn"},
        {"fc1.weight", "norm mean", "xn"}, {"fc1.weight", "norm rstd", "xn"},
        {"fc2.weight", "activation x", "xnwb"}},
       {{"dx", "x"}, {"fc1.dw", "w"}, {"fc1.db", "b"}, {"fc2.dw", "w"}, {"fc2.db", "b"},
        {"dgamma", "n"}, {"dbeta", "n"}}},
      {"grouped_linear", GroupedLinearCase(),
       {{"x.0", true, "weight.0", bf16, "grad_output.0", "x", "w", "b"},
        {"x.1", true, "weight.1", bf16, "grad_output.1", "x", "w", "b", true},
        {"x.2", true, "weight.2", bf16, "grad_output.2", "x", "w", "b"}},
       {},
       {{"dx", "x"}, {"dw.0", "w"}, {"db.0", "b"}, {"dw.1", "w"}, {"db.1", "b"}, {"dw.2", "w"},
        {"db.2", "b"}}},
      {"chain", ResidualChainCase(),
       {{"ln.y", false, "up.weight", bf16, "up_bias.grad_output", "xn", "w", "b"},
        {"act.y", false, "down.weight", f32, "down.grad_output", "xnwb", "w", ""}},
       {{"up.weight", "ln x", "xn"}, {"up.weight", "ln gamma", "xn"}, {"up.weight", "ln rstd", "xn"},
        {"down.weight", "act x", "xnwb"}},
       {{"dx", "x"}, {"ln.dgamma", "n"}, {"up.dw", "w"}, {"up_bias.db", "b"}, {"down.dw", "w"}}},
  };
}
// clang-format on

/// The name of the dtype of the codes that forward keeps.
std::string ElementOf(const Recipe& recipe) {
  if (recipe.name() == "mxfp6_e2m3" || recipe.name() == "mxfp6_e3m2") {
    return absl::StrCat("f", recipe.name().substr(4));
  }
  if (recipe.name() == "nvfp4" || recipe.name() == "mxfp4") return "f4_e2m1x2";
  const auto format = recipe.knobs().find("fp8_format");
  return format != recipe.knobs().end() && format->second == "e5m2" ? "f8_e5m2" : "f8_e4m3";
}

/// One recipe's answers to what the tables leave open.
struct RecipeFacts {
  explicit RecipeFacts(const Recipe& recipe)
      : mode(recipe.is_quantized() ? std::string(BackwardOverrideName(recipe.backward_override()))
                                   : "not quantized"),
        element(ElementOf(recipe)),
        activation(recipe.activation_dtype().value_or(DType::kBF16)) {}

  std::string ContentOf(const std::string& kind, DType given) const {
    if (kind == "given") return absl::StrCat(std::string(DTypeName(given)), " as given");
    if (kind != "activation") return absl::StrCat(element, " ", kind, " codes");
    const std::string name(DTypeName(activation));
    if (given == activation) return absl::StrCat(name, " as given");
    return absl::StrCat(name, " cast from ", std::string(DTypeName(given)));
  }

  std::string mode, element;
  DType activation;
};

bool IsAny(const std::string& letters, const std::string& wanted) {
  return letters.find_first_of(wanted) != std::string::npos;
}

/// "xwb" where dx, dw, db are all needed of the unit.
std::string NeedsOf(const UnitRow& unit, const std::string& wanted) {
  return absl::StrCat(IsAny(unit.dx_if, wanted) ? "x" : "", IsAny(unit.dw_if, wanted) ? "w" : "",
                      IsAny(unit.db_if, wanted) ? "b" : "");
}

const SavedRow& SavedRowOf(const std::string& mode, const std::string& needs) {
  for (const SavedRow& row : kSavedRows) {
    if (row.override_mode == mode && row.wanted == needs) return row;
  }
  ADD_FAILURE() << mode << " " << needs;
  return kSavedRows[0];
}

Strings ExpectedSaved(const LayerTable& table, const std::string& wanted,
                      const RecipeFacts& facts) {
  Strings saved;
  for (const UnitRow& unit : table.units) {
    for (const OperationRow& operation : table.operations) {
      if (operation.before_unit == unit.weight && IsAny(operation.if_any, wanted)) {
        saved.push_back(operation.saved);
      }
    }
    const std::string needs = NeedsOf(unit, wanted);
    const SavedRow& row = SavedRowOf(facts.mode, needs);
    const DType x_dtype = unit.x_is_given ? DType::kBF16 : facts.activation;
    if (row.x[0] != '\0') {
      saved.push_back(absl::StrCat(unit.x, "[", facts.ContentOf(row.x, x_dtype), "]",
                                   unit.is_empty ? " unused" : ""));
    }
    if (row.weight[0] != '\0') {
      saved.push_back(absl::StrCat(unit.weight, "[", facts.ContentOf(row.weight, unit.weight_dtype),
                                   "]", IsAny("x", needs) ? "" : " unused"));
    }
    if (row.has_workspace) {
      saved.push_back(absl::StrCat(unit.weight, " workspace[",
                                   facts.ContentOf("rowwise", unit.weight_dtype), "] unused"));
    }
  }
  return saved;
}

Strings SavedOf(const LayerResult& result, const LayerTable& table) {
  Strings texts;
  for (const SavedOperand& saved : result.saved) {
    const bool is_operation =
        std::any_of(table.operations.begin(), table.operations.end(),
                    [&](const OperationRow& operation) { return operation.saved == saved.name; });
    texts.push_back(is_operation ? absl::StrCat(saved.name, saved.used ? "" : " unused")
                                 : absl::StrCat(saved.name, "[", saved.content, "]",
                                                saved.used ? "" : " unused"));
  }
  return texts;
}

/// "dgrad weight: grad_output quantized rowwise, weight quantized columnwise".
Strings ExpectedReads(const LayerTable& table, const std::string& wanted,
                      const RecipeFacts& facts) {
  Strings reads;
  for (const ReadRow& row : kReadRows) {
    if (row.override_mode != facts.mode) continue;
    for (const UnitRow& unit : table.units) {
      const std::string needs = NeedsOf(unit, wanted);
      if (IsAny("x", needs)) {
        reads.push_back(
            absl::StrCat("dgrad: ", unit.grad_output, row.dgrad_a, ", ", unit.weight, row.dgrad_b));
      }
      if (IsAny("w", needs) && !unit.is_empty) {
        reads.push_back(
            absl::StrCat("wgrad: ", unit.grad_output, row.wgrad_a, ", ", unit.x, row.wgrad_b));
      }
    }
  }
  std::sort(reads.begin(), reads.end());
  return reads;
}

Strings ReadsOf(const LayerResult& result) {
  Strings reads;
  for (const GemmRecord& gemm : result.gemms) {
    if (gemm.role == GemmRole::kFprop) continue;
    reads.push_back(absl::StrCat(std::string(GemmRoleName(gemm.role)), ": ", gemm.a.Text(), ", ",
                                 gemm.b.Text()));
  }
  std::sort(reads.begin(), reads.end());
  return reads;
}

TEST(LayerTruth, SavesReadsAndReturnsWhatTheTableSays) {
  size_t compared = 0;
  // Each choice of gradients meets a quarter of the recipes, of which many have the same facts.
  const int share = IsExhaustive() ? 1 : 4;
  int turn = 0;
  for (LayerTable& table : Tables()) {
    for (const Recipe& recipe : CaseRecipes()) {
      const RecipeFacts facts(recipe);
      ++turn;
      for (int mask = 0; mask < 16; ++mask) {
        if ((mask + turn) % share != 0) continue;
        const std::string wanted = absl::StrCat(mask & 1 ? "x" : "", mask & 2 ? "w" : "",
                                                mask & 4 ? "b" : "", mask & 8 ? "n" : "");
        SCOPED_TRACE(absl::StrCat(table.name, " ", recipe.CanonicalText(), " [", wanted, "]"));
        table.request.requires_grad = GradientsOf(mask, (mask & 8) != 0);
        const LayerResult result = RunCase(table.request, recipe);
        Strings outputs = {"y"};
        for (const OutputRow& output : table.outputs) {
          if (IsAny(output.if_any, wanted)) outputs.push_back(output.name);
        }
        Strings got;
        for (const NamedTensor& output : result.outputs) got.push_back(output.name);
        EXPECT_EQ(got, outputs);
        EXPECT_EQ(SavedOf(result, table), ExpectedSaved(table, wanted, facts));
        EXPECT_EQ(ReadsOf(result), ExpectedReads(table, wanted, facts));
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 6u * 16u * 80u / share);
}

// A bias gradient is there whenever it is asked for, frozen weights and overrides included.
TEST(LayerTruth, FrozenWeightsLeaveTheBiasGradients) {
  for (const LayerTable& table : Tables()) {
    LayerRequest request = table.request;
    for (const char* recipe : {"bf16", "fp8_current", "mxfp8:backward_override=high_precision",
                               "nvfp4:backward_override=dequantized"}) {
      request.requires_grad = {true, true, true, true};
      const LayerResult all = RunCase(request, recipe);
      request.requires_grad = {false, false, true, false};
      const LayerResult biases = RunCase(request, recipe);
      ASSERT_GT(biases.outputs.size(), 1u) << table.name;
      for (const NamedTensor& output : biases.outputs) {
        EXPECT_TRUE(SameBits(output.tensor, OutputOf(all, output.name)))
            << table.name << " " << recipe << " " << output.name;
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
