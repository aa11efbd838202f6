// Transport: moves the bytes of collective calls. Each member calls it on its own thread once all
// members of the group have agreed on a call. A transport neither adds nor rounds: sums are those
// of OrderedSum, except for the library's own sums where a transport has them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/comm/group/call_signature.h"
#include "kernels/engine/engine.h"

namespace quantgate {

/// A group: some ranks of a world, in the group's order.
struct GroupDescription {
  int id = 0;  ///< Number of the group in its world, from 0, in the order of AddGroup.
  std::string name;
  std::vector<int> members;  ///< Ranks of the world.

  int size() const { return static_cast<int>(members.size()); }
};

/// What a member brings to a call, kept until every member has asked for its operations. A
/// transport that moves bytes by itself (NCCL) looks only at the dtypes and shapes of the others'
/// tensors.
struct Contribution {
  std::vector<Tensor> tensors;
  std::shared_ptr<const Moment> moment;  ///< When the member's engine has written the tensors.
  std::shared_ptr<void> offer = {};      ///< ProcessGroup::Exchange: what the member offers.
};

/// A member's part of a meeting.
struct Posting {
  CallSignature signature;
  Contribution contribution;
  int arrival = 0;  ///< How many members had posted before this one.
};

using Postings = std::shared_ptr<const std::vector<Posting>>;

/// A call that all members agree on, as one of them sees it.
struct AgreedCall {
  const GroupDescription& group;
  const std::vector<Posting>& postings;  ///< In the group's order.
  int place = 0;                         ///< This member's place in the group.
  Engine& engine;                        ///< This member's engine.
  const Cancellation* cancellation = nullptr;

  const Contribution& contribution(int member) const { return postings[member].contribution; }
  /// The first tensor of `member`; most calls have only one.
  const Tensor& tensor(int member) const { return contribution(member).tensors.front(); }
};

class Rendezvous;

/// Thread-safe: the members of a group call it at the same time.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string name() const = 0;  ///< "local", "nccl 2.27.3".
  /// Called for every group, before any call on it.
  virtual absl::Status AddGroup(const GroupDescription& group) = 0;
  /// Brings a member's tensors into the memory of its engine.
  virtual absl::StatusOr<Contribution> Contribute(Engine& engine, std::vector<Tensor> tensors) = 0;
  /// Meets the other members of the group as its member `place`; gives what Rendezvous::Meet gives.
  virtual absl::StatusOr<Postings> Meet(Rendezvous& rendezvous, int group, int place,
                                        Posting posting);

  /// Writes tensor(0), tensor(1), ... one after the other to `whole`, a tensor of the member's
  /// engine.
  virtual absl::Status AllGather(const AgreedCall& call, const Tensor& whole) = 0;
  /// Gives tensor(0), tensor(1), ... each by itself, in memory that the member's engine reads.
  virtual absl::StatusOr<std::vector<Tensor>> AllGatherParts(const AgreedCall& call) = 0;
  /// Gives the tensor that each member brings for this one: contribution(i).tensors[place].
  virtual absl::StatusOr<std::vector<Tensor>> AllToAll(const AgreedCall& call) = 0;
  /// The maximum of all tensors, f32, as Engine::Maximum.
  virtual absl::StatusOr<Tensor> Maximum(const AgreedCall& call) = 0;
  /// The library's own sum of all tensors; UNIMPLEMENTED where the transport has no library.
  virtual absl::StatusOr<Tensor> LibrarySum(const AgreedCall& call) = 0;
  /// This member's rows of the library's own sum; each member brings one tensor for each owner.
  virtual absl::StatusOr<Tensor> LibraryReduceScatter(const AgreedCall& call) = 0;

  /// Ends every wait of the group's members for one another: a member has failed with `cause` and
  /// will not take part in the call that they have agreed on.
  virtual void Abort(const GroupDescription& group, const absl::Status& cause) {}
  /// Waits until the engines have done everything that was asked of them, and gives the first
  /// error. No result of a run may be used before.
  virtual absl::Status Settle() { return absl::OkStatus(); }
};

/// The tensors, brought into the engine's memory, and the moment at which they are written there.
absl::StatusOr<Contribution> ContributionOf(Engine& engine, std::vector<Tensor> tensors);

/// A transport that copies within this process, by Engine::WaitFor, Copy and Import.
std::unique_ptr<Transport> MakeLocalTransport();

enum class CollectiveBackend { kLocal, kNccl };

class CommunicatorCache;

/// Whether the backend can be used: UNIMPLEMENTED where this build does not have it,
/// FAILED_PRECONDITION where this host does not.
absl::Status CheckCollectiveBackend(CollectiveBackend backend);

/// A transport for ranks with these engines, whose waits for one another fail after `deadline`.
/// UNIMPLEMENTED where this build does not have the backend, FAILED_PRECONDITION where this host or
/// these engines do not. `communicators` keeps communicators for later groups and outlives the
/// transport; null: they end with the transport.
absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(
    CollectiveBackend backend, std::span<Engine* const> engines, absl::Duration deadline,
    CommunicatorCache* communicators = nullptr);

/// Makes an engine that takes the place of a rank's, to watch or to disturb it. `engine` outlives
/// the result.
using EngineWrapper = std::function<std::unique_ptr<Engine>(Engine& engine, int rank)>;

/// Called when ranks do not return from their engine although their run has failed, with the
/// failure and the ranks.
using StuckObserver = std::function<void(const absl::Status& why)>;

/// Takes the place of MakeTransport in a world.
using TransportFactory = std::function<absl::StatusOr<std::unique_ptr<Transport>>(
    CollectiveBackend backend, std::span<Engine* const> engines, absl::Duration deadline)>;

}  // namespace quantgate
