// CommunicatorCache: what groups of worlds that have ended leave for later ones on the same
// devices: NCCL's communicators, some tenths of a second each to make.
//
// Who owns what: the process has one cache, which outlives its worlds; a group has the
// communicators of its lease until it ends, and nobody else has them meanwhile. The cache has those
// that nobody leases, up to a number, and closes them when it ends itself: before the process does,
// since nothing of CUDA can be asked any more while static objects end.
#pragma once

#include <compare>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/comm/group/comm_statistics.h"

namespace quantgate {

/// The communicators of one group, one for each member. Of one owner at a time.
class CommunicatorSet {
 public:
  /// Ends them as Abort, where they have not ended.
  virtual ~CommunicatorSet() = default;
  virtual int size() const = 0;
  /// OK while nothing has failed of what was asked of them and they have not ended.
  virtual absl::Status Check() const = 0;
  /// Ends them when nothing is under way on them; may wait for the devices.
  virtual void Close() = 0;
  /// Ends them whatever is under way.
  virtual void Abort() = 0;
};

/// Groups with equal keys can have each other's communicators.
struct CommunicatorKey {
  std::vector<int> devices;  ///< Ordinals, in the order of the group's members.
  std::string environment;   ///< The variables that the library read when it made them.
  friend auto operator<=>(const CommunicatorKey&, const CommunicatorKey&) = default;
};

class CommunicatorCache;

/// The communicators of a group, for as long as the group lives. Gives them back when it ends, by
/// when nothing may be under way on them, or ends them. Moved from: without any.
class CommunicatorLease {
 public:
  CommunicatorLease() = default;
  CommunicatorLease(CommunicatorCache& cache, CommunicatorKey key,
                    std::unique_ptr<CommunicatorSet> set)
      : cache_(&cache), key_(std::move(key)), set_(std::move(set)) {}
  CommunicatorLease(CommunicatorLease&&) = default;
  CommunicatorLease& operator=(CommunicatorLease&&) = delete;
  ~CommunicatorLease();

  bool has_value() const { return set_ != nullptr; }
  CommunicatorSet& set() const { return *set_; }
  /// Ends them whatever is under way: nobody leases them again.
  void Abort();

 private:
  CommunicatorCache* cache_ = nullptr;
  CommunicatorKey key_;
  std::unique_ptr<CommunicatorSet> set_;
};

/// Of so many at most nobody has a lease; each takes memory of its device.
inline constexpr int kIdleCommunicatorsMax = 32;

/// Thread-safe.
class CommunicatorCache {
 public:
  using Make = absl::FunctionRef<absl::StatusOr<std::unique_ptr<CommunicatorSet>>()>;

  /// `statistics` outlives it; null: nobody counts.
  explicit CommunicatorCache(CommStatistics* statistics = nullptr,
                             int idle_max = kIdleCommunicatorsMax)
      : statistics_(statistics), idle_max_(idle_max) {}
  /// Closes what it has, the longest unused first. No lease is left.
  ~CommunicatorCache();
  CommunicatorCache(const CommunicatorCache&) = delete;
  CommunicatorCache& operator=(const CommunicatorCache&) = delete;

  /// Those of an ended group of this key of which nothing has failed; where there are none, those
  /// that `make` gives, or its error.
  absl::StatusOr<CommunicatorLease> Lease(const CommunicatorKey& key, Make make);

 private:
  friend class CommunicatorLease;
  struct Idle {
    CommunicatorKey key;
    std::unique_ptr<CommunicatorSet> set;
  };

  std::unique_ptr<CommunicatorSet> TakeIdle(const CommunicatorKey& key);
  void Return(CommunicatorKey key, std::unique_ptr<CommunicatorSet> set);
  void Close(CommunicatorSet& set);
  void Abort(CommunicatorSet& set);
  void Count(CommunicatorEvent event, const CommunicatorSet& set);

  CommStatistics* const statistics_;
  const int idle_max_;
  std::mutex mutex_;
  std::list<Idle> idle_ ABSL_GUARDED_BY(mutex_);  ///< The longest unused first.
};

}  // namespace quantgate
