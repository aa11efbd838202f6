// The client library against a server that fails on command, over a real channel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "client/blob_transfer.h"
#include "client/channel_connection.h"
#include "client/execute.h"
#include "client/status.h"
#include "tests/client/fake_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const grpc::Status kBroken(grpc::StatusCode::UNAVAILABLE, "the stream broke");

class WireTest : public ::testing::Test {
 protected:
  WireTest() {
    ConnectionOptions options;
    options.backoff = absl::Milliseconds(1);
    connection_ = *ChannelConnection::Dial(server_.address(), options);
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i * 2654435761u >> 13);
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }
  // The fixture outlives every call.
  SharedBytes shared() const { return {bytes(), nullptr}; }
  const std::string& stored() { return server_.blobs.blobs[digest().sha256()]; }
  v1::Digest digest() const { return DigestOf(bytes()); }

  FakeServer server_;
  std::unique_ptr<Connection> connection_;
  std::string bytes_ = std::string((4 << 20) + 123, '\0');
};

TEST_F(WireTest, AddressesAreCheckedBeforeAnythingConnects) {
  for (const char* address : {"localhost:7470", "unix:/tmp/x", "[::1]:80", "unix:x"}) {
    EXPECT_TRUE(ChannelConnection::Dial(address, {}).ok()) << address;
  }
  for (const char* address :
       {"", "localhost", ":7470", "host:", "host:0", "host:65536", "host:x", "unix:"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ChannelConnection::Dial(address, {}).status())) << address;
  }
}

TEST_F(WireTest, UnaryCallsAreRepeatedWhileTheServerIsAway) {
  server_.blobs.find_missing_failures = {kBroken, kBroken};
  EXPECT_TRUE(connection_->FindMissing({}).ok());
  EXPECT_EQ(server_.blobs.find_missing_calls, 3);
}

TEST_F(WireTest, UnaryCallsGiveUp) {
  server_.blobs.find_missing_failures.assign(100, kBroken);
  EXPECT_TRUE(absl::IsUnavailable(connection_->FindMissing({}).status()));
  EXPECT_EQ(server_.blobs.find_missing_calls, ConnectionOptions().attempts_max);
}

TEST_F(WireTest, ExhaustionIsRetriedOnlyWhenTheServerSaysWhen) {
  v1::ErrorDetail detail;
  detail.set_reason("queue_full");
  server_.blobs.find_missing_failures = {
      DetailedStatus(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", detail)};
  EXPECT_TRUE(absl::IsResourceExhausted(connection_->FindMissing({}).status()));
  EXPECT_EQ(server_.blobs.find_missing_calls, 1);
  detail.mutable_retry_after()->set_nanos(1000);
  server_.blobs.find_missing_failures = {
      DetailedStatus(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", detail)};
  EXPECT_TRUE(connection_->FindMissing({}).ok());
  EXPECT_EQ(server_.blobs.find_missing_calls, 3);
}

TEST_F(WireTest, RefusalsAreNotRepeatedAndSayTheRule) {
  v1::ErrorDetail detail;
  detail.set_field("digests[0].size");
  detail.set_value("-1");
  detail.set_rule("at least 0");
  server_.blobs.find_missing_failures = {
      DetailedStatus(grpc::StatusCode::INVALID_ARGUMENT, "bad digest", detail)};
  const absl::Status status = connection_->FindMissing({}).status();
  EXPECT_EQ(server_.blobs.find_missing_calls, 1);
  ASSERT_TRUE(ErrorDetailOf(status).has_value());
  EXPECT_EQ(ErrorDetailOf(status)->field(), "digests[0].size");
  EXPECT_EQ(
      ErrorText(status),
      "INVALID_ARGUMENT: bad digest\n  field: digests[0].size\n  value: -1\n  rule: at least 0");
}

TEST_F(WireTest, WhatTheMessageSaysIsNotSaidTwice) {
  v1::ErrorDetail detail;
  detail.set_field("x.shape");
  detail.set_rule("two dims");
  server_.blobs.find_missing_failures = {
      DetailedStatus(grpc::StatusCode::INVALID_ARGUMENT, "x.shape: must have two dims", detail)};
  EXPECT_EQ(ErrorText(connection_->FindMissing({}).status()),
            "INVALID_ARGUMENT: x.shape: must have two dims");
}

TEST_F(WireTest, AnUnreachableServerIsUnavailable) {
  auto connection = *ChannelConnection::Dial("unix:/nonexistent/quantgate.sock",
                                             {.backoff = absl::Milliseconds(1)});
  const absl::Status status = connection->GetCapabilities().status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(ErrorText(status), HasSubstr("quantgated is running"));
}

TEST_F(WireTest, ADeadlineThatPassedEndsEveryCall) {
  // By more than gRPC rounds deadlines up.
  auto connection =
      *ChannelConnection::Dial(server_.address(), {.deadline = absl::Now() - absl::Seconds(1)});
  const absl::Status status = connection->FindMissing({}).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(absl::IsDeadlineExceeded(UploadBlob(*connection, shared(), digest()).status()));
}

TEST_F(WireTest, UploadsInChunks) {
  int64_t last = 0;
  const auto upload = UploadBlob(*connection_, shared(), digest(), [&](int64_t done, int64_t size) {
    EXPECT_EQ(size, static_cast<int64_t>(bytes_.size()));
    EXPECT_GT(done, last);
    last = done;
  });
  ASSERT_TRUE(upload.ok()) << upload.status();
  EXPECT_FALSE(upload->already_present);
  EXPECT_EQ(upload->bytes_sent, static_cast<int64_t>(bytes_.size()));
  EXPECT_EQ(last, upload->bytes_sent);
  EXPECT_EQ(stored(), bytes_);
  // Over loopback the first chunk alone, whose peer is not known yet, is checked by itself.
  EXPECT_EQ(server_.blobs.good_crcs, 1);
  EXPECT_EQ(server_.blobs.bad_crcs, 0);
}

TEST(UploadTest, OnlyAPeerOnThisMachineNeedsNoChunkChecks) {
  for (const char* peer : {"unix:/run/quantgate.sock", "unix:", "unix-abstract:quantgate",
                           "ipv4:127.0.0.1:7470", "ipv4:127.1.2.3:1", "ipv6:[::1]:7470",
                           "ipv6:%5B::1%5D:7470", "ipv6:%5B::ffff:127.0.0.1%5D:7470"}) {
    EXPECT_TRUE(IsOnThisMachine(peer)) << peer;
  }
  for (const char* peer : {"", "unknown", "ipv4:10.0.0.1:7470", "ipv4:1.127.0.1:7470",
                           "ipv4:12.7.0.1:7470", "ipv6:%5B::10%5D:7470", "ipv6:[::1:2]:7470",
                           "ipv6:%5B2001:db8::1%5D:7470", "dns:unix:7470"}) {
    EXPECT_FALSE(IsOnThisMachine(peer)) << peer;
  }
}

TEST_F(WireTest, WhatTheServerHasIsNotSent) {
  server_.blobs.blobs[digest().sha256()] = bytes_;
  const auto upload = UploadBlob(*connection_, shared(), digest());
  ASSERT_TRUE(upload.ok());
  EXPECT_TRUE(upload->already_present);
  EXPECT_EQ(upload->bytes_sent, 0);
  EXPECT_EQ(server_.blobs.write_calls, 0);
}

TEST_F(WireTest, TheEmptyBlobIsABlob) {
  const v1::Digest empty = DigestOf({});
  const auto upload = UploadBlob(*connection_, SharedBytes(), empty);
  ASSERT_TRUE(upload.ok()) << upload.status();
  EXPECT_TRUE(server_.blobs.blobs.contains(empty.sha256()));
}

TEST_F(WireTest, ABrokenUploadGoesOnWhereItStopped) {
  server_.blobs.breaks = {{(1 << 20) + 17, kBroken}, {5, kBroken}};
  const auto upload = UploadBlob(*connection_, shared(), digest());
  ASSERT_TRUE(upload.ok()) << upload.status();
  EXPECT_EQ(upload->resumptions, 2);
  EXPECT_EQ(server_.blobs.write_calls, 3);
  EXPECT_EQ(stored(), bytes_);
}

TEST_F(WireTest, AnUploadThatTheServerForgotStartsAgain) {
  server_.blobs.breaks = {{2 << 20, kBroken, /*forgets_upload=*/true}};
  const auto upload = UploadBlob(*connection_, shared(), digest());
  ASSERT_TRUE(upload.ok()) << upload.status();
  EXPECT_EQ(stored(), bytes_);
}

TEST_F(WireTest, UploadsWithoutProgressGiveUp) {
  server_.blobs.breaks.assign(100, {0, kBroken});
  EXPECT_TRUE(absl::IsUnavailable(UploadBlob(*connection_, shared(), digest()).status()));
  // The first try from 0 and then as often as a unary call, whose first resumption counts as
  // progress.
  EXPECT_LE(server_.blobs.write_calls, ConnectionOptions().attempts_max + 1);
}

TEST_F(WireTest, AnUploadGoesOnWhereAnotherClientLeftIt) {
  const int64_t left = (3 << 20) + 5;
  server_.blobs.breaks = {
      {left, grpc::Status(grpc::StatusCode::INTERNAL, "the client was killed")}};
  EXPECT_FALSE(UploadBlob(*connection_, shared(), digest()).ok());
  connection_ = *ChannelConnection::Dial(server_.address(), {});
  const auto upload = UploadBlob(*connection_, shared(), digest());
  ASSERT_TRUE(upload.ok()) << upload.status();
  EXPECT_EQ(upload->bytes_sent, static_cast<int64_t>(bytes_.size()) - left);
  EXPECT_EQ(upload->resumptions, 0);
  EXPECT_EQ(stored(), bytes_);
}

TEST_F(WireTest, APartOfAFewBytesIsFoundWithoutAsking) {
  bytes_.resize(1000);
  server_.blobs.partials[SharedUploadId(digest())] = bytes_.substr(0, 300);
  const auto upload = UploadBlob(*connection_, shared(), digest());
  ASSERT_TRUE(upload.ok()) << upload.status();
  EXPECT_EQ(server_.blobs.query_write_calls, 1);
  EXPECT_EQ(stored(), bytes_);
}

TEST_F(WireTest, WhatAnotherClientLeftMayBeOtherBytes) {
  server_.blobs.partials[SharedUploadId(digest())] = std::string(1 << 20, 'x');
  const auto upload = UploadBlob(*connection_, shared(), digest());
  ASSERT_TRUE(upload.ok()) << upload.status();
  EXPECT_EQ(server_.blobs.write_calls, 2);
  EXPECT_EQ(stored(), bytes_);
}

TEST_F(WireTest, AnUploadThatAnotherClientWritesGoesItsOwnWay) {
  server_.blobs.busy = {SharedUploadId(digest())};
  const auto upload = UploadBlob(*connection_, shared(), digest());
  ASSERT_TRUE(upload.ok()) << upload.status();
  EXPECT_EQ(server_.blobs.write_calls, 3);
  EXPECT_EQ(stored(), bytes_);
  ASSERT_EQ(server_.blobs.upload_ids.size(), 3u);
  EXPECT_EQ(server_.blobs.upload_ids[0], SharedUploadId(digest()));
  EXPECT_EQ(server_.blobs.upload_ids[1], SharedUploadId(digest()));
  EXPECT_THAT(server_.blobs.upload_ids[2], StartsWith(SharedUploadId(digest()) + "-"));
  EXPECT_LE(server_.blobs.upload_ids[2].size(), 64u);
}

TEST_F(WireTest, QueuedBytesOutliveTheUploadAndAreLetGo) {
  auto owner = std::make_shared<std::string>(std::move(bytes_));
  const auto all = std::as_bytes(std::span(*owner));
  const v1::Digest digest = DigestOf(all);
  connection_ = *ChannelConnection::Dial(server_.address(),
                                         {.deadline = absl::Now() + absl::Milliseconds(200)});
  server_.blobs.stalls = 1;
  const auto upload = UploadBlob(*connection_, {all, owner}, digest);
  EXPECT_TRUE(absl::IsDeadlineExceeded(upload.status())) << upload.status();
  const std::weak_ptr<std::string> watched = owner;
  owner = nullptr;
  connection_ = nullptr;
  // gRPC takes its connections down on threads of its own.
  for (const absl::Time start = absl::Now(); absl::Now() < start + absl::Seconds(10);) {
    if (watched.expired()) break;
    std::this_thread::yield();
  }
  EXPECT_TRUE(watched.expired());
}

TEST_F(WireTest, AWrongDigestIsNotSentAgain) {
  v1::Digest wrong = digest();
  (*wrong.mutable_sha256())[0] ^= 1;
  EXPECT_TRUE(absl::IsInvalidArgument(UploadBlob(*connection_, shared(), wrong).status()));
  EXPECT_EQ(server_.blobs.write_calls, 1);
}

TEST_F(WireTest, DownloadsResumeAndAreChecked) {
  bytes_.resize(1 << 20);
  server_.blobs.blobs[digest().sha256()] = bytes_;
  server_.blobs.read_breaks = {{1000, kBroken}, {77, kBroken}};
  const auto buffer = DownloadBlob(*connection_, digest());
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(0, std::memcmp((*buffer)->data(), bytes_.data(), bytes_.size()));

  server_.blobs.reads_wrong_bytes = true;
  EXPECT_TRUE(absl::IsDataLoss(DownloadBlob(*connection_, digest()).status()));
  v1::Digest other = digest();
  (*other.mutable_sha256())[0] ^= 1;
  EXPECT_TRUE(absl::IsNotFound(DownloadBlob(*connection_, other).status()));
}

TEST_F(WireTest, ABlobLongerThanItsDigestSaysIsDataLoss) {
  bytes_.resize(1000);
  v1::Digest shorter = digest();
  server_.blobs.blobs[shorter.sha256()] = bytes_;
  shorter.set_size(999);
  EXPECT_TRUE(absl::IsDataLoss(DownloadBlob(*connection_, shorter).status()));
}

class RunWireTest : public WireTest {
 protected:
  RunWireTest() {
    for (int sequence = 1; sequence <= 5; ++sequence) {
      v1::RunEvent& event = server_.engine.events.emplace_back();
      event.set_run_id("run-7");
      event.set_sequence(sequence);
    }
    server_.engine.events[0].mutable_accepted();
    server_.engine.events[1].mutable_progress()->set_step(1);
    SetVariant(2, 1, "second");
    SetVariant(3, 0, "first");
    v1::RunFinished& finished = *server_.engine.events[4].mutable_finished();
    finished.set_state(v1::RUN_STATE_SUCCEEDED);
    finished.mutable_report()->set_seconds(2);
  }
  void SetVariant(int event, int index, const std::string& label) {
    v1::VariantFinished& variant = *server_.engine.events[event].mutable_variant();
    variant.set_index(index);
    variant.mutable_report()->set_label(label);
  }
  absl::StatusOr<v1::RunReport> Execute() {
    return ExecuteRun(*connection_, v1::RunSpec(),
                      [&](const v1::RunEvent& event) { sequences_.push_back(event.sequence()); });
  }
  std::vector<int64_t> sequences_;
};

TEST_F(RunWireTest, TheReportHasItsVariantsInOrder) {
  const auto report = Execute();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->run_id(), "run-7");
  EXPECT_EQ(report->seconds(), 2);
  ASSERT_EQ(report->variants_size(), 2);
  EXPECT_EQ(report->variants(0).label(), "first");
  EXPECT_EQ(report->variants(1).label(), "second");
  EXPECT_THAT(sequences_, ElementsAre(1, 2, 3, 4, 5));
}

// Outputs that came before their variant stand before those that came with it, also where the
// stream broke in between.
TEST_F(RunWireTest, OutputsThatCameFirstStandFirst) {
  const auto add_output = [&](int event, const std::string& name) {
    v1::OutputFinished& output = *server_.engine.events[event].mutable_output();
    output.set_index(1);
    output.mutable_report()->mutable_tensor()->set_name(name);
  };
  server_.engine.events[1].clear_progress();
  add_output(1, "y");
  server_.engine.events[2].clear_variant();
  add_output(2, "dx");
  SetVariant(3, 1, "streamed");
  server_.engine.events[3]
      .mutable_variant()
      ->mutable_report()
      ->add_outputs()
      ->mutable_tensor()
      ->set_name("dw");
  for (const std::vector<int>& breaks : {std::vector<int>{}, {2}}) {
    server_.engine.breaks = {breaks.begin(), breaks.end()};
    const auto report = Execute();
    ASSERT_TRUE(report.ok()) << report.status();
    ASSERT_EQ(report->variants_size(), 1);
    std::vector<std::string> names;
    for (const auto& output : report->variants(0).outputs())
      names.push_back(output.tensor().name());
    EXPECT_THAT(names, ElementsAre("y", "dx", "dw"));
  }
}

TEST_F(RunWireTest, ABrokenStreamIsAttachedToAgain) {
  server_.engine.breaks = {2, 1};
  ASSERT_TRUE(Execute().ok());
  EXPECT_THAT(sequences_, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(server_.engine.wait_sequences, ElementsAre(3, 4));
  EXPECT_EQ(server_.engine.request_ids.size(), 1u);
}

TEST_F(RunWireTest, ARunWhoseIdNeverArrivedIsStartedUnderTheSameRequest) {
  server_.engine.breaks = {0, 0};
  ASSERT_TRUE(Execute().ok());
  ASSERT_EQ(server_.engine.request_ids.size(), 3u);
  EXPECT_EQ(server_.engine.request_ids[0], server_.engine.request_ids[2]);
  EXPECT_EQ(server_.engine.request_ids[0].size(), 32u);
}

TEST_F(RunWireTest, AFailedRunHasItsOwnStatus) {
  v1::RunFinished& finished = *server_.engine.events[4].mutable_finished();
  finished.set_state(v1::RUN_STATE_FAILED);
  finished.set_status_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  finished.set_status_message("no memory");
  const absl::Status status = Execute().status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(status.message(), "no memory");
  EXPECT_TRUE(server_.engine.cancelled_runs.empty());
}

TEST_F(RunWireTest, CancellingTheConnectionCancelsTheRun) {
  server_.engine.events.resize(2);
  server_.engine.blocks = true;
  const absl::Status status =
      ExecuteRun(*connection_, v1::RunSpec(), [&](const v1::RunEvent& event) {
        if (event.has_progress()) connection_->Cancel();
      }).status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_THAT(server_.engine.cancelled_runs, ElementsAre("run-7"));
  EXPECT_TRUE(absl::IsCancelled(connection_->FindMissing({}).status()));
}

TEST_F(RunWireTest, ARunGivenUpBeforeItsFirstEventIsCancelledToo) {
  connection_ = *ChannelConnection::Dial(server_.address(),
                                         {.deadline = absl::Now() + absl::Milliseconds(200)});
  server_.engine.stalls = 1;
  EXPECT_TRUE(absl::IsDeadlineExceeded(Execute().status()));
  ASSERT_EQ(server_.engine.request_ids.size(), 2u);
  EXPECT_EQ(server_.engine.request_ids[0], server_.engine.request_ids[1]);
  EXPECT_THAT(server_.engine.cancelled_runs, ElementsAre("run-7"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
