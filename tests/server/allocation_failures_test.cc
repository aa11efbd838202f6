// Memory that is refused anywhere in a server: of each call's allocations one after the other
// fails. The call ends with RESOURCE_EXHAUSTED, or as if nothing had happened, and the next ones
// are answered; or the process ends with a line. The server is this program in a process of its
// own.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/base/execution.h"
#include "quantgate/v1/blobs_service.grpc.pb.h"
#include "quantgate/v1/engine_service.grpc.pb.h"
#include "quantgate/v1/info_service.grpc.pb.h"
#include "quantgate/v1/sessions_service.grpc.pb.h"
#include "server/process_memory.h"
#include "server/server.h"
#include "tests/client/process.h"
#include "tests/server/temporary_directory.h"
#include "tests/server/test_server.h"

namespace {

/// How many more allocations succeed before one fails; below 0: none fails.
std::atomic<int64_t> allocations_left{-1};

}  // namespace

void* operator new(size_t size) {
  const bool is_refused =
      allocations_left.load(std::memory_order_relaxed) >= 0 && allocations_left.fetch_sub(1) == 0;
  void* const bytes = is_refused ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (bytes != nullptr) return bytes;
  if (const std::new_handler handler = std::get_new_handler(); handler != nullptr) handler();
  throw std::bad_alloc();
}
void operator delete(void* bytes) noexcept { std::free(bytes); }
void operator delete(void* bytes, size_t) noexcept { std::free(bytes); }

namespace quantgate {
namespace {

constexpr char kServerOption[] = "--server";
constexpr char kLoopOption[] = "--loop";
/// A call that has not ended then is one that never does.
constexpr auto kPatience = std::chrono::seconds(60);
/// From one allocation that fails to the next; a prime, so that the sizes of loops do not matter.
constexpr int64_t kStep = 7;

/// In the server's process: for each number that comes, that many allocations succeed before one
/// fails. Says how many were left of the last number.
int Serve(int orders, const std::string& data_dir) {
  // As under a bound, for what is done there; it is never reached.
  const rlimit far = {rlim_t{1} << 40, RLIM_INFINITY};
  if (::setrlimit(RLIMIT_AS, &far) != 0 || !PrepareForLittleMemory()) return 1;
  ServerOptions options;
  options.listen = {"127.0.0.1:0"};
  options.data_dir = data_dir;
  options.engine.threads = 2;
  options.fsync = false;
  auto server = Server::Start(options);
  if (!server.ok()) return 1;
  std::printf("%d\n", (*server)->ports().front());
  std::fflush(stdout);
  for (int64_t order; ::read(orders, &order, sizeof(order)) == sizeof(order);) {
    const int64_t left = allocations_left.exchange(order);
    std::printf("%lld\n", static_cast<long long>(left));
    std::fflush(stdout);
  }
  return 0;
}

/// In a process of its own, which knows of no loop yet: the first loop on several threads, of whose
/// allocations one fails after `succeeding` others, and another one after it. Says how many were
/// left.
int RunLoops(int64_t succeeding) {
  if (!PrepareForLittleMemory()) return 1;
  ::alarm(static_cast<unsigned>(std::chrono::seconds(kPatience).count()));
  ExecutionContext context;
  context.threads = 2;
  std::atomic<int64_t> sum = 0;
  const auto loop = [&] {
    ParallelFor(context, 100, 1, [&](int64_t begin, int64_t end) {
      const auto bytes = std::make_unique<char[]>(100);
      sum += end - begin;
    });
  };
  allocations_left = succeeding;
  try {
    loop();
  } catch (const std::bad_alloc&) {
  }
  const int64_t left = allocations_left.exchange(-1);
  sum = 0;
  loop();
  std::printf("%lld %lld\n", static_cast<long long>(left), static_cast<long long>(sum));
  return 0;
}

class FailingServer {
 public:
  FailingServer() {
    int orders[2];
    if (::pipe2(orders, O_CLOEXEC) != 0) std::abort();
    ::fcntl(orders[0], F_SETFD, 0);
    process_ = std::make_unique<BackgroundProcess>(std::vector<std::string>{
        "/proc/self/exe", kServerOption, std::to_string(orders[0]), directory_.Path("data")});
    ::close(orders[0]);
    orders_ = orders[1];
    channel_ = grpc::CreateChannel("127.0.0.1:" + process_->ReadLine(),
                                   grpc::InsecureChannelCredentials());
  }
  ~FailingServer() { ::close(orders_); }

  std::shared_ptr<grpc::Channel> channel() { return channel_; }

  /// How many allocations were left of the last order; nothing where the process has ended.
  std::optional<int64_t> Order(int64_t succeeding) {
    (void)!::write(orders_, &succeeding, sizeof(succeeding));
    const std::string left = process_->ReadLine();
    return left.empty() ? std::nullopt : std::optional(std::stoll(left));
  }

  ProcessResult End() { return process_->Wait(); }

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<BackgroundProcess> process_;
  std::shared_ptr<grpc::Channel> channel_;
  int orders_ = -1;
};

using Ask = std::function<grpc::Status(const std::shared_ptr<grpc::Channel>&, int64_t number)>;

void SetPatience(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
}

grpc::Status AskForInfo(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  SetPatience(context);
  v1::Capabilities answer;
  return v1::Info::NewStub(channel)->GetCapabilities(&context, {}, &answer);
}

grpc::Status Execute(const std::shared_ptr<grpc::Channel>& channel, int64_t number) {
  grpc::ClientContext context;
  SetPatience(context);
  v1::ExecuteRequest request;
  *request.mutable_spec() = LinearSpec(32, 32, 32);
  *request.mutable_spec()->add_variants() = MakeVariant("fp8_current", "", "");
  request.set_request_id("run" + std::to_string(number));
  request.set_stream_outputs(true);
  const auto reader = v1::Engine::NewStub(channel)->Execute(&context, request);
  v1::RunEvent event;
  while (reader->Read(&event)) {
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return status;
  return event.has_finished()
             ? grpc::Status(static_cast<grpc::StatusCode>(event.finished().status_code()),
                            event.finished().status_message())
             : grpc::Status(grpc::StatusCode::INTERNAL, "the stream has no end");
}

grpc::Status Quantize(const std::shared_ptr<grpc::Channel>& channel, int64_t) {
  grpc::ClientContext context;
  SetPatience(context);
  v1::QuantizeRequest request;
  *request.mutable_tensor() = Generated("normal", 1, "bf16", {64, 64});
  request.mutable_recipe()->set_name("mxfp8");
  request.set_role("input");
  request.set_rowwise(true);
  request.set_columnwise(true);
  v1::QuantizeResponse answer;
  return v1::Engine::NewStub(channel)->Quantize(&context, request, &answer);
}

grpc::Status OpenSession(const std::shared_ptr<grpc::Channel>& channel, int64_t number) {
  grpc::ClientContext context;
  SetPatience(context);
  v1::OpenSessionRequest request;
  v1::SessionLayer& layer = *request.mutable_spec()->add_layers();
  layer.set_name("fc1");
  layer.mutable_layer()->set_kind("linear");
  request.mutable_spec()->mutable_recipe()->set_name("fp8_current");
  (*request.mutable_parameters())["fc1.weight"] = Generated("normal", 2, "bf16", {32, 32});
  request.set_request_id("session" + std::to_string(number));
  v1::Session answer;
  const auto stub = v1::Sessions::NewStub(channel);
  const grpc::Status status = stub->Open(&context, request, &answer);
  if (!status.ok()) return status;
  grpc::ClientContext closing;
  SetPatience(closing);
  v1::CloseSessionRequest close;
  close.set_session_id(answer.session_id());
  return stub->Close(&closing, close, &answer);
}

/// Up and down again, in a few messages each.
grpc::Status MoveBlob(const std::shared_ptr<grpc::Channel>& channel, int64_t number) {
  const std::string bytes = TestBytes(300'000, static_cast<uint32_t>(number));
  const auto blobs = v1::Blobs::NewStub(channel);
  v1::WriteResponse written;
  grpc::ClientContext writing, reading;
  SetPatience(writing);
  SetPatience(reading);
  const auto writer = blobs->Write(&writing, &written);
  v1::WriteRequest message;
  message.mutable_header()->set_upload_id("upload");
  *message.mutable_header()->mutable_digest() = DigestFor(bytes);
  for (size_t at = 0; at < bytes.size(); at += 100'000) {
    message.set_data(bytes.substr(at, 100'000));
    if (!writer->Write(message)) break;
    message.clear_header();
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return status;
  v1::ReadRequest request;
  *request.mutable_digest() = DigestFor(bytes);
  const auto reader = blobs->Read(&reading, request);
  std::string read;
  for (v1::ReadResponse part; reader->Read(&part);) read += part.data();
  const grpc::Status end = reader->Finish();
  if (end.ok()) {
    EXPECT_EQ(read, bytes);
  }
  return end;
}

/// Refuses one allocation after the other, until a call has fewer.
void RefuseEach(const Ask& ask) {
  auto server = std::make_unique<FailingServer>();
  int refused = 0, ended = 0;
  int64_t number = 0;
  for (int64_t succeeding = 0;; succeeding += kStep) {
    SCOPED_TRACE(testing::Message() << succeeding << " allocations succeed before one fails");
    // What a connection needs once is there.
    if (!AskForInfo(server->channel()).ok()) FAIL() << "a new server does not answer";
    if (!server->Order(succeeding).has_value()) FAIL() << "the server has ended";
    const grpc::Status status = ask(server->channel(), ++number);
    const std::optional<int64_t> left = server->Order(-1);
    const grpc::Status next = ask(server->channel(), ++number);
    if (next.ok()) {
      refused += status.ok() ? 0 : 1;
      if (!status.ok()) {
        ASSERT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
            << status.error_message();
      }
      if (left.value_or(-1) >= 0) break;
    } else {
      ++ended;
      ASSERT_EQ(next.error_code(), grpc::StatusCode::UNAVAILABLE) << next.error_message();
      const ProcessResult result = server->End();
      ASSERT_EQ(result.exit_code, kExitWithoutMemory) << result.err;
      ASSERT_THAT(result.err, testing::MatchesRegex("quantgated: ends, since [^\n]*\n"));
      server = std::make_unique<FailingServer>();
    }
  }
  testing::Test::RecordProperty("refused", refused);
  testing::Test::RecordProperty("ended", ended);
}

// What a loop's threads need is made by its library, which does not survive being refused.
TEST(AllocationFailuresTest, LoopsEnd) {
  int survived = 0, ended = 0;
  for (int64_t succeeding = 0;; ++succeeding) {
    SCOPED_TRACE(testing::Message() << succeeding << " allocations succeed before one fails");
    const ProcessResult result =
        RunProcess({"/proc/self/exe", kLoopOption, std::to_string(succeeding)});
    if (result.exit_code == kExitWithoutMemory) {
      ASSERT_THAT(result.err, testing::MatchesRegex("quantgated: ends, since [^\n]*\n"));
      ++ended;
      continue;
    }
    ASSERT_EQ(result.exit_code, 0) << result.err;
    int64_t left = 0, sum = 0;
    std::istringstream(result.out) >> left >> sum;
    ASSERT_EQ(sum, 100);
    if (left >= 0) break;
    ++survived;
  }
  EXPECT_GT(survived, 90);  // As many as the loop's own.
  testing::Test::RecordProperty("ended", ended);
}

TEST(AllocationFailuresTest, RunsEnd) { RefuseEach(Execute); }
TEST(AllocationFailuresTest, UnaryCallsEnd) { RefuseEach(Quantize); }
TEST(AllocationFailuresTest, SessionsOpenOrNot) { RefuseEach(OpenSession); }
TEST(AllocationFailuresTest, BlobsMoveOrNot) { RefuseEach(MoveBlob); }

}  // namespace
}  // namespace quantgate

int main(int argc, char** argv) {
  if (argc == 4 && argv[1] == std::string(quantgate::kServerOption)) {
    return quantgate::Serve(std::atoi(argv[2]), argv[3]);
  }
  if (argc == 3 && argv[1] == std::string(quantgate::kLoopOption)) {
    return quantgate::RunLoops(std::atoll(argv[2]));
  }
  ::signal(SIGPIPE, SIG_IGN);  // Of a server that has ended.
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
