#include "client/cli/options/layer_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/options/layer_arguments.h"
#include "client/cli/options/recipe_argument.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr char kVariants[] = "Variants";
constexpr char kLayer[] = "Layer";
constexpr char kTensors[] = "Tensors";
constexpr char kStep[] = "Step";
constexpr char kRanks[] = "Ranks";

std::string VariantList(const std::vector<v1::Variant>& variants) {
  std::string list;
  for (size_t i = 0; i < variants.size(); ++i) {
    absl::StrAppend(&list, "\n  ", i, "  ", VariantText(variants[i]));
  }
  return list;
}

constexpr char kAllRecipes[] = "all";

/// Whether an option's value has the item `all`.
bool NamesAll(const std::string& value) {
  const auto items = SplitItems("--recipe", {value});
  return items.ok() && std::find(items->begin(), items->end(), kAllRecipes) != items->end();
}

/// Whether a recipe has this backward override: fp8_delayed has none but "none". What no recipe
/// knows is left for the server to refuse.
bool HasOverride(const v1::RecipeDescription& recipe, const std::string& mode) {
  if (mode.empty() || mode == "none" || mode == "default") return true;
  for (const v1::KnobDescription& knob : recipe.knobs()) {
    if (knob.name() == "backward_override") return knob.values() != "none";
  }
  return true;
}

void AddAttentionOptions(CLI::App& command, LayerOptions& options) {
  command
      .add_option(
          "--heads", options.heads,
          "attention, transformer_layer: query heads; --param qkv.weight=... has D rows for "
          "each of them, and for each key and value head")
      ->type_name("N")
      ->group(kLayer);
  command
      .add_option("--groups", options.groups,
                  "Pairs of a key head and a value head, which divide the query heads; default: as "
                  "many as heads")
      ->type_name("N")
      ->group(kLayer);
  command.add_option("--mask", options.mask, "Keys of a query: all (none, default) or causal")
      ->check(CLI::IsMember({"none", "causal"}))
      ->group(kLayer);
  command
      .add_option("--rotary-base", options.rotary_base,
                  "Rotate queries and keys by their positions, such as 10000")
      ->type_name("X")
      ->group(kLayer);
}

void AddSpecOptions(CLI::App& command, LayerOptions& options) {
  command
      .add_option("--layer", options.layer,
                  "linear (default), layernorm_linear, layernorm_mlp, grouped_linear, chain, "
                  "attention or transformer_layer")
      ->type_name("NAME")
      ->group(kLayer);
  command
      .add_option("--layer-name", options.layer_name,
                  "What rules of a custom recipe know the layer by, such as decoder.0.mlp")
      ->type_name("NAME")
      ->group(kLayer);
  command
      .add_option(
          "--norm", options.norm,
          "layernorm (default) or rmsnorm, with eps=1e-5 and zero_centered: rmsnorm,eps=1e-6")
      ->type_name("NORM")
      ->group(kLayer);
  command
      .add_option("--activation", options.activation,
                  "gelu (default), swiglu, ... (see quantgate info); clamped_swiglu takes "
                  "limit=7,alpha=1.702,offset=1")
      ->type_name("FUNCTION")
      ->group(kLayer);
  AddAttentionOptions(command, options);
  command
      .add_option("--m-splits", options.m_splits,
                  "grouped_linear: rows of each expert, such as 128,0,64")
      ->type_name("LIST")
      ->group(kLayer);
  command
      .add_option(
          "--operation", options.operations,
          "chain: its operations in order, as NAME=KIND: fc1=basic_linear act=activation,gelu "
          "ln=norm,rmsnorm b=bias q=quantize sum=add,x half=scale,0.5")
      ->allow_extra_args(false)
      ->type_name("NAME=KIND")
      ->group(kLayer);
  command
      .add_flag("--return-norm-output", options.return_norm_output,
                "norm_out is an output too, and rounded before it is quantized")
      ->group(kLayer);
  command
      .add_flag("--unfused", options.unfused,
                "Every operation rounds its result to the activation dtype")
      ->group(kLayer);
  command
      .add_option(
          "--spec", options.spec,
          "A RunSpec as JSON (*.json) or protobuf text, or run:ID for that of a run that the "
          "server keeps; other options set or replace parts")
      ->type_name("FILE")
      ->group(kLayer);
}

void AddTensorOption(CLI::App& command, const char* name, std::string& value, const char* what) {
  command.add_option(name, value, what)->type_name("TENSOR")->group(kTensors);
}

void AddTensorOptions(CLI::App& command, LayerOptions& options) {
  const auto add_list = [&](const char* name, std::vector<std::string>& values, const char* type,
                            const char* what) {
    command.add_option(name, values, what)
        ->allow_extra_args(false)
        ->type_name(type)
        ->group(kTensors);
  };
  AddTensorOption(command, "--input", options.input, "x [..., K]");
  add_list("--weight", options.weights, "TENSOR",
           "weight [N][K]; of grouped_linear one for each expert, in order");
  add_list("--bias", options.biases, "TENSOR", "bias [N], likewise");
  AddTensorOption(command, "--gamma", options.gamma, "Of the norm [K]");
  AddTensorOption(command, "--beta", options.beta, "Of the norm [K]");
  AddTensorOption(command, "--fc1-weight", options.fc1_weight,
                  "layernorm_mlp, transformer_layer: [F][K], gated [2F][K]");
  AddTensorOption(command, "--fc1-bias", options.fc1_bias, "Likewise: [F], gated [2F]");
  AddTensorOption(command, "--fc2-weight", options.fc2_weight, "Likewise: [N][F]");
  AddTensorOption(command, "--fc2-bias", options.fc2_bias, "Likewise: [N]");
  add_list("--param", options.parameters, "NAME=TENSOR",
           "Any parameter by its name: qkv.weight=..., norm1.gamma=..., weight.0=...");
  AddTensorOption(command, "--grad-output", options.grad_output,
                  "dy [..., N]; without it only the forward pass runs");
  add_list("--main-grad", options.main_grads, "[NAME=]TENSOR",
           "f32 of the weight's shape that its gradient accumulates into; NAME is the weight's");
  command
      .add_option("--requires-grad", options.requires_grad,
                  "Gradients wanted, of x,w,b,n (n: gamma and beta); default: all that have an "
                  "operand")
      ->type_name("LIST")
      ->group(kTensors);
}

void AddStepOptions(CLI::App& command, LayerOptions& options) {
  command
      .add_option("--delayed-state", options.delayed_state,
                  "Delayed scaling: a file that run -o wrote, or input.scale=TENSOR and so on; "
                  "without it scale 1 and no history")
      ->allow_extra_args(false)
      ->type_name("FILE|NAME=TENSOR")
      ->group(kStep);
  command
      .add_flag("--calibrate", options.calibrate,
                "Delayed scaling: compute in high precision, note the amaxes only")
      ->group(kStep);
  command
      .add_flag("--error-budget", options.error_budget,
                "Say how much of each output's error every stage makes")
      ->group(kStep);
  AddSeedOption(command, options.seed, kStep);
}

}  // namespace

void AddLayerOptions(CLI::App& command, LayerOptions& options) {
  AddSpecOptions(command, options);
  AddTensorOptions(command, options);
  AddStepOptions(command, options);
}

namespace {

void AddRankCount(CLI::App& command, const char* name, int& count, const char* what) {
  command.add_option(name, count, what)->check(CLI::Range(2, 8))->type_name("N")->group(kRanks);
}

}  // namespace

void AddAmaxGroupOption(CLI::App& command, std::vector<std::string>& groups,
                        const std::string& what) {
  command
      .add_option("--amax-group", groups,
                  what +
                      " of an operand is reduced, by its role (input, weight, grad_output): none, "
                      "tensor, data, world or lists of all ranks (0,2/1,3); repeat for each role")
      ->allow_extra_args(false)
      ->type_name("ROLE=GROUP")
      ->group(kRanks);
}

namespace {

/// Of layers and of sessions.
void AddRankOptions(CLI::App& command, LayerOptions& options) {
  AddRankCount(command, "--tp", options.tensor_parallel,
               "Run every variant on one rank and, its weights divided, on N (2 to 8)");
  AddRankCount(command, "--ep", options.expert_parallel,
               "Run every variant on one rank and, the experts of grouped_linear divided and rows "
               "sent to them, on N (2 to 8)");
  command
      .add_flag("--sequence-parallel", options.sequence_parallel,
                "Divide the rows of x (column) or y (row) as well")
      ->group(kRanks);
  command
      .add_option(
          "--reduction-profile", options.reduction_profile,
          "Order and roundings of sums over ranks: rank_asc_fp32 (default), ub_p2p, ... (see "
          "quantgate info)")
      ->type_name("NAME")
      ->group(kRanks);
  command
      .add_option("--parallel-backend", options.parallel_backend,
                  "local (default): ranks on the run's device; nccl: a GPU for each")
      ->check(CLI::IsMember({"local", "nccl"}))
      ->group(kRanks);
  command
      .add_option("--overlap", options.overlaps,
                  "Communicate beside GEMMs: default (what can), or what differs from it, of "
                  "column_fprop=METHOD, ..._dgrad, ..._wgrad, row_fprop=METHOD, ..., aggregate, "
                  "pieces=N, splits=N; needs --sequence-parallel. Repeated: a variant for each")
      ->allow_extra_args(false)
      ->type_name("none|default|KEY=METHOD,...")
      ->group(kRanks);
  AddAmaxGroupOption(command, options.amax_groups, "Over which ranks the amax");
}

}  // namespace

void AddParallelOptions(CLI::App& command, LayerOptions& options) {
  AddRankOptions(command, options);
  AddRankCount(command, "--dp", options.data_parallel,
               "With --ep: N copies of the experts, which divide every expert's rows and sum their "
               "gradients");
  command
      .add_option(
          "--parallel-mode", options.parallel_mode,
          "How a weight [N][K] is divided: column (along N) or row (along K); of a chain its "
          "operations say it: fc1=basic_linear,column")
      ->check(CLI::IsMember({"column", "row"}))
      ->group(kRanks);
}

void AddSessionParallelOptions(CLI::App& command, LayerOptions& options) {
  AddRankOptions(command, options);
  AddRankCount(command, "--dp", options.data_parallel,
               "Run every variant on one rank and on N copies of the layers, which divide the rows "
               "of a batch and sum the optimizer's gradients; each on the ranks of --tp or --ep");
  command
      .add_flag("--fsdp", options.fully_sharded,
                "With --dp: each copy keeps rows of the weights and gathers them for each pass")
      ->group(kRanks);
  command
      .add_flag("--distributed-optimizer", options.distributed_optimizer,
                "With --dp: each copy keeps a run of elements of the fp32 masters and moments, and "
                "updates these")
      ->group(kRanks);
  command
      .add_flag("--no-reshard", options.keeps_gathered,
                "With --fsdp: what a forward gathered is kept for its backward")
      ->group(kRanks);
}

void AddSingleVariantOptions(CLI::App& command, LayerOptions& options) {
  options.recipes.resize(1);
  options.backward_overrides.resize(1);
  options.arithmetics.resize(1);
  command
      .add_option("--recipe", options.recipes[0],
                  "Required unless a spec has it: NAME, NAME:KNOB=VALUE,... or @FILE.json")
      ->type_name("RECIPE")
      ->group(kVariants);
  command
      .add_option("--backward-override", options.backward_overrides[0],
                  "none, high_precision or dequantized")
      ->type_name("MODE")
      ->group(kVariants);
  command.add_option("--arithmetic", options.arithmetics[0], "auto, sm90, sm90:split, exact, ...")
      ->type_name("NAME")
      ->group(kVariants);
}

void AddVariantListOptions(CLI::App& command, LayerOptions& options) {
  command
      .add_option(
          "--recipe", options.recipes,
          "Recipes: repeat the option, or join by commas; all: every recipe that needs no knobs, "
          "under those of the modes that it has. A "
          "comma before KNOB=VALUE goes on "
          "with the same recipe: bf16,fp8_current:power_2_scales=true,fp8_format=e4m3 are two")
      ->allow_extra_args(false)
      ->type_name("RECIPE,...")
      ->group(kVariants);
  command
      .add_option("--backward-override", options.backward_overrides,
                  "Modes of none, high_precision, dequantized")
      ->allow_extra_args(false)
      ->type_name("MODE,...")
      ->group(kVariants);
  command.add_option("--arithmetic", options.arithmetics, "Arithmetics, listed like recipes")
      ->allow_extra_args(false)
      ->type_name("NAME,...")
      ->group(kVariants);
  command
      .add_option("--reference", options.reference,
                  "Variant that the others are compared with: its number from 0, or "
                  "RECIPE[/MODE[/ARITHMETIC]] as given")
      ->type_name("VARIANT")
      ->group(kVariants);
}

void AddSeedOption(CLI::App& command, std::optional<uint64_t>& seed, const char* group) {
  const auto take = [&seed](const std::string& text) {
    const bool is_decimal = text.find_first_not_of("0123456789") == std::string::npos;
    if (is_decimal && absl::SimpleAtoi(text, &seed.emplace())) return;
    throw CLI::ValidationError(
        "--seed", absl::StrCat("\"", text, "\" is no integer from 0 to 2^64-1, in decimals"));
  };
  command
      .add_option_function<std::string>("--seed", take,
                                        "For recipes that round stochastically; 0 unless given")
      ->type_name("N")
      ->group(group);
}

bool NamesAllRecipes(const LayerOptions& options) {
  return std::any_of(options.recipes.begin(), options.recipes.end(), NamesAll);
}

std::string VariantText(const v1::Variant& variant) {
  std::string text =
      absl::StrCat(RecipeText(variant.recipe()), " / ",
                   variant.backward_override().empty() ? "none" : variant.backward_override(),
                   " / ", variant.arithmetic().empty() ? "auto" : variant.arithmetic());
  if (!variant.has_parallel()) return text;
  const v1::Parallel& parallel = variant.parallel();
  const bool divides_experts = parallel.expert_parallel() > 1;
  absl::StrAppend(
      &text, " / ", divides_experts ? "ep" : "tp",
      divides_experts ? parallel.expert_parallel() : std::max(parallel.tensor_parallel(), 1));
  if (parallel.data_parallel() > 1) absl::StrAppend(&text, " dp", parallel.data_parallel());
  if (parallel.fully_sharded()) {
    const bool keeps = parallel.has_reshard_after_forward() && !parallel.reshard_after_forward();
    absl::StrAppend(&text, keeps ? " fsdp:keep" : " fsdp");
  }
  if (parallel.distributed_optimizer()) absl::StrAppend(&text, " distopt");
  if (parallel.sequence_parallel()) absl::StrAppend(&text, " sp");
  for (const std::string& word : {parallel.reduction_profile(), parallel.backend()}) {
    const bool is_default = word.empty() || word == "rank_asc_fp32" || word == "local";
    if (!is_default) absl::StrAppend(&text, " ", word);
  }
  if (parallel.has_overlap()) {
    absl::StrAppend(&text, " overlap:", OverlapArgument(parallel.overlap()));
  }
  if (const std::string groups = AmaxGroupsText(parallel.amax_groups()); !groups.empty()) {
    absl::StrAppend(&text, " amax:", groups);
  }
  return text;
}

namespace {

/// Refuses options about ranks without the option that gives the number of ranks.
absl::Status CheckRankOptions(const LayerOptions& options, bool has_overlap) {
  constexpr char kRankCount[] = "--tp, the number of ranks";
  struct Option {
    const char* name;
    bool is_given, has_what_it_needs;
    const char* needs;
  };
  const bool has_ranks = options.wants_ranks();
  const Option of_ranks[] = {
      {"--sequence-parallel", options.sequence_parallel, has_ranks, kRankCount},
      {"--overlap", has_overlap, has_ranks, kRankCount},
      {"--reduction-profile", !options.reduction_profile.empty(), has_ranks, kRankCount},
      {"--parallel-backend", !options.parallel_backend.empty(), has_ranks, kRankCount},
      {"--amax-group", !options.amax_groups.empty(), has_ranks, kRankCount},
      {"--fsdp", options.fully_sharded, options.data_parallel != 0, "--dp, the number of copies"},
      {"--distributed-optimizer", options.distributed_optimizer, options.data_parallel != 0,
       "--dp, the number of copies"},
      {"--no-reshard", options.keeps_gathered, options.fully_sharded, "--fsdp"}};
  for (const Option& option : of_ranks) {
    if (!option.is_given || option.has_what_it_needs) continue;
    return absl::InvalidArgumentError(absl::StrCat(option.name, ": given without ", option.needs));
  }
  return absl::OkStatus();
}

/// "--tp: 2": the first option that numbers ranks.
std::string RankCountText(const LayerOptions& options) {
  const std::pair<const char*, int> counts[] = {{"--tp", options.tensor_parallel},
                                                {"--dp", options.data_parallel},
                                                {"--ep", options.expert_parallel}};
  const auto given = std::find_if(std::begin(counts), std::end(counts),
                                  [](const auto& count) { return count.second != 0; });
  return absl::StrCat(given->first, ": ", given->second);
}

}  // namespace

absl::StatusOr<std::vector<v1::Variant>> WithParallelTwins(const LayerOptions& options,
                                                           std::vector<v1::Variant> variants) {
  std::vector<std::optional<v1::Overlap>> overlaps;
  for (const std::string& text : options.overlaps) {
    QG_ASSIGN_OR_RETURN(overlaps.emplace_back(), ParseOverlapArgument(text));
    if (std::count(options.overlaps.begin(), options.overlaps.end(), text) == 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--overlap: \"", text, "\" is given twice; variants must differ"));
  }
  if (overlaps.empty()) overlaps.emplace_back();
  const bool has_overlap = overlaps.size() > 1 || overlaps.front().has_value();
  QG_RETURN_IF_ERROR(CheckRankOptions(options, has_overlap));
  google::protobuf::Map<std::string, std::string> amax_groups;
  QG_RETURN_IF_ERROR(ParseAmaxGroupArguments(options.amax_groups, amax_groups));
  if (!options.wants_ranks()) return variants;
  std::vector<v1::Variant> twins;
  for (v1::Variant& variant : variants) {
    if (variant.has_parallel()) {
      return absl::InvalidArgumentError(absl::StrCat(RankCountText(options),
                                                     "; the spec's variant ", VariantText(variant),
                                                     " says its ranks itself"));
    }
    twins.push_back(variant);
    v1::Parallel& parallel = *variant.mutable_parallel();
    parallel.set_tensor_parallel(options.tensor_parallel);
    parallel.set_sequence_parallel(options.sequence_parallel);
    parallel.set_reduction_profile(options.reduction_profile);
    parallel.set_backend(options.parallel_backend);
    parallel.set_data_parallel(options.data_parallel);
    parallel.set_fully_sharded(options.fully_sharded);
    parallel.set_distributed_optimizer(options.distributed_optimizer);
    if (options.keeps_gathered) parallel.set_reshard_after_forward(false);
    parallel.set_expert_parallel(options.expert_parallel);
    *parallel.mutable_amax_groups() = amax_groups;
    for (const std::optional<v1::Overlap>& overlap : overlaps) {
      v1::Variant& twin = twins.emplace_back(variant);
      if (overlap.has_value()) *twin.mutable_parallel()->mutable_overlap() = *overlap;
    }
  }
  return twins;
}

namespace {

/// The items of an option that is a list; each makes variants of its own. Of an absent list one
/// empty item: the server's default.
absl::StatusOr<std::vector<std::string>> VariantItems(const char* option,
                                                      const std::vector<std::string>& values) {
  if (values.empty() || (values.size() == 1 && values[0].empty())) {
    return std::vector<std::string>{""};
  }
  QG_ASSIGN_OR_RETURN(std::vector<std::string> items, SplitItems(option, values));
  for (auto item = items.begin(); item != items.end(); ++item) {
    if (std::find(items.begin(), item, *item) == item) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": \"", *item, "\" is given twice; variants must differ"));
  }
  return items;
}

}  // namespace

absl::StatusOr<std::vector<v1::Variant>> VariantsOf(const LayerOptions& options,
                                                    const v1::ListRecipesResponse* listed) {
  QG_ASSIGN_OR_RETURN(const auto recipes, VariantItems("--recipe", options.recipes));
  QG_ASSIGN_OR_RETURN(const auto overrides,
                      VariantItems("--backward-override", options.backward_overrides));
  QG_ASSIGN_OR_RETURN(const auto arithmetics, VariantItems("--arithmetic", options.arithmetics));
  std::vector<v1::Variant> variants;
  const auto add = [&](const v1::Recipe& recipe, const std::string& backward_override) {
    for (const std::string& arithmetic : arithmetics) {
      v1::Variant& variant = variants.emplace_back();
      *variant.mutable_recipe() = recipe;
      variant.set_backward_override(backward_override);
      variant.set_arithmetic(arithmetic);
    }
  };
  for (const std::string& text : recipes) {
    if (text == kAllRecipes && listed != nullptr) {
      for (const v1::RecipeDescription& description : listed->recipes()) {
        if (description.is_composed() || description.is_codes_only()) continue;
        v1::Recipe recipe;
        recipe.set_name(description.name());
        for (const std::string& mode : overrides) {
          if (HasOverride(description, mode)) add(recipe, mode);
        }
      }
      continue;
    }
    QG_ASSIGN_OR_RETURN(const v1::Recipe recipe, ParseRecipeArgument(text));
    for (const std::string& mode : overrides) add(recipe, mode);
  }
  return variants;
}

absl::StatusOr<int> FindVariant(const std::string& text, const std::vector<v1::Variant>& variants) {
  int index = 0;
  if (absl::SimpleAtoi(text, &index)) {
    if (index >= 0 && index < static_cast<int>(variants.size())) return index;
    return absl::InvalidArgumentError(
        absl::StrCat("--reference: ", index, " is no variant; there are", VariantList(variants)));
  }
  std::vector<std::string> wanted = absl::StrSplit(text, '/');
  std::vector<int> found;
  for (size_t i = 0; i < variants.size(); ++i) {
    const std::vector<std::string> parts = absl::StrSplit(VariantText(variants[i]), " / ");
    // One on several ranks is not meant by the parts that it has in common with its twin.
    bool fits = wanted.size() <= parts.size() &&
                (!variants[i].has_parallel() || wanted.size() == parts.size());
    for (size_t j = 0; fits && j < wanted.size(); ++j) {
      fits = absl::StripAsciiWhitespace(wanted[j]) == parts[j];
    }
    if (fits) found.push_back(static_cast<int>(i));
  }
  if (found.size() == 1) return found[0];
  return absl::InvalidArgumentError(absl::StrCat("--reference: \"", text, "\" fits ", found.size(),
                                                 " variants; it must fit one of",
                                                 VariantList(variants)));
}

}  // namespace quantgate
