#include "kernels/quantize/recipe/recipe_quantizers.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/recipe/recipe_json.h"
#include "kernels/quantize/recipe/recipe_table.h"

namespace quantgate {
/// The rules of the two directions of a tensor, from a JSON object.
struct CustomDirections {
  std::optional<QuantizerRule> rowwise, columnwise;
  std::optional<ColumnwiseSource> source;
  Json canonical = Json::object();
};

namespace {

/// The most rules of a list, a bound on untrusted input.
constexpr size_t kRulesMax = 64;

absl::StatusOr<ColumnwiseSource> ParseSource(const Json& json) {
  for (const auto source : {ColumnwiseSource::kOriginal, ColumnwiseSource::kRowwiseDequantized}) {
    if (json == std::string(ColumnwiseSourceName(source))) return source;
  }
  return Refuse("columnwise_source", ShownJson(json),
                "must be one of original, rowwise_dequantized");
}

absl::StatusOr<CustomDirections> ParseDirections(const Json& json) {
  CustomDirections directions;
  const auto read = [&](const char* key, std::optional<QuantizerRule>& rule) -> absl::Status {
    if (!json.contains(key)) return absl::OkStatus();
    absl::StatusOr<QuantizerRule> parsed = ParseQuantizerRule(json[key]);
    if (!parsed.ok()) return WithinField(key, parsed.status());
    rule = *std::move(parsed);
    directions.canonical[key] = rule->canonical;
    return absl::OkStatus();
  };
  QG_RETURN_IF_ERROR(read("rowwise", directions.rowwise));
  QG_RETURN_IF_ERROR(read("columnwise", directions.columnwise));
  if (json.contains("columnwise_source")) {
    QG_ASSIGN_OR_RETURN(directions.source, ParseSource(json["columnwise_source"]));
    directions.canonical["columnwise_source"] = json["columnwise_source"];
  }
  return directions;
}

absl::StatusOr<CustomDirections> ParseDirectionText(std::string_view text) {
  if (text == "gemm") return CustomDirections{};
  QG_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
  if (!json.is_object()) {
    return Refuse("", ShownValue(text), "must be gemm, or an object of rowwise, columnwise");
  }
  QG_RETURN_IF_ERROR(CheckKeys(json, {"rowwise", "columnwise", "columnwise_source"}));
  return ParseDirections(json);
}

/// The longest pattern; no longer name is matched.
constexpr size_t kPatternLengthMax = 160;

/// Whether `text` is `pattern`, in which * stands for any characters and ? for one.
bool Matches(std::string_view pattern, std::string_view text) {
  size_t at = 0, star = pattern.npos, resume = 0;
  for (size_t i = 0; i < text.size();) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      resume = i;
    } else if (at < pattern.size() && (pattern[at] == '?' || pattern[at] == text[i])) {
      ++at;
      ++i;
    } else if (star != pattern.npos) {
      // The last * takes one character more.
      at = star + 1;
      i = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == pattern.npos;
}

absl::StatusOr<std::string> ParsePattern(const char* key, const Json& json) {
  const std::string pattern = json.is_string() ? json.get<std::string>() : "";
  const bool is_good = json.is_string() && pattern.size() <= kPatternLengthMax &&
                       std::all_of(pattern.begin(), pattern.end(), [](char c) {
                         return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                                std::string_view("_-.*?").find(c) != std::string_view::npos;
                       });
  if (is_good) return pattern;
  return Refuse(key, ShownJson(json),
                absl::StrCat("must be a name: up to ", kPatternLengthMax,
                             " letters, digits, _, - and ., with * for any characters and ? for "
                             "one"));
}

/// The options of delayed scaling of those among the quantizers that have it. INVALID_ARGUMENT
/// unless all have the same: the states of a module are updated together.
absl::StatusOr<DelayedScalingOptions> DelayedOptionsOf(
    const std::vector<const std::optional<QuantizerRule>*>& rules) {
  const Recipe* first = nullptr;
  for (const std::optional<QuantizerRule>* const rule : rules) {
    if (!rule->has_value() || !(*rule)->recipe.has_value()) continue;
    const Recipe& recipe = *(*rule)->recipe;
    if (!recipe.is_delayed()) continue;
    if (first == nullptr) first = &recipe;
    for (const char* knob :
         {"margin", "amax_history_len", "amax_compute_algo", "update", "reduce_amax"}) {
      const std::string& value = recipe.knobs().find(knob)->second;
      const std::string& other = first->knobs().find(knob)->second;
      if (value == other) continue;
      return Refuse(KnobField(knob), ShownValue(value),
                    absl::StrCat("the quantizers of a recipe with delayed scaling have one value "
                                 "of it, and another has ",
                                 ShownValue(other)));
    }
  }
  return first == nullptr ? DelayedScalingOptions() : first->delayed_scaling();
}

}  // namespace

/// One entry in the list of a custom recipe. What is absent fits everything.
struct CustomRule {
  std::optional<ModuleType> module;
  std::optional<TensorRole> role;
  std::optional<std::string> layer, path;  ///< Patterns.
  CustomDirections directions;
  Json canonical;

  bool depends_on_module() const { return module || layer || path; }
  /// A result has to be named: what every tensor is quantized by is meant for operands.
  bool Fits(TensorRole of) const { return role.has_value() ? *role == of : !IsResult(of); }
  bool FitsPlace(const ModulePlace& within) const {
    return module.value_or(within.type) == within.type &&
           (!layer || Matches(*layer, within.layer)) && (!path || Matches(*path, within.Path()));
  }
  bool Fits(TensorRole of, const ModulePlace& within) const {
    return Fits(of) && FitsPlace(within);
  }
  Quantizer For(TensorRole of) const {
    Quantizer quantizer;  // A direction that the rule does not name is not quantized.
    if (directions.rowwise) quantizer.rowwise = directions.rowwise->For(of, Usage::kRowwise);
    if (IsResult(of)) return quantizer;  // Its values are those of its rowwise codes.
    if (directions.columnwise) {
      quantizer.columnwise = directions.columnwise->For(of, Usage::kColumnwise);
    }
    quantizer.columnwise_source = directions.source.value_or(ColumnwiseSource::kOriginal);
    return quantizer;
  }
};

namespace {

absl::StatusOr<ModuleType> ParseModuleType(const Json& json) {
  for (const ModuleType module : kModuleTypes) {
    if (json == std::string(ModuleTypeName(module))) return module;
  }
  return Refuse("module_type", ShownJson(json), "must be one of linear, grouped_linear");
}

absl::StatusOr<TensorRole> ParseRuleRole(const Json& json) {
  for (const auto& roles : {std::span<const TensorRole>(kTensorRoles), {kResultRoles}}) {
    for (const TensorRole role : roles) {
      if (json == std::string(TensorRoleName(role))) return role;
    }
  }
  return Refuse("tensor_type", ShownJson(json),
                "must be one of input, weight, grad_output, output, grad_input");
}

/// Refuses what makes no sense of a result (docs/quantizers.md section 7.3).
absl::Status CheckResultRule(const Json& json, const CustomRule& rule) {
  const std::string role(TensorRoleName(*rule.role));
  for (const char* key : {"columnwise", "columnwise_source"}) {
    if (!json.contains(key)) continue;
    return Refuse(key, ShownJson(json[key]),
                  absl::StrCat(role, " has the values of its rowwise codes, and nothing reads ",
                               "columnwise ones: give quantizer or rowwise"));
  }
  const char* const key = json.contains("quantizer") ? "quantizer" : "rowwise";
  const QuantizerSpec spec = rule.For(*rule.role).rowwise;
  if (spec.scaling == Scaling::kDelayed) {
    return Refuse(key, ShownJson(json[key]),
                  absl::StrCat(role, " has no delayed scaling: it would be cast in the GEMM's ",
                               "epilogue, before any rounding, which no arithmetic here says"));
  }
  if (spec.has_library_steps() || IsFnuz(spec.element)) {
    return Refuse(
        key, ShownJson(json[key]),
        absl::StrCat(role, " has Transformer Engine's steps alone: the bound of its codes ",
                     "is of those"));
  }
  if (!spec.casts()) return absl::OkStatus();
  return Refuse(key, ShownJson(json[key]),
                absl::StrCat(role, " stays in the activation dtype, so that identity casts it to ",
                             "no other; the knob activation_dtype names that dtype"));
}

absl::StatusOr<CustomRule> ParseCustomRule(const Json& json) {
  if (!json.is_object()) return Refuse("", ShownJson(json), "a rule is an object");
  QG_RETURN_IF_ERROR(CheckKeys(json, {"module_type", "layer_name", "module_path", "tensor_type",
                                      "quantizer", "rowwise", "columnwise", "columnwise_source"}));
  CustomRule rule;
  QG_ASSIGN_OR_RETURN(rule.directions, ParseDirections(json));
  rule.canonical = rule.directions.canonical;
  if (json.contains("module_type")) {
    QG_ASSIGN_OR_RETURN(rule.module, ParseModuleType(json["module_type"]));
    rule.canonical["module_type"] = json["module_type"];
  }
  for (const auto& [key, pattern] :
       {std::pair{"layer_name", &rule.layer}, {"module_path", &rule.path}}) {
    if (!json.contains(key)) continue;
    QG_ASSIGN_OR_RETURN(*pattern, ParsePattern(key, json[key]));
    rule.canonical[key] = json[key];
  }
  if (json.contains("tensor_type")) {
    const Json& tensor = json["tensor_type"];
    QG_ASSIGN_OR_RETURN(rule.role, ParseRuleRole(tensor));
    rule.canonical["tensor_type"] = tensor;
  }
  const bool names_directions = rule.directions.rowwise || rule.directions.columnwise;
  if (json.contains("quantizer") == names_directions) {
    return Refuse("", ShownJson(json),
                  "a rule has either \"quantizer\" or \"rowwise\", \"columnwise\" or both");
  }
  if (!names_directions) {
    const absl::StatusOr<QuantizerRule> both = ParseQuantizerRule(json["quantizer"]);
    if (!both.ok()) return WithinField("quantizer", both.status());
    rule.directions.rowwise = rule.directions.columnwise = *both;
    rule.canonical["quantizer"] = both->canonical;
  }
  if (rule.role.has_value() && IsResult(*rule.role))
    QG_RETURN_IF_ERROR(CheckResultRule(json, rule));
  return rule;
}

}  // namespace

absl::StatusOr<RecipeRules> RulesOfHybrid(const Recipe::Knobs& knobs) {
  RecipeRules rules;
  std::vector<std::optional<QuantizerRule>> by_gemm;
  for (const GemmRole gemm : kGemmRoles) {
    QG_ASSIGN_OR_RETURN(QuantizerRule rule,
                        ParseQuantizerRuleText(knobs.find(GemmRoleName(gemm))->second));
    // A quantizer given by fields and a recipe that quantizes nothing do not set accumulators.
    const size_t index = static_cast<size_t>(gemm);
    const bool has_word = rule.recipe.has_value() && rule.recipe->is_quantized();
    rules.split[index] = has_word ? rule.recipe->UsesSplitAccumulator(gemm) : kModuleSplits[index];
    by_gemm.push_back(std::move(rule));
  }
  std::vector<CustomDirections> by_role;
  for (const TensorRole role : kTensorRoles) {
    QG_ASSIGN_OR_RETURN(by_role.emplace_back(),
                        ParseDirectionText(knobs.find(TensorRoleName(role))->second));
  }
  std::vector<const std::optional<QuantizerRule>*> all;
  for (const std::optional<QuantizerRule>& rule : by_gemm) all.push_back(&rule);
  for (const CustomDirections& directions : by_role) {
    all.insert(all.end(), {&directions.rowwise, &directions.columnwise});
  }
  QG_ASSIGN_OR_RETURN(rules.delayed, DelayedOptionsOf(all));
  for (const GemmPair& pair : kGemmPairs) {
    const QuantizerRule& rule = *by_gemm[static_cast<size_t>(pair.gemm)];
    for (const auto& [role, usage] : {std::pair{pair.a, pair.a_usage}, {pair.b, pair.b_usage}}) {
      Quantizer& quantizer = rules.of(role);
      (usage == Usage::kRowwise ? quantizer.rowwise : quantizer.columnwise) = rule.For(role, usage);
    }
  }
  QG_ASSIGN_OR_RETURN(const ColumnwiseSource source,
                      ParseSource(Json(knobs.find("columnwise_source")->second)));
  for (const TensorRole role : kTensorRoles) {
    const CustomDirections& directions = by_role[static_cast<size_t>(role)];
    Quantizer& quantizer = rules.of(role);
    if (directions.rowwise) quantizer.rowwise = directions.rowwise->For(role, Usage::kRowwise);
    if (directions.columnwise) {
      quantizer.columnwise = directions.columnwise->For(role, Usage::kColumnwise);
    }
    quantizer.columnwise_source = directions.source.value_or(source);
  }
  return rules;
}

absl::StatusOr<CustomRules> CustomRules::Parse(std::string_view text) {
  QG_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
  if (!json.is_array() || json.empty() || json.size() > kRulesMax) {
    return Refuse("", ShownValue(text),
                  absl::StrCat("must be a list of 1 to ", kRulesMax, " rules"));
  }
  std::vector<CustomRule> list;
  for (size_t i = 0; i < json.size(); ++i) {
    absl::StatusOr<CustomRule> rule = ParseCustomRule(json[i]);
    if (!rule.ok()) return WithinField(absl::StrCat("[", i, "]"), rule.status());
    list.push_back(*std::move(rule));
  }
  std::vector<const std::optional<QuantizerRule>*> all;
  for (const CustomRule& rule : list) {
    all.insert(all.end(), {&rule.directions.rowwise, &rule.directions.columnwise});
  }
  CustomRules rules;
  QG_ASSIGN_OR_RETURN(rules.delayed_, DelayedOptionsOf(all));
  rules.list_ = std::make_shared<const std::vector<CustomRule>>(std::move(list));
  return rules;
}

bool CustomRules::DependOnModule() const {
  return std::any_of(list_->begin(), list_->end(),
                     [](const CustomRule& rule) { return rule.depends_on_module(); });
}

const CustomRule* CustomRules::Find(TensorRole role, const ModulePlace& place) const {
  for (const CustomRule& rule : *list_) {
    if (rule.Fits(role, place)) return &rule;
  }
  return nullptr;
}

bool CustomRules::Fits(TensorRole role, const ModulePlace& place) const {
  return Find(role, place) != nullptr;
}

std::string CustomRules::NoRuleText(TensorRole role, const ModulePlace& place) {
  return absl::StrCat("no rule fits ", std::string(TensorRoleName(role)), " of a ", place.Text(),
                      "; end with one that fits everything, such as {\"quantizer\": \"bf16\"}");
}

RecipeRules CustomRules::RulesFor(const ModulePlace& place) const {
  RecipeRules rules;
  rules.split = kModuleSplits;
  rules.delayed = delayed_;
  for (size_t i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<TensorRole>(i);
    const CustomRule* const rule = Find(role, place);
    if (rule != nullptr) rules.of(role) = rule->For(role);
  }
  return rules;
}

std::vector<std::string> CustomRules::Unused(std::span<const RuledModule> modules,
                                             std::string_view where) const {
  std::vector<std::string> sentences;
  for (size_t i = 0; i < list_->size(); ++i) {
    const CustomRule& rule = (*list_)[i];
    bool is_first = false, fits_tensor = false, fits_module = false;
    for (const RuledModule& module : modules) {
      fits_module |= rule.FitsPlace(module.place);
      for (const TensorRole role : module.roles) {
        fits_tensor |= rule.Fits(role, module.place);
        is_first |= Find(role, module.place) == &rule;
      }
    }
    if (is_first) continue;
    const std::string why =
        fits_tensor ? "decides nothing: rules before it fit all that it fits"
        : fits_module
            ? absl::StrCat("fits no tensor of the ", std::string(where), " that is quantized")
            : absl::StrCat("fits no module of the ", std::string(where));
    sentences.push_back(
        absl::StrCat("rules[", i, "] of the recipe, ", ShownJson(rule.canonical), ", ", why));
  }
  return sentences;
}

std::vector<Quantizer> CustomRules::QuantizersOf(TensorRole role) const {
  std::vector<Quantizer> quantizers;
  for (const CustomRule& rule : *list_) {
    if (rule.Fits(role)) quantizers.push_back(rule.For(role));
  }
  return quantizers;
}

std::string CustomRules::CanonicalText() const {
  Json json = Json::array();
  for (const CustomRule& rule : *list_) json.push_back(rule.canonical);
  return json.dump();
}

absl::StatusOr<std::string> CanonicalComposedValue(const Knob& knob, std::string_view value) {
  if (knob.kind == KnobKind::kRule) {
    QG_ASSIGN_OR_RETURN(const QuantizerRule rule, ParseQuantizerRuleText(value));
    return rule.canonical.is_string() ? rule.canonical.get<std::string>() : rule.canonical.dump();
  }
  if (knob.kind == KnobKind::kDirection) {
    QG_ASSIGN_OR_RETURN(const CustomDirections directions, ParseDirectionText(value));
    return directions.canonical.empty() ? "gemm" : directions.canonical.dump();
  }
  QG_ASSIGN_OR_RETURN(const CustomRules rules, CustomRules::Parse(value));
  return rules.CanonicalText();
}

}  // namespace quantgate
