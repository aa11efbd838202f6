// The communicators of one group of ranks on GPUs of this process, and the calls on them.
//
// A call is issued for all members at once, by the thread of the member that comes last, and one
// call at a time in the whole process. So every stream sees the calls in the same order, whatever
// threads and groups they come from, and no member's kernel waits for a kernel that was never
// issued.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/comm/group/transport.h"
#include "kernels/comm/nccl/nccl_communicators.h"
#include "kernels/comm/nccl/nccl_library.h"
#include "kernels/engine/cuda_engine.h"

namespace quantgate {

/// Thread-safe.
class NcclGroup {
 public:
  /// Puts a member's part of a call on its stream, between ncclGroupStart and ncclGroupEnd.
  using Part = absl::FunctionRef<ncclResult_t(ncclComm_t comm, cudaStream_t stream)>;

  /// `engines` are in the group's order, each on a device of its own. They outlive the group, and
  /// so does `cache`, from which the group leases its communicators. DEADLINE_EXCEEDED where these
  /// cannot be opened in time.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Create(const NcclLibrary& library,
                                                           const GroupDescription& description,
                                                           std::vector<CudaEngine*> engines,
                                                           absl::Duration deadline,
                                                           CommunicatorCache& cache);
  /// Waits for what is under way, unless a call is stuck. The communicators go back to the cache
  /// where every call was put on all members' streams and has been done there and NCCL reports no
  /// error. Ranks that disagree, do not come or have gone do not spoil them: those errors are found
  /// on the host, before any call.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  /// Takes part in a call; returns when the parts of all members are on their streams.
  /// DEADLINE_EXCEEDED naming the ranks that did not come, or the group's earlier failure.
  absl::Status Call(int place, Part part);
  /// Ends every wait, with `cause` or with the group's earlier failure.
  void Abort(const absl::Status& cause);
  /// Checks the calls under way and returns whether none is left. A call fails when it takes longer
  /// than the deadline after a member has begun to wait in it for the others, and when NCCL reports
  /// an error; after a failure no call counts as under way any more.
  bool Poll();
  /// Aborts the communicators after a failure that Poll or Call found, so that the streams go on.
  /// May wait for streams.
  void AbortFailed();
  /// The group's first failure, or OK.
  absl::Status health() const;

 private:
  /// A call that streams have yet to do, with the points before and after it on each stream.
  struct UnderWay {
    std::vector<PooledCudaEvent> before, after;
    absl::Time waits_since = absl::InfiniteFuture();  ///< When a member was first seen to wait.
  };

  NcclGroup(const NcclLibrary& library, const GroupDescription& description,
            std::vector<CudaEngine*> engines, absl::Duration deadline, CommunicatorLease lease);
  const NcclCommunicators& communicators() const;
  absl::Status Issue();
  absl::Status PutPartsOnStreams();
  absl::StatusOr<std::vector<PooledCudaEvent>> RecordAll();
  void Fail(const absl::Status& error);
  absl::Status Check(UnderWay& call) const;
  std::string RanksText(const std::vector<int>& places) const;
  absl::Status DeadlineError(const std::string& what) const;

  const NcclLibrary& library_;
  const GroupDescription description_;
  const std::vector<CudaEngine*> engines_;
  const absl::Duration deadline_;
  std::vector<CudaEventPool> events_;  // By place.

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  CommunicatorLease lease_;         // Empty once aborted.
  std::vector<const Part*> parts_;  // By place, of the call that members are coming to.
  int arrived_ = 0;
  int64_t issued_ = 0;  // How many calls have been issued.
  std::deque<UnderWay> under_way_;
  absl::Status failure_;
  // A call is stuck or only partly issued: the communicators cannot be used again.
  bool must_abort_ = false;
};

}  // namespace quantgate
