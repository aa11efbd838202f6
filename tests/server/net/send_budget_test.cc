// Who gets room to send, and in which order.
#include "server/net/send_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Room = SendBudget::Room;

/// Of 800 bytes the last 200 are for who holds at most 20, and 100 of them for who holds nothing;
/// of a connection's 400, 200 are for pieces of 10.
constexpr SendBudget::Limits kLimits = {800, 400, 10, 20};

class SendBudgetTest : public testing::Test {
 protected:
  std::shared_ptr<SendBudget::Connection> Named(const std::string& name) {
    return budget_->ConnectionOf(name);
  }
  /// Waits for room under a name, which is noted with the bytes when the answer comes.
  int64_t Wait(const std::string& name, int64_t least, int64_t most) {
    return budget_->Wait(Named(name), least, most, [this, name](Room room) {
      answers_.emplace_back(name, room.bytes());
      rooms_.push_back(std::move(room));
    });
  }
  int64_t Wait(const std::string& name, int64_t bytes) { return Wait(name, bytes, bytes); }
  /// Room of others, `bytes` on connections that hold nothing else.
  void Fill(int64_t bytes) {
    for (; bytes > 0; bytes -= 100) {
      filled_.push_back(budget_->TryTake(budget_->ConnectionOf(""), std::min<int64_t>(bytes, 100)));
      ASSERT_GT(filled_.back().bytes(), 0);
    }
  }

  const std::shared_ptr<SendBudget> budget_ = std::make_shared<SendBudget>(kLimits);
  std::vector<Room> filled_, rooms_;
  std::vector<std::pair<std::string, int64_t>> answers_;
};

TEST_F(SendBudgetTest, ConnectionsHaveABoundAndPiecesTheSecondHalfOfIt) {
  const auto connection = Named("a");
  const Room large = budget_->TryTake(connection, 200);
  EXPECT_EQ(large.bytes(), 200);
  EXPECT_EQ(budget_->TryTake(Named("a"), 11).bytes(), 0);
  std::vector<Room> pieces;
  for (int i = 0; i < 20; ++i) {
    pieces.push_back(budget_->TryTake(connection, 10));
    EXPECT_EQ(pieces.back().bytes(), 10);
  }
  EXPECT_EQ(budget_->TryTake(connection, 1).bytes(), 0);
  EXPECT_EQ(budget_->TryTake(Named("b"), 200).bytes(), 200);
  EXPECT_EQ(budget_->bytes(), 400);
}

TEST_F(SendBudgetTest, TheLastQuarterIsForWhoHoldsNothing) {
  const Room first = budget_->TryTake(Named("a"), 100);
  Fill(500);
  EXPECT_EQ(budget_->TryTake(Named("a"), 1).bytes(), 0);
  const Room other = budget_->TryTake(Named("b"), 100);
  EXPECT_EQ(other.bytes(), 100);
  EXPECT_EQ(budget_->TryTake(Named("b"), 1).bytes(), 0);
  Fill(100);
  EXPECT_EQ(budget_->TryTake(Named("c"), 1).bytes(), 0);
  EXPECT_EQ(budget_->bytes(), 800);
}

TEST_F(SendBudgetTest, HalfOfTheLastQuarterIsForWhoHoldsLittle) {
  Fill(600);
  std::vector<Room> little;
  for (int i = 0; i < 2; ++i) little.push_back(budget_->TryTake(Named("a"), 10));
  EXPECT_EQ(little.back().bytes(), 10);
  // More than the share.
  EXPECT_EQ(budget_->TryTake(Named("a"), 1).bytes(), 0);
  Fill(80);
  little.push_back(budget_->TryTake(Named("b"), 10));
  EXPECT_EQ(little.back().bytes(), 10);
  EXPECT_EQ(budget_->TryTake(Named("b"), 10).bytes(), 0);
  EXPECT_EQ(budget_->TryTake(Named("c"), 10).bytes(), 10);
}

// Who holds little waits for nobody who holds much.
TEST_F(SendBudgetTest, WhoHoldsLittleGoesBeforeWhoHoldsMuch) {
  const Room much = budget_->TryTake(Named("a"), 100);
  const Room little = budget_->TryTake(Named("b"), 10);
  Fill(500);
  Wait("a", 10);
  EXPECT_THAT(answers_, IsEmpty());
  EXPECT_TRUE(budget_->is_short());
  EXPECT_EQ(budget_->TryTake(Named("b"), 10).bytes(), 10);
  EXPECT_EQ(budget_->TryTake(Named("c"), 10).bytes(), 10);
  EXPECT_EQ(budget_->TryTake(Named("d"), 10).bytes(), 10);
  EXPECT_THAT(answers_, IsEmpty());
}

TEST_F(SendBudgetTest, WhoWaitsGetsTheMostWhereItFits) {
  Fill(800);
  Wait("a", 10, 100);
  Wait("b", 10, 100);
  filled_.pop_back();
  EXPECT_THAT(answers_, ElementsAre(std::pair("a", 100)));
  filled_.push_back(budget_->Take(Named("c"), 60));
  Room given = std::move(rooms_.front());
  given = Room();
  EXPECT_THAT(answers_, ElementsAre(std::pair("a", 100), std::pair("b", 10)));
}

TEST_F(SendBudgetTest, RoomComesBack) {
  {
    Room room = budget_->TryTake(Named("a"), 200);
    room.ShrinkTo(50);
    EXPECT_EQ(budget_->bytes(), 50);
    room.ShrinkTo(60);  // Never grows.
    const Room moved = std::move(room);
    EXPECT_EQ(moved.bytes(), 50);
    EXPECT_EQ(budget_->bytes(), 50);
  }
  EXPECT_EQ(budget_->bytes(), 0);
  // What is in memory already takes room that is not there.
  const Room taken = budget_->Take(Named("a"), 10'000);
  EXPECT_EQ(budget_->bytes(), 10'000);
}

TEST_F(SendBudgetTest, ConnectionsTakeTurns) {
  Fill(800);
  for (const int bytes : {1, 2, 3}) Wait("a", bytes);
  for (const int bytes : {4, 5}) Wait("b", bytes);
  EXPECT_THAT(answers_, IsEmpty());
  EXPECT_TRUE(budget_->is_short());
  filled_.pop_back();
  // The first of each holds nothing; the others do then, and have only the first three quarters.
  EXPECT_THAT(answers_, ElementsAre(std::pair("a", 1), std::pair("b", 4)));
  EXPECT_TRUE(budget_->is_short());
  filled_.resize(5);
  EXPECT_THAT(answers_, ElementsAre(std::pair("a", 1), std::pair("b", 4), std::pair("a", 2),
                                    std::pair("b", 5), std::pair("a", 3)));
  EXPECT_FALSE(budget_->is_short());
}

TEST_F(SendBudgetTest, NobodyOvertakesWhoNeedsMore) {
  Fill(700);
  Wait("a", 150);
  EXPECT_EQ(budget_->TryTake(Named("b"), 1).bytes(), 0);
  filled_.pop_back();
  EXPECT_THAT(answers_, ElementsAre(std::pair("a", 150)));
  EXPECT_EQ(budget_->TryTake(Named("b"), 1).bytes(), 1);
}

// Who waits for its own connection's bytes holds up no other.
TEST_F(SendBudgetTest, AFullConnectionHoldsUpNoOther) {
  Room large = budget_->TryTake(Named("a"), 200);
  Wait("a", 150);
  EXPECT_FALSE(budget_->is_short());
  EXPECT_EQ(budget_->TryTake(Named("b"), 150).bytes(), 150);
  large = Room();
  EXPECT_THAT(answers_, ElementsAre(std::pair("a", 150)));
}

TEST_F(SendBudgetTest, WhoStopsWaitingGetsNoAnswer) {
  Fill(800);
  const int64_t first = Wait("a", 10);
  Wait("b", 20);
  EXPECT_TRUE(budget_->StopWaiting(Named("a"), first));
  EXPECT_FALSE(budget_->StopWaiting(Named("a"), first));
  filled_.clear();
  EXPECT_THAT(answers_, ElementsAre(std::pair("b", 20)));
}

TEST_F(SendBudgetTest, WhoWaitsTooLongGetsNone) {
  Fill(800);
  const auto before = SendBudget::Clock::now();
  Wait("a", 10);
  budget_->Expire(before);
  EXPECT_THAT(answers_, IsEmpty());
  budget_->Expire(SendBudget::Clock::time_point::max());
  EXPECT_THAT(answers_, ElementsAre(std::pair("a", 0)));
  EXPECT_FALSE(budget_->is_short());
}

// Of many threads nobody waits for ever, and no bound is passed.
TEST_F(SendBudgetTest, HoldsItsBoundsAmongThreads) {
  std::atomic<int64_t> most{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const auto connection = Named(std::to_string(i / 2));
      for (int turn = 0; turn < 500; ++turn) {
        const int64_t bytes = 1 + (turn * 37 + i * 11) % 200;
        Room room = budget_->TryTake(connection, bytes);
        if (room.bytes() == 0) {
          std::mutex mutex;
          std::condition_variable answered;
          bool is_answered = false;
          budget_->Wait(connection, bytes, bytes, [&](Room given) {
            const std::lock_guard lock(mutex);
            room = std::move(given);
            is_answered = true;
            answered.notify_one();
          });
          std::unique_lock lock(mutex);
          answered.wait(lock, [&] { return is_answered; });
        }
        EXPECT_EQ(room.bytes(), bytes);
        int64_t now = budget_->bytes(), seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, kLimits.bytes);
  EXPECT_EQ(budget_->bytes(), 0);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
