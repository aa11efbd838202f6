// How many threads the server has under many clients, and under many streams of the one service
// that has a thread for each.
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "quantgate/v1/info_service.grpc.pb.h"
#include "tests/client/process.h"
#include "tests/server/temporary_directory.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int kThreadsMax = 32;

class ManyClientsTest : public testing::Test {
 protected:
  ManyClientsTest() {
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
    const std::string ready = server_.ReadLine();
    const size_t at = ready.find("127.0.0.1:");
    address_ = ready.substr(at, ready.find(',') - at);
  }

  /// Over a connection of its own.
  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
  }

  TemporaryDirectory directory_;
  BackgroundProcess server_{{QUANTGATED_PROGRAM, "--listen", "127.0.0.1:0", "--metrics-listen",
                             "127.0.0.1:0", "--data-dir", directory_.Path("data")}};
  std::string address_;
};

TEST_F(ManyClientsTest, OneThousandClientsThatCall) {
  struct Client {
    std::unique_ptr<v1::Info::Stub> stub;
    std::unique_ptr<grpc::ClientContext> context;
    v1::ListRecipesResponse response;
  };
  std::vector<Client> clients(1000);
  for (Client& client : clients) client.stub = v1::Info::NewStub(NewChannel());
  const v1::ListRecipesRequest request;
  int threads = server_.ThreadCount();
  for (int round = 0; round < 3; ++round) {
    absl::BlockingCounter under_way(static_cast<int>(clients.size()));
    std::atomic<int> failed{0}, answered{0};
    for (Client& client : clients) {
      client.context = std::make_unique<grpc::ClientContext>();
      client.context->set_wait_for_ready(true);
      client.stub->async()->ListRecipes(client.context.get(), &request, &client.response,
                                        [&](const grpc::Status& status) {
                                          if (!status.ok()) ++failed;
                                          ++answered;
                                          under_way.DecrementCount();
                                        });
      threads = std::max(threads, server_.ThreadCount());
    }
    while (answered < static_cast<int>(clients.size())) {
      threads = std::max(threads, server_.ThreadCount());
    }
    under_way.Wait();
    EXPECT_EQ(failed, 0);
  }
  EXPECT_LE(threads, kThreadsMax);
  RecordProperty("threads", threads);
}

/// A stream of reflection that asks once and then stays.
class ReflectionStream : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  ReflectionStream(std::shared_ptr<grpc::Channel> channel, absl::BlockingCounter& answered,
                   absl::BlockingCounter& ended)
      : stub_(std::move(channel)), answered_(answered), ended_(ended) {
    stub_.PrepareBidiStreamingCall(&context_,
                                   "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                   grpc::StubOptions(), this);
    StartWrite(&request_);
    StartRead(&response_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }
  bool is_answered() const { return is_answered_; }

 private:
  void OnReadDone(bool ok) override {
    is_answered_ = ok;
    answered_.DecrementCount();
  }
  void OnDone(const grpc::Status&) override { ended_.DecrementCount(); }

  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  grpc::Slice list_services_{"\x3A\x00", 2};  // Field 7, an empty string.
  grpc::ByteBuffer request_{&list_services_, 1}, response_;
  bool is_answered_ = false;
  absl::BlockingCounter& answered_;
  absl::BlockingCounter& ended_;
};

TEST_F(ManyClientsTest, ManyStreamsOfReflection) {
  constexpr int kStreams = 100;
  absl::BlockingCounter answered(kStreams), ended(kStreams);
  const auto channel = NewChannel();
  std::vector<std::unique_ptr<ReflectionStream>> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(std::make_unique<ReflectionStream>(channel, answered, ended));
  }
  // Those beyond the bound are refused, and the others go on.
  answered.Wait();
  EXPECT_LE(server_.ThreadCount(), kThreadsMax);
  EXPECT_TRUE(std::any_of(streams.begin(), streams.end(),
                          [](const auto& stream) { return stream->is_answered(); }));
  for (const auto& stream : streams) stream->Cancel();
  ended.Wait();
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
