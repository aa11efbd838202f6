// Runs that end while the disk takes nothing: nobody is told of an end that is not stored, and none
// stays without one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/engine/forwarding_engine.h"
#include "tests/server/runs/run_outcome.h"
#include "tests/server/store/full_disk.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;
using ::testing::Not;

/// Holds up whoever passes while it is closed.
class Gate {
 public:
  void Set(bool is_open) {
    const std::lock_guard lock(mutex_);
    is_open_ = is_open;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
};

class GatedEngine final : public ForwardingEngine {
 public:
  GatedEngine(std::unique_ptr<Engine> engine, Gate& gate)
      : ForwardingEngine(*engine), engine_(std::move(engine)), gate_(gate) {}

 private:
  void OnOperation(const std::string& name) override {
    if (name == "StartGemm") gate_.Pass();
  }

  const std::unique_ptr<Engine> engine_;
  Gate& gate_;
};

class FullDiskTest : public ::testing::Test {
 protected:
  ~FullDiskTest() override { gate_.Set(true); }

  /// A run that was stored and ends on a full disk; what its stream heard.
  RunOutcome RunIntoFullDisk() {
    gate_.Set(false);
    grpc::ClientContext context;
    const auto reader = server_.engine().Execute(&context, SmallRequest());
    v1::RunEvent accepted;
    EXPECT_TRUE(reader->Read(&accepted));
    run_id_ = accepted.run_id();
    DatabaseDisk::is_full = true;
    gate_.Set(true);
    RunOutcome outcome = Drain(*reader);
    outcome.events.insert(outcome.events.begin(), accepted);
    return outcome;
  }
  RunOutcome WaitUntilStored() {
    RunOutcome outcome;
    do {
      outcome = Wait(server_, run_id_, 1);
    } while (outcome.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
    return outcome;
  }
  void ExpectOwed(const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(run_id_ + " has ended"));
    EXPECT_THAT(status.error_message(), HasSubstr("disk is full"));
    EXPECT_EQ(DetailOf(status).reason(), "disk");
    EXPECT_TRUE(DetailOf(status).has_retry_after());
  }

  DatabaseDisk disk_;
  Gate gate_;
  std::string run_id_;
  TestServer server_{[this](ServerOptions& options) {
    EnableHttp(options);
    options.queue_workers = 1;
    options.make_engines = [this]() -> absl::StatusOr<std::vector<std::unique_ptr<Engine>>> {
      std::vector<std::unique_ptr<Engine>> engines;
      engines.push_back(std::make_unique<GatedEngine>(MakeCpuEngine({}), gate_));
      return engines;
    };
  }};
};

TEST_F(FullDiskTest, ARunIsFailedOnceThereIsRoom) {
  const RunOutcome executed = RunIntoFullDisk();
  ExpectOwed(executed.status);
  // Nothing that is not stored is said to have ended, to whoever asks.
  ExpectOwed(Wait(server_, run_id_, 1).status);
  ExpectOwed(Wait(server_, run_id_, executed.events.back().sequence() + 1).status);
  const v1::Run owed = GetRun(server_, run_id_);
  EXPECT_EQ(owed.state(), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(owed.status_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(owed.status_message(), HasSubstr("cannot be stored"));
  std::string metrics = server_.HttpGet("/metrics");
  EXPECT_EQ(MetricValue(metrics, "quantgate_run_ends_owed"), 1);

  DatabaseDisk::is_full = false;
  const RunOutcome outcome = WaitUntilStored();
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.finished().state(), v1::RUN_STATE_FAILED);
  EXPECT_EQ(outcome.finished().status_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (size_t i = 0; i < outcome.events.size(); ++i) {
    EXPECT_EQ(outcome.events[i].sequence(), static_cast<int64_t>(i) + 1);
  }
  EXPECT_GT(outcome.events.back().sequence(), executed.events.back().sequence());
  metrics = server_.HttpGet("/metrics");
  EXPECT_EQ(MetricValue(metrics, "quantgate_run_ends_owed"), 0);
  EXPECT_EQ(MetricValue(metrics, "quantgate_store_corruption_total{what=\"event\"}"), 0);
  for (const bool again : {false, true}) {
    if (again) server_.Restart();
    const v1::Run run = GetRun(server_, run_id_);
    EXPECT_EQ(run.state(), v1::RUN_STATE_FAILED);
    EXPECT_EQ(run.status_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(run.last_sequence(), outcome.events.back().sequence());
  }
}

TEST_F(FullDiskTest, ARunIsFailedAtTheNextStart) {
  RunIntoFullDisk();
  server_.Stop();
  DatabaseDisk::is_full = false;
  server_.Restart();
  const v1::Run run = GetRun(server_, run_id_);
  EXPECT_EQ(run.state(), v1::RUN_STATE_FAILED);
  EXPECT_EQ(run.status_code(), grpc::StatusCode::ABORTED);
  EXPECT_TRUE(Wait(server_, run_id_, 1).status.ok());
}

// One that waits: of one under way an event may be lost first, and then it has failed.
TEST_F(FullDiskTest, ACancelledRunIsCancelledOnceThereIsRoom) {
  gate_.Set(false);
  grpc::ClientContext contexts[2];
  const auto first = server_.engine().Execute(&contexts[0], SmallRequest());
  v1::RunEvent event;
  ASSERT_TRUE(first->Read(&event));
  const auto second = server_.engine().Execute(&contexts[1], SmallRequest());
  ASSERT_TRUE(second->Read(&event));
  run_id_ = event.run_id();
  DatabaseDisk::is_full = true;
  v1::CancelRunRequest request;
  request.set_run_id(run_id_);
  v1::Run run;
  grpc::ClientContext cancel_context;
  EXPECT_TRUE(server_.engine().CancelRun(&cancel_context, request, &run).ok());
  ExpectOwed(Drain(*second).status);
  // Nothing is begun that could not be stored, and nobody is held up by what is owed.
  EXPECT_EQ(Execute(server_, SmallRequest()).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ListRuns(server_).size(), 2u);
  DatabaseDisk::is_full = false;
  gate_.Set(true);
  EXPECT_TRUE(Execute(server_, SmallRequest()).status.ok());
  EXPECT_EQ(WaitUntilStored().finished().state(), v1::RUN_STATE_CANCELLED);
  (void)Drain(*first);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
