// Streams that nobody reads: what is made for them keeps its bounds and is counted, others are
// served beside them, and they are ended. tests/server/rpc/unread_streams_load.py measures memory.
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "server/net/send_budget.h"
#include "tests/server/runs/run_outcome.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int64_t kBytesMax = 16 << 20;
constexpr int64_t kConnectionBytesMax = 8 << 20;
constexpr int kChannels = 4;
constexpr int kStreamsOfAChannel = 64;

/// Ten times as fast as it is.
SendBudget::Clock::time_point FastNow() {
  return SendBudget::Clock::time_point(10 * SendBudget::Clock::now().time_since_epoch());
}

/// Streams of which the client has heard the end.
class Ends {
 public:
  void Add() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  void Await(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_ == count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

/// A stream that is started, never read, and tells its end.
template <typename Response>
class Unread : public grpc::ClientReadReactor<Response> {
 public:
  explicit Unread(Ends& ends) : ends_(ends) {}
  grpc::ClientContext& context() { return context_; }

 private:
  void OnDone(const grpc::Status&) override { ends_.Add(); }

  Ends& ends_;
  grpc::ClientContext context_;
};

class UnreadStreamsTest : public testing::Test {
 protected:
  double Metric(const std::string& series) {
    return MetricValue(server_.HttpGet("/metrics"), series);
  }
  double BytesInFlight() { return Metric("quantgate_inflight_bytes{kind=\"send\"}"); }

  /// Until that many calls of a method have ended, and what was made for them has gone.
  void AwaitTheirEnd(const std::string& method, int calls) {
    const auto ended = [&] {
      double count = 0;
      const std::string text = server_.HttpGet("/metrics");
      for (const char* code : {"OK", "Canceled", "ResourceExhausted"}) {
        for (const char* service : {"Blobs", "Engine"}) {
          count +=
              std::max(0.0, MetricValue(text, "grpc_server_handled_total{grpc_code=\"" +
                                                  std::string(code) + "\",grpc_method=\"" + method +
                                                  "\",grpc_service=\"quantgate.v1." + service +
                                                  "\",grpc_type=\"server_stream\"}"));
        }
      }
      return count >= calls && BytesInFlight() == 0;
    };
    while (!ended()) {
    }
  }

  /// A connection whose streams keep HTTP/2's first window of 64 KiB, however fast it is.
  std::shared_ptr<grpc::Channel> NarrowChannel() {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
    return grpc::CreateCustomChannel(server_.address(), grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  TestServer server_{[](ServerOptions& options) {
    options.metrics_listen = "127.0.0.1:0";
    options.send_bytes_max = kBytesMax;
    options.send_connection_bytes_max = kConnectionBytesMax;
    options.now = &FastNow;
    options.send_idle_max = absl::Seconds(30);
    options.send_idle_when_short = absl::Seconds(20);
  }};
};

TEST_F(UnreadStreamsTest, OfBlobsKeepTheBoundsAndEnd) {
  const std::string bytes = TestBytes(6 << 20);
  ASSERT_TRUE(WriteBlob(server_.blobs(), "unread", bytes).status.ok());
  v1::ReadRequest request;
  *request.mutable_digest() = DigestFor(bytes);
  Ends ends;
  std::vector<std::unique_ptr<v1::Blobs::Stub>> stubs;
  std::vector<std::unique_ptr<Unread<v1::ReadResponse>>> streams;
  for (int i = 0; i < kChannels; ++i) {
    stubs.push_back(v1::Blobs::NewStub(NarrowChannel()));
    for (int j = 0; j < kStreamsOfAChannel; ++j) {
      auto& stream = streams.emplace_back(std::make_unique<Unread<v1::ReadResponse>>(ends));
      stubs.back()->async()->Read(&stream->context(), &request, stream.get());
      stream->StartCall();
    }
  }
  // 256 streams of 64 KiB would hold 16 MiB, of which 4 are for connections that hold nothing.
  while (BytesInFlight() < kBytesMax / 2) {
  }
  std::string read;
  const auto other = v1::Blobs::NewStub(server_.NewChannel());
  const grpc::Status status = ReadBlob(*other, request.digest(), 0, 0, &read);
  EXPECT_TRUE(status.ok()) << status.error_message() << " after " << read.size() << " bytes";
  EXPECT_TRUE(read == bytes);
  EXPECT_LE(BytesInFlight(), kBytesMax);
  AwaitTheirEnd("Read", kChannels * kStreamsOfAChannel + 1);
  // A client hears of the end when it reads, or gives up.
  for (const auto& stream : streams) stream->context().TryCancel();
  ends.Await(static_cast<int>(streams.size()));
  EXPECT_GT(Metric("quantgate_calls_unread_total"), 0);
  // It serves as before.
  EXPECT_TRUE(ReadBlob(*other, request.digest(), 0, 0, &read).ok());
}

TEST_F(UnreadStreamsTest, OfRunsKeepTheBoundsAndEnd) {
  v1::ExecuteRequest execute;
  *execute.mutable_spec() = LinearSpec(256, 256, 128);
  for (const char* mode : {"", "high_precision", "dequantized"}) {
    for (const char* arithmetic : {"sm90", "fp32", "exact"}) {
      *execute.mutable_spec()->add_variants() = MakeVariant("fp8_current", mode, arithmetic);
    }
  }
  v1::RunFinished finished;
  const grpc::Status executed = ExecuteToEnd(server_, execute, finished);
  ASSERT_TRUE(executed.ok()) << executed.error_message();
  const std::vector<v1::Run> runs = ListRuns(server_);
  ASSERT_EQ(runs.size(), 1u);
  v1::WaitRunRequest request;
  request.set_run_id(runs[0].run_id());
  Ends ends;
  const auto stub = v1::Engine::NewStub(NarrowChannel());
  std::vector<std::unique_ptr<Unread<v1::RunEvent>>> streams;
  for (int i = 0; i < kStreamsOfAChannel; ++i) {
    auto& stream = streams.emplace_back(std::make_unique<Unread<v1::RunEvent>>(ends));
    stub->async()->WaitRun(&stream->context(), &request, stream.get());
    stream->StartCall();
  }
  while (BytesInFlight() == 0) {
  }
  EXPECT_LE(BytesInFlight(), kBytesMax);
  grpc::ClientContext wait;
  const auto reader = v1::Engine::NewStub(server_.NewChannel())->WaitRun(&wait, request);
  v1::RunEvent event;
  while (reader->Read(&event)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(event.has_finished());
  AwaitTheirEnd("WaitRun", kStreamsOfAChannel + 1);
  for (const auto& stream : streams) stream->context().TryCancel();
  ends.Await(static_cast<int>(streams.size()));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
