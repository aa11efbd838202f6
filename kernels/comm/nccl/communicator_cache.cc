#include "kernels/comm/nccl/communicator_cache.h"

#include <algorithm>

#include "kernels/base/status_macros.h"

namespace quantgate {

CommunicatorLease::~CommunicatorLease() {
  if (has_value()) cache_->Return(std::move(key_), std::move(set_));
}

void CommunicatorLease::Abort() {
  if (!has_value()) return;
  cache_->Abort(*set_);
  set_ = nullptr;
}

CommunicatorCache::~CommunicatorCache() {
  for (const Idle& idle : idle_) Close(*idle.set);
}

absl::StatusOr<CommunicatorLease> CommunicatorCache::Lease(const CommunicatorKey& key, Make make) {
  // A device or a link may have failed since the communicators came back.
  while (std::unique_ptr<CommunicatorSet> kept = TakeIdle(key)) {
    if (kept->Check().ok()) {
      Count(CommunicatorEvent::kLeased, *kept);
      return CommunicatorLease(*this, key, std::move(kept));
    }
    Abort(*kept);
  }
  QG_ASSIGN_OR_RETURN(std::unique_ptr<CommunicatorSet> made, make());
  Count(CommunicatorEvent::kMade, *made);
  return CommunicatorLease(*this, key, std::move(made));
}

std::unique_ptr<CommunicatorSet> CommunicatorCache::TakeIdle(const CommunicatorKey& key) {
  const std::scoped_lock lock(mutex_);
  const auto found =
      std::find_if(idle_.rbegin(), idle_.rend(), [&](const Idle& idle) { return idle.key == key; });
  if (found == idle_.rend()) return nullptr;
  std::unique_ptr<CommunicatorSet> set = std::move(found->set);
  idle_.erase(std::next(found).base());
  return set;
}

void CommunicatorCache::Return(CommunicatorKey key, std::unique_ptr<CommunicatorSet> set) {
  if (!set->Check().ok()) return Abort(*set);
  std::list<Idle> evicted;
  {
    const std::scoped_lock lock(mutex_);
    idle_.push_back({std::move(key), std::move(set)});
    int count = 0;
    for (const Idle& idle : idle_) count += idle.set->size();
    while (count > idle_max_) {
      count -= idle_.front().set->size();
      evicted.splice(evicted.end(), idle_, idle_.begin());
    }
  }
  for (const Idle& idle : evicted) Close(*idle.set);  // Slow, so without the lock.
}

void CommunicatorCache::Close(CommunicatorSet& set) {
  Count(CommunicatorEvent::kClosed, set);
  set.Close();
}

void CommunicatorCache::Abort(CommunicatorSet& set) {
  Count(CommunicatorEvent::kAborted, set);
  set.Abort();
}

void CommunicatorCache::Count(CommunicatorEvent event, const CommunicatorSet& set) {
  if (statistics_ != nullptr) statistics_->RecordCommunicators(event, set.size());
}

}  // namespace quantgate
