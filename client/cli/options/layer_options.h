// The options that run, compare and verify share: the layer, its tensors and its variants.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/options/invocation.h"
#include "quantgate/v1/info_service.pb.h"
#include "quantgate/v1/layer.pb.h"

namespace quantgate {

struct LayerOptions {
  std::string spec;   ///< A RunSpec, or the file that holds it; the options below override it.
  std::string layer;  ///< Empty: the spec's, or linear.
  std::string norm, activation, m_splits;
  std::optional<int> heads, groups;
  std::string mask;
  std::optional<float> rotary_base;
  std::vector<std::string> operations;
  bool return_norm_output = false;
  bool unfused = false;
  std::string input, grad_output;
  std::vector<std::string> weights, biases;  ///< Several for the experts of a grouped_linear.
  std::string gamma, beta, fc1_weight, fc1_bias, fc2_weight, fc2_bias;
  std::vector<std::string> parameters;  ///< NAME=TENSOR each.
  std::vector<std::string> main_grads;  ///< TENSOR or NAME=TENSOR each.
  std::string requires_grad;  ///< "x,w,b,n"; empty: every gradient that has an operand; "none".
  std::vector<std::string> delayed_state;  ///< FILE.safetensors, or NAME=TENSOR each.
  bool calibrate = false;
  bool error_budget = false;
  std::optional<uint64_t> seed;
  std::vector<std::string> recipes;
  std::vector<std::string> backward_overrides;
  std::vector<std::string> arithmetics;
  std::string reference;    ///< LABEL or index; empty: none.
  std::string require;      ///< bitwise | bound; empty: inform only.
  int tensor_parallel = 0;  ///< --tp: runs every variant on so many ranks too. 0: on one rank only.
  std::string parallel_mode;
  std::string layer_name;
  bool sequence_parallel = false;
  std::string reduction_profile, parallel_backend;
  /// "default", "none", "column_fprop=none,..." each, for a variant of its own; empty: none.
  std::vector<std::string> overlaps;
  std::vector<std::string> amax_groups;  ///< ROLE=GROUP each.
  int data_parallel = 0;                 ///< --dp: sessions only. 0: one copy.
  bool fully_sharded = false;            ///< --fsdp: with --dp.
  bool keeps_gathered = false;           ///< --no-reshard: with --fsdp.
  bool distributed_optimizer = false;    ///< --distributed-optimizer: with --dp.
  int expert_parallel = 0;  ///< --ep: ranks that divide grouped_linear's experts. 0: all have all.
  bool wants_ranks() const { return tensor_parallel + data_parallel + expert_parallel != 0; }
};

/// Adds options that take one recipe, one override and one arithmetic.
void AddSingleVariantOptions(CLI::App& command, LayerOptions& options);
/// Adds options that take lists of recipes, overrides and arithmetics.
void AddVariantListOptions(CLI::App& command, LayerOptions& options);
/// Adds the options for runs on several ranks: of a layer, and of a session, whose layers
/// themselves say how they are divided.
void AddParallelOptions(CLI::App& command, LayerOptions& options);
void AddSessionParallelOptions(CLI::App& command, LayerOptions& options);
/// Adds --amax-group; `what` begins its help.
void AddAmaxGroupOption(CLI::App& command, std::vector<std::string>& groups,
                        const std::string& what);
/// Adds --seed N: decimal, from 0 to 2^64 - 1. CLI11 itself would wrap -1 around and read 010 as 8.
void AddSeedOption(CLI::App& command, std::optional<uint64_t>& seed, const char* group = "Options");
/// Adds the options for the layer and its tensors.
void AddLayerOptions(CLI::App& command, LayerOptions& options);

/// Recipes x overrides x arithmetics, arithmetics fastest. The recipe `all` stands for those of
/// `listed` that quantize without knobs, and bf16; overrides that one of them does not have are
/// left out. Without a list it stays as it is.
absl::StatusOr<std::vector<v1::Variant>> VariantsOf(
    const LayerOptions& options, const v1::ListRecipesResponse* listed = nullptr);

/// Adds behind every variant its twin on the ranks of --tp, --dp and --ep; without these options
/// the variants stay. INVALID_ARGUMENT for an option about ranks without the one that gives their
/// number, and for variants that are on several ranks already.
absl::StatusOr<std::vector<v1::Variant>> WithParallelTwins(const LayerOptions& options,
                                                           std::vector<v1::Variant> variants);

/// The index of the variant that `text` names: a number, or RECIPE[/OVERRIDE[/ARITHMETIC]] as given
/// on the command line, which must fit one variant only. A variant on several ranks has a fourth
/// part, which must be given ("mxfp8/none/auto/tp2 sp"). INVALID_ARGUMENT listing the variants.
absl::StatusOr<int> FindVariant(const std::string& text, const std::vector<v1::Variant>& variants);

/// Whether `all` is among the recipes, so that VariantsOf needs their list.
bool NamesAllRecipes(const LayerOptions& options);

/// The variant as it was asked for: "fp8_current / none / sm90", "mxfp8 / none / auto / tp2 sp".
std::string VariantText(const v1::Variant& variant);

}  // namespace quantgate
