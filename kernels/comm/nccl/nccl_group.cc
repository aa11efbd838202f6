#include "kernels/comm/nccl/nccl_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kernels/base/cuda_status.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"

namespace quantgate {
namespace {

/// Time between two polls of a destructor that waits for its group.
constexpr absl::Duration kPollPeriod = absl::Microseconds(50);

bool IsDone(const PooledCudaEvent& event) {
  const cudaError_t state = cudaEventQuery(event.get());
  if (state == cudaErrorNotReady) cudaGetLastError();
  return state == cudaSuccess;
}

/// The places of the events that are not done.
std::vector<int> NotDone(const std::vector<PooledCudaEvent>& events) {
  std::vector<int> places;
  for (size_t i = 0; i < events.size(); ++i) {
    if (!IsDone(events[i])) places.push_back(static_cast<int>(i));
  }
  return places;
}

CommunicatorKey KeyOf(const std::vector<CudaEngine*>& engines) {
  CommunicatorKey key{{}, NcclEnvironment()};
  for (CudaEngine* engine : engines) key.devices.push_back(engine->device().facts().ordinal);
  return key;
}

absl::Status InGroup(const GroupDescription& group, const absl::Status& status) {
  return Prefixed(absl::StrCat("group ", group.name, ": "), status);
}

}  // namespace

NcclGroup::NcclGroup(const NcclLibrary& library, const GroupDescription& description,
                     std::vector<CudaEngine*> engines, absl::Duration deadline,
                     CommunicatorLease lease)
    : library_(library),
      description_(description),
      engines_(std::move(engines)),
      deadline_(deadline),
      events_(engines_.size()),
      lease_(std::move(lease)),
      parts_(engines_.size()) {}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Create(const NcclLibrary& library,
                                                             const GroupDescription& description,
                                                             std::vector<CudaEngine*> engines,
                                                             absl::Duration deadline,
                                                             CommunicatorCache& cache) {
  auto lease =
      cache.Lease(KeyOf(engines), [&] { return NcclCommunicators::Open(library, engines); });
  if (!lease.ok()) return InGroup(description, lease.status());
  return std::unique_ptr<NcclGroup>(
      new NcclGroup(library, description, std::move(engines), deadline, *std::move(lease)));
}

const NcclCommunicators& NcclGroup::communicators() const {
  return static_cast<const NcclCommunicators&>(lease_.set());
}

absl::Status NcclGroup::Call(int place, Part part) {
  std::unique_lock lock(mutex_);
  QG_RETURN_IF_ERROR(failure_);
  const int64_t call = issued_;
  parts_[place] = &part;
  if (++arrived_ < description_.size()) {
    const auto is_over = [&] { return issued_ != call || !failure_.ok(); };
    if (!changed_.wait_for(lock, absl::ToChronoNanoseconds(deadline_), is_over)) {
      std::vector<int> missing;
      for (int other = 0; other < description_.size(); ++other) {
        if (parts_[other] == nullptr) missing.push_back(other);
      }
      Fail(DeadlineError(absl::StrCat(RanksText(missing), " did not come to a call")));
    }
    // The failure is this call's: a later call needs this member first.
    return issued_ != call ? absl::OkStatus() : failure_;
  }
  const absl::Status status = Issue();
  if (!status.ok()) {
    Fail(status);
    must_abort_ = true;
    return status;
  }
  std::fill(parts_.begin(), parts_.end(), nullptr);
  arrived_ = 0;
  ++issued_;
  changed_.notify_all();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PooledCudaEvent>> NcclGroup::RecordAll() {
  std::vector<PooledCudaEvent> events;
  for (size_t place = 0; place < engines_.size(); ++place) {
    const CudaDevice& device = engines_[place]->device();
    QG_RETURN_IF_ERROR(device.MakeCurrent());
    QG_ASSIGN_OR_RETURN(PooledCudaEvent event, events_[place].Record(device));
    events.push_back(std::move(event));
  }
  return events;
}

absl::Status NcclGroup::PutPartsOnStreams() {
  absl::Status status = library_.StatusOf(library_.call().GroupStart(), "ncclGroupStart");
  QG_RETURN_IF_ERROR(status);
  for (size_t place = 0; place < engines_.size() && status.ok(); ++place) {
    const CudaDevice& device = engines_[place]->device();
    status = device.MakeCurrent();
    if (!status.ok()) break;
    const ncclResult_t result = (*parts_[place])(communicators().at(place), device.stream());
    if (result != ncclInProgress) status = library_.StatusOf(result, "a collective call");
  }
  const ncclResult_t end = library_.call().GroupEnd();
  QG_RETURN_IF_ERROR(status);
  if (end != ncclInProgress) QG_RETURN_IF_ERROR(library_.StatusOf(end, "ncclGroupEnd"));
  return InGroup(description_, communicators().Await(deadline_, "ncclGroupEnd"));
}

absl::Status NcclGroup::Issue() {
  const std::scoped_lock turn(NcclMutex());
  // No deadlock: only this thread, under NcclMutex, holds one stream while it waits for another.
  std::vector<std::unique_lock<std::mutex>> streams;
  for (CudaEngine* engine : engines_) streams.push_back(engine->HoldStream());
  UnderWay call;
  QG_ASSIGN_OR_RETURN(call.before, RecordAll());
  QG_RETURN_IF_ERROR(PutPartsOnStreams());
  QG_ASSIGN_OR_RETURN(call.after, RecordAll());
  under_way_.push_back(std::move(call));
  return absl::OkStatus();
}

void NcclGroup::Fail(const absl::Status& error) {
  if (failure_.ok()) failure_ = error;
  changed_.notify_all();
}

void NcclGroup::Abort(const absl::Status& cause) {
  const std::scoped_lock lock(mutex_);
  Fail(cause);
}

absl::Status NcclGroup::health() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

absl::Status NcclGroup::Check(UnderWay& call) const {
  QG_RETURN_IF_ERROR(lease_.set().Check());
  const std::vector<int> busy = NotDone(call.before);
  if (busy.size() == call.before.size()) return absl::OkStatus();  // No stream has come to it.
  const absl::Time now = SteadyNow();
  if (call.waits_since > now) call.waits_since = now;
  if (now - call.waits_since <= deadline_) return absl::OkStatus();
  return DeadlineError(
      busy.empty()
          ? "a collective call was not done"
          : absl::StrCat(RanksText(busy), " did not get to a collective call on the device"));
}

bool NcclGroup::Poll() {
  const std::scoped_lock lock(mutex_);
  while (!under_way_.empty() && NotDone(under_way_.front().after).empty()) under_way_.pop_front();
  if (!must_abort_ && !under_way_.empty()) {
    const absl::Status status = Check(under_way_.front());
    must_abort_ = !status.ok();
    if (must_abort_) Fail(status);
  }
  if (must_abort_) under_way_.clear();
  return under_way_.empty();
}

void NcclGroup::AbortFailed() {
  std::unique_lock lock(mutex_);
  if (!must_abort_) return;
  CommunicatorLease failed(std::move(lease_));
  lock.unlock();
  failed.Abort();
}

NcclGroup::~NcclGroup() {
  while (!Poll()) absl::SleepFor(kPollPeriod);
  AbortFailed();
}

std::string NcclGroup::RanksText(const std::vector<int>& places) const {
  std::vector<int> ranks;
  for (const int place : places) ranks.push_back(description_.members[place]);
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

absl::Status NcclGroup::DeadlineError(const std::string& what) const {
  return absl::DeadlineExceededError(absl::StrCat("group ", description_.name, ": ", what,
                                                  " within ", absl::FormatDuration(deadline_)));
}

}  // namespace quantgate
