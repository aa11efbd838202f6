// Where runs start: small ones on the thread that their request came on, one at a time, all others
// on the executor. Engines that let go of whoever asks for an arithmetic only when they are told
// show it: what starts while the whole executor waits for one does not start there.
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/execution.h"
#include "kernels/engine/forwarding_engine.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// Only a start in the wrong place lasts so long.
constexpr auto kTooLong = std::chrono::minutes(1);

/// Holds up whoever asks for an arithmetic that is closed.
class Gates {
 public:
  void Close(ArithmeticFamily family) {
    const std::lock_guard lock(mutex_);
    waiting_[family] = 0;
  }
  void Open(ArithmeticFamily family) {
    const std::lock_guard lock(mutex_);
    waiting_.erase(family);
    changed_.notify_all();
  }
  void Pass(ArithmeticFamily family) {
    std::unique_lock lock(mutex_);
    const auto gate = waiting_.find(family);
    if (gate == waiting_.end()) return;
    ++gate->second;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !waiting_.contains(family); });
  }
  /// Until so many wait at the closed gate; false where they do not come.
  bool AwaitWaiting(ArithmeticFamily family, int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kTooLong, [&] { return waiting_.at(family) == count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<ArithmeticFamily, int> waiting_;
};

class GatedEngine final : public ForwardingEngine {
 public:
  GatedEngine(std::unique_ptr<Engine> engine, Gates& gates)
      : ForwardingEngine(*engine), engine_(std::move(engine)), gates_(gates) {}

  absl::Status CheckArithmetic(const Arithmetic& arithmetic) const override {
    gates_.Pass(arithmetic.family);
    return engine_->CheckArithmetic(arithmetic);
  }

 private:
  const std::unique_ptr<Engine> engine_;
  Gates& gates_;
};

/// A run under way; `arithmetic` is what its start asks the engine for.
class RunningExecute {
 public:
  RunningExecute(TestServer& server, v1::RunSpec spec, const std::string& arithmetic) {
    v1::ExecuteRequest request;
    *spec.add_variants() = MakeVariant("fp8_current", "none", arithmetic);
    *request.mutable_spec() = std::move(spec);
    context_.set_deadline(std::chrono::system_clock::now() + kTooLong);
    reader_ = server.engine().Execute(&context_, request);
  }

  /// Waits for the first event; whether it came.
  bool HasStarted() { return reader_->Read(&event_); }
  grpc::Status Finish() {
    while (reader_->Read(&event_)) {
    }
    return reader_->Finish();
  }
  const std::string& run_id() const { return event_.run_id(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::RunEvent>> reader_;
  v1::RunEvent event_;
};

class RunStartTest : public ::testing::Test {
 protected:
  static constexpr ArithmeticFamily kOccupying = ArithmeticFamily::kFp32;

  ~RunStartTest() override {
    gates_.Open(kOccupying);
    gates_.Open(ArithmeticFamily::kExact);
  }

  /// Every thread of the executor waits, in a call of Gemm.
  void OccupyExecutor() {
    const int threads = std::max(2, AvailableCpus() / 2);
    gates_.Close(kOccupying);
    for (int i = 0; i < threads; ++i) {
      calls_.emplace_back([this] {
        v1::GemmRequest request;
        *request.mutable_a()->mutable_tensor() = Generated("normal", 1, "bf16", {16, 32});
        *request.mutable_b()->mutable_tensor() = Generated("normal", 2, "bf16", {16, 32});
        request.set_arithmetic("fp32");
        v1::GemmResponse response;
        grpc::ClientContext context;
        const grpc::Status status = server_.engine().Gemm(&context, request, &response);
        EXPECT_TRUE(status.ok()) << status.error_message();
      });
    }
    EXPECT_TRUE(gates_.AwaitWaiting(kOccupying, threads));
  }
  void FreeExecutor() {
    gates_.Open(kOccupying);
    calls_.clear();
  }

  /// Until the server has so many requests to execute.
  void AwaitReceived(int count) {
    const std::string series = R"(grpc_server_msg_received_total{grpc_method="Execute",)"
                               R"(grpc_service="quantgate.v1.Engine",grpc_type="server_stream"})";
    while (MetricValue(server_.HttpGet("/metrics"), series) < count) std::this_thread::yield();
  }

  /// Ids of all runs in the order in which they started.
  std::vector<std::string> StartedRuns() {
    v1::ListRunsResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(server_.engine().ListRuns(&context, {}, &response).ok());
    std::vector<std::string> ids;
    for (const v1::Run& run : response.runs()) ids.insert(ids.begin(), run.run_id());
    return ids;
  }

  Gates gates_;
  TestServer server_{[this](ServerOptions& options) {
    options.metrics_listen = "127.0.0.1:0";
    options.make_engines = [this] {
      std::vector<std::unique_ptr<Engine>> engines;
      engines.push_back(std::make_unique<GatedEngine>(MakeCpuEngine({}), gates_));
      return engines;
    };
  }};
  std::vector<std::jthread> calls_;
};

TEST_F(RunStartTest, SmallOnesDoNotWaitForTheExecutor) {
  OccupyExecutor();
  RunningExecute first(server_, LinearSpec(32, 48, 64), "sm90");
  EXPECT_TRUE(first.HasStarted());
  RunningExecute second(server_, LinearSpec(32, 48, 64), "sm90");
  EXPECT_TRUE(second.HasStarted());
  FreeExecutor();
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(second.Finish().ok());
}

TEST_F(RunStartTest, LargeOnesStartOnTheExecutor) {
  OccupyExecutor();
  v1::RunSpec spec = LinearSpec(16, 48, 4096);
  *spec.mutable_step()->mutable_x() =
      Inline("bf16", {16, 4096}, std::string(size_t{16} * 4096 * 2, '\0'));
  RunningExecute large(server_, spec, "sm90");
  AwaitReceived(1);
  // Waits for the executor too if the large one starts where it should start itself.
  RunningExecute small(server_, LinearSpec(32, 48, 64), "sm90");
  EXPECT_TRUE(small.HasStarted());
  FreeExecutor();
  EXPECT_TRUE(large.HasStarted());
  EXPECT_EQ(StartedRuns(), (std::vector{small.run_id(), large.run_id()}));
  EXPECT_TRUE(small.Finish().ok());
  EXPECT_TRUE(large.Finish().ok());
}

TEST_F(RunStartTest, WhileOneStartsOthersDoSoOnTheExecutor) {
  OccupyExecutor();
  gates_.Close(ArithmeticFamily::kExact);
  RunningExecute starting(server_, LinearSpec(32, 48, 64), "exact");
  ASSERT_TRUE(gates_.AwaitWaiting(ArithmeticFamily::kExact, 1));
  RunningExecute other(server_, LinearSpec(32, 48, 64), "sm90");
  AwaitReceived(2);
  gates_.Open(ArithmeticFamily::kExact);
  EXPECT_TRUE(starting.HasStarted());
  RunningExecute later(server_, LinearSpec(32, 48, 64), "sm90");
  EXPECT_TRUE(later.HasStarted());
  FreeExecutor();
  EXPECT_TRUE(other.HasStarted());
  EXPECT_EQ(StartedRuns(), (std::vector{starting.run_id(), later.run_id(), other.run_id()}));
  for (RunningExecute* run : {&starting, &other, &later}) EXPECT_TRUE(run->Finish().ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
