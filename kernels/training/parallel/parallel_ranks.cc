// ParallelSession: the world of its ranks and their groups, which are made anew after a step that
// failed, and the groups that calls name.
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/layer/amax_reduction.h"
#include "kernels/training/parallel/parallel_member.h"

namespace quantgate {
namespace {

/// The most lists of ranks that calls may name, since a world keeps every group that it has made.
constexpr size_t kRankListsMax = 16;

}  // namespace

absl::Status ParallelSession::MakeRanks() {
  if (world_ != nullptr) return absl::OkStatus();
  std::vector<Engine*> engines;
  for (const auto& member : members_) engines.push_back(member->engine);
  QG_ASSIGN_OR_RETURN(std::unique_ptr<World> world,
                      MakeWorld(*spec_.parallel, std::move(engines), setting_));
  for (const std::string& list : rank_lists_) {
    QG_ASSIGN_OR_RETURN(const AmaxGroup group, ParseAmaxGroup(list));
    QG_RETURN_IF_ERROR(AddAmaxGroups({{TensorRole::kInput, group}}, *world));
  }
  QG_RETURN_IF_ERROR(world->Run([this](Rank& rank) { return Attach(rank); }, nullptr));
  world_ = std::move(world);
  return absl::OkStatus();
}

absl::Status ParallelSession::Attach(Rank& rank) {
  Member& mine = *members_[static_cast<size_t>(rank.index())];
  mine.rank->all = &rank.group(kWorldGroup);
  ProcessGroup* const same_place = dp() > 1 ? &rank.group(kDataParallelGroup) : nullptr;
  mine.rank->copies = ep() > 1 ? mine.rank->all : same_place;
  if (tp() == 1) {
    mine.rank->experts = &rank.group(ep() > 1 ? kExpertParallelGroup : kTensorParallelGroup);
    mine.rank->expert_copies = same_place;
  }
  if (spec_.weights == WeightStorage::kQuantized) {
    QG_ASSIGN_OR_RETURN(
        mine.rank->held_weights,
        FindAmaxGroup(rank, AmaxGroupOf(spec_.parallel->amax_groups, TensorRole::kWeight)));
  }
  for (const auto& step : mine.steps) QG_RETURN_IF_ERROR(AttachStep(rank, mine, *step));
  return absl::OkStatus();
}

absl::Status ParallelSession::AttachStep(Rank& rank, Member& mine, ParallelStep& step) {
  if (ep() == 1) step.tp = &rank.group(kTensorParallelGroup);
  const bool overlaps = step.column_overlap.has_any() || step.row_overlap.has_any();
  if (overlaps && mine.overlap == nullptr) {
    QG_ASSIGN_OR_RETURN(mine.overlap, RankOverlap::Create(rank));
  }
  step.overlap = mine.overlap == nullptr ? nullptr : &mine.overlap->overlap();
  return AttachAmaxGroups(rank, step);
}

absl::Status ParallelSession::UseStepFor(const ForwardStep& forward) {
  const AmaxGroups groups = WithGroupsOfCall(spec_.parallel->amax_groups, forward.amax_groups);
  for (const auto& [role, group] : groups) {
    if (group.kind != AmaxGroup::Kind::kRanks || rank_lists_.contains(group.Text())) continue;
    if (rank_lists_.size() == kRankListsMax) {
      return RefusePrecondition(
          AmaxGroupField(role), group.Text(),
          absl::StrCat("this session has ", kRankListsMax,
                       " lists of ranks already, the most that it can make groups of"));
    }
    rank_lists_.insert(group.Text());
  }
  QG_RETURN_IF_ERROR(AddAmaxGroups(groups, *world_));
  ParallelSpec parallel = *spec_.parallel;
  if (forward.overlap.has_value() && tp() > 1) parallel.overlap = forward.overlap;
  ParallelStep wanted = StepOf(parallel, recipe());
  wanted.amax_groups = groups;
  if (!forward.train && !forward.overlap.has_value()) {
    wanted.column_overlap.gives_way.fill(true);
    wanted.row_overlap.gives_way.fill(true);
  }
  const auto is_wanted = [&](const ParallelStep& step) {
    return step.amax_groups == groups && step.column_overlap == wanted.column_overlap &&
           step.row_overlap == wanted.row_overlap;
  };
  for (const auto& member : members_) {
    const std::shared_ptr<const ParallelStep> now = member->rank->step;
    if (now == nullptr ? groups.empty() : is_wanted(*now)) continue;
    if (tp() == 1 && groups.empty()) {
      member->rank->step = nullptr;
      continue;
    }
    member->UseStep(std::make_shared<ParallelStep>(wanted));
  }
  DropSteps();
  return absl::OkStatus();
}

void ParallelSession::DropSteps() {
  for (const auto& member : members_) {
    std::erase_if(member->steps, [](const auto& step) { return step.use_count() == 1; });
  }
}

}  // namespace quantgate
