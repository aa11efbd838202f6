// Rendezvous: where the threads of all ranks of a world meet on the host. A collective call begins
// when every member of the group has posted it and all have posted the same call. A wait that
// cannot end fails at once: when a member has posted another call, when a member has ended, and
// when members wait for each other. A wait for a member that does not come at all fails after a
// deadline. An error poisons the group: every member gets it, from this call and from each later
// one. One lock serves the whole world: there are few ranks, and they hold it for a few hundred
// instructions.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/comm/group/transport.h"

namespace quantgate {

/// Whether an error is one that poisoned a group, also after Prefixed.
bool IsGroupError(const absl::Status& status);

/// A rank that waits until all of some ranks have come.
struct RankWait {
  int rank = 0;
  std::vector<int> for_ranks;
};

/// For each rank whether it can still make a call, now or after its wait. `runs` has an entry for
/// each rank; one that does not run has ended. A waiting rank (it waits once) can go on when all
/// the ranks that it waits for can. A rank that does not wait is taken to make whatever call is
/// needed, so no rank that could go on is ever said to be stuck.
std::vector<bool> RanksThatCanGoOn(const std::vector<bool>& runs, std::span<const RankWait> waits);

/// A cycle among the waits of ranks that cannot go on, as indices into `waits`: each waits for the
/// rank of the next one, and the first has the lowest rank. Empty where every waiting rank can go
/// on. No rank that cannot go on may wait for one that has ended.
std::vector<int> CycleOfWaits(const std::vector<bool>& runs, std::span<const RankWait> waits);

class Rendezvous {
 public:
  /// A wait that is longer than `deadline` fails. Ranks are 0 .. world_size - 1.
  Rendezvous(int world_size, absl::Duration deadline);

  /// Adds a group under the id that its description states. Not while ranks run.
  void AddGroup(GroupDescription group);
  absl::Duration deadline() const { return deadline_; }

  /// Marks all ranks as running. Gives the error of a group that is poisoned, if there is one.
  absl::Status BeginRun();
  /// Declares that the rank makes no more calls in this run.
  void EndRank(int rank);

  /// Posts a member's part of a call and gives what all members posted, in the group's order, when
  /// the last of them has. FAILED_PRECONDITION naming ranks and calls where they are not the same
  /// or can never meet; DEADLINE_EXCEEDED naming the ranks that did not come.
  absl::StatusOr<Postings> Meet(int group, int place, Posting posting);

  /// Poisons the group with the error of its member `place` unless it is poisoned already, and
  /// gives the error that it is poisoned with.
  absl::Status Fail(int group, int place, const absl::Status& error);
  /// Poisons every group that is not poisoned yet.
  void Abort(const absl::Status& cause);
  /// The first error that poisoned a group; OK while none is poisoned.
  absl::Status first_error() const;

 private:
  struct Meeting {
    std::shared_ptr<std::vector<Posting>> postings;
    std::vector<bool> has_posted;
    int posted = 0;
  };
  struct Group {
    GroupDescription description;
    int64_t calls = 0;  ///< How many meetings have begun: the number of the one under way.
    Meeting meeting;
    absl::Status error;
  };
  /// A rank that waits for a meeting of its group.
  struct Wait {
    Group* group = nullptr;
    int place = 0;
    bool is_over = false;
  };

  absl::Status Await(std::unique_lock<std::mutex>& lock, Wait& wait);
  absl::Status CheckCall(const Group& group, int place, const CallSignature& call) const;
  absl::Status Poison(Group& group, absl::Status error);
  /// Poisons the groups in which ranks wait for what cannot come.
  void PoisonStuckGroups();
  std::vector<int> MissingRanks(const Wait& wait) const;
  std::string WaitText(const Wait& wait) const;
  absl::Status EndedError(const Wait& wait, int rank) const;
  absl::Status CycleError(const std::vector<const Wait*>& cycle) const;
  absl::Status DeadlineError(const Wait& wait) const;

  const absl::Duration deadline_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // A wait is over or a group is poisoned.
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<bool> runs_;    // By rank; false where the rank has ended.
  std::vector<Wait*> waits_;  // The waits that are not over.
  absl::Status first_error_;
};

}  // namespace quantgate
