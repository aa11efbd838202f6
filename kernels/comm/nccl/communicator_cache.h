// CommunicatorCache: NCCL's communicators, kept from groups that have ended for later groups on the
// same devices, since each takes some tenths of a second to make.
//
// Ownership: the process has one cache, which outlives its worlds. A group has the communicators of
// its lease until the group ends, and nobody else has them meanwhile. The cache has up to a number
// of communicators that nobody leases, and closes them in its destructor. That must run before
// static objects are destroyed, after which CUDA cannot be called any more.
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

/// The communicators of one group, one for each member. Has one owner at a time.
class CommunicatorSet {
 public:
  /// Aborts the communicators that have not ended.
  virtual ~CommunicatorSet() = default;
  virtual int size() const = 0;
  /// OK while the communicators have not ended and none of their calls has failed.
  virtual absl::Status Check() const = 0;
  /// Ends the communicators once nothing is under way on them; may wait for the devices.
  virtual void Close() = 0;
  /// Ends the communicators whatever is under way.
  virtual void Abort() = 0;
};

/// Groups with equal keys can use each other's communicators.
struct CommunicatorKey {
  std::vector<int> devices;  ///< Ordinals, in the order of the group's members.
  std::string environment;   ///< NcclEnvironment() when the communicators were made.
  friend auto operator<=>(const CommunicatorKey&, const CommunicatorKey&) = default;
};

class CommunicatorCache;

/// The communicators of a group, for as long as the group lives. The destructor gives them back to
/// the cache; nothing may be under way on them by then. A lease that was moved from or aborted is
/// empty.
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
  /// Ends the communicators whatever is under way, so that nobody leases them again.
  void Abort();

 private:
  CommunicatorCache* cache_ = nullptr;
  CommunicatorKey key_;
  std::unique_ptr<CommunicatorSet> set_;
};

/// The most communicators that the cache keeps without a lease; each takes memory of its device.
inline constexpr int kIdleCommunicatorsMax = 32;

/// Thread-safe.
class CommunicatorCache {
 public:
  using Make = absl::FunctionRef<absl::StatusOr<std::unique_ptr<CommunicatorSet>>()>;

  /// `statistics` outlives the cache; null: nothing is counted.
  explicit CommunicatorCache(CommStatistics* statistics = nullptr,
                             int idle_max = kIdleCommunicatorsMax)
      : statistics_(statistics), idle_max_(idle_max) {}
  /// Closes the communicators, those unused for longest first. No lease may be left.
  ~CommunicatorCache();
  CommunicatorCache(const CommunicatorCache&) = delete;
  CommunicatorCache& operator=(const CommunicatorCache&) = delete;

  /// A lease of communicators that an ended group of this key left and that have no error; where
  /// there are none, of those that `make` gives, or the error of `make`.
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
  std::list<Idle> idle_ ABSL_GUARDED_BY(mutex_);  ///< Those unused for longest first.
};

}  // namespace quantgate
