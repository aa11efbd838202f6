// Who gets whose communicators, and which nobody gets again.
#include "kernels/comm/nccl/communicator_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace QG_TEST_FILE {

const CommunicatorKey kPair = {{0, 1}, "NCCL_NVLS_ENABLE=0"};
const CommunicatorKey kOtherPair = {{2, 3}, "NCCL_NVLS_ENABLE=0"};
const CommunicatorKey kSwapped = {{1, 0}, "NCCL_NVLS_ENABLE=0"};
const CommunicatorKey kOtherProtocol = {{0, 1}, "NCCL_NVLS_ENABLE=0 NCCL_PROTO=LL"};

/// What has been done with communicators, in order: "make 1", "close 1", ...
using Journal = std::vector<std::string>;

/// Two communicators that only say what is done with them.
class FakeSet final : public CommunicatorSet {
 public:
  FakeSet(int number, Journal& journal) : number_(number), journal_(journal) {
    journal_.push_back(absl::StrCat("make ", number_));
  }
  ~FakeSet() override { EXPECT_TRUE(has_ended_) << number_; }

  int number() const { return number_; }
  void Break() { status_ = absl::DataLossError("a link is down"); }

  int size() const override { return 2; }
  absl::Status Check() const override { return status_; }
  void Close() override { End("close "); }
  void Abort() override { End("abort "); }

 private:
  void End(const char* how) {
    EXPECT_FALSE(has_ended_) << number_;
    has_ended_ = true;
    journal_.push_back(absl::StrCat(how, number_));
  }

  const int number_;
  Journal& journal_;
  absl::Status status_;
  bool has_ended_ = false;
};

class CommunicatorCacheTest : public testing::Test {
 protected:
  absl::StatusOr<CommunicatorLease> Lease(const CommunicatorKey& key) {
    return cache_->Lease(key, [this]() -> absl::StatusOr<std::unique_ptr<CommunicatorSet>> {
      QG_RETURN_IF_ERROR(refusal_);
      return std::make_unique<FakeSet>(++made_, journal_);
    });
  }
  static FakeSet& SetOf(const absl::StatusOr<CommunicatorLease>& lease) {
    return static_cast<FakeSet&>(lease->set());
  }
  /// The number of the set that a world of this key gets which has then ended.
  int Use(const CommunicatorKey& key) {
    const auto lease = Lease(key);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return SetOf(lease).number();
  }
  int64_t Counted(CommunicatorEvent event) const {
    return statistics_.ReadCommunicators()[static_cast<size_t>(event)];
  }

  CommStatistics statistics_;
  Journal journal_;
  int made_ = 0;
  absl::Status refusal_;
  std::optional<CommunicatorCache> cache_{std::in_place, &statistics_, 6};
};

TEST_F(CommunicatorCacheTest, AGroupLeasesWhatAnEarlierOneLeft) {
  for (int world = 0; world < 50; ++world) EXPECT_EQ(Use(kPair), 1);
  EXPECT_EQ(journal_, Journal{"make 1"});
  EXPECT_EQ(Counted(CommunicatorEvent::kMade), 2);
  EXPECT_EQ(Counted(CommunicatorEvent::kLeased), 2 * 49);
}

TEST_F(CommunicatorCacheTest, NoTwoGroupsHaveTheSameAtATime) {
  const auto first = Lease(kPair);
  const auto second = Lease(kPair);
  EXPECT_EQ(SetOf(first).number(), 1);
  EXPECT_EQ(SetOf(second).number(), 2);
  EXPECT_EQ(journal_, (Journal{"make 1", "make 2"}));
}

TEST_F(CommunicatorCacheTest, OtherDevicesOrdersAndEnvironmentsGetTheirOwn) {
  EXPECT_EQ(Use(kPair), 1);
  EXPECT_EQ(Use(kOtherPair), 2);
  EXPECT_EQ(Use(kSwapped), 3);
  EXPECT_EQ(Use(kPair), 1);
  EXPECT_EQ(Use(kOtherProtocol), 4);
  EXPECT_EQ(Use(kSwapped), 3);
}

TEST_F(CommunicatorCacheTest, WhatWasAbortedIsNotLeasedAgain) {
  {
    auto lease = Lease(kPair);
    lease->Abort();
    EXPECT_FALSE(lease->has_value());
    lease->Abort();  // Nothing is left of it.
  }
  EXPECT_EQ(Use(kPair), 2);
  EXPECT_EQ(Use(kPair), 2);
  EXPECT_EQ(journal_, (Journal{"make 1", "abort 1", "make 2"}));
  EXPECT_EQ(Counted(CommunicatorEvent::kAborted), 2);
}

TEST_F(CommunicatorCacheTest, WhatComesBackBrokenIsAborted) {
  {
    const auto lease = Lease(kPair);
    SetOf(lease).Break();
  }
  EXPECT_EQ(journal_, (Journal{"make 1", "abort 1"}));
  EXPECT_EQ(Use(kPair), 2);
}

TEST_F(CommunicatorCacheTest, WhatBreaksWhileNobodyHasItIsAborted) {
  FakeSet* idle = nullptr;
  {
    const auto lease = Lease(kPair);
    const auto other = Lease(kPair);
    idle = &SetOf(other);
  }
  idle->Break();
  const auto first = Lease(kPair), second = Lease(kPair);
  EXPECT_EQ(SetOf(first).number(), 1);
  EXPECT_EQ(SetOf(second).number(), 3);
  EXPECT_EQ(journal_, (Journal{"make 1", "make 2", "abort 2", "make 3"}));
}

TEST_F(CommunicatorCacheTest, TheLongestUnusedAreClosedWhereTooManyAreIdle) {
  Use(kPair);
  Use(kOtherPair);
  Use(kSwapped);
  Use(kPair);  // Now that of kOtherPair is the longest unused one.
  EXPECT_EQ(Use(kOtherProtocol), 4);
  EXPECT_EQ(journal_, (Journal{"make 1", "make 2", "make 3", "make 4", "close 2"}));
  EXPECT_EQ(Use(kPair), 1);
  EXPECT_EQ(Use(kOtherPair), 5);
  EXPECT_EQ(journal_.back(), "close 3");
  EXPECT_EQ(Counted(CommunicatorEvent::kClosed), 4);
}

TEST_F(CommunicatorCacheTest, LeasedOnesDoNotCountAsIdle) {
  {
    std::vector<absl::StatusOr<CommunicatorLease>> leases;
    for (int i = 0; i < 5; ++i) leases.push_back(Lease(kPair));
    EXPECT_EQ(journal_.size(), 5u);
  }
  EXPECT_EQ(Counted(CommunicatorEvent::kClosed), 2 * 2);
}

TEST_F(CommunicatorCacheTest, EndsWhatIsIdleInOrderWhenItEnds) {
  Use(kPair);
  Use(kOtherPair);
  Use(kPair);
  cache_.reset();
  EXPECT_EQ(journal_, (Journal{"make 1", "make 2", "close 2", "close 1"}));
}

TEST_F(CommunicatorCacheTest, OneThatKeepsNoneClosesWhatComesBack) {
  cache_.emplace(nullptr, 0);
  Use(kPair);
  EXPECT_EQ(Use(kPair), 2);
  EXPECT_EQ(journal_, (Journal{"make 1", "close 1", "make 2", "close 2"}));
}

TEST_F(CommunicatorCacheTest, WhoCannotMakeThemLeavesNothing) {
  refusal_ = absl::DeadlineExceededError("not within 1m");
  EXPECT_EQ(Lease(kPair).status(), refusal_);
  EXPECT_EQ(Counted(CommunicatorEvent::kMade), 0);
  refusal_ = absl::OkStatus();
  EXPECT_EQ(Use(kPair), 1);
}

/// Threads that lease and give back: nobody finds one that another has.
TEST(CommunicatorCache, IsForManyThreads) {
  class OneOwner final : public CommunicatorSet {
   public:
    int size() const override { return 1; }
    absl::Status Check() const override { return absl::OkStatus(); }
    void Close() override {}
    void Abort() override {}
    std::atomic<bool> is_owned{false};
  };
  CommunicatorCache cache(nullptr, 2);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        auto lease = cache.Lease(kPair, [] { return std::make_unique<OneOwner>(); });
        auto& set = static_cast<OneOwner&>(lease->set());
        EXPECT_FALSE(set.is_owned.exchange(true));
        set.is_owned = false;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
