// World: the ranks of one parallel run in this process, with a host thread and an engine for each,
// and the groups that the ranks form.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/seeded_fault.h"
#include "kernels/comm/group/process_group.h"

namespace quantgate {

/// The group of all ranks, which every world has.
inline constexpr char kWorldGroup[] = "world";
inline constexpr int kWorldSizeMax = 8;

struct WorldOptions {
  std::vector<Engine*> engines = {};            ///< One for each rank; they outlive the world.
  absl::Duration deadline = absl::Seconds(60);  ///< Time after which a wait for other ranks fails.
  CollectiveBackend backend = CollectiveBackend::kLocal;
  SeededFaults faults = {};
  ScheduleNoise noise = {};
  CommStatistics* statistics = nullptr;        ///< Outlives the world. Null: nothing is counted.
  CommunicatorCache* communicators = nullptr;  ///< As in MakeTransport. Outlives the world.
  TransportFactory make_transport = {};        ///< Replaces MakeTransport, for tests and scenarios.
  EngineWrapper wrap_engine = {};              ///< Wraps each of `engines`, for tests.
  StuckObserver on_stuck = {};                 ///< Called as World::Run says; may be null.
};

/// What a process gives to the worlds in it, whatever a request asks for; the fields are those of
/// WorldOptions. Outlives the worlds.
struct RankSetting {
  CommStatistics* statistics = nullptr;
  absl::Duration deadline = absl::Seconds(60);
  TransportFactory make_transport = {};
  EngineWrapper wrap_engine = {};
  SeededFaults faults = {};  ///< In place on every rank, for scenarios.
  StuckObserver on_stuck = {};
  CommunicatorCache* communicators = nullptr;
};

/// What the code that a rank runs knows of its rank.
class Rank {
 public:
  Rank(int index, Engine& engine, const GroupEnvironment& environment)
      : index_(index), engine_(engine), environment_(environment) {}

  int index() const { return index_; }
  Engine& engine() { return engine_; }
  const SeededFaults& faults() const { return environment_.faults; }
  const ScheduleNoise& noise() const { return environment_.noise; }
  const Cancellation* cancellation() const { return environment_.cancellation; }
  /// This rank's handle on the group of that kind ("tp") that it is in. NOT_FOUND where it is in
  /// none.
  absl::StatusOr<ProcessGroup*> FindGroup(const std::string& name);
  /// The same for a group that is known to exist.
  ProcessGroup& group(const std::string& name);

 private:
  friend class World;
  const int index_;
  Engine& engine_;
  const GroupEnvironment& environment_;
  std::map<std::string, std::unique_ptr<ProcessGroup>> groups_;
};

class World {
 public:
  /// INVALID_ARGUMENT naming the field unless there are 1 to kWorldSizeMax engines and the deadline
  /// is positive; UNIMPLEMENTED where this build does not have the backend.
  static absl::StatusOr<std::unique_ptr<World>> Create(WorldOptions options);

  int size() const { return static_cast<int>(ranks_.size()); }
  const Transport& transport() const { return *transport_; }

  /// Splits ranks into groups of one kind: name "tp", members {{0, 1}, {2, 3}}. INVALID_ARGUMENT
  /// naming the field unless the name is new and each rank is there at most once. Not during a run.
  absl::Status AddGroups(const std::string& name, const std::vector<std::vector<int>>& members);
  bool HasGroups(const std::string& name) const;

  /// Runs `body` on one thread for each rank and joins the threads. The first failure aborts all
  /// groups, so that no rank waits for one that has gone, and is returned: unchanged when a group
  /// found it, else after "rank 2: ". A world with a poisoned group runs no more and returns that
  /// group's error. `cancellation` aborts as well. A failed run is cancelled for its ranks
  /// (Rank::cancellation). A body that still does not return is waited for, since it refers to what
  /// the caller owns; once it has not returned within WorldOptions::deadline of the failure,
  /// on_stuck is called: once, from this thread, with the failure and the ranks.
  absl::Status Run(absl::FunctionRef<absl::Status(Rank& rank)> body,
                   const Cancellation* cancellation);

 private:
  class Watch;  // Notes which ranks of one run have ended, and with which status.

  World(WorldOptions options, std::vector<std::unique_ptr<Engine>> wrappers,
        std::unique_ptr<Transport> transport);
  absl::Status AddOneGroup(const std::string& name, const std::vector<int>& members);

  const WorldOptions options_;
  const std::vector<std::unique_ptr<Engine>> wrappers_;  // By rank; empty without wrap_engine.
  const std::unique_ptr<Transport> transport_;
  Rendezvous rendezvous_;
  GroupEnvironment environment_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  int groups_ = 0;
};

}  // namespace quantgate
