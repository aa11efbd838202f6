#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/refusal.h"
#include "kernels/layer/layer_program.h"

namespace quantgate {
namespace {

constexpr size_t kNameLengthMax = 64;

bool IsName(const std::string& name) {
  const auto is_name_character = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && name.size() <= kNameLengthMax &&
         std::all_of(name.begin(), name.end(), is_name_character);
}

absl::Status CheckOperation(const OperationSpec& operation, const std::string& field,
                            const std::set<std::string>& earlier) {
  if (!IsName(operation.name)) {
    return Refuse(field + ".name",
                  absl::StrCat("\"", operation.name.substr(0, kNameLengthMax), "\""),
                  "it must have 1 to 64 letters, digits and _");
  }
  if (earlier.count(operation.name) != 0) {
    return Refuse(
        field + ".name", operation.name,
        operation.name == "x" ? "x names the layer's input" : "another operation has this name");
  }
  if (operation.kind == OperationKind::kScale && !std::isfinite(operation.factor)) {
    return Refuse(field + ".factor", absl::StrCat(operation.factor), "it is finite");
  }
  if (operation.kind == OperationKind::kAdd && earlier.count(operation.addend) == 0) {
    return Refuse(field + ".addend",
                  absl::StrCat("\"", operation.addend.substr(0, kNameLengthMax), "\""),
                  "it is x or the name of an earlier operation");
  }
  if (operation.parallel_mode != ParallelMode::kNone &&
      operation.kind != OperationKind::kBasicLinear) {
    return Refuse(field + ".parallel_mode", std::string(ParallelModeName(operation.parallel_mode)),
                  absl::StrCat("it is a basic_linear's, not of a ",
                               std::string(OperationKindName(operation.kind))));
  }
  return absl::OkStatus();
}

absl::Status CheckParallelMode(const LayerSpec& spec) {
  if (spec.parallel_mode == ParallelMode::kNone) return absl::OkStatus();
  const LayerTraits& traits = spec.traits();
  const std::string mode(ParallelModeName(spec.parallel_mode));
  if (traits.has_operations) {
    return Refuse("layer.parallel_mode", mode,
                  absl::StrCat("of a ", std::string(traits.name),
                               ", its basic_linear operations have one each"));
  }
  if (traits.column_alone_rule.empty() || spec.parallel_mode == ParallelMode::kColumn) {
    return absl::OkStatus();
  }
  return Refuse("layer.parallel_mode", mode, std::string(traits.column_alone_rule));
}

absl::Status CheckChain(const LayerSpec& spec) {
  const size_t count = spec.operations.size();
  if (count < 1 || count > kOperationsMax) {
    return Refuse("layer.operations", absl::StrCat(count, " operations"),
                  absl::StrCat("a chain has from 1 to ", kOperationsMax));
  }
  std::set<std::string> names = {"x"};
  for (size_t i = 0; i < count; ++i) {
    const OperationSpec& operation = spec.operations[i];
    QG_RETURN_IF_ERROR(CheckOperation(operation, absl::StrCat("layer.operations[", i, "]"), names));
    names.insert(operation.name);
  }
  return absl::OkStatus();
}

absl::Status CheckLayerName(const std::string& name) {
  const bool is_good =
      name.size() <= kNameLengthMax && std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' ||
               c == '.';
      });
  if (is_good) return absl::OkStatus();
  return Refuse("layer.name", absl::StrCat("\"", name.substr(0, kNameLengthMax), "\""),
                absl::StrCat("it has up to ", kNameLengthMax, " letters, digits, _, - and ."));
}

absl::Status CheckSplits(const LayerSpec& spec) {
  const size_t count = spec.m_splits.size();
  if (count < 1 || count > kExpertsMax) {
    return Refuse("layer.m_splits", absl::StrCat(count, " experts"),
                  absl::StrCat("a grouped_linear has from 1 to ", kExpertsMax));
  }
  for (size_t i = 0; i < count; ++i) {
    if (spec.m_splits[i] >= 0) continue;
    return Refuse(absl::StrCat("layer.m_splits[", i, "]"), absl::StrCat(spec.m_splits[i]),
                  "it must be at least 0");
  }
  return absl::OkStatus();
}

absl::Status CheckAttention(const LayerSpec& spec) {
  const AttentionOptions& attention = spec.attention;
  const std::string field = "layer.attention";
  if (!spec.traits().has(OperationKind::kAttention)) {
    if (attention == AttentionOptions()) return absl::OkStatus();
    return Refuse(field, "given",
                  absl::StrCat("it is of an attention or a transformer_layer, not of ",
                               WithArticle(spec.traits())));
  }
  if (attention.heads < 1) {
    return Refuse(field + ".heads", absl::StrCat(attention.heads), "it must be at least 1");
  }
  if (attention.groups < 0 || attention.heads % attention.group_count() != 0) {
    return Refuse(field + ".groups", absl::StrCat(attention.groups),
                  absl::StrCat("it must divide heads, ", attention.heads,
                               ", into equal groups of query heads; 0 means as many as heads"));
  }
  if (!attention.rotary_base.has_value()) return absl::OkStatus();
  const float base = *attention.rotary_base;
  if (std::isfinite(base) && base > 0) return absl::OkStatus();
  return Refuse(field + ".rotary_base", absl::StrCat(base), "it is finite and positive");
}

/// The fields of an ActivationOptions, which has no operator== of its own.
auto ActivationFieldsOf(const ActivationOptions& options) {
  return std::tie(options.kind, options.variant, options.limit, options.alpha, options.offset);
}

}  // namespace

ParameterName ParameterName::Parse(std::string_view text) {
  ParameterName name;
  size_t dot = text.rfind('.');
  if (dot != text.npos && absl::SimpleAtoi(std::string(text.substr(dot + 1)), &name.expert)) {
    text = text.substr(0, dot);
    dot = text.rfind('.');
  } else {
    name.expert = -1;
  }
  const size_t begin = dot == text.npos ? 0 : dot + 1;
  name.path = std::string(text.substr(0, begin));
  name.word = std::string(text.substr(begin));
  return name;
}

std::string ParameterName::Text() const {
  return expert < 0 ? absl::StrCat(path, word) : absl::StrCat(path, word, ".", expert);
}

bool operator==(const OperationSpec& a, const OperationSpec& b) {
  const auto fields = [](const OperationSpec& one) {
    return std::tuple_cat(std::tie(one.name, one.kind, one.norm, one.factor, one.addend,
                                   one.quantize_forward, one.quantize_backward, one.parallel_mode),
                          ActivationFieldsOf(one.activation));
  };
  return fields(a) == fields(b);
}

bool operator==(const LayerSpec& a, const LayerSpec& b) {
  const auto fields = [](const LayerSpec& one) {
    return std::tuple_cat(
        std::tie(one.name, one.kind, one.norm, one.return_norm_output, one.m_splits, one.operations,
                 one.attention, one.fused, one.parallel_mode),
        ActivationFieldsOf(one.activation));
  };
  return fields(a) == fields(b);
}

Recipe RecipeOfLayer(const LayerSpec& spec, const Recipe& recipe) {
  return RecipeOfModule(spec, recipe, "");
}

namespace {

ModulePlace PlaceOf(const LayerSpec& spec, const std::string& prefix) {
  const bool has_experts = spec.traits().has_experts;
  return {has_experts ? ModuleType::kGroupedLinear : ModuleType::kLinear, spec.name,
          std::string(absl::StripSuffix(prefix, "."))};
}

}  // namespace

Recipe RecipeOfModule(const LayerSpec& spec, const Recipe& recipe, const std::string& prefix) {
  return recipe.ForModule(PlaceOf(spec, prefix));
}

std::vector<Recipe> RecipesOfModules(const LayerSpec& spec, const Recipe& recipe) {
  // The experts of a layer have one place.
  if (!recipe.DependsOnModule() || spec.traits().has_experts) return {RecipeOfLayer(spec, recipe)};
  const auto no_biases = [](const std::string&) { return false; };
  const std::vector<LayerProgram> programs = ProgramsOf(spec, no_biases);
  std::vector<Recipe> recipes;
  for (const ProgramOperation& operation : programs.front().operations) {
    if (operation.unit < 0) continue;
    recipes.push_back(RecipeOfModule(spec, recipe, operation.names.prefix));
  }
  return recipes;
}

namespace {

/// What rules decide on at one operation of a program.
std::vector<TensorRole> RuledTensors(const LayerProgram& program, size_t index) {
  using enum TensorRole;
  const ProgramOperation& operation = program.operations[index];
  if (operation.kind == OperationKind::kBasicLinear) {
    return {kInput, kWeight, kGradOutput, kOutput, kGradInput};
  }
  std::vector<TensorRole> roles;
  if (operation.kind != OperationKind::kQuantize) return roles;
  const int output = program.output_of(static_cast<int>(index));
  if (operation.quantizes_forward && LinearAfter(program.operations, output) < 0) {
    roles.push_back(kInput);
  }
  if (operation.quantizes_backward &&
      LinearBehind(program.operations, program.values, operation.input) < 0) {
    roles.push_back(kGradOutput);
  }
  return roles;
}

}  // namespace

std::vector<std::string> NotesOfRules(std::span<const LayerSpec* const> layers,
                                      const Recipe& recipe, std::string_view where) {
  std::vector<RuledModule> modules;
  const auto no_biases = [](const std::string&) { return false; };
  for (const LayerSpec* const spec : layers) {
    const bool has_experts = spec->traits().has_experts;
    const std::vector<LayerProgram> programs = ProgramsOf(*spec, no_biases);
    const LayerProgram& program = programs.front();
    for (size_t i = 0; i < program.operations.size(); ++i) {
      std::vector<TensorRole> roles = RuledTensors(program, i);
      if (roles.empty()) continue;
      const std::string prefix = has_experts ? "" : program.operations[i].names.prefix;
      modules.push_back({PlaceOf(*spec, prefix), std::move(roles)});
    }
  }
  return recipe.UnusedRules(modules, where);
}

absl::Status CheckLayerSpec(const LayerSpec& spec) {
  const LayerTraits& traits = spec.traits();
  const std::string kind = WithArticle(traits);
  QG_RETURN_IF_ERROR(CheckLayerName(spec.name));
  if (spec.return_norm_output && !traits.has_one_norm()) {
    const bool has_norms = traits.has(OperationKind::kNorm);
    return Refuse("layer.return_norm_output", "true",
                  absl::StrCat(kind, has_norms ? " has two norms" : " has no norm"));
  }
  QG_RETURN_IF_ERROR(CheckAttention(spec));
  QG_RETURN_IF_ERROR(CheckParallelMode(spec));
  if (traits.has_operations) {
    QG_RETURN_IF_ERROR(CheckChain(spec));
  } else if (!spec.operations.empty()) {
    return Refuse("layer.operations", absl::StrCat(spec.operations.size(), " operations"),
                  absl::StrCat("they are a chain's, not ", kind, "'s"));
  }
  if (traits.has_experts) return CheckSplits(spec);
  if (spec.m_splits.empty()) return absl::OkStatus();
  return Refuse("layer.m_splits", absl::StrCat(spec.m_splits.size(), " experts"),
                absl::StrCat("they are a grouped_linear's, not ", kind, "'s"));
}

}  // namespace quantgate
