// ProcessGroup: one rank's handle on a group of ranks, with the collective calls. Every member
// makes the same calls in the same order, also where its tensors are empty; before any byte moves
// the members compare their calls. Every member gets the same typed error (those of
// kernels/comm/group/rendezvous.h), and after an error the group gives it to every later call. A
// call with an invalid argument (INVALID_ARGUMENT) poisons the group as well, since the other
// members wait.
//
// A ProcessGroup is used by its rank's thread alone. Tensors are on the host or in the memory of
// the rank's engine; results are in the latter, and like those of the engine they may still be
// under way.
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

/// The objects that all groups of a world share.
struct GroupEnvironment {
  Rendezvous& rendezvous;
  Transport& transport;
  const SeededFaults& faults;
  const ScheduleNoise noise;
  const Cancellation* cancellation = nullptr;  ///< Cancels the run under way.
  CommStatistics* statistics = nullptr;        ///< Null: nothing is counted.
  CollectiveBackend backend = CollectiveBackend::kLocal;
};

class ProcessGroup {
 public:
  ProcessGroup(const GroupEnvironment& environment, GroupDescription description, int place,
               Engine& engine);
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  const std::string& name() const { return description_.name; }
  int rank() const { return place_; }  ///< This member's rank in the group, not in the world.
  int size() const { return description_.size(); }
  const std::vector<int>& members() const { return description_.members; }
  Engine& engine() { return engine_; }
  const SeededFaults& faults() const { return environment_.faults; }
  const ScheduleNoise& noise() const { return environment_.noise; }
  const Cancellation* cancellation() const { return environment_.cancellation; }
  /// The time after which a wait for other ranks fails.
  absl::Duration deadline() const { return environment_.rendezvous.deadline(); }

  /// The members' tensors concatenated along the first dim, in rank order. Their dtype and other
  /// dims are equal; their rows may differ and be 0.
  absl::StatusOr<Tensor> AllGather(const Tensor& local);
  /// As AllGather, but the members' tensors are not concatenated.
  absl::StatusOr<std::vector<Tensor>> AllGatherParts(const Tensor& local);
  /// Sends parts[j] to member j and gives what each member sent to this one, in rank order. All
  /// parts of all members have one dtype, and equal dims but for the first.
  absl::StatusOr<std::vector<Tensor>> AllToAll(std::span<const Tensor> parts);
  /// This member's rows of the sum of the members' tensors (f32, bf16 or f16, of one shape),
  /// rounded to the tensors' dtype. rows[j] of the first dim belong to member j, in rank order.
  absl::StatusOr<Tensor> ReduceScatter(const Tensor& partial, std::span<const int64_t> rows,
                                       const ReductionProfile& profile);
  /// All rows of that sum. Where the profile depends on a row's owner, EvenRows assigns the owners.
  absl::StatusOr<Tensor> AllReduce(const Tensor& partial, const ReductionProfile& profile);
  /// The elementwise maximum, as Engine::Maximum, of f32 tensors of one shape.
  absl::StatusOr<Tensor> AllReduceMax(const Tensor& values);
  /// Returns when all members have called it. This is about their host threads alone: work on their
  /// engines may still be under way.
  absl::Status Barrier();
  /// FAILED_PRECONDITION naming `what`, the first member that differs from the group's first and
  /// both values, unless all have the same dtype, shape and bytes. Waits for the engine.
  absl::Status CheckAgreement(const std::string& what, const Tensor& value);

  /// Gives every member's `offer` to every member, in rank order: for calls in which the members
  /// then work together without the group (kernels/comm/overlap). `what` must be equal on all.
  absl::StatusOr<std::vector<std::shared_ptr<void>>> Exchange(const std::string& what,
                                                              std::shared_ptr<void> offer);
  /// Reports that such a call failed: poisons the group with `error` unless it is poisoned already,
  /// and gives the error that it is poisoned with.
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
  uint64_t calls_ = 0;  // How many calls this member has made: seeds the schedule noise.
};

}  // namespace quantgate
