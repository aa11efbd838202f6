#include "kernels/quantize/recipe/recipe_quantizers.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/general/level_forms.h"

namespace quantgate {
namespace {

const std::string& Value(const Recipe::Knobs& knobs, std::string_view name) {
  return knobs.find(name)->second;
}

bool IsTrue(const Recipe::Knobs& knobs, std::string_view name) {
  return Value(knobs, name) == "true";
}

int IntegerOf(const Recipe::Knobs& knobs, std::string_view name) {
  return std::stoi(Value(knobs, name));
}

/// Applies the knobs that every format has. The table has checked the names that are their values.
QuantizerSpec CommonSpec(QuantizerFormat format, const Recipe::Knobs& knobs) {
  QuantizerSpec spec;
  spec.format = format;
  const ScaleRule rule = *ParseScaleRule(Value(knobs, "scale_rule"));
  // The usual rule has two names; using one of them makes equal quantizers compare equal.
  spec.scale_rule = rule == ResolveScaleRule(ScaleRule::kUsual, format) ? ScaleRule::kUsual : rule;
  spec.element_rounding = *ParseElementRounding(Value(knobs, "element_rounding"));
  spec.overflow = *ParseOverflow(Value(knobs, "overflow"));
  if (const auto where = knobs.find("flush_subnormals"); where != knobs.end()) {
    spec.flush_subnormals = *ParseFlushSubnormals(where->second);
  }
  spec.zero_sign = *ParseSignOfZero(Value(knobs, "zero_sign"));
  return spec;
}

/// Applies the knobs of fp32 scales as well.
QuantizerSpec Fp32ScaleSpec(QuantizerFormat format, const Recipe::Knobs& knobs) {
  QuantizerSpec spec = CommonSpec(format, knobs);
  spec.scale_dtype = *ParseStepDType("scale_dtype", Value(knobs, "scale_dtype"));
  spec.element_operation = *ParseElementOperation(Value(knobs, "element_operation"));
  spec.operation_dtype = *ParseStepDType("operation_dtype", Value(knobs, "operation_dtype"));
  spec.zero_scale = *ParseZeroScale(Value(knobs, "zero_scale"));
  return spec;
}

DType Fp8ElementOf(const Recipe::Knobs& knobs, TensorRole role) {
  const std::string& format = Value(knobs, "fp8_format");
  const bool is_e5m2 = format == "e5m2" || (format == "hybrid" && role == TensorRole::kGradOutput);
  return is_e5m2 ? DType::kF8E5M2 : DType::kF8E4M3;
}

std::string_view VariantSuffix(TensorRole role) {
  switch (role) {
    case TensorRole::kInput:
      return "_input";
    case TensorRole::kWeight:
      return "_weight";
    case TensorRole::kGradOutput:
      return "_grad";
    case TensorRole::kOutput:
    case TensorRole::kGradInput:
      break;  // Only rules of a custom recipe quantize them.
  }
  return "";
}

absl::StatusOr<RecipeRules> RulesOfFp8Delayed(const Recipe::Knobs& knobs) {
  RecipeRules rules;
  rules.split = kModuleSplits;
  rules.delayed.margin = IntegerOf(knobs, "margin");
  rules.delayed.amax_history_len = IntegerOf(knobs, "amax_history_len");
  rules.delayed.algorithm =
      Value(knobs, "amax_compute_algo") == "max" ? AmaxAlgorithm::kMax : AmaxAlgorithm::kMostRecent;
  rules.delayed.update =
      Value(knobs, "update") == "fused" ? ScaleUpdate::kFused : ScaleUpdate::kUnfused;
  rules.delayed.reduce_amax = IsTrue(knobs, "reduce_amax");
  for (const TensorRole role : kTensorRoles) {
    QuantizerSpec spec = CommonSpec(QuantizerFormat::kFp8Tensor, knobs);
    spec.scaling = Scaling::kDelayed;
    spec.element = Fp8ElementOf(knobs, role);
    rules.of(role) = spec;
  }
  return rules;
}

/// fp8_current and fp8_rowwise, which differ in what a scale is of.
RecipeRules RulesOfOwnAmaxes(QuantizerFormat format, const Recipe::Knobs& knobs) {
  RecipeRules rules;
  for (const GemmRole gemm : kGemmRoles) {
    rules.split[static_cast<size_t>(gemm)] =
        IsTrue(knobs, absl::StrCat("split_accumulator_", std::string(GemmRoleName(gemm))));
  }
  for (const TensorRole role : kTensorRoles) {
    const auto variant = [&](std::string_view knob) {
      return absl::StrCat(std::string(knob), std::string(VariantSuffix(role)));
    };
    QuantizerSpec spec = Fp32ScaleSpec(format, knobs);
    spec.element = Fp8ElementOf(knobs, role);
    spec.power_2_scale = IsTrue(knobs, variant("power_2_scales"));
    spec.amax_epsilon = *ParseNonNegativeFloat(Value(knobs, variant("amax_epsilon")));
    rules.of(role) = spec;
  }
  return rules;
}

absl::StatusOr<RecipeRules> RulesOfFp8Current(const Recipe::Knobs& knobs) {
  return RulesOfOwnAmaxes(QuantizerFormat::kFp8Tensor, knobs);
}

absl::StatusOr<RecipeRules> RulesOfFp8Rowwise(const Recipe::Knobs& knobs) {
  return RulesOfOwnAmaxes(QuantizerFormat::kFp8Rowwise, knobs);
}

/// fp8_block with blocks of `length` elements.
QuantizerFormat Fp8BlockOf(int length) {
  for (const ScalingTraits& traits : AllQuantizerFormats()) {
    if (traits.scales == ScaleKind::kF32 && traits.block_length == length) return traits.format;
  }
  return QuantizerFormat::kFp8Block;
}

absl::StatusOr<RecipeRules> RulesOfFp8Block(const Recipe::Knobs& knobs) {
  RecipeRules rules;
  rules.split = {true, true, true};  // Block scales are applied between partial sums.
  for (const TensorRole role : kTensorRoles) {
    QuantizerSpec spec = Fp32ScaleSpec(Fp8BlockOf(IntegerOf(knobs, "group_size")), knobs);
    spec.element = Fp8ElementOf(knobs, role);
    spec.power_2_scale = IsTrue(knobs, "power_2_scales");
    spec.amax_epsilon = *ParseNonNegativeFloat(Value(knobs, "amax_epsilon"));
    spec.block_dim = IntegerOf(knobs, role == TensorRole::kInput    ? "x_block_dim"
                                      : role == TensorRole::kWeight ? "w_block_dim"
                                                                    : "grad_block_dim");
    rules.of(role) = spec;
  }
  return rules;
}

/// `element` is that of every role; absent for FP8, which the knobs choose.
RecipeRules MxRules(const Recipe::Knobs& knobs, std::optional<DType> element) {
  RecipeRules rules;
  rules.split = kModuleSplits;
  for (const TensorRole role : kTensorRoles) {
    QuantizerSpec spec = CommonSpec(QuantizerFormat::kMxfp8, knobs);
    spec.element = element.has_value() ? *element : Fp8ElementOf(knobs, role);
    const bool is_2d = role == TensorRole::kWeight && IsTrue(knobs, "enable_2d_quantization");
    spec.block_dim = is_2d ? 2 : 1;
    rules.of(role) = spec;
  }
  return rules;
}

absl::StatusOr<RecipeRules> RulesOfMxfp8(const Recipe::Knobs& knobs) {
  return MxRules(knobs, std::nullopt);
}
absl::StatusOr<RecipeRules> RulesOfMxfp6E2m3(const Recipe::Knobs& knobs) {
  return MxRules(knobs, DType::kF6E2M3);
}
absl::StatusOr<RecipeRules> RulesOfMxfp6E3m2(const Recipe::Knobs& knobs) {
  return MxRules(knobs, DType::kF6E3M2);
}
absl::StatusOr<RecipeRules> RulesOfMxfp4(const Recipe::Knobs& knobs) {
  return MxRules(knobs, DType::kF4E2M1x2);
}

bool FourOverSixCovers(const std::string& scope, TensorRole role) {
  if (role == TensorRole::kGradOutput) return false;
  const bool is_weight = role == TensorRole::kWeight;
  return scope == "all" || scope == (is_weight ? "weights" : "activations");
}

/// The table of docs/quantizers.md section 6.1.
RecipeRules Nvfp4Rules(const Recipe::Knobs& knobs) {
  RecipeRules rules;
  rules.split = kModuleSplits;
  for (const TensorRole role : kTensorRoles) {
    QuantizerSpec spec = CommonSpec(QuantizerFormat::kNvfp4, knobs);
    spec.element = DType::kF4E2M1x2;
    const bool is_weight = role == TensorRole::kWeight;
    if (is_weight && !IsTrue(knobs, "disable_2d_quantization")) spec.block_dim = 2;
    if (role == TensorRole::kGradOutput && !IsTrue(knobs, "disable_stochastic_rounding")) {
      spec.element_rounding = ElementRounding::kStochastic;
    }
    spec.row_scaled = role == TensorRole::kInput && IsTrue(knobs, "row_scaled_activation");
    if (FourOverSixCovers(Value(knobs, "nvfp4_4over6"), role)) {
      spec.four_over_six =
          Value(knobs, "nvfp4_4over6_err_mode") == "mae" ? FourOverSix::kMae : FourOverSix::kMse;
      spec.e4m3_max = IntegerOf(knobs, "nvfp4_4over6_e4m3_max");
    }
    Quantizer quantizer = spec;
    quantizer.columnwise.hadamard = !is_weight && !IsTrue(knobs, "disable_rht");
    rules.of(role) = quantizer;
  }
  return rules;
}

absl::StatusOr<RecipeRules> RulesOfNvfp4(const Recipe::Knobs& knobs) {
  const std::string& scope = Value(knobs, "nvfp4_4over6");
  if (!IsTrue(knobs, "disable_rht")) {
    if (FourOverSixCovers(scope, TensorRole::kInput)) {
      return Refuse(KnobField("nvfp4_4over6"), ShownValue(scope),
                    "needs disable_rht=true: 4over6 does not go with the Hadamard transform");
    }
    if (IsTrue(knobs, "row_scaled_activation")) {
      return Refuse(KnobField("row_scaled_activation"), ShownValue("true"),
                    "needs disable_rht=true: row scales do not go with the Hadamard transform");
    }
  }
  return Nvfp4Rules(knobs);
}

absl::StatusOr<RecipeRules> LevelRules(QuantizerFormat format, const Recipe::Knobs& knobs) {
  QuantizerSpec spec;
  spec.format = format;
  const ScaleRule rule = *ParseScaleRule(Value(knobs, "scale_rule"));
  spec.scale_rule = rule == ResolveScaleRule(ScaleRule::kUsual, format) ? ScaleRule::kUsual : rule;
  const int group = *ParseGroup(Value(knobs, "group"));
  spec.group = group == ResolveGroup(0, format) ? 0 : group;
  spec.element = spec.traits().elements.front();
  if (knobs.contains("zero_point")) {
    spec.operation_dtype = *ParseStepDType("operation_dtype", Value(knobs, "operation_dtype"));
    const std::string& zero_point = Value(knobs, "zero_point");
    const std::string& element = Value(knobs, "element");
    std::optional<ZeroPoint> wanted;
    if (zero_point != "usual") wanted = *ParseZeroPoint(zero_point);
    const LevelForm form = FirstForm(format, rule, wanted);
    spec.zero_point = form.zero_point;
    spec.element = element == "usual" ? form.element : *ParseDType(element);
  }
  if (const absl::Status status = CheckLevelForm(spec); !status.ok()) {
    // The same of every role, so none is named. A zero point that was not asked for is not to
    // blame.
    const Refusal refusal = *RefusalOf(status);
    const bool is_by_element = refusal.field == "zero_point" && knobs.contains("zero_point") &&
                               Value(knobs, "zero_point") == "usual";
    return is_by_element
               ? Refuse(KnobField("element"), ShownValue(Value(knobs, "element")),
                        absl::StrCat("zero_point is ", refusal.value, " unless it is said; ",
                                     refusal.rule))
               : Refuse(KnobField(refusal.field), ShownValue(refusal.value), refusal.rule);
  }
  RecipeRules rules;
  for (const TensorRole role : kTensorRoles) rules.of(role) = spec;
  return rules;
}

absl::StatusOr<RecipeRules> RulesOfInt8(const Recipe::Knobs& knobs) {
  return LevelRules(QuantizerFormat::kInt8, knobs);
}
absl::StatusOr<RecipeRules> RulesOfInt4(const Recipe::Knobs& knobs) {
  return LevelRules(QuantizerFormat::kInt4, knobs);
}
absl::StatusOr<RecipeRules> RulesOfNf4(const Recipe::Knobs& knobs) {
  return LevelRules(QuantizerFormat::kNf4, knobs);
}
absl::StatusOr<RecipeRules> RulesOfBnbFp4(const Recipe::Knobs& knobs) {
  return LevelRules(QuantizerFormat::kBnbFp4, knobs);
}

absl::StatusOr<RecipeRules> NothingQuantized(const Recipe::Knobs&) { return RecipeRules{}; }

/// The functions from knobs to rules, for the recipes of recipe_table.cc.
constexpr std::pair<std::string_view, absl::StatusOr<RecipeRules> (*)(const Recipe::Knobs&)>
    kMeanings[] = {
        {"bf16", &NothingQuantized},
        {"fp8_delayed", &RulesOfFp8Delayed},
        {"fp8_current", &RulesOfFp8Current},
        {"fp8_block", &RulesOfFp8Block},
        {"mxfp8", &RulesOfMxfp8},
        {"mxfp6_e2m3", &RulesOfMxfp6E2m3},
        {"mxfp6_e3m2", &RulesOfMxfp6E3m2},
        {"mxfp4", &RulesOfMxfp4},
        {"nvfp4", &RulesOfNvfp4},
        {"fp8_rowwise", &RulesOfFp8Rowwise},
        {"int8", &RulesOfInt8},
        {"int4", &RulesOfInt4},
        {"nf4", &RulesOfNf4},
        {"bnb_fp4", &RulesOfBnbFp4},
};

std::string OperandName(TensorRole role, Usage usage) {
  return absl::StrCat(std::string(TensorRoleName(role)), " ", std::string(UsageName(usage)));
}

/// The name of the scaling mode. 1-D and 2-D fp8_block can be combined, so they have one name.
std::string ModeName(const QuantizerSpec& spec) {
  return spec.is_quantized() ? std::string(QuantizerFormatName(spec.format)) : "not quantized";
}

absl::Status CheckPair(const GemmPair& pair, const RecipeRules& rules) {
  const QuantizerSpec& a = rules.of(pair.a).spec(pair.a_usage);
  const QuantizerSpec& b = rules.of(pair.b).spec(pair.b_usage);
  const auto refuse = [&](const std::string& a_is, const std::string& b_is, std::string_view rule) {
    return Refuse(
        "", "",
        absl::StrCat(std::string(GemmRoleName(pair.gemm)), " reads ",
                     OperandName(pair.a, pair.a_usage), " (", a_is, ") and ",
                     OperandName(pair.b, pair.b_usage), " (", b_is, "); ", std::string(rule)));
  };
  if (a.is_quantized() != b.is_quantized()) {
    return refuse(ModeName(a), ModeName(b),
                  "no GEMM multiplies codes by high precision: quantize both or neither");
  }
  if (a.casts() && b.casts() && a.element != b.element) {
    return refuse(std::string(DTypeName(a.element)), std::string(DTypeName(b.element)),
                  "no GEMM multiplies two high-precision types");
  }
  if (a.format != b.format) {
    return refuse(ModeName(a), ModeName(b), "both sides of a GEMM must have one scaling mode");
  }
  if (!a.traits().is_micro && a.block_dim == 2 && b.block_dim == 2) {
    const int side = a.traits().block_length;
    const std::string tiles = absl::StrCat(side, "x", side, " blocks");
    return refuse(
        tiles, tiles,
        absl::StrCat("2-D by 2-D blocks are refused: one side must have 1x", side, " blocks"));
  }
  if (a.hadamard != b.hadamard) {
    const auto name = [](bool hadamard) { return hadamard ? "Hadamard" : "no Hadamard"; };
    return refuse(name(a.hadamard), name(b.hadamard),
                  "a Hadamard transform cancels only where both sides have it");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RecipeRules> RulesOfKnobs(std::string_view recipe, const Recipe::Knobs& knobs) {
  for (const auto& [name, rules] : kMeanings) {
    if (name == recipe) return rules(knobs);
  }
  return absl::InternalError(
      absl::StrCat("recipe ", std::string(recipe), " is listed without a meaning"));
}

absl::Status CheckQuantizerOf(TensorRole role, const Quantizer& quantizer) {
  const std::string name(TensorRoleName(role));
  if (role == TensorRole::kWeight &&
      (quantizer.rowwise.hadamard || quantizer.columnwise.hadamard)) {
    return Refuse("", "", absl::StrCat(name, ": hadamard true; weights are never transformed"));
  }
  const absl::Status status = CheckQuantizer(quantizer);
  if (status.ok()) return status;
  return Refuse("", "", absl::StrCat(name, ": ", status.message()));
}

absl::Status CheckRules(const RecipeRules& rules) {
  for (const TensorRole role : kTensorRoles) {
    QG_RETURN_IF_ERROR(CheckQuantizerOf(role, rules.of(role)));
  }
  for (const TensorRole role : kResultRoles) {
    QG_RETURN_IF_ERROR(CheckQuantizerOf(role, rules.of(role)));
  }
  for (const GemmPair& pair : kGemmPairs) QG_RETURN_IF_ERROR(CheckPair(pair, rules));
  return absl::OkStatus();
}

}  // namespace quantgate
