#include "kernels/training/parallel/parallel_checks.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/group/world.h"
#include "kernels/comm/overlap/overlap.h"
#include "kernels/layer/amax_reduction.h"
#include "kernels/layer/experts/expert_run.h"
#include "kernels/layer/layer_program.h"
#include "kernels/layer/layer_sharding.h"
#include "kernels/layer/linear/given_codes.h"
#include "kernels/layer/linear/linear_check.h"
#include "kernels/quantize/recipe/recipe_quantizers.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/sharding/state_sharding.h"

namespace quantgate {
namespace {

absl::Status CheckCounts(const ParallelSpec& parallel) {
  const auto check = [](const char* field, int count) {
    if (count >= 1 && count <= kWorldSizeMax) return absl::OkStatus();
    return Refuse(absl::StrCat("parallel.", field), absl::StrCat(count),
                  absl::StrCat("from 1 to ", kWorldSizeMax));
  };
  QG_RETURN_IF_ERROR(check("tensor_parallel", parallel.tensor_parallel));
  QG_RETURN_IF_ERROR(check("data_parallel", parallel.data_parallel));
  QG_RETURN_IF_ERROR(check("expert_parallel", parallel.expert_parallel));
  if (parallel.expert_parallel > 1 && parallel.tensor_parallel > 1) {
    return Refuse("parallel.tensor_parallel", absl::StrCat(parallel.tensor_parallel),
                  "with expert_parallel the ranks of a copy divide experts alone, and are "
                  "copies of all other layers");
  }
  if (parallel.size() >= 2 && parallel.size() <= kWorldSizeMax) return absl::OkStatus();
  return Refuse("parallel", parallel.Label(),
                absl::StrCat("tensor_parallel or expert_parallel, times data_parallel, is "
                             "the number of ranks, 2 to ",
                             kWorldSizeMax));
}

absl::Status CheckOptions(const ParallelSpec& parallel) {
  if (parallel.profile.kind == ReductionKind::kNccl &&
      parallel.backend != CollectiveBackend::kNccl) {
    return Refuse("parallel.reduction_profile", "nccl", "the library's own sum needs backend nccl");
  }
  if (parallel.fully_sharded && parallel.data_parallel == 1) {
    return Refuse("parallel.fully_sharded", "true", "fully_sharded needs data_parallel > 1");
  }
  if (!parallel.fully_sharded && !parallel.reshard_after_forward) {
    return Refuse("parallel.reshard_after_forward", "false", "it needs fully_sharded");
  }
  if (parallel.tensor_parallel > 1) return absl::OkStatus();
  if (parallel.sequence_parallel) {
    return Refuse("parallel.sequence_parallel", "true",
                  "sequence_parallel needs tensor_parallel > 1");
  }
  if (parallel.overlap.has_value()) {
    return Refuse("parallel.overlap", parallel.overlap->Text(),
                  "overlap needs tensor_parallel > 1");
  }
  return absl::OkStatus();
}

absl::Status CheckDistributedOptimizer(const SessionSpec& spec) {
  const ParallelSpec& parallel = *spec.parallel;
  if (!parallel.distributed_optimizer) return absl::OkStatus();
  const auto refuse = [](const std::string& rule) {
    return Refuse("parallel.distributed_optimizer", "true", rule);
  };
  if (parallel.data_parallel == 1) {
    return refuse("distributed_optimizer needs data_parallel > 1");
  }
  if (parallel.fully_sharded) {
    return refuse("fully_sharded copies divide masters and moments by rows already");
  }
  if (spec.optimizer.kind == OptimizerSpec::Kind::kNone) {
    return Refuse("optimizer", "none", "parallel.distributed_optimizer needs an optimizer");
  }
  if (spec.masters == Masters::kF32) return absl::OkStatus();
  return Refuse("masters", std::string(MastersName(spec.masters)),
                "parallel.distributed_optimizer needs f32 masters");
}

std::string FieldOf(size_t layer) { return absl::StrCat("layers[", layer, "].layer"); }

absl::Status CheckLayerModes(const LayerSpec& layer, const std::string& field, bool is_divided) {
  if (!is_divided) {
    if (!HasParallelMode(layer)) return absl::OkStatus();
    return Refuse(field + ".parallel_mode", "given", "it needs parallel.tensor_parallel > 1");
  }
  if (!layer.traits().has_operations || !HasParallelMode(layer)) return absl::OkStatus();
  for (size_t i = 0; i < layer.operations.size(); ++i) {
    const OperationSpec& operation = layer.operations[i];
    const bool is_left_out = operation.kind == OperationKind::kBasicLinear &&
                             operation.parallel_mode == ParallelMode::kNone;
    if (!is_left_out) continue;
    return Refuse(absl::StrCat(field, ".operations[", i, "].parallel_mode"), "none",
                  "if one basic_linear of a chain is divided, all must be");
  }
  return absl::OkStatus();
}

std::string TextOf(const RankLayout& layout) {
  if (layout.divides_rows) return "divided along its rows";
  return layout.columns.dim == -1 ? "whole" : "divided along its columns";
}

absl::Status CheckLayouts(const SessionSpec& spec) {
  for (size_t i = 1; i < spec.layers.size(); ++i) {
    const RankLayout given = OutputLayout(spec, i - 1), taken = InputLayout(spec, i);
    if (given == taken) continue;
    return Refuse(FieldOf(i) + ".parallel_mode",
                  std::string(ParallelModeName(spec.layers[i].spec.parallel_mode)),
                  absl::StrCat("on each rank its x is ", TextOf(taken), ", and what layer ",
                               spec.layers[i - 1].name, " gives is ", TextOf(given)));
  }
  return absl::OkStatus();
}

/// Bounds the number of rows, each of which is numbered before anything else is checked.
absl::Status CheckRoutedRows(const std::string& field, const std::vector<int64_t>& m_splits) {
  int64_t rows = 0;
  for (size_t i = 0; i < m_splits.size(); ++i) {
    const int64_t split = m_splits[i];
    if (split >= 0 && split <= kRoutedRowsMax - rows) {
      rows += split;
      continue;
    }
    return Refuse(absl::StrCat(field, "[", i, "]"), absl::StrCat(split),
                  absl::StrCat("on several ranks they are at least 0 and add up to "
                               "at most ",
                               kRoutedRowsMax));
  }
  return absl::OkStatus();
}

/// Checks that two layers route the same rows.
absl::Status CheckSameSplits(const std::string& field, const std::vector<int64_t>& m_splits,
                             const SessionLayer& first) {
  const std::vector<int64_t>& expected = first.spec.m_splits;
  const size_t count = std::max(m_splits.size(), expected.size());
  const auto text = [](const std::vector<int64_t>& splits, size_t i) {
    return i < splits.size() ? absl::StrCat(splits[i]) : std::string("absent");
  };
  for (size_t i = 0; i < count; ++i) {
    if (text(m_splits, i) == text(expected, i)) continue;
    return Refuse(absl::StrCat(field, "[", i, "]"), text(m_splits, i),
                  absl::StrCat("on several ranks all grouped_linear layers have the same, "
                               "and in layer ",
                               first.name, " it is ", text(expected, i)));
  }
  return absl::OkStatus();
}

/// Checks that some layer has communication that can overlap.
absl::Status CheckOverlapHasLayers(const SessionSpec& spec) {
  if (!spec.parallel->overlap.has_value()) return absl::OkStatus();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (HasParallelMode(spec.layers[i].spec) && !DividesExpertWeights(spec, i)) {
      return absl::OkStatus();
    }
  }
  return Refuse("parallel.overlap", spec.parallel->overlap->Text(),
                "every divided layer is a grouped_linear, which has no communication to overlap");
}

/// Checks the profile of the sums that a unit's plan names methods for.
absl::Status CheckNamedProfile(const OverlapPlan& plan, OverlapSide side,
                               const ReductionProfile& profile) {
  for (const GemmRole role : {GemmRole::kFprop, GemmRole::kDgrad, GemmRole::kWgrad}) {
    const OverlapMethod method = plan.MethodOf(role);
    if (method == OverlapMethod::kNone || plan.GivesWay(role)) continue;
    // Column-parallel units scatter dx inside dgrad or beside wgrad, row-parallel ones y.
    const bool is_sum = side == OverlapSide::kRow  ? role == GemmRole::kFprop
                        : role == GemmRole::kDgrad ? method != OverlapMethod::kBulk
                                                   : role == GemmRole::kWgrad;
    if (is_sum) QG_RETURN_IF_ERROR(CheckOverlapProfile(method, profile));
  }
  return absl::OkStatus();
}

/// Checks of each divided unit what recipe and options decide of the session's overlap.
absl::Status CheckOverlapUnder(const SessionSpec& spec, const Recipe& recipe) {
  const ParallelSpec& parallel = *spec.parallel;
  if (!parallel.overlap.has_value() || parallel.tensor_parallel == 1) return absl::OkStatus();
  const auto no_biases = [](const std::string&) { return false; };
  for (const SessionLayer& layer : spec.layers) {
    // Experts communicate nothing, and a spec without a program is refused by its layer's check.
    if (layer.spec.traits().has_experts || !CheckLayerSpec(layer.spec).ok()) continue;
    const std::vector<LayerProgram> programs = ProgramsOf(layer.spec, no_biases);
    for (const ProgramOperation& unit : programs.front().operations) {
      if (unit.parallel_mode == ParallelMode::kNone) continue;
      const Recipe of_unit = RecipeOfModule(layer.spec, recipe, unit.names.prefix);
      const bool is_column = unit.parallel_mode == ParallelMode::kColumn;
      const OverlapFacts facts = {.side = is_column ? OverlapSide::kColumn : OverlapSide::kRow,
                                  .ranks = parallel.tensor_parallel,
                                  .sequence_parallel = parallel.sequence_parallel};
      const OverlapPlan named = OverlapPlanOf(*parallel.overlap, facts.side, of_unit);
      absl::Status status = CheckNamedOverlap(named, facts, of_unit);
      if (status.ok()) status = CheckNamedProfile(named, facts.side, parallel.profile);
      if (status.ok()) continue;
      const char* const plan = is_column ? "parallel.column_overlap" : "parallel.row_overlap";
      std::optional<Refusal> refusal = RefusalOf(WithRequestedOverlap(WithinField(plan, status)));
      absl::StrAppend(&refusal->rule, " (layer ", layer.name, ")");
      return StatusOf(*refusal);
    }
  }
  return absl::OkStatus();
}

/// Checks that under sequence parallelism the ranks of every copy can divide the copy's rows of the
/// batch.
absl::Status CheckRowsOfCopies(const SessionSpec& spec, size_t layer) {
  const ParallelSpec& parallel = *spec.parallel;
  for (int copy = 0; parallel.sequence_parallel && copy < parallel.data_parallel; ++copy) {
    const LayerSpec of_copy = LayerOfCopy(spec.layers[layer].spec, parallel.data_parallel, copy);
    const int64_t rows =
        std::accumulate(of_copy.m_splits.begin(), of_copy.m_splits.end(), int64_t{0});
    if (rows % parallel.tensor_parallel == 0) continue;
    return Refuse(FieldOf(layer) + ".m_splits",
                  absl::StrCat(rows, " rows of copy ", copy, " of ", parallel.data_parallel),
                  absl::StrCat("under sequence_parallel the ", parallel.tensor_parallel,
                               " ranks of a copy divide its rows evenly"));
  }
  return absl::OkStatus();
}

/// If ranks divide experts or their rows, checks that each rank has at least one expert and that
/// all layers route the same rows.
absl::Status CheckExperts(const SessionSpec& spec) {
  const int ranks = spec.parallel->expert_parallel;
  const SessionLayer* first = nullptr;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i].spec;
    if (!layer.traits().has_experts) continue;
    const std::string field = FieldOf(i) + ".m_splits";
    if (layer.m_splits.size() < static_cast<size_t>(ranks)) {
      return Refuse(field, absl::StrCat(layer.m_splits.size(), " experts"),
                    absl::StrCat("each of the ", ranks, " ranks has an expert at least"));
    }
    if (first == nullptr) first = &spec.layers[i];
    QG_RETURN_IF_ERROR(CheckRoutedRows(field, layer.m_splits));
    if (!RoutesRows(spec)) continue;
    QG_RETURN_IF_ERROR(CheckSameSplits(field, layer.m_splits, *first));
    QG_RETURN_IF_ERROR(CheckRowsOfCopies(spec, i));
  }
  if (first == nullptr && ranks == 1) return absl::OkStatus();
  if (first != nullptr) return absl::OkStatus();
  return Refuse("parallel.expert_parallel", absl::StrCat(ranks),
                "no layer is a grouped_linear, so there are no experts to divide");
}

/// Copies, and ranks that divide experts, have rows of dim 0 of a batch. Of attention that is the
/// sequence, all of which every query may need.
absl::Status CheckWholeSequences(const SessionSpec& spec) {
  const ParallelSpec& parallel = *spec.parallel;
  if (parallel.data_parallel == 1 && parallel.expert_parallel == 1) return absl::OkStatus();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerTraits& traits = spec.layers[i].spec.traits();
    if (!traits.has(OperationKind::kAttention)) continue;
    const bool has_copies = parallel.data_parallel > 1;
    return Refuse(has_copies ? "parallel.data_parallel" : "parallel.expert_parallel",
                  absl::StrCat(has_copies ? parallel.data_parallel : parallel.expert_parallel),
                  absl::StrCat("it divides dim 0 of a batch, which is the sequence along which "
                               "layer ",
                               spec.layers[i].name, ", ", WithArticle(traits),
                               ", attends: tensor_parallel divides its heads"));
  }
  return absl::OkStatus();
}

bool QuantizesNothing(const LayerSpec& layer) {
  return layer.traits().has_operations &&
         std::none_of(layer.operations.begin(), layer.operations.end(), [](const auto& operation) {
           return operation.kind == OperationKind::kBasicLinear ||
                  operation.kind == OperationKind::kQuantize;
         });
}

/// Which layers' amaxes a session's groups reduce: any layer's, or only experts'.
QuantizedLayers QuantizedLayersOf(const SessionSpec& spec) {
  const bool has_experts_alone =
      std::all_of(spec.layers.begin(), spec.layers.end(), [](const SessionLayer& layer) {
        return layer.spec.traits().has_experts || QuantizesNothing(layer.spec);
      });
  return has_experts_alone ? QuantizedLayers::kExpertsAlone : QuantizedLayers::kAny;
}

/// Whether all lists that contain copies of one part of the layers contain the same parts, so that
/// the largest of the parts' amaxes is the same in all these lists. Always true of groups of other
/// kinds.
bool HaveSameParts(const AmaxGroup& group, int tensor_parallel) {
  std::map<int, std::set<int>> others;  // By part: the parts in lists with it, itself included.
  for (const std::vector<int>& list : group.ranks) {
    std::set<int> parts;
    for (const int rank : list) parts.insert(rank % tensor_parallel);
    for (const int part : parts) {
      if (others.try_emplace(part, parts).first->second != parts) return false;
    }
  }
  return true;
}

/// Checks the group of weights that are held quantized: their quantizers can take a group's amax,
/// and copies that divide a weight make its codes under one scale.
absl::Status CheckGroupOfHeldWeights(const SessionSpec& spec, const Recipe& recipe) {
  const ParallelSpec& parallel = *spec.parallel;
  const AmaxGroup& group = AmaxGroupOf(parallel.amax_groups, TensorRole::kWeight);
  const bool is_divided = parallel.fully_sharded || parallel.distributed_optimizer;
  bool is_of_codes = false;  // The scale of some weight follows from the amax of its own codes.
  for (const SessionLayer& layer : spec.layers) {
    if (spec.weights != WeightStorage::kQuantized) break;
    for (const Recipe& of_module : RecipesOfModules(layer.spec, recipe)) {
      const Quantizer& quantizer = of_module.QuantizerFor(TensorRole::kWeight);
      QG_RETURN_IF_ERROR(CheckAmaxesOfRole("parallel.", parallel.amax_groups, TensorRole::kWeight,
                                           quantizer, {true, !spec.built_without_grad}));
      is_of_codes |= quantizer.delayed_directions().empty();
    }
  }
  if (!is_divided || !is_of_codes || HaveSameParts(group, parallel.tensor_parallel)) {
    return absl::OkStatus();
  }
  return Refuse(
      "parallel." + AmaxGroupField(TensorRole::kWeight), group.Text(),
      absl::StrCat("the copies (",
                   parallel.fully_sharded ? "fully_sharded" : "distributed_optimizer",
                   ") quantize pieces of one weight, whose codes are joined under one scale: lists "
                   "with copies of a tensor-parallel part have the same parts"));
}

/// Refuses rules for results, whose codes would have scales of each rank's own parts.
absl::Status CheckNoResultRules(const LayerSpec& layer, const Recipe& recipe) {
  for (const Recipe& of_module : RecipesOfModules(layer, recipe)) {
    for (const TensorRole role : kResultRoles) {
      if (!of_module.QuantizerFor(role).rowwise.is_quantized()) continue;
      return RefuseResultRule("recipe", recipe, role);
    }
  }
  return absl::OkStatus();
}

/// Whether a name is a prefix of ranks' own tensors: "rank0".
bool IsRankName(const std::string& name) {
  return absl::StartsWith(name, "rank") && name.size() == 5 && name[4] >= '0' && name[4] <= '9';
}

}  // namespace

absl::Status CheckSessionRanks(const SessionSpec& spec) {
  if (spec.parallel.has_value()) {
    QG_RETURN_IF_ERROR(CheckCounts(*spec.parallel));
    QG_RETURN_IF_ERROR(CheckOptions(*spec.parallel));
    QG_RETURN_IF_ERROR(CheckDistributedOptimizer(spec));
    QG_RETURN_IF_ERROR(CheckRecipeOnRanks(spec, spec.recipe));
  }
  const bool is_divided = spec.parallel.has_value() && spec.parallel->tensor_parallel > 1;
  bool has_mode = false;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i].spec;
    QG_RETURN_IF_ERROR(CheckLayerModes(layer, FieldOf(i), is_divided));
    has_mode |= HasParallelMode(layer);
    if (!spec.parallel.has_value()) continue;
    if (IsRankName(spec.layers[i].name)) {
      return Refuse(absl::StrCat("layers[", i, "].name"), spec.layers[i].name,
                    "the ranks' own tensors begin with it");
    }
  }
  if (spec.parallel.has_value()) {
    QG_RETURN_IF_ERROR(CheckWholeSequences(spec));
    QG_RETURN_IF_ERROR(CheckExperts(spec));
  }
  if (!is_divided) return absl::OkStatus();
  if (!has_mode) {
    return Refuse("parallel.tensor_parallel", absl::StrCat(spec.parallel->tensor_parallel),
                  "no layer has a parallel_mode, so there is nothing to divide");
  }
  QG_RETURN_IF_ERROR(CheckOverlapHasLayers(spec));
  return CheckLayouts(spec);
}

absl::Status CheckRecipeOnRanks(const SessionSpec& spec, const Recipe& recipe) {
  for (const SessionLayer& layer : spec.layers) {
    QG_RETURN_IF_ERROR(CheckNoResultRules(layer.spec, recipe));
  }
  const AmaxGroups& groups = spec.parallel->amax_groups;
  QG_RETURN_IF_ERROR(
      CheckAmaxGroups("parallel.", groups, *spec.parallel, recipe, QuantizedLayersOf(spec)));
  QG_RETURN_IF_ERROR(CheckOverlapUnder(spec, recipe));
  return CheckGroupOfHeldWeights(spec, recipe);
}

absl::Status CheckForwardAmaxGroups(const AmaxGroups& groups, const SessionSpec& spec,
                                    const Recipe& recipe) {
  const auto weight = groups.find(TensorRole::kWeight);
  const bool holds_codes = spec.weights == WeightStorage::kQuantized;
  if (holds_codes && weight != groups.end() &&
      (weight->second.is_named() ||
       AmaxGroupOf(spec.parallel->amax_groups, TensorRole::kWeight).is_named())) {
    return Refuse(AmaxGroupField(TensorRole::kWeight), weight->second.Text(),
                  "no forward quantizes weights that are held quantized (weights); their group is "
                  "the session's (parallel.amax_groups)");
  }
  return CheckAmaxGroups("", groups, *spec.parallel, recipe, QuantizedLayersOf(spec));
}

absl::Status CheckForwardOverlap(const std::optional<OverlapSpec>& overlap, const SessionSpec& spec,
                                 const Recipe& recipe) {
  if (!overlap.has_value()) return absl::OkStatus();
  if (spec.parallel->tensor_parallel == 1 && overlap->names_nothing()) return absl::OkStatus();
  SessionSpec with_it = spec;
  with_it.parallel->overlap = overlap;
  absl::Status status = CheckOptions(*with_it.parallel);
  if (status.ok()) status = CheckOverlapHasLayers(with_it);
  if (!status.ok()) return AsField("overlap", status);
  status = CheckOverlapUnder(with_it, recipe);
  const std::optional<Refusal> refusal = RefusalOf(status);
  if (!refusal.has_value()) return status;
  absl::string_view field = refusal->field;
  absl::ConsumePrefix(&field, "parallel.");
  if (absl::StartsWith(field, "overlap")) return AsField(std::string(field), status);
  return Refuse("overlap", overlap->Text(),
                std::string(AsField(std::string(field), status).message()));
}

absl::Status CheckNoCodes(const std::string& field, const QuantizedTensor& codes) {
  if (!codes.has_codes()) return absl::OkStatus();
  return Refuse(field, absl::StrCat("given as ", CodesText(codes)), kRanksQuantize);
}

absl::Status CheckNamesNoRanks(const ForwardStep& step) {
  if (step.overlap.has_value() && !step.overlap->names_nothing()) {
    return Refuse("overlap", step.overlap->Text(), "a session on one rank communicates nothing");
  }
  if (step.amax_groups.empty()) return absl::OkStatus();
  const auto& [role, group] = *step.amax_groups.begin();
  return Refuse(AmaxGroupField(role), group.Text(), "a session on one rank has no groups");
}

absl::Status CheckOneRank(const SessionSpec& spec) {
  if (!spec.parallel.has_value()) return absl::OkStatus();
  return Refuse("parallel", spec.parallel->Label(), "a session on one rank has none");
}

absl::Status CheckDividesRows(const std::string& field, const Tensor& tensor,
                              const ParallelSpec& parallel, bool divides_rows) {
  const int parts = divides_rows ? parallel.size() : parallel.data_parallel;
  if (parts == 1) return absl::OkStatus();
  if (tensor.has_value() && tensor.rank() >= 2 && tensor.shape()[0] % parts == 0) {
    return absl::OkStatus();
  }
  return Refuse(field, tensor.has_value() ? TensorText(tensor) : "absent",
                absl::StrCat("it must have a rank of at least 2 and a dim 0 that the ", parts,
                             " parts of the batch divide"));
}

absl::Status CheckIsRoutedRows(const std::string& field, const Tensor& tensor, int64_t rows) {
  if (tensor.has_value() && tensor.rank() == 2 && tensor.shape()[0] == rows) {
    return absl::OkStatus();
  }
  return Refuse(field, tensor.has_value() ? TensorText(tensor) : "absent",
                absl::StrCat("on several ranks it must have a rank of 2 and the ", rows,
                             " rows that the m_splits of grouped_linear add up to"));
}

}  // namespace quantgate
