// ProcessGroup: one rank's end of a group of ranks, and the collective calls on it. Every member
// makes the same calls in the same order, those whose tensors are empty too; before any byte moves
// the members compare their calls. Errors, typed and the same for every member, are those of
// kernels/comm/group/rendezvous.h; after one the group gives it to every later call. A call that is
// wrong by itself (INVALID_ARGUMENT) poisons the group as well, since its other members wait.
//
// Used by its rank's thread. Tensors are on the host or in the memory of the rank's engine; results
// are in the latter, and like those of the engine they may still be under way.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/base/seeded_fault.h"
#include "kernels/comm/group/comm_statistics.h"
#include "kernels/comm/group/rendezvous.h"
#include "kernels/comm/group/schedule_noise.h"
#include "kernels/comm/group/transport.h"
#include "kernels/comm/reduction_profile.h"

namespace quantgate {

/// What all groups of a world share.
struct GroupEnvironment {
  Rendezvous& rendezvous;
  Transport& transport;
  const SeededFaults& faults;
  const ScheduleNoise noise;
  const Cancellation* cancellation = nullptr;  ///< Of the run under way.
  CommStatistics* statistics = nullptr;        ///< Null: nobody counts.
  CollectiveBackend backend = CollectiveBackend::kLocal;
};

class ProcessGroup {
 public:
  ProcessGroup(const GroupEnvironment& environment, GroupDescription description, int place,
               Engine& engine);
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  const std::string& name() const { return description_.name; }
  int rank() const { return place_; }  ///< Of this member in the group.
  int size() const { return description_.size(); }
  const std::vector<int>& members() const { return description_.members; }
  Engine& engine() { return engine_; }
  const SeededFaults& faults() const { return environment_.faults; }
  const ScheduleNoise& noise() const { return environment_.noise; }
  const Cancellation* cancellation() const { return environment_.cancellation; }
  /// Of each wait for other ranks.
  absl::Duration deadline() const { return environment_.rendezvous.deadline(); }

  /// The members' tensors one after the other along the first dim, in rank order. dtype and the
  /// other dims agree; rows may differ and be 0.
  absl::StatusOr<Tensor> AllGather(const Tensor& local);
  /// Those tensors each by itself, for whoever does not want them joined.
  absl::StatusOr<std::vector<Tensor>> AllGatherParts(const Tensor& local);
  /// parts[j] goes to member j; gives what each member sent to this one. dtype and all dims but the
  /// first are those of every part of every member.
  absl::StatusOr<std::vector<Tensor>> AllToAll(std::span<const Tensor> parts);
  /// The sum of the members' tensors (f32, bf16 or f16, of one shape), of which rows[j] of the
  /// first dim are member j's. Rounded to the tensors' dtype.
  absl::StatusOr<Tensor> ReduceScatter(const Tensor& partial, std::span<const int64_t> rows,
                                       const ReductionProfile& profile);
  /// That sum whole. Where the profile depends on the owner, EvenRows says who owns a row.
  absl::StatusOr<Tensor> AllReduce(const Tensor& partial, const ReductionProfile& profile);
  /// Element by element the maximum, as Engine::Maximum: f32, of one shape.
  absl::StatusOr<Tensor> AllReduceMax(const Tensor& values);
  /// All members have come here on the host; says nothing of their engines' work.
  absl::Status Barrier();
  /// FAILED_PRECONDITION naming `what`, the first member that differs from the group's first and
  /// both values, unless all have the same dtype, shape and bytes. Waits for the engine.
  absl::Status CheckAgreement(const std::string& what, const Tensor& value);

  /// What each member offers, in the group's order: for calls made of more than moving tensors, on
  /// top of which the members work together by themselves. `what` agrees.
  absl::StatusOr<std::vector<std::shared_ptr<void>>> Exchange(const std::string& what,
                                                              std::shared_ptr<void> offer);
  /// Such a call went wrong: poisons the group, unless it is poisoned; what it is poisoned with.
  absl::Status Fail(const absl::Status& error);

 private:
  absl::StatusOr<Postings> Meet(CallSignature signature, std::vector<Tensor> tensors);
  absl::StatusOr<Postings> Meet(Posting posting);
  AgreedCall Agreed(const std::vector<Posting>& postings);
  absl::StatusOr<Tensor> Poisoning(absl::FunctionRef<absl::StatusOr<Tensor>()> call);
  absl::StatusOr<std::vector<Tensor>> PoisoningParts(
      absl::FunctionRef<absl::StatusOr<std::vector<Tensor>>()> call);

  absl::StatusOr<Tensor> Joined(const AgreedCall& call);
  absl::StatusOr<Tensor> OrderedSumOf(std::span<const Tensor> parts,
                                      const ReductionProfile& profile);
  absl::StatusOr<Tensor> SumOfBlock(const AgreedCall& call, const ReductionProfile& profile);
  absl::StatusOr<Tensor> AllReduceByBlocks(const CallSignature& signature, const Tensor& partial,
                                           const ReductionProfile& profile);

  const GroupEnvironment& environment_;
  const GroupDescription description_;
  const int place_;
  Engine& engine_;
  uint64_t calls_ = 0;  // Of this member, for the schedule noise.
};

}  // namespace quantgate
