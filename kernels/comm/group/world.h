// World: the ranks of one parallel run in this process, a host thread and an engine for each, and
// the groups that they form.
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
  absl::Duration deadline = absl::Seconds(60);  ///< Of each wait for other ranks.
  CollectiveBackend backend = CollectiveBackend::kLocal;
  SeededFaults faults = {};
  ScheduleNoise noise = {};
  CommStatistics* statistics = nullptr;        ///< Outlives the world. Null: nobody counts.
  CommunicatorCache* communicators = nullptr;  ///< As MakeTransport's. Outlives the world.
  TransportFactory make_transport = {};  ///< In place of MakeTransport: for tests and scenarios.
  EngineWrapper wrap_engine = {};        ///< Of each of `engines`: for tests.
  StuckObserver on_stuck = {};           ///< See World::Run. Null: nobody is told.
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

/// One rank, as the code that it runs sees it.
class Rank {
 public:
  Rank(int index, Engine& engine, const GroupEnvironment& environment)
      : index_(index), engine_(engine), environment_(environment) {}

  int index() const { return index_; }
  Engine& engine() { return engine_; }
  const SeededFaults& faults() const { return environment_.faults; }
  const ScheduleNoise& noise() const { return environment_.noise; }
  const Cancellation* cancellation() const { return environment_.cancellation; }
  /// This rank's end of its group of this kind. NOT_FOUND where it is in none.
  absl::StatusOr<ProcessGroup*> FindGroup(const std::string& name);
  /// That group, which must be there.
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

  /// Runs `body` on one thread for each rank and joins them. The first failure aborts all groups
  /// with it, so that nobody waits for a rank that has gone, and is what is returned: as it is when
  /// it was found by a group, else after "rank 2: ". A world with a poisoned group runs no more and
  /// returns that group's error. `cancellation` aborts as well. A run that has failed is cancelled
  /// for its ranks (Rank::cancellation); a body that does not return nevertheless is waited for,
  /// since it refers to what the caller owns. Once it has not returned within
  /// WorldOptions::deadline of the failure, on_stuck is called: once, from this thread, with that
  /// failure and the ranks.
  absl::Status Run(absl::FunctionRef<absl::Status(Rank& rank)> body,
                   const Cancellation* cancellation);

 private:
  class Watch;  // Over one run: who has ended, and with what.

  World(WorldOptions options, std::vector<std::unique_ptr<Engine>> wrappers,
        std::unique_ptr<Transport> transport);
  absl::Status AddOneGroup(const std::string& name, const std::vector<int>& members);

  const WorldOptions options_;
  const std::vector<std::unique_ptr<Engine>> wrappers_;  // Where there are any, the ranks' engines.
  const std::unique_ptr<Transport> transport_;
  Rendezvous rendezvous_;
  GroupEnvironment environment_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  int groups_ = 0;
};

}  // namespace quantgate
