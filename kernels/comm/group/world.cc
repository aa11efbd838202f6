#include "kernels/comm/group/world.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/execution.h"
#include "kernels/base/loop_sharing.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

/// How often a run checks whether it is cancelled and whether a rank is stuck.
constexpr std::chrono::milliseconds kPeriod(10);

absl::Status CheckOptions(const WorldOptions& options) {
  const size_t size = options.engines.size();
  if (size < 1 || size > kWorldSizeMax) {
    return Refuse("engines", absl::StrCat(size),
                  absl::StrCat("a world has 1 to ", kWorldSizeMax, " ranks, an engine for each"));
  }
  if (options.deadline <= absl::ZeroDuration()) {
    return Refuse("deadline", absl::FormatDuration(options.deadline), "must be positive");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Transport>> TransportOf(const WorldOptions& options) {
  if (options.make_transport) {
    return options.make_transport(options.backend, options.engines, options.deadline);
  }
  return MakeTransport(options.backend, options.engines, options.deadline, options.communicators);
}

}  // namespace

absl::StatusOr<ProcessGroup*> Rank::FindGroup(const std::string& name) {
  const auto group = groups_.find(name);
  if (group == groups_.end()) {
    return absl::NotFoundError(absl::StrCat("rank ", index_, " is in no group ", name));
  }
  return group->second.get();
}

ProcessGroup& Rank::group(const std::string& name) { return **FindGroup(name); }

/// Notes which ranks of one run have ended, and the run's first failure.
class World::Watch {
 public:
  /// `ranks` is the ranks' cancellation, which is cancelled when the run has failed.
  Watch(Rendezvous& rendezvous, const WorldOptions& options, Cancellation& ranks)
      : rendezvous_(rendezvous), options_(options), ranks_(ranks) {
    for (int rank = 0; rank < static_cast<int>(options.engines.size()); ++rank) {
      running_.insert(rank);
    }
  }

  void End(int rank, const absl::Status& status) {
    if (!status.ok()) Fail(rank, status);
    rendezvous_.EndRank(rank);
    const std::scoped_lock lock(mutex_);
    running_.erase(rank);
    if (running_.empty()) all_ended_.notify_all();
  }

  /// Returns when all ranks have ended.
  void Wait(const Cancellation* cancellation) {
    std::unique_lock lock(mutex_);
    const auto is_over = [&] { return running_.empty(); };
    if (cancellation == nullptr && !options_.on_stuck) return all_ended_.wait(lock, is_over);
    while (!all_ended_.wait_for(lock, kPeriod, is_over)) {
      if (!failure_.ok()) {
        TellWhoIsStuck(lock);
        continue;
      }
      const absl::Status cancelled =
          cancellation == nullptr ? absl::OkStatus() : cancellation->Check();
      if (cancelled.ok()) continue;
      rendezvous_.Abort(cancelled);
      SetFailure(cancelled);
    }
  }

  /// The status of the run, once all ranks have ended.
  absl::Status failure() const { return failure_; }
  /// Whether a collective call gave that status, not a rank's own code.
  bool is_group_error() const { return is_group_error_; }

 private:
  void Fail(int rank, const absl::Status& status) {
    const std::scoped_lock lock(mutex_);
    if (!failure_.ok()) return;
    const absl::Status found = rendezvous_.first_error();
    is_group_error_ = IsGroupError(status);
    const absl::Status own = Prefixed(absl::StrCat("rank ", rank, ": "), status);
    rendezvous_.Abort(absl::AbortedError(
        absl::StrCat("the run was aborted: ", (is_group_error_ ? found : own).message())));
    SetFailure(is_group_error_ ? found : own);
  }

  /// Called after the groups are poisoned, so that a rank in a collective call gets the group's
  /// error and not a cancellation.
  void SetFailure(const absl::Status& failure) {
    failure_ = failure;
    failed_at_ = Clock::now();
    ranks_.Cancel();
  }

  void TellWhoIsStuck(std::unique_lock<std::mutex>& lock) {
    const bool is_late = absl::FromChrono(Clock::now() - failed_at_) >= options_.deadline;
    if (!options_.on_stuck || is_told_ || !is_late) return;
    is_told_ = true;
    const int count = static_cast<int>(running_.size());
    const absl::Status stuck(
        failure_.code(),
        absl::StrCat(failure_.message(), "; ", count == 1 ? "rank " : "ranks ",
                     absl::StrJoin(running_, ", "), " did not return from the engine within ",
                     absl::FormatDuration(options_.deadline), " of that"));
    if (options_.statistics != nullptr)
      options_.statistics->RecordStuckRanks(options_.backend, count);
    lock.unlock();
    options_.on_stuck(stuck);
    lock.lock();
  }

  using Clock = std::chrono::steady_clock;

  Rendezvous& rendezvous_;
  const WorldOptions& options_;
  Cancellation& ranks_;
  std::mutex mutex_;
  std::condition_variable all_ended_;
  std::set<int> running_;
  absl::Status failure_;
  Clock::time_point failed_at_;
  bool is_group_error_ = false, is_told_ = false;
};

World::World(WorldOptions options, std::vector<std::unique_ptr<Engine>> wrappers,
             std::unique_ptr<Transport> transport)
    : options_(std::move(options)),
      wrappers_(std::move(wrappers)),
      transport_(std::move(transport)),
      rendezvous_(static_cast<int>(options_.engines.size()), options_.deadline),
      environment_{.rendezvous = rendezvous_,
                   .transport = *transport_,
                   .faults = options_.faults,
                   .noise = options_.noise,
                   .statistics = options_.statistics,
                   .backend = options_.backend} {
  for (size_t i = 0; i < options_.engines.size(); ++i) {
    ranks_.push_back(
        std::make_unique<Rank>(static_cast<int>(i), *options_.engines[i], environment_));
  }
}

absl::StatusOr<std::unique_ptr<World>> World::Create(WorldOptions options) {
  QG_RETURN_IF_ERROR(CheckOptions(options));
  std::vector<std::unique_ptr<Engine>> wrappers;
  for (size_t rank = 0; options.wrap_engine && rank < options.engines.size(); ++rank) {
    Engine*& engine = options.engines[rank];
    engine = wrappers.emplace_back(options.wrap_engine(*engine, static_cast<int>(rank))).get();
  }
  QG_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, TransportOf(options));
  std::unique_ptr<World> world(
      new World(std::move(options), std::move(wrappers), std::move(transport)));
  std::vector<int> all;
  for (int rank = 0; rank < world->size(); ++rank) all.push_back(rank);
  QG_RETURN_IF_ERROR(world->AddOneGroup(kWorldGroup, all));
  return world;
}

absl::Status World::AddGroups(const std::string& name,
                              const std::vector<std::vector<int>>& members) {
  const std::string field = absl::StrCat("groups[", name, "].members");
  std::vector<bool> is_member(size());
  for (const std::vector<int>& group : members) {
    if (group.empty()) return Refuse(field, "empty", "a group has at least one rank");
    for (const int rank : group) {
      if (rank < 0 || rank >= size()) {
        return Refuse(field, absl::StrCat("rank ", rank),
                      absl::StrCat("must be in [0, ", size(), ")"));
      }
      if (is_member[rank]) {
        return Refuse(field, absl::StrCat("rank ", rank), "the rank appears twice");
      }
      is_member[rank] = true;
    }
  }
  if (HasGroups(name)) return Refuse("groups", name, "groups of this name exist already");
  for (const std::vector<int>& group : members) QG_RETURN_IF_ERROR(AddOneGroup(name, group));
  return absl::OkStatus();
}

bool World::HasGroups(const std::string& name) const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [&](const auto& rank) { return rank->groups_.contains(name); });
}

absl::Status World::AddOneGroup(const std::string& name, const std::vector<int>& members) {
  const GroupDescription description{groups_++, name, members};
  rendezvous_.AddGroup(description);
  QG_RETURN_IF_ERROR(transport_->AddGroup(description));
  for (size_t place = 0; place < members.size(); ++place) {
    Rank& rank = *ranks_[members[place]];
    rank.groups_[name] = std::make_unique<ProcessGroup>(environment_, description,
                                                        static_cast<int>(place), rank.engine_);
  }
  return absl::OkStatus();
}

absl::Status World::Run(absl::FunctionRef<absl::Status(Rank& rank)> body,
                        const Cancellation* cancellation) {
  QG_RETURN_IF_ERROR(rendezvous_.BeginRun());
  Cancellation of_ranks(cancellation == nullptr ? absl::InfiniteFuture()
                                                : cancellation->deadline());
  if (cancellation != nullptr && !cancellation->Check().ok()) of_ranks.Cancel();
  environment_.cancellation = &of_ranks;
  Watch watch(rendezvous_, options_, of_ranks);
  const int cpus = AvailableCpus();  // Waiting ranks lend their CPUs to the others.
  LoopSharing sharing(cpus, std::max(1, cpus / size()), size());
  std::vector<std::thread> threads;
  for (const auto& rank : ranks_) {
    threads.emplace_back([&watch, &sharing, &body, &rank = *rank] {
      const ScopedIeeeEnvironment ieee;
      const LoopSharing::Member member(sharing);
      watch.End(rank.index(), body(rank));
    });
  }
  watch.Wait(cancellation);
  for (std::thread& thread : threads) thread.join();
  environment_.cancellation = nullptr;
  absl::Status status = transport_->Settle();
  if (!watch.failure().ok()) status = watch.failure();
  if (options_.statistics != nullptr) {
    const bool is_group_error = watch.failure().ok() || watch.is_group_error();
    options_.statistics->RecordRun(options_.backend, status, is_group_error);
  }
  return status;
}

}  // namespace quantgate
