#include "kernels/layer/amax_reduction.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/comm/rank_engines.h"
#include "kernels/layer/linear/linear_parallel.h"

namespace quantgate {
namespace {

using Kind = AmaxGroup::Kind;

/// "tensor (ranks 0, 1)".
std::string TextOf(const std::string& name, const ProcessGroup& group) {
  return absl::StrCat(name, " (ranks ", absl::StrJoin(group.members(), ", "), ")");
}

bool HaveEveryRankOnce(const std::vector<std::vector<int>>& lists, int ranks) {
  std::vector<int> all;
  for (const std::vector<int>& list : lists) all.insert(all.end(), list.begin(), list.end());
  std::sort(all.begin(), all.end());
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != static_cast<int>(i)) return false;
  }
  return static_cast<int>(all.size()) == ranks;
}

/// Whether some list has two ranks with the same experts: those of one place in two copies.
bool HaveExpertsTwice(const AmaxGroup& group, const ParallelSpec& parallel) {
  if (group.kind != Kind::kRanks) return parallel.data_parallel > 1;
  return std::any_of(group.ranks.begin(), group.ranks.end(), [&](const std::vector<int>& list) {
    std::set<int> places;
    for (const int rank : list) places.insert(rank % parallel.expert_parallel);
    return places.size() < list.size();
  });
}

bool HaveOneRankEach(const AmaxGroup& group) {
  return std::all_of(group.ranks.begin(), group.ranks.end(),
                     [](const std::vector<int>& list) { return list.size() == 1; });
}

/// Why the ranks do not have the group; empty if they have it.
std::string WhyNotOf(const AmaxGroup& group, const ParallelSpec& parallel, QuantizedLayers layers) {
  if (group.kind == Kind::kTensor && parallel.tensor_parallel == 1) {
    return "this group needs tensor_parallel > 1";
  }
  if (group.kind == Kind::kData && parallel.data_parallel == 1) {
    return "this group needs data_parallel > 1";
  }
  if (group.kind == Kind::kRanks && !HaveEveryRankOnce(group.ranks, parallel.size())) {
    return absl::StrCat("the lists must have every rank from 0 to ", parallel.size() - 1, " once");
  }
  const bool reduces =
      group.kind == Kind::kRanks ? !HaveOneRankEach(group) : group.kind != Kind::kNone;
  const bool is_of_experts =
      layers == QuantizedLayers::kExpertsAlone && parallel.expert_parallel > 1;
  if (is_of_experts && reduces && !HaveExpertsTwice(group, parallel)) {
    return "each expert is whole on its rank, and no two ranks of a list have the same experts";
  }
  return "";
}

std::string WhyNotUnder(const Recipe& recipe, TensorRole role) {
  bool is_delayed = false;
  for (const Quantizer& quantizer : recipe.QuantizersOf(role)) {
    if (ReducesAmax(quantizer, {true, true})) return "";
    is_delayed |= !quantizer.delayed_directions().empty();
  }
  if (is_delayed) {
    if (recipe.delayed_scaling().reduce_amax) return "";
    return "under reduce_amax=false every rank has its own amaxes";
  }
  return absl::StrCat("recipe ", recipe.ShortText(), " has no amax of a whole ",
                      std::string(TensorRoleName(role)),
                      " tensor, as per-tensor FP8 and nvfp4 have");
}

/// The operand of a role as stages call it.
const char* WordOf(TensorRole role) {
  if (role == TensorRole::kInput) return "x";
  return role == TensorRole::kWeight ? "weight" : "grad_output";
}

}  // namespace

absl::Status CheckAmaxGroups(const std::string& prefix, const AmaxGroups& groups,
                             const ParallelSpec& parallel, const Recipe& recipe,
                             QuantizedLayers layers) {
  for (const auto& [role, group] : groups) {
    if (!group.is_named()) continue;
    std::string rule = WhyNotOf(group, parallel, layers);
    if (rule.empty()) rule = WhyNotUnder(recipe, role);
    if (!rule.empty()) return Refuse(prefix + AmaxGroupField(role), group.Text(), rule);
  }
  return absl::OkStatus();
}

absl::Status CheckAmaxesOfRole(const std::string& prefix, const AmaxGroups& groups, TensorRole role,
                               const Quantizer& quantizer, Usages usages) {
  const AmaxGroup& group = AmaxGroupOf(groups, role);
  if (!group.is_named() || group.kind == Kind::kNone) return absl::OkStatus();
  const absl::Status status = CheckGroupAmaxes(quantizer, usages);
  if (status.ok()) return status;
  return Refuse(prefix + AmaxGroupField(role), group.Text(), std::string(status.message()));
}

absl::StatusOr<ProcessGroup*> FindAmaxGroup(Rank& rank, const AmaxGroup& group) {
  if (!group.is_named() || group.kind == Kind::kNone) return nullptr;
  return rank.FindGroup(group.kind == Kind::kTensor  ? kTensorParallelGroup
                        : group.kind == Kind::kData  ? kDataParallelGroup
                        : group.kind == Kind::kWorld ? kWorldGroup
                                                     : group.Text());
}

absl::Status AttachAmaxGroups(Rank& rank, ParallelStep& step) {
  for (const auto& [role, group] : step.amax_groups) {
    QG_ASSIGN_OR_RETURN(step.amax_ends[static_cast<size_t>(role)], FindAmaxGroup(rank, group));
  }
  return absl::OkStatus();
}

RoleAmaxGroup::RoleAmaxGroup(const StepOptions& options, TensorRole role)
    : step_(options.parallel.get()), role_(role) {
  if (step_ != nullptr) group_ = &AmaxGroupOf(step_->amax_groups, role);
}

bool RoleAmaxGroup::IsReduced(const Quantizer& quantizer, Usages usages) const {
  return is_named() && group_->kind != Kind::kNone && ReducesAmax(quantizer, usages);
}

std::string RoleAmaxGroup::Stage() const {
  return absl::StrCat("reduce amax of ", WordOf(role_), " over ", group_->Text());
}

absl::Status RoleAmaxGroup::Reduce(StepRecorder& recorder, const LinearNames& names,
                                   const Tensor& source, const Quantizer& quantizer, Usages usages,
                                   QuantizeArguments& arguments) const {
  const bool is_known =
      arguments.group_amax_rowwise.has_value() || arguments.group_amax_columnwise.has_value();
  if (!IsReduced(quantizer, usages) || is_known) return absl::OkStatus();
  const GatherContext context{recorder.engine(), end(), recorder.faults(), recorder.cancellation()};
  return recorder.Timed({StageKind::kCommunicate, names.Stage(Stage())}, [&] {
    return ReduceAmaxes(context, source, quantizer, usages, arguments);
  });
}

std::string RoleAmaxGroup::Text(const Quantizer& quantizer, Usages usages,
                                const QuantizeArguments& arguments) const {
  if (is_named()) {
    if (quantizer.delayed_directions().empty() && !ReducesAmax(quantizer, usages)) return "";
    if (group_->kind == Kind::kNone) return group_->Text();
    return TextOf(group_->Text(), end());
  }
  const bool is_of_group =
      arguments.group_amax_rowwise.has_value() || arguments.group_amax_columnwise.has_value();
  return is_of_group && step_ != nullptr && step_->tp != nullptr ? TextOf("tensor", *step_->tp)
                                                                 : "";
}

std::string RoleAmaxGroup::NameInError(const std::string& name) const {
  if (!is_named()) return name;
  return absl::StrCat(AmaxGroupField(role_), ": ", group_->Text(), "; codes that ",
                      TextOf("tensor", *step_->tp), " joins stand under one scale, and ", name);
}

}  // namespace quantgate
