// TensorStore, RunStore and the database below them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "server/errors.h"
#include "server/store/run_store.h"
#include "server/store/tensor_store.h"
#include "tests/server/temporary_directory.h"

namespace quantgate {
namespace QG_TEST_FILE {

Sha256 ContentNumber(uint8_t number) {
  Sha256 sha256;
  sha256.bytes[0] = number;
  return sha256;
}

std::vector<RunStore::Event> Prepared(RunStore& runs, const std::string& run_id,
                                      const std::vector<std::string>& events) {
  std::vector<RunStore::Event> prepared;
  for (const std::string& event : events) {
    prepared.push_back(runs.Prepare(run_id, std::make_shared<const std::string>(event)).value());
  }
  return prepared;
}

/// The last of them gets `sequence`.
absl::Status Append(RunStore& runs, const std::string& run_id, int64_t sequence,
                    const std::vector<std::string>& events) {
  return runs.AppendEvents(run_id, sequence, Prepared(runs, run_id, events));
}

absl::Status Finish(RunStore& runs, const std::string& run_id, int64_t sequence,
                    const std::string& event, const std::vector<std::string>& before = {}) {
  return runs.Finish(run_id, sequence, std::make_shared<const std::string>(event),
                     RunState::kSucceeded, absl::OkStatus(), Prepared(runs, run_id, before));
}

class RecordStoresTest : public testing::Test {
 protected:
  RecordStoresTest() { Open(); }
  void Open() {
    database_ = nullptr;
    database_ = Database::Open(directory_.path() + "/test.db").value();
    tensors_ = std::make_unique<TensorStore>(*database_);
    runs_ = std::make_unique<RunStore>(*database_);
  }
  static TensorRecord Record(uint8_t number, const std::string& name) {
    TensorRecord record;
    record.digest = {ContentNumber(number), 100};
    record.type = {DType::kBF16, {5, 10}};
    record.name = name;
    record.fingerprint = {0xFEDCBA9876543210u, number};
    return record;
  }

  static RunRecord Create(RunStore& runs, const std::string& request_id, uint8_t content) {
    return runs.Create(RunStore::NewRunId(), request_id, ContentNumber(content), "s", "a").value();
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Database> database_;
  std::unique_ptr<TensorStore> tensors_;
  std::unique_ptr<RunStore> runs_;
};

/// A limit of this process while it lives.
class Limit {
 public:
  Limit(int resource, rlim_t value) : resource_(resource) {
    EXPECT_EQ(::getrlimit(resource_, &before_), 0);
    const rlimit limit = {value, before_.rlim_max};
    EXPECT_EQ(::setrlimit(resource_, &limit), 0);
  }
  ~Limit() { ::setrlimit(resource_, &before_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  const int resource_;
  rlimit before_{};
};

// Where a full disk does not take even bytes in the place of others.
TEST_F(RecordStoresTest, AFlushThatCannotWriteIsTriedAgain) {
  Create(*runs_, "", 1);
  const auto ignored = ::signal(SIGXFSZ, SIG_IGN);
  absl::Status flushed;
  {
    const Limit none(RLIMIT_FSIZE, 0);
    flushed = database_->Flush();
  }
  ::signal(SIGXFSZ, ignored);
  EXPECT_FALSE(flushed.ok());
  EXPECT_TRUE(database_->Flush().ok());
}

// A file that may not grow is no fault of the database's.
TEST_F(RecordStoresTest, AFileThatMayNotGrowIsALimitThatIsExhausted) {
  const RunRecord run = Create(*runs_, "", 1);
  const auto ignored = ::signal(SIGXFSZ, SIG_IGN);
  std::vector<absl::Status> refused;
  {
    const Limit none(RLIMIT_FSIZE, 1 << 10);
    refused.push_back(Append(*runs_, run.run_id, 2, {"small"}));
    const auto large = std::make_shared<const std::string>(200'000, 'l');
    refused.push_back(runs_->Prepare(run.run_id, large).status());
  }
  for (const rlim_t bytes : {rlim_t{1} << 10, rlim_t{20'000}}) {
    const TemporaryDirectory other;
    const Limit few(RLIMIT_FSIZE, bytes);
    refused.push_back(Database::Open(other.path() + "/test.db").status());
  }
  ::signal(SIGXFSZ, ignored);
  for (const absl::Status& status : refused) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_NE(status.message().find("RLIMIT_FSIZE"), absl::string_view::npos) << status;
  }
  EXPECT_TRUE(Append(*runs_, run.run_id, 2, {"small"}).ok());
}

TEST_F(RecordStoresTest, AFlushTakesNoDescriptor) {
  const RunRecord run = Create(*runs_, "", 1);
  ASSERT_TRUE(Append(*runs_, run.run_id, 2, {std::string(200'000, 'l')}).ok());
  const Limit none(RLIMIT_NOFILE, 0);
  const absl::Status flushed = database_->Flush();
  EXPECT_TRUE(flushed.ok()) << flushed;
}

// Against what was given, since what Put returns was read back too.
TEST_F(RecordStoresTest, TensorsComeBackWhole) {
  const TensorRecord given = Record(1, "weights");
  ASSERT_TRUE(tensors_->Put(given, "", {}).ok());
  Open();
  const auto found = tensors_->Find(given.digest).value();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].digest, given.digest);
  EXPECT_EQ(found[0].type, given.type);
  EXPECT_EQ(found[0].name, "weights");
  EXPECT_EQ(found[0].fingerprint, given.fingerprint);
  EXPECT_TRUE(tensors_->Find({ContentNumber(1), 99}).value().empty());
}

TEST_F(RecordStoresTest, TheSameTensorIsOneRecord) {
  const TensorRecord first = tensors_->Put(Record(1, "a"), "", {}).value();
  EXPECT_EQ(tensors_->Put(Record(1, "a"), "", {}).value().id, first.id);
  EXPECT_NE(tensors_->Put(Record(1, "b"), "", {}).value().id, first.id);
  TensorRecord scalar = Record(1, "a");
  scalar.type.shape.clear();
  EXPECT_TRUE(tensors_->Put(scalar, "", {}).value().type.shape.empty());
}

TEST_F(RecordStoresTest, TensorRequestsAreRememberedWithTheirContent) {
  EXPECT_FALSE(tensors_->FindRequest("r1", ContentNumber(1)).value().has_value());
  const TensorRecord put = tensors_->Put(Record(1, "a"), "r1", ContentNumber(1)).value();
  EXPECT_EQ(tensors_->FindRequest("r1", ContentNumber(1)).value()->id, put.id);
  EXPECT_TRUE(absl::IsAlreadyExists(tensors_->FindRequest("r1", ContentNumber(2)).status()));
}

TEST_F(RecordStoresTest, PagesCoverEverythingOnce) {
  for (uint8_t i = 0; i < 7; ++i) ASSERT_TRUE(tensors_->Put(Record(i, "t"), "", {}).ok());
  std::vector<int> seen;
  int64_t before = 0;
  do {
    const TensorPage page = tensors_->List(before, 3).value();
    EXPECT_LE(page.records.size(), 3u);
    for (const auto& record : page.records) seen.push_back(record.digest.sha256.bytes[0]);
    before = page.next_before_id;
  } while (before != 0);
  EXPECT_EQ(seen, (std::vector<int>{6, 5, 4, 3, 2, 1, 0}));
}

TEST_F(RecordStoresTest, RunsKeepTheirEventsAndState) {
  const RunRecord run =
      runs_->Create("run-1", "r1", ContentNumber(1), "linear x 1 variant", "accepted").value();
  EXPECT_EQ(run.run_id, "run-1");
  EXPECT_EQ(runs_->ReadEvent("run-1", 1).value()->bytes, "accepted");
  EXPECT_EQ(run.last_sequence, 1);
  EXPECT_EQ(runs_->Get("run-1").value().state, RunState::kQueued);
  ASSERT_TRUE(Append(*runs_, run.run_id, 2, {std::string("\0binary", 7)}).ok());
  EXPECT_FALSE(Append(*runs_, run.run_id, 2, {"again"}).ok());
  Open();
  EXPECT_EQ(runs_->ReadEvent(run.run_id, 2).value()->bytes, std::string("\0binary", 7));
  EXPECT_FALSE(runs_->ReadEvent(run.run_id, 3).value().has_value());
  EXPECT_TRUE(absl::IsNotFound(runs_->ReadEvent("nobody", 1).status()));
  ASSERT_EQ(runs_->ListUnfinished().value().size(), 1u);
  ASSERT_TRUE(runs_
                  ->Finish(run.run_id, 3, std::make_shared<const std::string>("finished"),
                           RunState::kFailed, absl::AbortedError("why"))
                  .ok());
  const RunRecord got = runs_->Get(run.run_id).value();
  EXPECT_EQ(got.state, RunState::kFailed);
  EXPECT_EQ(got.status, absl::AbortedError("why"));
  EXPECT_EQ(got.last_sequence, 3);
  EXPECT_EQ(got.request_id, "r1");
  EXPECT_TRUE(got.finished.has_value());
  EXPECT_TRUE(runs_->ListUnfinished().value().empty());
  EXPECT_EQ(runs_->FindRequest("r1", ContentNumber(1)).value()->run_id, run.run_id);
  EXPECT_TRUE(absl::IsAlreadyExists(runs_->FindRequest("r1", ContentNumber(2)).status()));
}

TEST_F(RecordStoresTest, EventsAreStoredSeveralAtATime) {
  const RunRecord run = Create(*runs_, "", 1);
  ASSERT_TRUE(Append(*runs_, run.run_id, 4, {"2", "3", "4"}).ok());
  ASSERT_TRUE(Finish(*runs_, run.run_id, 6, "6", {"5"}).ok());
  for (int64_t sequence = 2; sequence <= 6; ++sequence) {
    EXPECT_EQ(runs_->ReadEvent(run.run_id, sequence).value()->bytes, std::to_string(sequence));
  }
  EXPECT_EQ(runs_->Get(run.run_id).value().last_sequence, 6);
}

TEST_F(RecordStoresTest, EventsStoredWithOthersCountAmongTheBytesKept) {
  RunStore runs(*database_, 100, 400);
  const RunRecord run = Create(runs, "", 1);
  const std::string event(150, 'e');
  ASSERT_TRUE(Finish(runs, run.run_id, 5, "5", {event, event, event}).ok());
  ASSERT_TRUE(runs.Get(run.run_id).ok());
  Create(runs, "", 2);  // Finds 452 bytes, more than is kept and a sixteenth.
  EXPECT_TRUE(absl::IsNotFound(runs.Get(run.run_id).status()));
}

TEST_F(RecordStoresTest, OnlyRequestIdsOfRunsMayBeKnown) {
  EXPECT_FALSE(runs_->MayHaveRequest("r1").value());
  Create(*runs_, "r1", 1);
  Create(*runs_, "", 1);
  EXPECT_TRUE(runs_->MayHaveRequest("r1").value());
  EXPECT_FALSE(runs_->MayHaveRequest("r2").value());
  EXPECT_FALSE(runs_->MayHaveRequest("").value());
  Open();
  Create(*runs_, "r2", 2);  // Before anybody has asked.
  EXPECT_TRUE(runs_->MayHaveRequest("r1").value());
  EXPECT_TRUE(runs_->MayHaveRequest("r2").value());
  EXPECT_FALSE(runs_->MayHaveRequest("r3").value());
  Create(*runs_, "r3", 3);
  EXPECT_TRUE(runs_->MayHaveRequest("r3").value());
}

TEST_F(RecordStoresTest, RequestIdsOfRunsThatAreGoneAreForgotten) {
  RunStore runs(*database_, 2);
  EXPECT_FALSE(runs.MayHaveRequest("r0").value());
  for (int i = 0; i < 1100; ++i) {
    const RunRecord run = Create(runs, "r" + std::to_string(i), 1);
    ASSERT_TRUE(Finish(runs, run.run_id, 2, "2").ok());
  }
  EXPECT_FALSE(runs.MayHaveRequest("r0").value());
  EXPECT_TRUE(runs.MayHaveRequest("r1099").value());
}

TEST_F(RecordStoresTest, AnUnknownRunHasNoEvents) {
  EXPECT_TRUE(absl::IsNotFound(Append(*runs_, "run-1", 2, {"2"})));
  EXPECT_TRUE(absl::IsNotFound(Finish(*runs_, "run-1", 2, "2")));
}

TEST_F(RecordStoresTest, OnlyTheNewestFinishedRunsAreKept) {
  RunStore runs(*database_, /*runs_kept=*/5);
  const RunRecord live = Create(runs, "", 0);
  std::vector<std::string> ids;
  for (int i = 0; i < 10; ++i) {
    ids.push_back(Create(runs, "", 1).run_id);
    ASSERT_TRUE(Finish(runs, ids[i], 2, "f").ok());
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(runs.Get(ids[i]).ok(), i >= 5) << i;
    EXPECT_EQ(runs.ReadEvent(ids[i], 1).ok(), i >= 5) << i;
  }
  EXPECT_TRUE(runs.Get(live.run_id).ok());
}

TEST_F(RecordStoresTest, OldRunsGoSeveralAtATime) {
  RunStore runs(*database_, /*runs_kept=*/32);
  std::vector<std::string> ids;
  const auto finish_one = [&] {
    ids.push_back(Create(runs, "", 1).run_id);
    ASSERT_TRUE(Finish(runs, ids.back(), 2, "f").ok());
  };
  for (int i = 0; i < 34; ++i) finish_one();
  EXPECT_TRUE(runs.Get(ids[0]).ok());
  finish_one();
  for (int i = 0; i < 35; ++i) EXPECT_EQ(runs.Get(ids[i]).ok(), i >= 3) << i;
  // Another store of the same database knows as much.
  RunStore again(*database_, /*runs_kept=*/32);
  for (int i = 0; i < 2; ++i) Create(again, "", 1);
  EXPECT_TRUE(again.Get(ids[3]).ok());
  Create(again, "", 1);
  EXPECT_FALSE(again.Get(ids[3]).ok());
}

TEST_F(RecordStoresTest, OnlySoManyBytesOfEventsAreKept) {
  RunStore runs(*database_, /*runs_kept=*/100, /*event_bytes_kept=*/1000);
  const RunRecord live = Create(runs, "", 0);
  ASSERT_TRUE(Append(runs, live.run_id, 2, {std::string(400, 'e')}).ok());
  std::vector<std::string> ids;
  for (int i = 0; i < 4; ++i) {
    ids.push_back(Create(runs, "", 1).run_id);
    const std::string event(400, 'f');
    ASSERT_TRUE(Finish(runs, ids[i], 2, event).ok());
  }
  Create(runs, "", 1);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(runs.Get(ids[i]).ok(), i >= 2) << i;
  EXPECT_TRUE(runs.Get(live.run_id).ok());
}

TEST_F(RecordStoresTest, StoresAreUsedFromManyThreads) {
  std::vector<std::thread> threads;
  for (uint8_t i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      const RunRecord run = Create(*runs_, "", i);
      for (int64_t sequence = 2; sequence <= 20; ++sequence) {
        EXPECT_TRUE(Append(*runs_, run.run_id, sequence, {"e"}).ok());
        EXPECT_TRUE(tensors_->Put(Record(i, std::to_string(sequence)), "", {}).ok());
      }
      EXPECT_EQ(runs_->Get(run.run_id).value().last_sequence, 20);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(RecordStoresTest, WhatIsToldIsInTheFiles) {
  const RunRecord run = Create(*runs_, "", 1);
  const std::string event(300'000, 'e');
  ASSERT_TRUE(Finish(*runs_, run.run_id, 2, event).ok());
  ASSERT_EQ(runs_->Get(run.run_id).value().state, RunState::kSucceeded);
  // As after a crash: another process finds the files of one that has not closed them.
  const TemporaryDirectory copies;
  for (const char* file : {"/test.db", "/test.db-wal", "/test.db-mark", "/test.db-files"}) {
    std::filesystem::copy(directory_.path() + file, copies.path() + file);
  }
  const auto copy = Database::Open(copies.path() + "/test.db").value();
  RunStore copied(*copy);
  EXPECT_EQ(copied.Get(run.run_id).value().state, RunState::kSucceeded);
  EXPECT_EQ(copied.ReadEvent(run.run_id, 2).value()->bytes, event);
}

TEST_F(RecordStoresTest, LargeEventsComeBackWhole) {
  const RunRecord run = Create(*runs_, "", 1);
  const RunRecord other = Create(*runs_, "", 1);
  const auto event = [](size_t size, char first) {
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(first + i % 251);
    return bytes;
  };
  // Around the size from which they are in files; several at a time, and of two runs in turn.
  const std::vector<std::string> events = {event(65535, 1), event(65536, 2), event(65537, 3),
                                           event(10, 4), event(300'000, 5)};
  ASSERT_TRUE(Append(*runs_, run.run_id, 2, {events[0]}).ok());
  ASSERT_TRUE(Append(*runs_, other.run_id, 2, {events[2]}).ok());
  ASSERT_TRUE(Append(*runs_, run.run_id, 4, {events[1], events[2]}).ok());
  ASSERT_TRUE(Finish(*runs_, run.run_id, 6, events[4], {events[3]}).ok());
  for (int i = 0; i < 2; ++i, Open()) {
    for (int64_t sequence = 2; sequence <= 6; ++sequence) {
      EXPECT_EQ(runs_->ReadEvent(run.run_id, sequence).value()->bytes, events[sequence - 2])
          << sequence;
    }
    EXPECT_EQ(runs_->ReadEvent(other.run_id, 2).value()->bytes, events[2]);
    EXPECT_FALSE(runs_->ReadEvent(other.run_id, 3).value().has_value());
  }
}

TEST_F(RecordStoresTest, FilesOfLargeEventsGoWithTheirRuns) {
  RunStore runs(*database_, /*runs_kept=*/2);
  const std::string large(100'000, 'e');
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) {
    ids.push_back(Create(runs, "", 1).run_id);
    ASSERT_TRUE(Append(runs, ids.back(), 2, {large}).ok());
    ASSERT_TRUE(Finish(runs, ids.back(), 3, "f").ok());
  }
  const auto names = [&] {
    std::vector<std::string> found = database_->side_files().Names();
    std::sort(found.begin(), found.end());
    return found;
  };
  std::vector<std::string> kept(ids.begin() + 3, ids.end());
  std::sort(kept.begin(), kept.end());
  EXPECT_EQ(names(), kept);
  // What a crash left between the end of a transaction and the removal of its files.
  ASSERT_TRUE(database_->side_files().Append("run-gone", large).ok());
  Open();
  EXPECT_EQ(names().size(), 3u);
  const TemporaryDirectory aside;
  EXPECT_EQ(runs_->SetStrayFilesAside(aside.path()).value(), 1);
  EXPECT_EQ(names(), kept);
  EXPECT_EQ(std::filesystem::file_size(aside.path() + "/run-gone"), large.size());
  EXPECT_EQ(runs_->ReadEvent(ids.back(), 2).value()->bytes, large);
}

TEST_F(RecordStoresTest, AnEventThatItsFileLacksIsLostData) {
  const RunRecord run = Create(*runs_, "", 1);
  ASSERT_TRUE(Append(*runs_, run.run_id, 2, {std::string(100'000, 'e')}).ok());
  const std::string file = directory_.path() + "/test.db-files/" + run.run_id;
  std::filesystem::resize_file(file, 99'999);
  const absl::Status shorter = runs_->ReadEvent(run.run_id, 2).status();
  EXPECT_TRUE(absl::IsDataLoss(shorter)) << shorter;
  EXPECT_NE(shorter.message().find("event 2 of " + run.run_id), absl::string_view::npos) << shorter;
  std::filesystem::remove(file);
  EXPECT_TRUE(absl::IsDataLoss(runs_->ReadEvent(run.run_id, 2).status()));
  EXPECT_EQ(runs_->ReadEvent(run.run_id, 1).value()->bytes, "a");
}

TEST_F(RecordStoresTest, TheLogIsMovedIntoTheDatabaseBesideTheWriters) {
  const auto size_of = [&](const char* file) {
    return std::filesystem::file_size(directory_.path() + file);
  };
  const RunRecord run = Create(*runs_, "", 1);
  const std::string event(60 << 10, 'e');  // Not so large that the log has nothing of it.
  constexpr uint64_t kMoved = uint64_t{12} << 20;
  int64_t sequence = 1;
  // The log holds 16 MiB before it is moved; a writer in a hurry fills more of it meanwhile.
  while (size_of("/test.db") < kMoved) {
    ASSERT_LT(sequence, 1000) << "the log was never moved";
    ASSERT_TRUE(Append(*runs_, run.run_id, ++sequence, {event}).ok());
    ASSERT_TRUE(database_->Flush().ok());
  }
  EXPECT_GT(size_of("/test.db-wal"), 0u);
  for (int64_t i = 2; i <= sequence; ++i) {
    EXPECT_EQ(runs_->ReadEvent(run.run_id, i).value()->bytes, event) << i;
  }
}

TEST(DatabaseTest, RefusesOtherSchemasAndOtherFiles) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/test.db";
  {
    auto database = Database::Open(path).value();
    const std::lock_guard lock(database->mutex());
    ASSERT_TRUE(database->Execute("PRAGMA user_version = 99").ok());
  }
  const absl::Status newer = Database::Open(path).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(newer));
  EXPECT_NE(newer.message().find("99"), absl::string_view::npos);
  std::ofstream(path + "2") << "this is a text and no database, long enough to have a header";
  EXPECT_FALSE(Database::Open(path + "2").ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
