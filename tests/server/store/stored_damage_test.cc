// What is stored and was damaged since: it is never answered as if it were whole, and fsck finds
// it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "server/store/checked_files.h"
#include "server/store/data_dir.h"
#include "server/store/fsck.h"
#include "server/store/rewrite.h"
#include "server/store/run_store.h"
#include "server/store/tensor_store.h"
#include "tests/server/temporary_directory.h"

namespace quantgate {
namespace QG_TEST_FILE {

namespace fs = std::filesystem;

constexpr int kRuns = 40;
constexpr size_t kLargeBytes = 100'000;

void FlipBit(const std::string& path, int64_t byte) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(byte);
  const auto value = static_cast<char>(file.get() ^ 8);
  file.seekp(byte);
  file.put(value);
}

class StoredDamageTest : public testing::Test {
 protected:
  StoredDamageTest() {
    EXPECT_TRUE(DataDir::Open(directory_.path()).ok());  // And leaves it to fsck.
    EXPECT_TRUE(Open().ok());
  }

  absl::Status Open() {
    runs_.reset();
    database_ = nullptr;
    auto database =
        Database::Open(path(), [this](std::string_view what) { ++counts_[std::string(what)]; });
    if (!database.ok()) return database.status();
    database_ = *std::move(database);
    runs_.emplace(*database_);
    return absl::OkStatus();
  }
  void Close() {
    runs_.reset();
    database_ = nullptr;
  }
  void Fill() {
    for (int i = 0; i < kRuns; ++i) {
      const std::string id = absl::StrCat("run-", i);
      ASSERT_TRUE(runs_->Create(id, absl::StrCat("request-", i), {}, "summary", "accepted").ok());
      const std::string large = i == 0 ? std::string(kLargeBytes, 'e') : std::string(3000, 's');
      ASSERT_TRUE(runs_->AppendEvents(id, 2, {{runs_->Prepare(id, Shared(large)).value()}}).ok());
      ASSERT_TRUE(
          runs_->Finish(id, 3, Shared("finished"), RunState::kSucceeded, absl::OkStatus()).ok());
    }
    ASSERT_TRUE(database_->Flush().ok());
  }
  static std::shared_ptr<const std::string> Shared(const std::string& text) {
    return std::make_shared<const std::string>(text);
  }
  void Execute(const std::string& sql) {
    const std::lock_guard lock(database_->mutex());
    ASSERT_TRUE(database_->Execute(sql).ok()) << sql;
  }
  /// All that is read, or "lost" in its place.
  std::vector<std::string> Answers() {
    std::vector<std::string> answers;
    const auto page = runs_->List(0, 2 * kRuns);
    if (page.ok()) answers.push_back(absl::StrCat("runs: ", page->records.size()));
    if (!page.ok()) answers.push_back(absl::IsDataLoss(page.status()) ? "lost" : "failed");
    for (int i = 0; i < kRuns; ++i) {
      const std::string id = absl::StrCat("run-", i);
      const auto run = runs_->Get(id);
      answers.push_back(run.ok() ? absl::StrCat(run->summary, run->last_sequence)
                                 : Failure(run.status()));
      for (int64_t sequence = 1; sequence <= 4; ++sequence) {
        const auto event = runs_->ReadEvent(id, sequence);
        answers.push_back(!event.ok()           ? Failure(event.status())
                          : !event->has_value() ? "none"
                                                : (*event)->bytes);
      }
    }
    return answers;
  }
  static std::string Failure(const absl::Status& status) {
    return absl::IsDataLoss(status) ? "lost" : absl::StrCat("other: ", status.message());
  }
  static int CountLost(const std::vector<std::string>& answers) {
    return static_cast<int>(std::count(answers.begin(), answers.end(), "lost"));
  }
  std::string path() const { return directory_.path() + "/quantgate.db"; }

  absl::StatusOr<FsckResult> Fsck(bool repairs = false) {
    found_.clear();
    return CheckStore(directory_.path(), repairs,
                      [this](const std::string& line) { found_.push_back(line); });
  }

  TemporaryDirectory directory_;
  std::map<std::string, int> counts_;
  std::unique_ptr<Database> database_;
  std::optional<RunStore> runs_;
  std::vector<std::string> found_;
};

TEST_F(StoredDamageTest, AFlippedBitOfALargeEventIsLostData) {
  Fill();
  FlipBit(path() + "-files/run-0", 77'777);
  const absl::Status status = runs_->ReadEvent("run-0", 2).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_NE(status.message().find("event 2 of run-0"), absl::string_view::npos) << status;
  EXPECT_EQ(counts_["event"], 1);
  EXPECT_TRUE(runs_->ReadEvent("run-0", 1).ok());
}

TEST_F(StoredDamageTest, AnEventOfAnotherPlaceIsLostData) {
  Fill();
  Execute("UPDATE events SET sequence = sequence + 10 WHERE run = 2");
  Execute("UPDATE events SET sequence = 14 - sequence WHERE run = 2");  // 3, 2, 1.
  for (const int64_t sequence : {1, 3}) {
    EXPECT_TRUE(absl::IsDataLoss(runs_->ReadEvent("run-1", sequence).status())) << sequence;
  }
  EXPECT_TRUE(runs_->ReadEvent("run-1", 2).ok());
  Execute("UPDATE events SET run = 99 - run WHERE run IN (49, 50)");
  Execute("DELETE FROM events WHERE run = 4; UPDATE events SET run = 4 WHERE run = 5");
  EXPECT_TRUE(absl::IsDataLoss(runs_->ReadEvent("run-3", 2).status()));
  EXPECT_EQ(counts_["event"], 3);
}

TEST_F(StoredDamageTest, AnEventThatIsNotThereIsLostData) {
  Fill();
  Execute("DELETE FROM events WHERE run = 1 AND sequence = 3");
  EXPECT_TRUE(absl::IsDataLoss(runs_->ReadEvent("run-0", 3).status()));
  EXPECT_FALSE(runs_->ReadEvent("run-0", 4).value().has_value());
  EXPECT_EQ(counts_["event"], 1);
}

// Whatever the page is of: rows, indexes, what is between them, free pages.
TEST_F(StoredDamageTest, NoFlippedBitOfAPageAltersAnAnswer) {
  Fill();
  const std::vector<std::string> whole = Answers();
  ASSERT_EQ(CountLost(whole), 0);
  Close();
  const std::string kept = directory_.path() + "/kept";
  fs::copy(path(), kept);
  const auto pages = static_cast<int64_t>(fs::file_size(path())) / kDatabasePageBytes;
  ASSERT_GT(pages, 10);
  int refused = 0, lost = 0;
  for (int64_t page = 0; page < pages; ++page) {
    for (const int64_t byte : {page % 97, 5000 + 31 * page, kDatabasePageBytes - 1 - page % 12}) {
      fs::copy(kept, path(), fs::copy_options::overwrite_existing);
      FlipBit(path(), page * kDatabasePageBytes + byte);
      const absl::Status opened = Open();
      if (!opened.ok()) {
        ++refused;
        continue;
      }
      counts_.clear();
      const std::vector<std::string> answers = Answers();
      for (size_t i = 0; i < answers.size(); ++i) {
        if (answers[i] == "lost") continue;
        EXPECT_EQ(answers[i], whole[i]) << page << " " << byte;
      }
      lost += CountLost(answers) > 0 ? 1 : 0;
      EXPECT_EQ(CountLost(answers) > 0, counts_["database"] > 0) << page << " " << byte;
      Close();
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(lost, pages);
}

TEST_F(StoredDamageTest, ALogThatLostWhatItHadIsRefused) {
  Fill();
  // As after a crash.
  const TemporaryDirectory copies;
  const std::string copy = copies.path() + "/quantgate.db";
  const auto size = static_cast<int64_t>(fs::file_size(path() + "-wal"));
  const auto open_copy = [&](int64_t flipped) {
    fs::remove_all(copies.path());
    fs::copy(directory_.path(), copies.path(), fs::copy_options::recursive);
    fs::remove(copy + "-shm");
    if (flipped >= 0) FlipBit(copy + "-wal", flipped);
    return Database::Open(copy).status();
  };
  EXPECT_TRUE(open_copy(-1).ok());
  int refused = 0;
  for (const int64_t byte :
       {int64_t{3}, int64_t{17}, int64_t{30}, int64_t{40}, size / 2, size - 9}) {
    const absl::Status status = open_copy(byte);
    EXPECT_TRUE(absl::IsDataLoss(status)) << byte << " " << status;
    refused += status.ok() ? 0 : 1;
  }
  EXPECT_EQ(refused, 6);
}

// Each of its pages fits; a later log was promised.
TEST_F(StoredDamageTest, ALogOfAnotherGenerationIsRefusedAndSetAside) {
  Fill();
  const std::vector<std::string> whole = Answers();
  const TemporaryDirectory first, second;
  for (const auto* copy : {&first, &second}) fs::remove_all(copy->path());
  fs::copy(directory_.path(), first.path(), fs::copy_options::recursive);
  ASSERT_TRUE(Open().ok());  // Moves the log, and begins another.
  ASSERT_TRUE(runs_->Create("run-late", "", {}, "summary", "accepted").ok());
  ASSERT_TRUE(database_->Flush().ok());
  fs::copy(directory_.path(), second.path(), fs::copy_options::recursive);
  const std::string copy = second.path() + "/quantgate.db";
  fs::remove(copy + "-shm");
  fs::copy(first.path() + "/quantgate.db-wal", copy + "-wal", fs::copy_options::overwrite_existing);
  const absl::Status status = Database::Open(copy).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_NE(status.message().find("is not the one of which"), std::string::npos) << status;
  std::vector<std::string> found;
  const auto tell = [&](const std::string& line) { found.push_back(line); };
  const auto aside = second.path() + "/quarantine/quantgate.db-another-wal";
  EXPECT_EQ(CheckStore(second.path(), /*repairs=*/false, tell)->problems, 1);
  EXPECT_FALSE(fs::exists(aside));
  EXPECT_EQ(CheckStore(second.path(), /*repairs=*/true, tell)->mended, 1);
  EXPECT_EQ(fs::file_size(aside), fs::file_size(first.path() + "/quantgate.db-wal"));
  EXPECT_EQ(CheckStore(second.path(), /*repairs=*/false, tell)->problems, 0);
  const auto database = Database::Open(copy);
  ASSERT_TRUE(database.ok()) << database.status();
  runs_.emplace(**database);
  EXPECT_EQ(Answers(), whole);  // As the file had it, without what the log that is gone had.
  runs_.reset();
}

// A write that was lost: the page's checksum and number are right.
TEST_F(StoredDamageTest, AnOlderPageOfAnIndexMovesNoEventsAside) {
  Fill();
  int64_t page = 0;
  {
    const std::lock_guard lock(database_->mutex());
    auto row = database_->Prepare(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_runs_1'");
    ASSERT_TRUE(row->Step().value());
    page = row->Integer(0);
  }
  Close();
  std::string older(kDatabasePageBytes, '\0');
  std::ifstream(path(), std::ios::binary)
      .seekg((page - 1) * kDatabasePageBytes)
      .read(older.data(), kDatabasePageBytes);
  ASSERT_TRUE(Open().ok());
  const std::string large(kLargeBytes, 'l');
  ASSERT_TRUE(runs_->Create("run-late", "", {}, "summary", "accepted").ok());
  ASSERT_TRUE(
      runs_->AppendEvents("run-late", 2, {{runs_->Prepare("run-late", Shared(large)).value()}})
          .ok());
  Close();
  std::fstream(path(), std::ios::in | std::ios::out | std::ios::binary)
      .seekp((page - 1) * kDatabasePageBytes)
      .write(older.data(), kDatabasePageBytes);
  ASSERT_TRUE(Open().ok());
  const auto moved = runs_->SetStrayFilesAside(directory_.path() + "/quarantine");
  EXPECT_TRUE(absl::IsDataLoss(moved.status())) << moved.status();
  EXPECT_NE(moved.status().message().find("run-late"), absl::string_view::npos) << moved.status();
  EXPECT_EQ(counts_["database"], 1);
  EXPECT_TRUE(fs::exists(path() + "-files/run-late"));
  Close();
  EXPECT_GE(Fsck(true)->mended, 1);
  EXPECT_EQ(Fsck()->problems, 0);
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(runs_->SetStrayFilesAside(directory_.path() + "/quarantine").value(), 0);
  EXPECT_EQ((*runs_->ReadEvent("run-late", 2))->bytes, large);
}

// Without its mark a log that is gone or cut short would take runs back without a word.
TEST_F(StoredDamageTest, ADatabaseWithoutItsMarkIsRefusedUntilRepaired) {
  Fill();
  const TemporaryDirectory copies;
  for (const bool is_emptied : {false, true}) {
    fs::remove_all(copies.path());
    fs::copy(directory_.path(), copies.path(), fs::copy_options::recursive);
    const std::string copy = copies.path() + "/quantgate.db";
    for (const char* rest : {"-wal", "-shm", "-mark"}) fs::remove(copy + rest);
    if (is_emptied) std::ofstream(copy + "-mark").close();
    const absl::Status status = Database::Open(copy).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(status.message().find("the mark of the database's log is gone"), std::string::npos);
    const auto tell = [](const std::string&) {};
    // The log had the runs; the events of one lie in a file.
    EXPECT_EQ(CheckStore(copies.path(), /*repairs=*/true, tell)->mended, 2);
    EXPECT_TRUE(fs::exists(copies.path() + "/quarantine/run-0"));
    EXPECT_TRUE(Database::Open(copy).ok());
  }
}

TEST_F(StoredDamageTest, ALogThatWasNeverWrittenWholeIsTaken) {
  Fill();
  const TemporaryDirectory copies;
  const std::string copy = copies.path() + "/quantgate.db";
  fs::remove_all(copies.path());
  fs::copy(directory_.path(), copies.path(), fs::copy_options::recursive);
  // Behind what was promised, as a machine's crash may leave it.
  std::ofstream(copy + "-wal", std::ios::app | std::ios::binary) << std::string(10'000, 'x');
  const auto database = Database::Open(copy);
  ASSERT_TRUE(database.ok()) << database.status();
  EXPECT_TRUE(RunStore(**database).Get("run-39").ok());
}

/// Writes events of one run for as long as it lives, and tells of each tenth once the disk has it.
[[noreturn]] void WriteUntilKilled(const std::string& path, int told) {
  auto database = Database::Open(path).value();
  RunStore runs(*database);
  (void)runs.Create("run-1", "", {}, "summary", "accepted");
  for (int64_t sequence = 2;; ++sequence) {
    const auto event = std::make_shared<const std::string>(60'000, static_cast<char>(sequence));
    const auto prepared = runs.Prepare("run-1", event);
    if (!runs.AppendEvents("run-1", sequence, {{*prepared}}).ok()) ::_exit(1);
    if (sequence % 10 != 0) continue;
    if (!database->Flush().ok() || ::write(told, &sequence, sizeof(sequence)) < 0) ::_exit(1);
  }
}

// Whatever the log is at: short, about to be moved, moved, begun anew, with its mark behind it.
TEST_F(StoredDamageTest, WhatWasFlushedIsThereAfterAKill) {
  Close();
  for (const int64_t last : {30, 250, 280, 310, 600}) {
    const TemporaryDirectory directory;
    const std::string written = directory.path() + "/quantgate.db";
    int told[2];
    ASSERT_EQ(::pipe(told), 0);
    const pid_t writer = ::fork();
    if (writer == 0) WriteUntilKilled(written, told[1]);
    ::close(told[1]);
    int64_t sequence = 0;
    while (sequence < last) {
      if (::read(told[0], &sequence, sizeof(sequence)) != sizeof(sequence)) break;
    }
    ::kill(writer, SIGKILL);
    ::waitpid(writer, nullptr, 0);
    ::close(told[0]);
    ASSERT_EQ(sequence, last);
    const auto database = Database::Open(written);
    ASSERT_TRUE(database.ok()) << last << " " << database.status();
    RunStore runs(**database);
    EXPECT_GE(runs.Get("run-1")->last_sequence, last);
    for (int64_t i = 2; i <= last; ++i) {
      EXPECT_EQ((*runs.ReadEvent("run-1", i))->bytes, std::string(60'000, static_cast<char>(i)));
    }
  }
}

TEST_F(StoredDamageTest, FilesAreTheOwnersAlone) {
  Fill();
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory_.path())) {
    if (!entry.is_regular_file()) continue;
    struct stat info;
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777u, 0600u) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 6);  // The lock; the database, its log, its index and its mark; a side file.
}

TEST_F(StoredDamageTest, FsckFindsNothingInWhatIsWhole) {
  Fill();
  Close();
  const auto result = Fsck();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->runs, kRuns);
  EXPECT_EQ(result->events, 3 * kRuns);
  EXPECT_EQ(result->problems, 0) << found_.at(0);
}

TEST_F(StoredDamageTest, FsckRemovesARunThatLostAnEvent) {
  Fill();
  Close();
  FlipBit(path() + "-files/run-0", 1);
  for (const bool repairs : {false, true}) {
    EXPECT_EQ(Fsck(repairs)->problems, 1);
    EXPECT_NE(found_.at(0).find("event 2 of run-0"), std::string::npos) << found_[0];
  }
  EXPECT_EQ(Fsck()->problems, 0);
  EXPECT_TRUE(fs::exists(directory_.path() + "/quarantine/run-0"));
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(absl::IsNotFound(runs_->Get("run-0").status()));
  EXPECT_TRUE(runs_->Get("run-1").ok());
}

// As a page of the table of runs leaves them that was lost.
TEST_F(StoredDamageTest, FsckSetsEventsOfLostRunsAside) {
  Fill();
  Execute("DELETE FROM runs WHERE run_id = 'run-0'");
  Close();
  for (const bool repairs : {false, true}) {
    EXPECT_EQ(Fsck(repairs)->problems, 1);
    EXPECT_NE(found_.at(0).find("events of run-0: the database has no such run"), std::string::npos)
        << found_[0];
    EXPECT_EQ(fs::exists(path() + "-files/run-0"), !repairs);
  }
  EXPECT_EQ(Fsck()->problems, 0);
  EXPECT_EQ(fs::file_size(directory_.path() + "/quarantine/run-0"), kLargeBytes);
}

// Their numbers are those of other tensors later.
TEST_F(StoredDamageTest, ASalvagedDatabaseForgetsRequestsOfLostTensors) {
  TensorRecord tensor;
  tensor.type = {DType::kBF16, {4}};
  ASSERT_TRUE(TensorStore(*database_).Put(tensor, "request", {}).ok());
  Execute("DELETE FROM tensors");
  Close();
  ASSERT_TRUE(SalvageDatabase(path(), directory_.path() + "/quarantine/quantgate.db", false).ok());
  ASSERT_TRUE(Open().ok());
  tensor.type.shape = {5};
  const auto put = TensorStore(*database_).Put(tensor, "request", {});
  EXPECT_TRUE(put.ok()) << put.status();
}

// SQLite would take a log of that name for the log of the database that is set aside.
TEST_F(StoredDamageTest, NoOlderLogLiesBesideADatabaseThatIsSetAside) {
  Fill();
  Close();
  const std::string aside = directory_.path() + "/quarantine/quantgate.db";
  for (const char* rest : {"-wal", "-shm"}) std::ofstream(aside + rest) << "of another time";
  const int64_t pages = static_cast<int64_t>(fs::file_size(path())) / kDatabasePageBytes;
  FlipBit(path(), (pages - 3) * kDatabasePageBytes + 100);
  EXPECT_GE(Fsck(true)->mended, 1);
  EXPECT_TRUE(fs::exists(aside));
  for (const char* rest : {"-wal", "-shm"}) EXPECT_FALSE(fs::exists(aside + rest)) << rest;
  EXPECT_EQ(Fsck()->problems, 0);
}

TEST_F(StoredDamageTest, FsckKeepsWhatADamagedDatabaseStillHas) {
  Fill();
  const std::vector<std::string> whole = Answers();
  Close();
  const int64_t pages = static_cast<int64_t>(fs::file_size(path())) / kDatabasePageBytes;
  FlipBit(path(), (pages - 3) * kDatabasePageBytes + 100);
  EXPECT_EQ(Fsck(false)->problems, 1);
  EXPECT_NE(found_.at(0).find("page"), std::string::npos) << found_[0];
  EXPECT_GE(Fsck(true)->problems, 1);
  EXPECT_EQ(Fsck()->problems, 0);
  ASSERT_TRUE(Open().ok());
  int kept = 0;
  const std::vector<std::string> answers = Answers();
  for (size_t i = 1; i < answers.size(); ++i) {
    if (answers[i].starts_with("other")) continue;  // The run is gone.
    EXPECT_EQ(answers[i], whole[i]);
    ++kept;
  }
  EXPECT_GT(kept, 4 * kRuns);
  EXPECT_TRUE(fs::exists(directory_.path() + "/quarantine/quantgate.db"));
}

// At the end of a page or within one: whatever page was cut off is damaged, and no other.
TEST_F(StoredDamageTest, FsckKeepsWhatADatabaseThatWasCutShortHas) {
  Fill();
  const std::vector<std::string> whole = Answers();
  Close();
  const std::string kept = directory_.path() + "/kept";
  fs::copy(path(), kept);
  const auto size = static_cast<int64_t>(fs::file_size(path()));
  const int64_t most = size / kDatabasePageBytes * 3 / 4 * kDatabasePageBytes;
  int answers_before = 4 * kRuns + kRuns;
  for (const int64_t left : {size - kDatabasePageBytes, most - 7000}) {
    fs::copy(kept, path(), fs::copy_options::overwrite_existing);
    fs::resize_file(path(), left);
    const absl::Status opened = Open();
    EXPECT_TRUE(absl::IsDataLoss(opened)) << left << " " << opened;
    EXPECT_EQ(opened.message().find(path()), 0u) << opened;
    Close();
    EXPECT_EQ(Fsck()->mended, 0);
    EXPECT_NE(found_.at(0).find("quantgate.db: the file ends"), std::string::npos) << found_[0];
    const auto repaired = Fsck(true);
    ASSERT_TRUE(repaired.ok()) << left << " " << repaired.status();
    EXPECT_GE(repaired->mended, 1);
    EXPECT_EQ(Fsck()->problems, 0) << left << " " << found_.at(0);
    ASSERT_TRUE(Open().ok()) << left;
    const std::vector<std::string> answers = Answers();
    int same = 0;
    for (size_t i = 1; i < answers.size(); ++i) {
      if (answers[i].starts_with("other")) continue;  // The run is gone.
      EXPECT_EQ(answers[i], whole[i]) << left;
      ++same;
    }
    EXPECT_GT(same, kRuns) << left;
    EXPECT_LE(same, answers_before) << left;
    answers_before = same;
    Close();
  }
}

TEST_F(StoredDamageTest, ALogThatEndsWithinItsHeadIsNamed) {
  Fill();
  const TemporaryDirectory killed;
  fs::remove_all(killed.path());
  fs::copy(directory_.path(), killed.path(), fs::copy_options::recursive);
  fs::resize_file(killed.path() + "/quantgate.db-wal", 31);
  const absl::Status status = Database::Open(killed.path() + "/quantgate.db").status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_NE(status.message().find("log (-wal) ends within its head"), std::string::npos) << status;
}

// It has no rows: the head of the file, and which tables there are.
TEST_F(StoredDamageTest, FsckMakesTheFirstPageAnew) {
  TensorRecord tensor;
  tensor.type = {DType::kBF16, {4}};
  ASSERT_TRUE(TensorStore(*database_).Put(tensor, "", {}).ok());
  Fill();
  Execute("DELETE FROM runs WHERE run_id = 'run-7'");  // So that pages may be free.
  const std::vector<std::string> whole = Answers();
  // What is at rest, and what a killed server leaves, whose log has the rows.
  const TemporaryDirectory killed, closed, copies;
  const auto copy = [](const std::string& from, const std::string& to) {
    fs::remove_all(to);
    fs::copy(from, to, fs::copy_options::recursive);
  };
  copy(directory_.path(), killed.path());
  Close();
  copy(directory_.path(), closed.path());
  for (const std::string& from : {killed.path(), closed.path()}) {
    // The magic, the size of pages, the bytes kept of each; the version; what describes the tables.
    for (const int64_t byte : {int64_t{0}, int64_t{16}, int64_t{20}, int64_t{63}, int64_t{105},
                               int64_t{kDatabasePageBytes - 700}, int64_t{-1}}) {
      copy(from, copies.path());
      const std::string damaged = copies.path() + "/quantgate.db";
      if (byte >= 0) FlipBit(damaged, byte);
      if (byte < 0) {
        std::fstream file(damaged, std::ios::in | std::ios::out | std::ios::binary);
        file << std::string(kDatabasePageBytes, '\0');
      }
      found_.clear();
      const auto tell = [this](const std::string& line) { found_.push_back(line); };
      const auto repaired = CheckStore(copies.path(), /*repairs=*/true, tell);
      ASSERT_TRUE(repaired.ok()) << byte << " " << repaired.status();
      EXPECT_EQ(repaired->tensors, 1) << byte;
      const auto again = CheckStore(copies.path(), /*repairs=*/false, tell);
      ASSERT_TRUE(again.ok()) << byte << " " << again.status();
      EXPECT_EQ(again->problems, 0) << byte << found_.back();
      const auto database = Database::Open(damaged);
      ASSERT_TRUE(database.ok()) << byte << " " << database.status();
      runs_.emplace(**database);
      EXPECT_EQ(Answers(), whole) << byte;
      runs_.reset();
      // The log of a killed server may have the page, and then nothing is lost.
      if (from == killed.path() && found_.empty()) continue;
      EXPECT_EQ(found_.at(0),
                "quantgate.db: page 1 is damaged; no row is on it, and it is made anew");
      EXPECT_TRUE(fs::exists(copies.path() + "/quarantine/quantgate.db"));
      EXPECT_EQ(fs::file_size(copies.path() + "/quarantine/quantgate.db-page-1"),
                static_cast<size_t>(kDatabasePageBytes));
    }
  }
}

TEST_F(StoredDamageTest, FsckTellsOfWhatTheLogLostBesideAPage) {
  Fill();
  for (const int64_t byte : {int64_t{0}, int64_t{105}}) {
    const TemporaryDirectory killed;
    fs::remove_all(killed.path());
    fs::copy(directory_.path(), killed.path(), fs::copy_options::recursive);
    FlipBit(killed.path() + "/quantgate.db", byte);
    FlipBit(killed.path() + "/quantgate.db-wal", 200'000);
    for (const bool repairs : {false, true}) {
      std::vector<std::string> found;
      const auto result = CheckStore(killed.path(), repairs,
                                     [&](const std::string& line) { found.push_back(line); });
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_GE(found.size(), 2u);
      EXPECT_NE(found[0].find("page 1 is damaged"), std::string::npos) << found[0];
      EXPECT_NE(found[1].find("log is damaged"), std::string::npos) << found[1];
    }
  }
}

TEST_F(StoredDamageTest, FsckSaysWhatItCannotRepairAndLeavesIt) {
  Fill();
  Execute("PRAGMA user_version = 9");
  Close();
  const auto bytes_of = [](const std::string& name) {
    std::ifstream file(name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string newer = bytes_of(path());
  const std::string foreign(3 * kDatabasePageBytes, 'x');
  for (const auto& [bytes, text] :
       {std::pair(newer, "schema version 9"), std::pair(foreign, "--begin-anew")}) {
    fs::remove(path());
    std::ofstream(path(), std::ios::binary) << bytes;
    const auto result = Fsck(/*repairs=*/true);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->problems, 1);
    EXPECT_EQ(result->mended, 0);
    EXPECT_NE(found_.at(0).find(text), std::string::npos) << found_[0];
    EXPECT_TRUE(bytes_of(path()) == bytes) << text;
  }
}

TEST_F(StoredDamageTest, FsckFindsDamagedBlobs) {
  Close();
  const std::string folder = directory_.path() + "/cas/2c/f2/";
  // sha256sum of "hello".
  const std::string hash = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
  fs::create_directories(folder);
  std::ofstream(folder + hash + ".5") << "hello";
  EXPECT_EQ(Fsck()->problems, 0);
  std::ofstream(folder + hash + ".5") << "hellp";
  EXPECT_EQ(Fsck()->problems, 1);
  std::ofstream(folder + hash + ".5") << "hell";
  EXPECT_EQ(Fsck(true)->mended, 1);
  EXPECT_NE(found_.at(0).find("4 of 5 bytes"), std::string::npos) << found_[0];
  EXPECT_EQ(Fsck()->blobs, 0);
  EXPECT_TRUE(fs::exists(directory_.path() + "/quarantine/" + hash));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      CheckStore(directory_.path() + "/none", false, [](const std::string&) {}).status()));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
