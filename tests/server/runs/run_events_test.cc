// RunEvents: what is told, what is stored, and what becomes of a run whose events cannot be kept.
#include "server/runs/run_events.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <latch>
#include <optional>
#include <string>

#include "server/limits.h"
#include "tests/server/store/full_disk.h"
#include "tests/server/temporary_directory.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr char kRun[] = "run-1";
constexpr char kLost[] = "the event with this number could not be stored";

class RunEventsTest : public testing::Test {
 protected:
  RunEventsTest() {
    live_.Begin(kRun, cancellation_);
    live_.Publish(kRun, 1, std::make_shared<const std::string>("accepted"));
  }
  void Create() {
    events_->Created(store_.Create(kRun, "", Sha256(), "summary", "accepted").status());
  }
  absl::Status Publish(const std::string& what) {
    v1::RunEvent event;
    event.mutable_progress()->set_what(what);
    return events_->Publish(event);
  }
  /// What the event says, which must be there.
  static std::string WhatOf(const std::string& bytes) {
    v1::RunEvent event;
    EXPECT_TRUE(event.ParseFromString(bytes));
    EXPECT_EQ(event.run_id(), kRun);
    return event.progress().what();
  }
  std::string Stored(int64_t sequence) {
    const auto event = store_.ReadEvent(kRun, sequence).value();
    return event.has_value() ? WhatOf(event->bytes) : "none";
  }
  static std::shared_ptr<const std::string> Bytes(std::string text) {
    return std::make_shared<const std::string>(std::move(text));
  }

  TemporaryDirectory directory_;
  const std::string database_path_ = directory_.path() + "/test.db";
  const std::unique_ptr<Database> database_ = Database::Open(database_path_).value();
  RunStore store_{*database_};
  LiveRuns live_;
  const std::shared_ptr<Cancellation> cancellation_ = std::make_shared<Cancellation>();
  std::latch reached_{1};  ///< Of what a test waits for.
  Executor storing_{1};
  const std::shared_ptr<RunEvents> events_ =
      std::make_shared<RunEvents>(store_, storing_, live_, kRun, cancellation_);
};

TEST_F(RunEventsTest, ComeInOrderSmallAndLarge) {
  Create();
  const std::string large(200'000, 'l');
  const auto what_of = [&](int i) { return i % 7 == 3 ? large : std::to_string(i); };
  for (int i = 2; i <= 200; ++i) ASSERT_TRUE(Publish(what_of(i)).ok());
  events_->WhenPublished([&](const absl::Status& kept) {
    EXPECT_TRUE(kept.ok()) << kept;
    EXPECT_EQ(events_->next_sequence(), 201);
    const auto last = Bytes("last");
    ASSERT_TRUE(events_->StoreEnd(last, RunState::kSucceeded, absl::OkStatus()).ok());
    EXPECT_TRUE(live_.IsLive(kRun));
    events_->PublishEnd(last);
  });
  EXPECT_FALSE(live_.IsLive(kRun));
  for (int i = 2; i <= 200; ++i) EXPECT_EQ(Stored(i), what_of(i)) << i;
  EXPECT_EQ(store_.ReadEvent(kRun, 201).value()->bytes, "last");
  EXPECT_EQ(store_.Get(kRun).value().state, RunState::kSucceeded);
  EXPECT_TRUE(cancellation_->Check().ok());
}

TEST_F(RunEventsTest, AreToldBeforeTheRunIsStored) {
  ASSERT_TRUE(Publish("early").ok());
  const auto live = live_.Hold(kRun);
  // Whether it is told already or yet to be: only a store that waits for the run would hang here.
  if (live_.Wait(kRun, 2, [&](LiveRuns::Position) { reached_.count_down(); }) != 0) {
    reached_.wait();
  }
  EXPECT_EQ(WhatOf(*live_.EventOf(*live, 2)), "early");
  EXPECT_TRUE(absl::IsNotFound(store_.Get(kRun).status()));
  Create();
  events_->WhenPublished([&](const absl::Status&) {
    const auto last = Bytes("last");
    EXPECT_TRUE(events_->StoreEnd(last, RunState::kSucceeded, absl::OkStatus()).ok());
    events_->PublishEnd(last);
  });
  EXPECT_EQ(Stored(2), "early");
}

TEST_F(RunEventsTest, AreStoredWhileTheRunGoesOn) {
  Create();
  ASSERT_TRUE(Publish("early").ok());
  // Behind the event, and then behind what waits for idleness since then.
  storing_.Run([&] { storing_.RunWhenIdle([&] { reached_.count_down(); }); });
  reached_.wait();
  EXPECT_EQ(Stored(2), "early");
}

TEST_F(RunEventsTest, ThatAreNotStoredGoWithTheEnd) {
  Create();
  // A thread that always has something else to do stores nothing by itself.
  std::atomic<bool> is_over{false};
  const std::function<void()> again = [&] {
    if (is_over) return reached_.count_down();
    storing_.Run(again);
  };
  storing_.Run(again);
  EXPECT_TRUE(Publish("late").ok());
  events_->WhenPublished([&](const absl::Status&) {
    EXPECT_EQ(Stored(2), "none");
    const auto last = Bytes("last");
    EXPECT_TRUE(events_->StoreEnd(last, RunState::kSucceeded, absl::OkStatus()).ok());
    EXPECT_EQ(Stored(2), "late");
    events_->PublishEnd(last);
  });
  is_over = true;
  reached_.wait();
}

TEST_F(RunEventsTest, ThatCannotBeKeptCancelTheRun) {
  Create();
  std::filesystem::remove_all(database_path_ + "-files");
  ASSERT_TRUE(Publish(std::string(200'000, 'l')).ok());
  events_->WhenPublished([&](const absl::Status& kept) {
    EXPECT_FALSE(kept.ok());
    EXPECT_FALSE(cancellation_->Check().ok());
    EXPECT_FALSE(Publish("more").ok());
    const auto last = Bytes("why it failed");
    EXPECT_TRUE(events_->StoreEnd(last, RunState::kFailed, kept).ok());
    events_->PublishEnd(last);
  });
  EXPECT_EQ(store_.Get(kRun).value().state, RunState::kFailed);
  EXPECT_EQ(Stored(2), kLost);
  EXPECT_EQ(store_.ReadEvent(kRun, 3).value()->bytes, "why it failed");
}

TEST_F(RunEventsTest, KeepTheirNumbersWhereALaterOneIsLost) {
  Create();
  std::filesystem::remove_all(database_path_ + "-files");
  // As above: nothing is stored before the end.
  std::atomic<bool> is_over{false};
  const std::function<void()> again = [&] {
    if (is_over) return reached_.count_down();
    storing_.Run(again);
  };
  storing_.Run(again);
  EXPECT_TRUE(Publish("small").ok());
  EXPECT_TRUE(Publish(std::string(200'000, 'l')).ok());
  events_->WhenPublished([&](const absl::Status& kept) {
    EXPECT_FALSE(kept.ok());
    const auto last = Bytes("why it failed");
    EXPECT_TRUE(events_->StoreEnd(last, RunState::kFailed, kept).ok());
    events_->PublishEnd(last);
  });
  is_over = true;
  reached_.wait();
  EXPECT_EQ(Stored(2), "small");
  EXPECT_EQ(Stored(3), kLost);
  EXPECT_EQ(store_.ReadEvent(kRun, 4).value()->bytes, "why it failed");
}

TEST_F(RunEventsTest, AnEndThatCannotBeStoredIsOwed) {
  const DatabaseDisk disk;
  Create();
  const auto live = live_.Hold(kRun);
  disk.is_full = true;
  ASSERT_TRUE(Publish("early").ok());
  std::atomic<int> wakes = 0;
  if (live_.Wait(kRun, 3, [&](LiveRuns::Position) { ++wakes; }) == 0) ADD_FAILURE();
  events_->WhenPublished([&](const absl::Status&) {
    const auto last = Bytes("why it failed");
    const absl::Status full = events_->StoreEnd(last, RunState::kFailed, absl::OkStatus());
    EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
    events_->OweEnd(last, RunState::kFailed, full, full);
  });
  EXPECT_EQ(wakes, 1);
  live_.StoreOwed();
  EXPECT_EQ(live_.owed(), 1);
  EXPECT_TRUE(live_.IsLive(kRun));
  EXPECT_TRUE(absl::IsResourceExhausted(live_.WhyOwed(kRun)));
  EXPECT_FALSE(live_.IsToCome(kRun, 3));
  EXPECT_EQ(live_.Wait(kRun, 3, [](LiveRuns::Position) {}), 0);
  EXPECT_EQ(live_.EventOf(*live, 2), nullptr);  // It is not stored.
  disk.is_full = false;
  live_.StoreOwed();
  EXPECT_EQ(live_.owed(), 0);
  EXPECT_FALSE(live_.IsLive(kRun));
  EXPECT_EQ(Stored(2), kLost);
  EXPECT_EQ(store_.ReadEvent(kRun, 3).value()->bytes, "why it failed");
  EXPECT_TRUE(absl::IsResourceExhausted(store_.Get(kRun).value().status));
}

TEST_F(RunEventsTest, AnEndThatCannotBeStoredGivesWayToAnother) {
  Create();
  std::filesystem::remove_all(database_path_ + "-files");
  const auto end = [&](std::string event, RunState state) {
    return events_->StoreEnd(Bytes(std::move(event)), state, absl::OkStatus());
  };
  events_->WhenPublished([&](const absl::Status&) {
    EXPECT_FALSE(end(std::string(200'000, 'l'), RunState::kSucceeded).ok());
    EXPECT_EQ(store_.Get(kRun).value().state, RunState::kQueued);
    EXPECT_TRUE(end("small", RunState::kFailed).ok());
    events_->PublishEnd(Bytes("small"));
  });
  EXPECT_EQ(store_.Get(kRun).value().state, RunState::kFailed);
}

TEST_F(RunEventsTest, OfARunThatIsNotStoredEndWithoutALastOne) {
  ASSERT_TRUE(Publish("early").ok());
  const auto live = live_.Hold(kRun);
  const absl::Status why = absl::ResourceExhaustedError("the disk is full");
  events_->Created(why);
  events_->WhenPublished([&](const absl::Status&) {
    EXPECT_EQ(events_->StoreEnd(Bytes("last"), RunState::kSucceeded, absl::OkStatus()), why);
    events_->PublishEnd(nullptr);
  });
  EXPECT_FALSE(live_.IsLive(kRun));
  EXPECT_EQ(live_.EventOf(*live, 3), nullptr);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
