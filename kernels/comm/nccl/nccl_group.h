// The communicators of one group of ranks on GPUs of this process, and the calls on them.
//
// A call is issued for all members at once, by the thread of the member that comes last, and one
// call at a time in the whole process: every stream sees calls in the same order, whatever threads
// and groups they come from, and no member's kernel waits for one that nobody has asked for.
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

  /// `engines` in the group's order, each on a device of its own; they outlive the group, as does
  /// `cache`, of which it leases its communicators. DEADLINE_EXCEEDED where they do not come about.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Create(const NcclLibrary& library,
                                                           const GroupDescription& description,
                                                           std::vector<CudaEngine*> engines,
                                                           absl::Duration deadline,
                                                           CommunicatorCache& cache);
  /// Waits for what is under way, unless a call is stuck. The communicators go back where every
  /// call was put on all members' streams and has been done there, and NCCL reports no error:
  /// ranks that disagree, do not come or have gone are errors of the host, before any call.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  /// Returns when the parts of all members are on their streams. DEADLINE_EXCEEDED naming the ranks
  /// that did not come; what has failed before, in any call.
  absl::Status Call(int place, Part part);
  /// Ends every wait with `cause`, unless something has failed before.
  void Abort(const absl::Status& cause);
  /// Looks how what is under way does: whether nothing of it is left. A call that takes longer than
  /// the deadline once a member waits for the others in it fails, as does one of which NCCL reports
  /// an error: nothing is under way then any more.
  bool Poll();
  /// Aborts the communicators after such a failure, so that streams go on; may wait for streams.
  void AbortFailed();
  /// What has failed, or OK.
  absl::Status health() const;

 private:
  /// Calls that streams have yet to do: the points before and after it on each.
  struct UnderWay {
    std::vector<PooledCudaEvent> before, after;
    absl::Time waits_since = absl::InfiniteFuture();  ///< Some member, for others.
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
  CommunicatorLease lease_;         // None once aborted.
  std::vector<const Part*> parts_;  // Of the call that members come to.
  int arrived_ = 0;
  int64_t issued_ = 0;  // Calls.
  std::deque<UnderWay> under_way_;
  absl::Status failure_;
  /// The communicators: a call is stuck or half issued.
  bool must_abort_ = false;
};

}  // namespace quantgate
