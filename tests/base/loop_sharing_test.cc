// Loops that helpers take part in: when they may, and that a loop's owner waits for them.
#include "kernels/base/loop_sharing.h"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <atomic>
#include <latch>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "kernels/base/execution.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// Which threads took which pieces.
class Takers {
 public:
  void Take() {
    const std::scoped_lock lock(mutex_);
    threads_.insert(std::this_thread::get_id());
  }
  size_t count() const { return threads_.size(); }

 private:
  std::mutex mutex_;
  std::set<std::thread::id> threads_;
};

/// Threads that are members of `sharing` and wait until this ends.
class WaitingMembers {
 public:
  WaitingMembers(LoopSharing& sharing, int count) : waiting_(count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, &sharing] {
        const LoopSharing::Member member(sharing);
        const LoopSharing::Wait wait;
        waiting_.count_down();
        end_.wait();
      });
    }
    waiting_.wait();
  }
  ~WaitingMembers() {
    end_.count_down();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::latch waiting_;
  std::latch end_{1};
  std::vector<std::thread> threads_;
};

/// A loop of one piece for each of `threads`, in which each waits for all others: it ends only with
/// so many threads. Gives how many took part.
size_t ThreadsOfLoop(int threads) {
  Takers takers;
  std::latch all(threads);
  ParallelForEach({.threads = 1}, threads, [&](WorkFeed& feed) {
    while (feed.Next().has_value()) {
      takers.Take();
      all.arrive_and_wait();
    }
  });
  return takers.count();
}

TEST(LoopSharing, HelpersTakePartWhereOtherMembersWait) {
  LoopSharing sharing(4, 1, 4);
  const LoopSharing::Member member(sharing);
  {
    const WaitingMembers others(sharing, 3);
    EXPECT_EQ(ThreadsOfLoop(4), 4u);
    EXPECT_EQ(ThreadsOfLoop(4), 4u);
  }
  // They have ended.
  EXPECT_EQ(ThreadsOfLoop(4), 4u);
  EXPECT_EQ(sharing.helpers(), 3);
}

TEST(LoopSharing, TheyComeToALoopThatIsUnderWay) {
  LoopSharing sharing(2, 1, 2);
  const LoopSharing::Member member(sharing);
  std::optional<WaitingMembers> other;
  std::latch both(2);
  std::atomic<int> pieces{0};
  ParallelForEach({.threads = 1}, 3, [&](WorkFeed& feed) {
    while (const std::optional<int64_t> i = feed.Next()) {
      ++pieces;
      if (*i == 0) other.emplace(sharing, 1);
      if (*i <= 1) both.arrive_and_wait();
    }
  });
  EXPECT_EQ(pieces, 3);
}

/// A loop of many pieces, to which no helper is called.
void ExpectLoopAlone(LoopSharing& sharing) {
  Takers takers;
  ParallelForEach({.threads = 1}, 50, [&](WorkFeed& feed) {
    while (feed.Next().has_value()) takers.Take();
  });
  EXPECT_EQ(takers.count(), 1u);
  EXPECT_EQ(sharing.helpers(), 0);
}

TEST(LoopSharing, NobodyComesWhileAllWork) {
  LoopSharing sharing(4, 2, 2);
  const LoopSharing::Member member(sharing);
  ExpectLoopAlone(sharing);
}

TEST(LoopSharing, NobodyComesWhereThereAreMoreMembersThanCpus) {
  LoopSharing sharing(2, 1, 4);
  const LoopSharing::Member member(sharing);
  const WaitingMembers others(sharing, 2);
  ExpectLoopAlone(sharing);
}

TEST(LoopSharing, NobodyComesToTheLoopOfAThreadThatIsNoMember) {
  LoopSharing sharing(4, 1, 1);
  { const LoopSharing::Member was(sharing); }
  const LoopSharing::Wait wait;
  ExpectLoopAlone(sharing);
}

TEST(LoopSharing, EveryPieceOfSeveralLoopsIsTakenOnceAndDoneAtItsEnd) {
  constexpr int kOwners = 3;
  constexpr int64_t kPieces = 100;
  LoopSharing sharing(8, 1, kOwners);
  std::vector<std::thread> owners;
  for (int owner = 0; owner < kOwners; ++owner) {
    owners.emplace_back([&] {
      const LoopSharing::Member member(sharing);
      for (int loop = 0; loop < 50; ++loop) {
        std::vector<int> done(kPieces);  // Not atomic: at the loop's end all is there to see.
        ParallelForEach({.threads = 1}, kPieces, [&](WorkFeed& feed) {
          while (const std::optional<int64_t> i = feed.Next()) ++done[static_cast<size_t>(*i)];
        });
        ASSERT_EQ(done, std::vector<int>(kPieces, 1));
      }
    });
  }
  for (std::thread& owner : owners) owner.join();
}

TEST(LoopSharing, HelpersHaveTheFloatingPointEnvironmentOfEngines) {
  LoopSharing sharing(2, 1, 1);
  const LoopSharing::Member member(sharing);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // Flush to zero, denormals are zero: threads inherit it.
  std::latch both(2);
  ParallelForEach({.threads = 1}, 2, [&](WorkFeed& feed) {
    while (feed.Next().has_value()) {
      EXPECT_EQ(_mm_getcsr() & 0xFFC0, 0x1F80u);
      both.arrive_and_wait();
    }
  });
  _mm_setcsr(before);
}

TEST(LoopSharing, HelpersLeaveACancelledLoop) {
  LoopSharing sharing(4, 1, 1);
  const LoopSharing::Member member(sharing);
  Cancellation cancellation;
  std::atomic<int64_t> calls{0};
  ParallelForEach({.threads = 1, .cancellation = &cancellation}, 100000, [&](WorkFeed& feed) {
    while (feed.Next().has_value()) {
      ++calls;
      cancellation.Cancel();
    }
  });
  EXPECT_GE(calls, 1);
  EXPECT_LE(calls, 4);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
