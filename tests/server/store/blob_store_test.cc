#include "server/store/blob_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/errors.h"
#include "server/limits.h"
#include "server/store/data_dir.h"
#include "server/store/direct_file.h"
#include "tests/server/temporary_directory.h"

namespace quantgate {
namespace QG_TEST_FILE {

namespace fs = std::filesystem;

class BlobStoreTest : public testing::Test {
 protected:
  BlobStoreTest() { Open(); }

  void Open(int64_t store_bytes_max = 1 << 30) {
    store_ = nullptr;
    data_dir_.reset();
    data_dir_.emplace(DataDir::Open(directory_.path()).value());
    BlobStoreOptions options;
    options.blobs_path = data_dir_->blobs_path();
    options.partial_path = data_dir_->partial_path();
    options.quarantine_path = data_dir_->quarantine_path();
    options.blob_bytes_max = 1 << 30;
    options.store_bytes_max = store_bytes_max;
    options.on_corruption = [this](std::string_view where) {
      ++corruptions_;
      corrupted_where_.emplace_back(where);
    };
    options.now = [this] { return now_; };
    options.open_uploads_max = open_uploads_max_;
    store_ = BlobStore::Open(std::move(options)).value();
  }

  static std::span<const std::byte> Bytes(const std::string& text) {
    return std::as_bytes(std::span(text));
  }
  static absl::Status Write(BlobUpload& upload, const std::string& text) {
    const std::span<const std::byte> piece = Bytes(text);
    upload.Hash({&piece, 1});
    return upload.Write({&piece, 1});
  }
  std::string Load(const Digest& digest) {
    const auto buffer = store_->Load(digest);
    if (!buffer.ok()) return std::string(buffer.status().message());
    return std::string(reinterpret_cast<const char*>((*buffer)->data()), (*buffer)->size());
  }

  fs::path FileOf(const Digest& digest) const {
    const std::string hex = digest.sha256.Hex();
    return fs::path(directory_.path()) / "cas" / hex.substr(0, 2) / hex.substr(2, 2) /
           absl::StrCat(hex, ".", digest.size);
  }
  /// As version 0.1.0 named it.
  fs::path OldFileOf(const Digest& digest) const {
    return FileOf(digest).parent_path() / digest.sha256.Hex();
  }
  static void FlipByte(const fs::path& path, std::streamoff offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const int byte = file.get();
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 1));
  }
  /// A damaged blob is counted once, set aside, and an upload brings it again.
  void ExpectHealing(const std::string& text, std::string_view where) {
    const Digest digest = Digest::Of(Bytes(text));
    EXPECT_EQ(corrupted_where_, std::vector<std::string>{std::string(where)});
    EXPECT_FALSE(store_->Contains(digest));
    EXPECT_EQ(store_->usage().committed_objects, 0);
    EXPECT_TRUE(fs::exists(fs::path(directory_.path()) / "quarantine" / digest.sha256.Hex()));
    auto upload = store_->BeginUpload("heals", digest, 0).value();
    ASSERT_TRUE(Write(*upload, text).ok());
    EXPECT_TRUE(upload->Commit().ok());
    EXPECT_EQ(Load(digest), text);
    EXPECT_EQ(corrupted_where_.size(), 1u);
  }

  TemporaryDirectory directory_;
  std::optional<DataDir> data_dir_;
  int64_t open_uploads_max_ = 100;
  std::unique_ptr<BlobStore> store_;
  int corruptions_ = 0;
  std::vector<std::string> corrupted_where_;
  absl::Time now_ = SteadyNow();  ///< Stands still until it is moved.
};

TEST_F(BlobStoreTest, PutAndLoad) {
  const Digest digest = store_->Put(Bytes("hello")).value();
  // sha256sum of "hello".
  EXPECT_EQ(digest.Text(), "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824/5");
  EXPECT_EQ(Load(digest), "hello");
  EXPECT_EQ(store_->usage().committed_bytes, 5);
  EXPECT_EQ(store_->Put(Bytes("hello")).value(), digest);
  EXPECT_EQ(store_->usage().committed_objects, 1);
  EXPECT_TRUE(fs::exists(fs::path(directory_.path()) / "cas/2c/f2" / (digest.sha256.Hex() + ".5")));
}

TEST_F(BlobStoreTest, WhoeverWantsAPartMayStopTheReadingOfTheWhole) {
  const std::string text(3 << 20, 'x');
  const Digest digest = store_->Put(Bytes(text)).value();
  Cancellation cancellation;
  EXPECT_TRUE(store_->Read(digest, 1, 1, &cancellation).ok());
  cancellation.Cancel();
  EXPECT_EQ(store_->Read(digest, 1, 1, &cancellation).status().code(),
            absl::StatusCode::kCancelled);
}

TEST_F(BlobStoreTest, ADigestIsHashAndSize) {
  Digest digest = store_->Put(Bytes("hello")).value();
  digest.size = 6;
  EXPECT_FALSE(store_->Contains(digest));
  EXPECT_TRUE(absl::IsNotFound(store_->Load(digest).status()));
  const absl::Status status = store_->BeginUpload("u", digest, 0).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(error::DetailOf(status).field, "header.digest.size");
}

TEST_F(BlobStoreTest, UploadsResumeInTheSameAndInALaterProcess) {
  const std::string text = "the quick brown fox";
  const Digest digest = Digest::Of(Bytes(text));
  auto upload = store_->BeginUpload("u", digest, 0).value();
  ASSERT_TRUE(Write(*upload, text.substr(0, 4)).ok());
  upload = nullptr;
  upload = store_->BeginUpload("u", digest, 4).value();
  ASSERT_TRUE(Write(*upload, text.substr(4, 6)).ok());
  upload = nullptr;
  Open();
  EXPECT_EQ(store_->QueryUpload("u", digest).value().committed_size, 10);
  EXPECT_EQ(store_->usage().partial_bytes, 10);
  upload = store_->BeginUpload("u", digest, 10).value();
  ASSERT_TRUE(Write(*upload, text.substr(10)).ok());
  ASSERT_TRUE(upload->Commit().ok());
  upload = nullptr;
  EXPECT_EQ(Load(digest), text);
  EXPECT_TRUE(store_->QueryUpload("u", digest).value().complete);
  EXPECT_EQ(store_->usage().partial_objects, 0);
}

TEST_F(BlobStoreTest, HashedButUnwrittenBytesAreForgotten) {
  const std::string text = "the quick brown fox";
  const Digest digest = Digest::Of(Bytes(text));
  auto upload = store_->BeginUpload("u", digest, 0).value();
  ASSERT_TRUE(Write(*upload, text.substr(0, 4)).ok());
  const std::span<const std::byte> lost = Bytes(text).subspan(4, 5);
  upload->Hash({&lost, 1});  // Its write failed.
  upload = nullptr;
  upload = store_->BeginUpload("u", digest, 4).value();
  ASSERT_TRUE(Write(*upload, text.substr(4)).ok());
  EXPECT_TRUE(upload->Commit().ok());
}

// Sizes and offsets around the blocks and least sizes of writes past the page cache.
TEST_F(BlobStoreTest, BytesArriveWhicheverWayTheyAreWritten) {
  std::string text((9 << 20) + 4095, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
  const Digest digest = Digest::Of(Bytes(text));
  int uploads = 0;
  for (const size_t write : {size_t{4095}, size_t{256 << 10}, size_t{(256 << 10) + 1},
                             size_t{1 << 20}, size_t{5 << 20}, text.size()}) {
    for (const size_t piece : {size_t{65'521}, write}) {
      // Destroyed without a commit, the upload keeps what it wrote, and is resumed from there.
      const std::string id = absl::StrCat("u", ++uploads);
      for (const size_t half : {text.size() / 2, text.size()}) {
        const int64_t start = half == text.size() ? static_cast<int64_t>(text.size() / 2) : 0;
        auto upload = store_->BeginUpload(id, digest, start).value();
        for (size_t at = static_cast<size_t>(start); at < half;) {
          const size_t end = std::min(half, at + write);
          std::vector<std::span<const std::byte>> pieces;
          for (; at < end; at += pieces.back().size()) {
            pieces.push_back(Bytes(text).subspan(at, std::min(piece, end - at)));
          }
          ASSERT_TRUE(upload->Write(pieces).ok());
        }
      }
      std::ifstream file(fs::path(directory_.path()) / "partial" /
                         absl::StrCat(digest.sha256.Hex(), ".", digest.size, ".", id));
      const std::string stored((std::istreambuf_iterator<char>(file)), {});
      EXPECT_TRUE(stored == text) << "writes of " << write << " in pieces of " << piece;
    }
  }
}

TEST(DirectFileTest, TakesWholeBlocksOfWhatIsWorthIt) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  const File file = File::OpenForWriting(path).value();
  DirectFile direct = DirectFile::Open(path);
  const std::vector<std::byte> bytes((1 << 20) + 511);
  const std::span<const std::byte> piece = bytes;
  const std::span<const std::byte> small = piece.first(100'000);
  // Of a file system without such writes nothing is taken.
  const int64_t whole = direct.is_open() ? 1 << 20 : 0;
  EXPECT_EQ(direct.WriteFront(0, {&piece, 1}).value(), whole);
  EXPECT_EQ(file.Size().value(), whole);
  EXPECT_EQ(direct.WriteFront(whole, {&small, 1}).value(), 0);
  EXPECT_EQ(direct.WriteFront(17, {&piece, 1}).value(), 0);
  EXPECT_FALSE(DirectFile::Open(directory.path() + "/none").is_open());
}

TEST_F(BlobStoreTest, UploadsBeyondTheFirstHaveNoFileOpenBetweenWrites) {
  const auto descriptors = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  open_uploads_max_ = 1;
  Open();
  const std::string text(1000, 'x');
  auto first = store_->BeginUpload("first", Digest::Of(Bytes(text + "0")), 0).value();
  const auto with_one = descriptors();
  std::vector<std::unique_ptr<BlobUpload>> others;
  for (int i = 1; i < 4; ++i) {
    others.push_back(
        store_->BeginUpload("other", Digest::Of(Bytes(absl::StrCat(text, i))), 0).value());
    ASSERT_TRUE(Write(*others.back(), text).ok());
  }
  EXPECT_EQ(descriptors(), with_one);
  for (int i = 1; i < 4; ++i) {
    BlobUpload& upload = *others[static_cast<size_t>(i - 1)];
    ASSERT_TRUE(Write(upload, absl::StrCat(i)).ok());
    ASSERT_TRUE(upload.Commit().ok());
    EXPECT_EQ(Load(upload.digest()), absl::StrCat(text, i));
  }
  // What was hashed is in another file than what is written now.
  auto replaced = store_->BeginUpload("replaced", Digest::Of(Bytes(text)), 0).value();
  ASSERT_TRUE(Write(*replaced, text.substr(1)).ok());
  for (const auto& file : fs::directory_iterator(data_dir_->partial_path())) {
    if (file.path().string().ends_with("replaced")) {
      fs::rename(file.path(), directory_.path() + "/elsewhere");
    }
  }
  EXPECT_TRUE(absl::IsDataLoss(Write(*replaced, "x")));
  replaced = nullptr;
  EXPECT_TRUE(absl::IsNotFound(store_->QueryUpload("replaced", Digest::Of(Bytes(text))).status()));
}

TEST_F(BlobStoreTest, OneStreamWritesAnUpload) {
  const Digest digest = Digest::Of(Bytes("hello"));
  auto upload = store_->BeginUpload("u", digest, 0).value();
  EXPECT_TRUE(absl::IsAborted(store_->BeginUpload("u", digest, 0).status()));
  EXPECT_TRUE(store_->BeginUpload("v", digest, 0).ok());
  upload = nullptr;
  EXPECT_TRUE(store_->BeginUpload("u", digest, 0).ok());
}

TEST_F(BlobStoreTest, TheQuotaCountsWhatUploadsWillNeed) {
  Open(/*store_bytes_max=*/100);
  const std::string text(60, 'x');
  auto upload = store_->BeginUpload("u", Digest::Of(Bytes(text)), 0).value();
  const absl::Status refused = store_->Put(Bytes(std::string(41, 'y'))).status();
  EXPECT_EQ(error::DetailOf(refused).reason, "quota");
  EXPECT_TRUE(store_->Put(Bytes(std::string(40, 'y'))).ok());
  upload = nullptr;  // Nothing was written, so 60 bytes are free again.
  EXPECT_TRUE(store_->Put(Bytes(std::string(60, 'z'))).ok());
}

TEST_F(BlobStoreTest, OldPartialUploadsAreDropped) {
  const Digest digest = Digest::Of(Bytes("hello"));
  auto upload = store_->BeginUpload("u", digest, 0).value();
  ASSERT_TRUE(Write(*upload, "he").ok());
  upload = nullptr;
  const fs::path partial = directory_.path() + "/partial";
  for (const auto& entry : fs::directory_iterator(partial)) {
    fs::last_write_time(entry, fs::file_time_type::clock::now() - std::chrono::hours(25));
  }
  std::ofstream(partial / "put.7") << "left behind by a crash";
  Open();
  EXPECT_TRUE(absl::IsNotFound(store_->QueryUpload("u", digest).status()));
  EXPECT_TRUE(fs::is_empty(partial));
}

// By a clock that nobody sets: what the files' times say is asked at the start alone.
TEST_F(BlobStoreTest, PartialUploadsAgeWhileTheProcessLives) {
  const Digest digest = Digest::Of(Bytes("hello"));
  const auto write = [&](const std::string& id, int64_t offset, const std::string& text) {
    auto upload = store_->BeginUpload(id, digest, offset).value();
    ASSERT_TRUE(Write(*upload, text).ok());
  };
  write("left", 0, "he");
  write("resumed", 0, "he");
  auto busy = store_->BeginUpload("busy", digest, 0).value();
  const fs::path partial = directory_.path() + "/partial";
  for (const int hours : {-25, 25}) {
    for (const auto& entry : fs::directory_iterator(partial)) {
      fs::last_write_time(entry, fs::file_time_type::clock::now() + std::chrono::hours(hours));
    }
    store_->ExpirePartials();
    EXPECT_EQ(store_->usage().partial_objects, 3);
  }
  now_ += kPartialUploadAgeMax - absl::Minutes(1);
  write("resumed", 2, "l");
  store_->ExpirePartials();
  EXPECT_EQ(store_->usage().partial_objects, 3);
  now_ += absl::Minutes(2);
  store_->ExpirePartials();
  EXPECT_EQ(store_->usage().partial_objects, 2);
  EXPECT_TRUE(absl::IsNotFound(store_->QueryUpload("left", digest).status()));
  EXPECT_EQ(store_->QueryUpload("resumed", digest).value().committed_size, 3);
  busy = nullptr;
  EXPECT_EQ(std::distance(fs::directory_iterator(partial), {}), 2);
}

// Their age then is that of the file, and more as time goes by; one from the future has none.
TEST_F(BlobStoreTest, PartialUploadsOfAnEarlierProcessAgeOnFromTheirFiles) {
  const Digest digest = Digest::Of(Bytes("hello"));
  const auto leave = [&](const std::string& id, int hours) {
    auto upload = store_->BeginUpload(id, digest, 0).value();
    ASSERT_TRUE(Write(*upload, "he").ok());
    upload = nullptr;
    // The youngest file is this one's: all others were set back or ahead before.
    for (const auto& entry : fs::directory_iterator(directory_.path() + "/partial")) {
      const auto age = fs::file_time_type::clock::now() - entry.last_write_time();
      if (age > std::chrono::minutes(30) || age < -std::chrono::minutes(30)) continue;
      fs::last_write_time(entry, fs::file_time_type::clock::now() + std::chrono::hours(hours));
    }
  };
  leave("old", -23);
  leave("of the future", 24);
  Open();
  EXPECT_EQ(store_->usage().partial_objects, 2);
  now_ += absl::Hours(2);
  store_->ExpirePartials();
  EXPECT_TRUE(absl::IsNotFound(store_->QueryUpload("old", digest).status()));
  EXPECT_TRUE(store_->QueryUpload("of the future", digest).ok());
  now_ += kPartialUploadAgeMax;
  store_->ExpirePartials();
  EXPECT_EQ(store_->usage().partial_objects, 0);
}

// The whole is verified first; the disk may say something else the second time.
TEST_F(BlobStoreTest, APartIsVerifiedAsItIsGiven) {
  const std::string text(3 << 20, 'x');
  const Digest digest = store_->Put(Bytes(text)).value();
  std::vector<std::byte> piece(1 << 20);
  auto whole = store_->Read(digest, 1, 2 << 20).value();
  while (whole.remaining() > 0) EXPECT_TRUE(whole.Next(piece).ok());
  EXPECT_EQ(corruptions_, 0);

  auto reader = store_->Read(digest, 1, 2 << 20).value();
  ASSERT_TRUE(reader.Next(std::span(piece).first(1000)).ok());
  FlipByte(FileOf(digest), 1 << 20);
  absl::Status status;
  while (status.ok() && reader.remaining() > 0) status = reader.Next(piece).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  ExpectHealing(text, "read");
}

TEST_F(BlobStoreTest, AReaderOfADamagedFileLeavesTheHealedOne) {
  const std::string text(3 << 20, 'x');
  for (const bool rests : {false, true}) {
    const Digest digest = store_->Put(Bytes(text)).value();
    FlipByte(FileOf(digest), 10);
    std::vector<std::byte> piece(1 << 20);
    auto slow = store_->Read(digest, 0, 0).value();
    ASSERT_TRUE(slow.Next(piece).ok());
    if (rests) slow.Rest();
    EXPECT_FALSE(Load(digest) == text);
    ExpectHealing(text, "read");
    absl::Status status;
    while (status.ok() && slow.remaining() > 0) status = slow.Next(piece).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_TRUE(Load(digest) == text);
    EXPECT_EQ(corruptions_, 1);
    fs::remove(FileOf(digest));
    EXPECT_FALSE(store_->Contains(digest));
    corruptions_ = 0;
    corrupted_where_.clear();
  }
}

// Reading a blob of version 0.1.0 whole gives its file another name.
TEST_F(BlobStoreTest, ABlobIsFoundWhileItsFileIsRenamed) {
  std::vector<Digest> digests;
  for (int i = 0; i < 300; ++i) {
    digests.push_back(store_->Put(Bytes(absl::StrCat("blob ", i))).value());
    fs::rename(FileOf(digests.back()), OldFileOf(digests.back()));
  }
  Open();
  std::atomic<int> missing = 0;
  const auto look = [&] {
    for (const Digest& digest : digests) {
      for (int i = 0; i < 20; ++i) missing += store_->Contains(digest) ? 0 : 1;
    }
  };
  std::thread first(look), second(look);
  for (const Digest& digest : digests) missing += store_->Load(digest).ok() ? 0 : 1;
  first.join();
  second.join();
  EXPECT_EQ(missing, 0);
  EXPECT_EQ(corruptions_, 0);
}

TEST_F(BlobStoreTest, APipeInABlobsPlaceIsDamage) {
  const Digest digest = store_->Put(Bytes("hello")).value();
  fs::remove(FileOf(digest));
  ASSERT_EQ(::mkfifo(FileOf(digest).c_str(), 0600), 0);
  EXPECT_FALSE(store_->Contains(digest));
  EXPECT_EQ(corruptions_, 1);
}

TEST_F(BlobStoreTest, DamageIsFoundOnReading) {
  const std::string text(3'000'000, 'x');
  const Digest digest = store_->Put(Bytes(text)).value();
  fs::resize_file(FileOf(digest), 2'999'999);
  EXPECT_TRUE(absl::IsDataLoss(store_->Load(digest).status()));
  EXPECT_EQ(corruptions_, 1);
  EXPECT_FALSE(store_->Contains(digest));
  EXPECT_TRUE(fs::exists(fs::path(directory_.path()) / "quarantine" / digest.sha256.Hex()));
  EXPECT_EQ(store_->usage().committed_bytes, 0);
}

TEST_F(BlobStoreTest, ABlobThatIsCutShortIsSetAsideWhereItIsLookedFor) {
  const Digest digest = store_->Put(Bytes("hello")).value();
  fs::resize_file(FileOf(digest), 4);
  EXPECT_FALSE(store_->Contains(digest));
  ExpectHealing("hello", "lookup");
}

TEST_F(BlobStoreTest, ABlobThatIsCutShortIsSetAsideWhereItIsUploaded) {
  const Digest digest = store_->Put(Bytes("hello")).value();
  fs::resize_file(FileOf(digest), 0);
  auto upload = store_->BeginUpload("u", digest, 0);
  ASSERT_TRUE(upload.ok()) << upload.status();
  upload->reset();
  ExpectHealing("hello", "lookup");
}

TEST_F(BlobStoreTest, ABlobThatIsCutShortIsSetAsideWhereItIsRead) {
  const Digest digest = store_->Put(Bytes("hello")).value();
  fs::resize_file(FileOf(digest), 4);
  const absl::Status status = store_->Read(digest, 0, 0).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_NE(status.message().find("4 bytes"), absl::string_view::npos) << status;
  ExpectHealing("hello", "read");
}

TEST_F(BlobStoreTest, ABlobThatIsCutShortIsSetAsideAtTheStart) {
  const Digest digest = store_->Put(Bytes("hello")).value();
  store_ = nullptr;
  fs::resize_file(FileOf(digest), 4);
  Open();
  ExpectHealing("hello", "startup");
}

TEST_F(BlobStoreTest, ABlobWithoutARecordedSizeIsHeldToItsHash) {
  const Digest digest = store_->Put(Bytes("hello")).value();
  const Digest other = {digest.sha256, 6};
  store_ = nullptr;
  fs::rename(FileOf(digest), OldFileOf(digest));
  Open();
  EXPECT_TRUE(store_->Contains(digest));
  EXPECT_TRUE(fs::exists(OldFileOf(digest)));
  EXPECT_FALSE(store_->Contains(other));  // Wrong about a blob that is whole, which is known now.
  EXPECT_TRUE(fs::exists(FileOf(digest)));
  EXPECT_EQ(Load(digest), "hello");
  EXPECT_EQ(corruptions_, 0);
  store_ = nullptr;
  fs::rename(FileOf(digest), OldFileOf(digest));
  Open();
  EXPECT_EQ(Load(digest), "hello");
  EXPECT_TRUE(fs::exists(FileOf(digest)));
  store_ = nullptr;
  fs::rename(FileOf(digest), OldFileOf(digest));
  fs::resize_file(OldFileOf(digest), 4);
  Open();
  EXPECT_FALSE(store_->Contains(digest));
  ExpectHealing("hello", "lookup");
}

TEST_F(BlobStoreTest, ConcurrentUploadsOfOneDigest) {
  const std::string text(100'000, 'q');
  const Digest digest = Digest::Of(Bytes(text));
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      auto upload = store_->BeginUpload("u" + std::to_string(i), digest, 0).value();
      for (size_t at = 0; at < text.size(); at += 10'000) {
        EXPECT_TRUE(Write(*upload, text.substr(at, 10'000)).ok());
      }
      EXPECT_TRUE(upload->Commit().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Load(digest), text);
  EXPECT_EQ(store_->usage().committed_objects, 1);
  EXPECT_EQ(store_->usage().partial_objects, 0);
}

TEST(DataDirTest, IsLockedWhileOpen) {
  const TemporaryDirectory directory;
  {
    const auto first = DataDir::Open(directory.path());
    ASSERT_TRUE(first.ok());
    const absl::Status second = DataDir::Open(directory.path()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(second));
    EXPECT_NE(second.message().find(directory.path()), absl::string_view::npos);
  }
  EXPECT_TRUE(DataDir::Open(directory.path()).ok());
}

TEST(DataDirTest, RefusesALostDatabaseUnlessToldToBeginAnew) {
  const TemporaryDirectory directory;
  const DataDir data_dir = DataDir::Open(directory.path()).value();
  EXPECT_TRUE(data_dir.CheckHistory().ok());
  fs::create_directories(directory.path() + "/cas/2c/f2");
  EXPECT_TRUE(data_dir.CheckHistory().ok());
  std::ofstream(directory.path() + "/cas/2c/f2/blob") << "x";
  const absl::Status gone = data_dir.CheckHistory();
  EXPECT_TRUE(absl::IsFailedPrecondition(gone));
  EXPECT_NE(gone.message().find("quantgate.db is gone"), absl::string_view::npos) << gone;
  EXPECT_NE(gone.message().find("--begin-anew"), absl::string_view::npos) << gone;
  std::ofstream(data_dir.database_path()).close();
  const absl::Status empty = data_dir.CheckHistory();
  EXPECT_NE(empty.message().find("quantgate.db is empty"), absl::string_view::npos) << empty;
  EXPECT_TRUE(data_dir.BeginAnew().ok());
  std::ofstream(data_dir.database_path()) << std::string(20'000, 'x');
  EXPECT_TRUE(data_dir.CheckHistory().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(data_dir.BeginAnew()));
}

TEST(DataDirTest, NamesAPathThatIsNoDirectory) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path() + "/file") << "x";
  const absl::Status status = DataDir::Open(directory.path() + "/file").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
