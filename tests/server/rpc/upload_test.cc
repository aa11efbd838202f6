// Blobs over a real channel: chunks, resuming, damage, concurrency, restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/blob_transfer.h"
#include "client/channel_connection.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;
namespace fs = std::filesystem;

std::string Hex(const v1::Digest& digest) {
  Sha256 sha256;
  std::copy(digest.sha256().begin(), digest.sha256().end(), sha256.bytes.begin());
  return sha256.Hex();
}

fs::path BlobFile(const TestServer& server, const v1::Digest& digest) {
  const std::string hex = Hex(digest);
  return fs::path(server.data_dir()) / "data" / "cas" / hex.substr(0, 2) / hex.substr(2, 2) /
         (hex + "." + std::to_string(digest.size()));
}

v1::QueryWriteResponse Query(TestServer& server, const std::string& upload_id,
                             const std::string& bytes,
                             grpc::StatusCode expected = grpc::StatusCode::OK) {
  v1::QueryWriteRequest request;
  request.set_upload_id(upload_id);
  *request.mutable_digest() = DigestFor(bytes);
  v1::QueryWriteResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(server.blobs().QueryWrite(&context, request, &response).error_code(), expected);
  return response;
}

bool IsMissing(TestServer& server, const std::string& bytes) {
  v1::FindMissingRequest request;
  *request.add_digests() = DigestFor(bytes);
  v1::FindMissingResponse response;
  grpc::ClientContext context;
  EXPECT_TRUE(server.blobs().FindMissing(&context, request, &response).ok());
  return response.missing_size() == 1;
}

/// The first message of an upload with `data`.
v1::WriteRequest First(const std::string& upload_id, const std::string& bytes, int64_t offset,
                       const std::string& data) {
  v1::WriteRequest request;
  request.mutable_header()->set_upload_id(upload_id);
  *request.mutable_header()->mutable_digest() = DigestFor(bytes);
  request.mutable_header()->set_offset(offset);
  request.set_data(data);
  return request;
}

v1::WriteRequest Next(const std::string& data) {
  v1::WriteRequest request;
  request.set_data(data);
  return request;
}

TEST(UploadTest, RoundTripsAnySizeInAnyChunks) {
  TestServer server;
  int upload = 0;
  for (const size_t size : {size_t{1}, size_t{4095}, size_t{1 << 20}, size_t{(5 << 20) + 3}}) {
    for (const size_t chunk : {size_t{1 << 20}, size_t{65'537}, size_t{3 << 20}}) {
      const std::string bytes = TestBytes(size, static_cast<uint32_t>(++upload));
      EXPECT_TRUE(IsMissing(server, bytes));
      const WriteOutcome outcome =
          WriteBlob(server.blobs(), "u" + std::to_string(upload), bytes, 0, chunk);
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
      EXPECT_EQ(outcome.response.committed_size(), static_cast<int64_t>(size));
      EXPECT_FALSE(outcome.response.already_present());
      EXPECT_FALSE(IsMissing(server, bytes));
      std::string read;
      ASSERT_TRUE(ReadBlob(server.blobs(), DigestFor(bytes), 0, 0, &read).ok());
      EXPECT_EQ(read, bytes);
    }
  }
}

TEST(UploadTest, ManyTinyChunksAndEmptyOnes) {
  TestServer server;
  const std::string bytes = TestBytes(20'000);
  std::vector<v1::WriteRequest> messages = {First("tiny", bytes, 0, "")};
  for (const char byte : bytes) messages.push_back(Next(std::string(1, byte)));
  messages.push_back(Next(""));
  EXPECT_TRUE(WriteMessages(server.blobs(), messages).status.ok());
  EXPECT_FALSE(IsMissing(server, bytes));
}

TEST(UploadTest, TheEmptyBlobAlwaysExists) {
  TestServer server;
  EXPECT_FALSE(IsMissing(server, ""));
  EXPECT_TRUE(WriteBlob(server.blobs(), "empty", "").response.already_present());
  std::string read = "x";
  EXPECT_TRUE(ReadBlob(server.blobs(), DigestFor(""), 0, 0, &read).ok());
  EXPECT_EQ(read, "");
}

TEST(UploadTest, PresentBytesAreNotTakenAgain) {
  TestServer server;
  const std::string bytes = TestBytes(3 << 20);
  ASSERT_TRUE(WriteBlob(server.blobs(), "first", bytes).status.ok());
  const WriteOutcome again = WriteBlob(server.blobs(), "second", bytes);
  EXPECT_TRUE(again.status.ok());
  EXPECT_TRUE(again.response.already_present());
  EXPECT_TRUE(Query(server, "second", bytes).complete());
}

TEST(UploadTest, TruncatedUploadsResumeWhereTheyStopped) {
  TestServer server;
  const std::string bytes = TestBytes(5 << 20);
  const int64_t half = (2 << 20) + 17;
  const WriteOutcome broken =
      WriteMessages(server.blobs(), {First("resume", bytes, 0, bytes.substr(0, half))});
  EXPECT_EQ(broken.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailOf(broken.status).committed_size(), half);
  EXPECT_EQ(Query(server, "resume", bytes).committed_size(), half);
  EXPECT_TRUE(IsMissing(server, bytes));

  // After a restart the bytes are hashed again.
  server.Restart();
  EXPECT_EQ(Query(server, "resume", bytes).committed_size(), half);
  const WriteOutcome rest = WriteBlob(server.blobs(), "resume", bytes, half);
  EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_FALSE(IsMissing(server, bytes));
  EXPECT_TRUE(fs::is_empty(fs::path(server.data_dir()) / "data" / "partial"));
}

// A part that a client left, however it ended, is the next one's beginning.
TEST(UploadTest, TheClientLibraryGoesOnWhereAnyClientStopped) {
  TestServer server;
  const std::string bytes = TestBytes(5 << 20);
  const v1::Digest digest = DigestFor(bytes);
  const int64_t half = (2 << 20) + 17;
  (void)WriteMessages(server.blobs(),
                      {First(SharedUploadId(digest), bytes, 0, bytes.substr(0, half))});
  server.Restart();
  ChannelConnection connection(server.NewChannel(), "test", {});
  const auto upload = UploadBlob(connection, {std::as_bytes(std::span(bytes)), nullptr}, digest);
  ASSERT_TRUE(upload.ok()) << upload.status();
  EXPECT_EQ(upload->bytes_sent, static_cast<int64_t>(bytes.size()) - half);
  EXPECT_FALSE(IsMissing(server, bytes));
  EXPECT_TRUE(fs::is_empty(fs::path(server.data_dir()) / "data" / "partial"));
}

TEST(UploadTest, TheClientLibraryStartsAgainOverAPartOfOtherBytes) {
  TestServer server;
  const std::string bytes = TestBytes(5 << 20);
  const v1::Digest digest = DigestFor(bytes);
  (void)WriteMessages(server.blobs(),
                      {First(SharedUploadId(digest), bytes, 0, std::string(2 << 20, 'x'))});
  ChannelConnection connection(server.NewChannel(), "test", {});
  const auto upload = UploadBlob(connection, {std::as_bytes(std::span(bytes)), nullptr}, digest);
  ASSERT_TRUE(upload.ok()) << upload.status();
  EXPECT_FALSE(IsMissing(server, bytes));
  EXPECT_TRUE(fs::is_empty(fs::path(server.data_dir()) / "data" / "partial"));
}

TEST(UploadTest, ManyOfTheClientLibraryAtOnceLeaveOneCopy) {
  TestServer server;
  const std::string bytes = TestBytes(16 << 20);
  std::vector<std::thread> threads;
  std::vector<absl::Status> statuses(6);
  for (absl::Status& status : statuses) {
    threads.emplace_back([&] {
      ChannelConnection connection(server.NewChannel(), "test", {});
      status = UploadBlob(connection, {std::as_bytes(std::span(bytes)), nullptr}, DigestFor(bytes))
                   .status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_FALSE(IsMissing(server, bytes));
  EXPECT_TRUE(fs::is_empty(fs::path(server.data_dir()) / "data" / "partial"));
}

TEST(UploadTest, CancelledStreamsKeepWhatCame) {
  TestServer server;
  const std::string bytes = TestBytes(4 << 20);
  {
    grpc::ClientContext context;
    v1::WriteResponse response;
    const auto writer = server.blobs().Write(&context, &response);
    ASSERT_TRUE(writer->Write(First("cancel", bytes, 0, bytes.substr(0, 1 << 20))));
    context.TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  // The server may still be storing the last chunk; it says ABORTED until it has let go.
  WriteOutcome outcome;
  do {
    v1::QueryWriteRequest request;
    request.set_upload_id("cancel");
    *request.mutable_digest() = DigestFor(bytes);
    v1::QueryWriteResponse response;
    grpc::ClientContext context;
    const bool is_known = server.blobs().QueryWrite(&context, request, &response).ok();
    outcome = WriteBlob(server.blobs(), "cancel", bytes, is_known ? response.committed_size() : 0);
  } while (outcome.status.error_code() == grpc::StatusCode::ABORTED ||
           outcome.status.error_code() == grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
}

TEST(UploadTest, OffsetsMustFollowOn) {
  TestServer server;
  const std::string bytes = TestBytes(1000);
  for (const int64_t offset : {int64_t{1}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    const WriteOutcome outcome = WriteMessages(server.blobs(), {First("gap", bytes, offset, "x")});
    EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
    EXPECT_EQ(DetailOf(outcome.status).field(), "header.offset");
    EXPECT_EQ(DetailOf(outcome.status).committed_size(), 0);
  }
  // An overlap: 10 bytes are there.
  (void)WriteMessages(server.blobs(), {First("gap", bytes, 0, bytes.substr(0, 10))});
  EXPECT_EQ(WriteMessages(server.blobs(), {First("gap", bytes, 5, "x")}).status.error_code(),
            grpc::StatusCode::OUT_OF_RANGE);
}

TEST(UploadTest, WrongBytesAreDiscarded) {
  TestServer server;
  const std::string bytes = TestBytes(100'000);
  std::string wrong = bytes;
  wrong[50'000] ^= 1;
  const WriteOutcome outcome = WriteMessages(server.blobs(), {First("wrong", bytes, 0, wrong)});
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailOf(outcome.status).field(), "header.digest");
  EXPECT_TRUE(IsMissing(server, bytes));
  (void)Query(server, "wrong", bytes, grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(WriteBlob(server.blobs(), "wrong", bytes).status.ok());
}

TEST(UploadTest, MoreBytesThanDeclared) {
  TestServer server;
  const std::string bytes = TestBytes(1000);
  const WriteOutcome outcome =
      WriteMessages(server.blobs(), {First("more", bytes, 0, bytes), Next("x")});
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailOf(outcome.status).field(), "data");
}

TEST(UploadTest, DamagedChunksAreSentAgain) {
  TestServer server;
  const std::string bytes = "123456789";  // CRC-32C check value 0xE3069283 (RFC 3720).
  v1::WriteRequest message = First("crc", bytes, 0, bytes);
  message.set_crc32c(0xE3069284);
  const WriteOutcome damaged = WriteMessages(server.blobs(), {message});
  EXPECT_EQ(damaged.status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(DetailOf(damaged.status).field(), "crc32c");
  EXPECT_EQ(DetailOf(damaged.status).committed_size(), 0);
  message.set_crc32c(0xE3069283);
  EXPECT_TRUE(WriteMessages(server.blobs(), {message}).status.ok());
}

TEST(UploadTest, HeadersAreChecked) {
  TestServer server;
  const std::string bytes = TestBytes(10);
  const auto field_of = [&](const std::vector<v1::WriteRequest>& messages) {
    const grpc::Status status = WriteMessages(server.blobs(), messages).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return DetailOf(status).field();
  };
  EXPECT_EQ(field_of({Next("x")}), "header");
  EXPECT_EQ(field_of({}), "header");
  EXPECT_EQ(field_of({First("u", bytes, 0, "x"), First("u", bytes, 0, "x")}), "header");
  EXPECT_EQ(field_of({First("", bytes, 0, "x")}), "header.upload_id");
  EXPECT_EQ(field_of({First("../../up", bytes, 0, "x")}), "header.upload_id");
  v1::WriteRequest no_digest = First("u", bytes, 0, "x");
  no_digest.mutable_header()->clear_digest();
  EXPECT_EQ(field_of({no_digest}), "header.digest.sha256");
}

TEST(UploadTest, SizesOverTheLimitsAreRefusedBeforeTheBytes) {
  TestServer server([](ServerOptions& options) {
    options.blob_bytes_max = 1 << 20;
    options.store_bytes_max = 3 << 19;
  });
  const auto write_declared = [&](int64_t size) {
    v1::WriteRequest message = First("big", "x", 0, "x");
    message.mutable_header()->mutable_digest()->set_size(size);
    return WriteMessages(server.blobs(), {message}).status;
  };
  const grpc::Status huge = write_declared(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(huge.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailOf(huge).reason(), "limit");
  EXPECT_EQ(DetailOf(huge).field(), "header.digest.size");
  EXPECT_FALSE(DetailOf(huge).has_retry_after());
  ASSERT_TRUE(WriteBlob(server.blobs(), "fits", TestBytes(1 << 20)).status.ok());
  const grpc::Status quota = WriteBlob(server.blobs(), "over", TestBytes(1 << 20, 2)).status;
  EXPECT_EQ(quota.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailOf(quota).reason(), "quota");
  EXPECT_TRUE(WriteBlob(server.blobs(), "small", TestBytes(1 << 18, 3)).status.ok());
}

TEST(UploadTest, OneWriterPerUpload) {
  TestServer server;
  const std::string bytes = TestBytes(1 << 20);
  // The second stream may come first, which is then refused for what it lacks, and the first one
  // may be refused for the second's sake: then both begin anew.
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::string upload_id = absl::StrCat("shared-", attempt);
    grpc::ClientContext context;
    v1::WriteResponse response;
    const auto writer = server.blobs().Write(&context, &response);
    ASSERT_TRUE(writer->Write(First(upload_id, bytes, 0, bytes.substr(0, 10))));
    const grpc::Status second =
        WriteMessages(server.blobs(), {First(upload_id, bytes, 0, "")}).status;
    context.TryCancel();
    (void)writer->Finish();
    if (second.error_code() == grpc::StatusCode::INVALID_ARGUMENT) continue;
    EXPECT_THAT(second.error_code(),
                testing::AnyOf(grpc::StatusCode::ABORTED, grpc::StatusCode::OUT_OF_RANGE));
    return;
  }
  FAIL() << "the second stream came first each time";
}

TEST(UploadTest, ManyClientsOneDigestOneCopy) {
  TestServer server;
  const std::string bytes = TestBytes(8 << 20);
  std::vector<std::thread> threads;
  std::vector<grpc::Status> statuses(8);
  for (size_t i = 0; i < statuses.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto stub = v1::Blobs::NewStub(server.NewChannel());
      statuses[i] = WriteBlob(*stub, "client-" + std::to_string(i), bytes).status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const grpc::Status& status : statuses) EXPECT_TRUE(status.ok()) << status.error_message();
  int files = 0;
  for (const auto& entry :
       fs::recursive_directory_iterator(fs::path(server.data_dir()) / "data" / "cas")) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(files, 1);
  EXPECT_TRUE(fs::is_empty(fs::path(server.data_dir()) / "data" / "partial"));
}

TEST(UploadTest, MessagesAboveTheCapEndTheStream) {
  TestServer server;
  const std::string bytes = TestBytes(5 << 20);
  const WriteOutcome outcome = WriteBlob(server.blobs(), "cap", bytes, 0, 5 << 20);
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(WriteBlob(server.blobs(), "cap2", bytes).status.ok());
}

// Far more than the quota at once. gRPC 1.51 then drops connections, and it ends the process when
// the last owner of a message's memory is not a ByteBuffer (see WriteRequestView).
TEST(UploadTest, AFullReceiveBufferRefusesStreamsAndServesOn) {
  TestServer server([](ServerOptions& options) { options.grpc_buffer_bytes_max = 16 << 20; });
  constexpr int kClients = 12;
  std::vector<std::thread> threads;
  for (int client = 0; client < kClients; ++client) {
    threads.emplace_back([&, client] {
      const auto stub = v1::Blobs::NewStub(server.NewChannel());
      for (int i = 0; i < 12; ++i) {
        const std::string bytes = TestBytes(12 << 20, static_cast<uint32_t>(client * 12 + i) + 1);
        const std::string id = "full-" + std::to_string(client) + "-" + std::to_string(i);
        const grpc::Status status = WriteBlob(*stub, id, bytes, 0, 3 << 20).status;
        // What is refused has a code that tells a client to come again.
        if (!status.ok()) {
          EXPECT_THAT(status.error_code(), testing::AnyOf(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                                          grpc::StatusCode::UNAVAILABLE));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto stub = v1::Blobs::NewStub(server.NewChannel());
  const std::string bytes = TestBytes(1 << 20, 1000);
  EXPECT_TRUE(WriteBlob(*stub, "after", bytes).status.ok());
  std::string read;
  EXPECT_TRUE(ReadBlob(*stub, DigestFor(bytes), 0, 0, &read).ok());
  EXPECT_EQ(read, bytes);
}

TEST(ReadTest, RangesAndTheirEnds) {
  TestServer server;
  const std::string bytes = TestBytes(3 << 20);
  ASSERT_TRUE(WriteBlob(server.blobs(), "u", bytes).status.ok());
  const auto read = [&](int64_t offset, int64_t limit, std::string* out) {
    return ReadBlob(server.blobs(), DigestFor(bytes), offset, limit, out).error_code();
  };
  std::string out;
  EXPECT_EQ(read(1 << 20, 0, &out), grpc::StatusCode::OK);
  EXPECT_EQ(out, bytes.substr(1 << 20));
  EXPECT_EQ(read(5, 10, &out), grpc::StatusCode::OK);
  EXPECT_EQ(out, bytes.substr(5, 10));
  EXPECT_EQ(read((3 << 20) - 1, 100, &out), grpc::StatusCode::OK);
  EXPECT_EQ(out, bytes.substr((3 << 20) - 1));
  EXPECT_EQ(read(3 << 20, 0, &out), grpc::StatusCode::OK);
  EXPECT_EQ(out, "");
  EXPECT_EQ(read((3 << 20) + 1, 0, &out), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(read(-1, 0, &out), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(read(0, -1, &out), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(ReadBlob(server.blobs(), DigestFor("nothing"), 0, 0, &out).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST(ReadTest, DamageIsFoundAndSetAside) {
  TestServer server;
  for (const int64_t limit : {0, 10}) {
    const std::string bytes = TestBytes(3 << 20, static_cast<uint32_t>(limit) + 7);
    ASSERT_TRUE(WriteBlob(server.blobs(), "u" + std::to_string(limit), bytes).status.ok());
    {
      std::fstream file(BlobFile(server, DigestFor(bytes)),
                        std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(2 << 20);
      file.put(static_cast<char>(bytes[2 << 20] ^ 4));
    }
    std::string read;
    const grpc::Status status = ReadBlob(server.blobs(), DigestFor(bytes), 0, limit, &read);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
    EXPECT_LT(read.size(), bytes.size());
    EXPECT_TRUE(IsMissing(server, bytes));
    EXPECT_TRUE(WriteBlob(server.blobs(), "again", bytes).status.ok());
  }
}

TEST(ReadTest, ABlobThatIsCutShortIsUploadedAgain) {
  TestServer server([](ServerOptions& options) { options.metrics_listen = "127.0.0.1:0"; });
  const std::string bytes = TestBytes(2 << 20);
  for (int round = 1; round <= 2; ++round) {
    ASSERT_TRUE(WriteBlob(server.blobs(), "u", bytes).status.ok());
    fs::resize_file(BlobFile(server, DigestFor(bytes)), 1 << 20);
    if (round == 1) {
      EXPECT_TRUE(IsMissing(server, bytes));
    }
    const WriteOutcome again = WriteBlob(server.blobs(), "u", bytes);
    ASSERT_TRUE(again.status.ok()) << again.status.error_message();
    EXPECT_FALSE(again.response.already_present());
    std::string read;
    EXPECT_TRUE(ReadBlob(server.blobs(), DigestFor(bytes), 0, 0, &read).ok());
    EXPECT_EQ(read, bytes);
    EXPECT_EQ(MetricValue(server.HttpGet("/metrics"),
                          "quantgate_blob_corruption_total{where=\"lookup\"}"),
              round);
  }
}

TEST(ReadTest, BlobsSurviveARestart) {
  TestServer server;
  const std::string bytes = TestBytes(2 << 20);
  ASSERT_TRUE(WriteBlob(server.blobs(), "u", bytes).status.ok());
  server.Restart();
  EXPECT_FALSE(IsMissing(server, bytes));
  std::string read;
  EXPECT_TRUE(ReadBlob(server.blobs(), DigestFor(bytes), 0, 0, &read).ok());
  EXPECT_EQ(read, bytes);
}

TEST(FindMissingTest, HasALimit) {
  TestServer server;
  v1::FindMissingRequest request;
  for (int i = 0; i < 4096; ++i) *request.add_digests() = DigestFor(std::to_string(i));
  v1::FindMissingResponse response;
  grpc::ClientContext good_context;
  EXPECT_TRUE(server.blobs().FindMissing(&good_context, request, &response).ok());
  EXPECT_EQ(response.missing_size(), 4096);
  *request.add_digests() = DigestFor("one more");
  grpc::ClientContext context;
  const grpc::Status status = server.blobs().FindMissing(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailOf(status).field(), "digests");
}

/// Of this process, the server in it.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t descriptors) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit = {descriptors, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_;
};

/// An upload of two messages that waits between them.
class SilentUpload {
 public:
  SilentUpload(grpc::Channel& channel, int number)
      : bytes_(TestBytes(4000, static_cast<uint32_t>(number))),
        writer_(v1::Blobs::NewStub(std::shared_ptr<grpc::Channel>(&channel, [](auto*) {
                }))->Write(&context_, &response_)) {
    v1::WriteRequest first;
    first.mutable_header()->set_upload_id("silent" + std::to_string(number));
    *first.mutable_header()->mutable_digest() = DigestFor(bytes_);
    first.set_data(bytes_.substr(0, 1000));
    writer_->Write(first);
  }

  grpc::Status Finish() {
    v1::WriteRequest last;
    last.set_data(bytes_.substr(1000));
    writer_->Write(last);
    writer_->WritesDone();
    return writer_->Finish();
  }

 private:
  const std::string bytes_;
  grpc::ClientContext context_;
  v1::WriteResponse response_;
  std::unique_ptr<grpc::ClientWriter<v1::WriteRequest>> writer_;
};

TEST(UploadTest, SilentUploadsTakeNoDescriptors) {
  constexpr int kUploads = 400;  // Two descriptors each were more than there are.
  constexpr int kUploadsOfChannel = 100;
  const DescriptorLimit limit(512);
  TestServer server;
  const std::string kept = TestBytes(100'000);
  ASSERT_TRUE(WriteBlob(server.blobs(), "kept", kept).status.ok());
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  std::vector<std::unique_ptr<SilentUpload>> uploads;
  for (int i = 0; i < kUploads; ++i) {
    if (i % kUploadsOfChannel == 0) channels.push_back(server.NewChannel());
    uploads.push_back(std::make_unique<SilentUpload>(*channels.back(), i));
  }
  std::string read;
  const grpc::Status others = ReadBlob(server.blobs(), DigestFor(kept), 0, 0, &read);
  EXPECT_TRUE(others.ok()) << others.error_message();
  EXPECT_EQ(read, kept);
  for (const auto& upload : uploads) {
    const grpc::Status status = upload->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
