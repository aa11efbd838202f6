// Transport: moves the bytes of collective calls. It is asked after all members of a group have
// agreed on a call, by each of them on its own thread, and it neither adds nor rounds: sums are
// OrderedSum's, but for the library's own where a transport has one.
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

/// Some ranks of a world, in the group's order.
struct GroupDescription {
  int id = 0;  ///< Of the world's groups, counted from 0, in the order of AddGroup.
  std::string name;
  std::vector<int> members;  ///< Ranks of the world.

  int size() const { return static_cast<int>(members.size()); }
};

/// What a member brings to a call, kept until every member has asked for its operations. Of the
/// others' tensors a transport that moves bytes by itself looks at dtypes and shapes alone.
struct Contribution {
  std::vector<Tensor> tensors;
  std::shared_ptr<const Moment> moment;  ///< When they are written, on the member's engine.
  std::shared_ptr<void> offer = {};      ///< Of an exchange.
};

/// A member's part of a meeting.
struct Posting {
  CallSignature signature;
  Contribution contribution;
  int arrival = 0;  ///< How many members had posted before.
};

using Postings = std::shared_ptr<const std::vector<Posting>>;

/// A call that all members agree on, as one of them sees it.
struct AgreedCall {
  const GroupDescription& group;
  const std::vector<Posting>& postings;  ///< In the group's order.
  int place = 0;                         ///< This member's in the group.
  Engine& engine;                        ///< This member's.
  const Cancellation* cancellation = nullptr;

  const Contribution& contribution(int member) const { return postings[member].contribution; }
  /// What `member` brings first; one tensor is what most calls are about.
  const Tensor& tensor(int member) const { return contribution(member).tensors.front(); }
};

class Rendezvous;

/// Thread-safe: members call at the same time.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string name() const = 0;  ///< "local", "nccl 2.27.3".
  /// Called for every group, before any call on it.
  virtual absl::Status AddGroup(const GroupDescription& group) = 0;
  /// Makes ready what a member of `engine` brings: tensors in the engine's memory.
  virtual absl::StatusOr<Contribution> Contribute(Engine& engine, std::vector<Tensor> tensors) = 0;
  /// Comes to a call of the group as its member `place`: what Rendezvous::Meet gives.
  virtual absl::StatusOr<Postings> Meet(Rendezvous& rendezvous, int group, int place,
                                        Posting posting);

  /// tensor(0), tensor(1), ... one after the other to `whole`, a tensor of the member's engine.
  virtual absl::Status AllGather(const AgreedCall& call, const Tensor& whole) = 0;
  /// tensor(0), tensor(1), ... each by itself, in memory that the member's engine reads.
  virtual absl::StatusOr<std::vector<Tensor>> AllGatherParts(const AgreedCall& call) = 0;
  /// From each member the tensor that it brings for this one: contribution(i).tensors[place].
  virtual absl::StatusOr<std::vector<Tensor>> AllToAll(const AgreedCall& call) = 0;
  /// The maximum of all tensors, f32, as Engine::Maximum.
  virtual absl::StatusOr<Tensor> Maximum(const AgreedCall& call) = 0;
  /// The library's own sum of all tensors; UNIMPLEMENTED where there is none.
  virtual absl::StatusOr<Tensor> LibrarySum(const AgreedCall& call) = 0;
  /// Of that sum the rows of this member; each member brings one tensor for each owner.
  virtual absl::StatusOr<Tensor> LibraryReduceScatter(const AgreedCall& call) = 0;

  /// Ends every wait of the group's members for one another: one of them has failed with `cause`
  /// and will not come to what they have agreed on.
  virtual void Abort(const GroupDescription& group, const absl::Status& cause) {}
  /// Waits until what was asked for has been done on the engines; what failed on the way. No result
  /// of a run is to be believed before.
  virtual absl::Status Settle() { return absl::OkStatus(); }
};

/// The tensors in the engine's memory, and the moment at which they are written.
absl::StatusOr<Contribution> ContributionOf(Engine& engine, std::vector<Tensor> tensors);

/// Copies within this process: Engine::WaitFor, Copy and Import.
std::unique_ptr<Transport> MakeLocalTransport();

enum class CollectiveBackend { kLocal, kNccl };

class CommunicatorCache;

/// UNIMPLEMENTED where this build does not have the backend, FAILED_PRECONDITION where this host
/// does not.
absl::Status CheckCollectiveBackend(CollectiveBackend backend);

/// For ranks with these engines, whose waits for one another end at `deadline`. UNIMPLEMENTED where
/// this build does not have the backend, FAILED_PRECONDITION where this host or these engines do
/// not. `communicators` outlives the transport; null: those of its groups end with it.
absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(
    CollectiveBackend backend, std::span<Engine* const> engines, absl::Duration deadline,
    CommunicatorCache* communicators = nullptr);

/// An engine in place of a rank's, which watches or disturbs it. That one outlives it.
using EngineWrapper = std::function<std::unique_ptr<Engine>(Engine& engine, int rank)>;

/// Told of ranks that do not return from their engine though their run has failed, with why.
using StuckObserver = std::function<void(const absl::Status& why)>;

/// What a world may be given in place of MakeTransport.
using TransportFactory = std::function<absl::StatusOr<std::unique_ptr<Transport>>(
    CollectiveBackend backend, std::span<Engine* const> engines, absl::Duration deadline)>;

}  // namespace quantgate
