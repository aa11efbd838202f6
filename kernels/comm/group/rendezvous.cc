#include "kernels/comm/group/rendezvous.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/loop_sharing.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr char kOfGroup[] = "quantgate/of_group";

/// Longer deadlines are cut to this one, which is longer than any process lives.
constexpr absl::Duration kLongestDeadline = absl::Hours(24 * 365);

/// "rank 3", "ranks 1, 3".
std::string RanksText(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

/// The first rank of a stuck rank's wait that cannot go on; every such wait has one.
int StuckRankOf(const RankWait& wait, const std::vector<bool>& can_go_on) {
  return *std::find_if(wait.for_ranks.begin(), wait.for_ranks.end(),
                       [&](int rank) { return !can_go_on[rank]; });
}

int FirstWaitOf(std::span<const RankWait> waits, int rank) {
  const auto wait = std::find_if(waits.begin(), waits.end(),
                                 [&](const RankWait& each) { return each.rank == rank; });
  return static_cast<int>(wait - waits.begin());
}

}  // namespace

std::vector<bool> RanksThatCanGoOn(const std::vector<bool>& runs, std::span<const RankWait> waits) {
  std::vector<bool> can_go_on = runs;
  for (const RankWait& wait : waits) can_go_on[wait.rank] = false;
  for (bool is_changed = true; is_changed;) {
    is_changed = false;
    for (const RankWait& wait : waits) {
      if (can_go_on[wait.rank] || !std::all_of(wait.for_ranks.begin(), wait.for_ranks.end(),
                                               [&](int rank) { return can_go_on[rank]; })) {
        continue;
      }
      can_go_on[wait.rank] = is_changed = true;
    }
  }
  return can_go_on;
}

std::vector<int> CycleOfWaits(const std::vector<bool>& runs, std::span<const RankWait> waits) {
  const std::vector<bool> can_go_on = RanksThatCanGoOn(runs, waits);
  const auto stuck = std::find_if(waits.begin(), waits.end(),
                                  [&](const RankWait& wait) { return !can_go_on[wait.rank]; });
  if (stuck == waits.end()) return {};
  // Each stuck rank waits for another stuck rank, so following the waits leads around a cycle.
  std::vector<int> path;
  int rank = stuck->rank;
  std::vector<int> place_of_rank(runs.size(), -1);
  while (place_of_rank[rank] < 0) {
    place_of_rank[rank] = static_cast<int>(path.size());
    path.push_back(FirstWaitOf(waits, rank));
    rank = StuckRankOf(waits[path.back()], can_go_on);
  }
  std::vector<int> cycle(path.begin() + place_of_rank[rank], path.end());
  const auto lowest = std::min_element(cycle.begin(), cycle.end(),
                                       [&](int a, int b) { return waits[a].rank < waits[b].rank; });
  std::rotate(cycle.begin(), lowest, cycle.end());
  return cycle;
}

bool IsGroupError(const absl::Status& status) { return status.GetPayload(kOfGroup).has_value(); }

Rendezvous::Rendezvous(int world_size, absl::Duration deadline)
    : deadline_(std::min(deadline, kLongestDeadline)), runs_(world_size, false) {}

void Rendezvous::AddGroup(GroupDescription description) {
  const std::scoped_lock lock(mutex_);
  auto group = std::make_unique<Group>();
  group->description = std::move(description);
  groups_.push_back(std::move(group));
}

absl::Status Rendezvous::BeginRun() {
  const std::scoped_lock lock(mutex_);
  QG_RETURN_IF_ERROR(first_error_);
  std::fill(runs_.begin(), runs_.end(), true);
  return absl::OkStatus();
}

void Rendezvous::EndRank(int rank) {
  const std::scoped_lock lock(mutex_);
  runs_[rank] = false;
  PoisonStuckGroups();
}

absl::StatusOr<std::shared_ptr<const std::vector<Posting>>> Rendezvous::Meet(int group_id,
                                                                             int place,
                                                                             Posting posting) {
  std::unique_lock lock(mutex_);
  Group& group = *groups_[group_id];
  QG_RETURN_IF_ERROR(group.error);
  Meeting& meeting = group.meeting;
  if (meeting.postings == nullptr) {
    const int size = group.description.size();
    meeting = {std::make_shared<std::vector<Posting>>(size), std::vector<bool>(size), 0};
    ++group.calls;
  }
  if (absl::Status same = CheckCall(group, place, posting.signature); !same.ok()) {
    return Poison(group, std::move(same));
  }
  const std::shared_ptr<std::vector<Posting>> postings = meeting.postings;
  (*postings)[place] = std::move(posting);
  (*postings)[place].arrival = meeting.posted;
  meeting.has_posted[place] = true;
  if (++meeting.posted == group.description.size()) {
    meeting = {};
    std::erase_if(waits_, [&](Wait* wait) {
      if (wait->group != &group) return false;
      return wait->is_over = true;
    });
    lock.unlock();
    changed_.notify_all();
    return postings;
  }
  Wait wait{&group, place};
  QG_RETURN_IF_ERROR(Await(lock, wait));
  return postings;
}

absl::Status Rendezvous::Await(std::unique_lock<std::mutex>& lock, Wait& wait) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(deadline_);
  waits_.push_back(&wait);
  PoisonStuckGroups();
  const LoopSharing::Wait lends_its_cpu;
  while (!wait.is_over && wait.group->error.ok()) {
    if (changed_.wait_until(lock, end) == std::cv_status::timeout && !wait.is_over &&
        wait.group->error.ok()) {
      Poison(*wait.group, DeadlineError(wait)).IgnoreError();
    }
  }
  return wait.is_over ? absl::OkStatus() : wait.group->error;
}

absl::Status Rendezvous::Fail(int group_id, int place, const absl::Status& error) {
  const std::scoped_lock lock(mutex_);
  Group& group = *groups_[group_id];
  if (!group.error.ok()) return group.error;
  return Poison(
      group, absl::Status(error.code(),
                          absl::StrCat("group ", group.description.name, ": rank ",
                                       group.description.members[place], ": ", error.message())));
}

void Rendezvous::Abort(const absl::Status& cause) {
  const std::scoped_lock lock(mutex_);
  for (const auto& group : groups_) Poison(*group, cause).IgnoreError();
}

absl::Status Rendezvous::first_error() const {
  const std::scoped_lock lock(mutex_);
  return first_error_;
}

absl::Status Rendezvous::Poison(Group& group, absl::Status error) {
  if (!group.error.ok()) return group.error;
  error.SetPayload(kOfGroup, absl::Cord());
  if (first_error_.ok()) first_error_ = error;
  group.error = std::move(error);
  group.meeting = {};
  std::erase_if(waits_, [&](const Wait* wait) { return wait->group == &group; });
  changed_.notify_all();
  return group.error;
}

absl::Status Rendezvous::CheckCall(const Group& group, int place, const CallSignature& call) const {
  const Meeting& meeting = group.meeting;
  const std::string where =
      absl::StrCat("group ", group.description.name, ", call ", group.calls, ": ");
  const std::vector<int>& members = group.description.members;
  if (meeting.has_posted[place]) {
    return absl::FailedPreconditionError(
        absl::StrCat(where, "rank ", members[place], " makes ", CallText(call), " while its ",
                     CallText((*meeting.postings)[place].signature),
                     " is under way; one thread of a rank makes the calls on a group"));
  }
  for (int other = 0; other < group.description.size(); ++other) {
    if (!meeting.has_posted[other]) continue;
    const CallSignature& posted = (*meeting.postings)[other].signature;
    if (IsSameCall(posted, call)) continue;
    std::pair<int, std::string> first{members[other], CallText(posted)};
    std::pair<int, std::string> second{members[place], CallText(call)};
    if (second < first) std::swap(first, second);
    return absl::FailedPreconditionError(
        absl::StrCat(where, "rank ", first.first, " ", first.second, ", rank ", second.first, " ",
                     second.second, "; every member must make the same call"));
  }
  return absl::OkStatus();
}

std::vector<int> Rendezvous::MissingRanks(const Wait& wait) const {
  const std::vector<int>& members = wait.group->description.members;
  std::vector<int> missing;
  for (size_t place = 0; place < members.size(); ++place) {
    if (!wait.group->meeting.has_posted[place]) missing.push_back(members[place]);
  }
  return missing;
}

void Rendezvous::PoisonStuckGroups() {
  const std::vector<Wait*> waits = waits_;  // A copy, since poisoning removes some.
  std::vector<RankWait> rank_waits;
  for (const Wait* wait : waits) {
    rank_waits.push_back({wait->group->description.members[wait->place], MissingRanks(*wait)});
  }
  const std::vector<bool> can_go_on = RanksThatCanGoOn(runs_, rank_waits);
  bool some_wait_for_ended = false;
  for (size_t i = 0; i < waits.size(); ++i) {
    if (can_go_on[rank_waits[i].rank]) continue;
    const std::vector<int>& ranks = rank_waits[i].for_ranks;
    const auto ended =
        std::find_if(ranks.begin(), ranks.end(), [&](int rank) { return !runs_[rank]; });
    if (ended == ranks.end()) continue;
    some_wait_for_ended = true;
    if (!waits[i]->group->error.ok()) continue;  // Poisoned through another wait.
    Poison(*waits[i]->group, EndedError(*waits[i], *ended)).IgnoreError();
  }
  if (some_wait_for_ended) return;  // The error ends their waits.
  std::vector<const Wait*> cycle;
  for (const int wait : CycleOfWaits(runs_, rank_waits)) cycle.push_back(waits[wait]);
  if (cycle.empty()) return;
  const absl::Status error = CycleError(cycle);  // Before poisoning forgets the calls.
  for (const Wait* wait : cycle) Poison(*wait->group, error).IgnoreError();
}

std::string Rendezvous::WaitText(const Wait& wait) const {
  const GroupDescription& group = wait.group->description;
  return absl::StrCat("group ", group.name, ", call ", wait.group->calls, " (",
                      CallText((*wait.group->meeting.postings)[wait.place].signature), ")");
}

absl::Status Rendezvous::EndedError(const Wait& wait, int rank) const {
  return absl::FailedPreconditionError(
      absl::StrCat(WaitText(wait), ": rank ", rank, " has ended without it, rank ",
                   wait.group->description.members[wait.place], " waits for it"));
}

absl::Status Rendezvous::CycleError(const std::vector<const Wait*>& cycle) const {
  std::vector<std::string> texts;
  for (const Wait* wait : cycle) {
    texts.push_back(absl::StrCat("rank ", wait->group->description.members[wait->place],
                                 " waits for ", RanksText(MissingRanks(*wait)), " in ",
                                 WaitText(*wait)));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(absl::StrJoin(texts, "; "),
                   "; all ranks must make the calls on all groups in one global order"));
}

absl::Status Rendezvous::DeadlineError(const Wait& wait) const {
  const std::vector<int> missing = MissingRanks(wait);
  return absl::DeadlineExceededError(absl::StrCat(WaitText(wait), ": ", RanksText(missing),
                                                  " did not come within ",
                                                  absl::FormatDuration(deadline_)));
}

}  // namespace quantgate
