// A rank that does not return from its engine: the run's client has its typed error nevertheless,
// the server says that it serves no more, and nothing that the rank uses goes away under it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "tests/comm/troubled_engine.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Rank 1's first operation ends when the test says so.
struct StuckServer {
  absl::Notification release, told;
  std::string why;
  std::atomic<int> operations{0};
  TestServer server{[this](ServerOptions& options) {
    options.metrics_listen = "127.0.0.1:0";
    options.rank_deadline = absl::Milliseconds(200);
    options.wrap_engine = [this](Engine& engine, int rank) {
      return std::make_unique<TroubledEngine>(engine, [this, rank](bool) {
        if (rank == 1 && operations++ == 0) release.WaitForNotification();
        return absl::OkStatus();
      });
    };
    options.on_device_lost = [this](const absl::Status& status) {
      why = std::string(status.message());
      told.Notify();
    };
  }};

  grpc::Status Execute(v1::RunFinished& finished) {
    v1::ExecuteRequest request;
    v1::RunSpec& spec = *request.mutable_spec();
    spec = LinearSpec(32, 64, 64);
    spec.mutable_step()->mutable_layer()->set_parallel_mode("row");
    *spec.add_variants() = MakeVariant("bf16", "none", "");
    spec.mutable_variants(0)->mutable_parallel()->set_tensor_parallel(2);
    return ExecuteToEnd(server, request, finished);
  }
};

TEST(StuckRanksTest, TheRunIsAnsweredAndTheServerServesNoMore) {
  StuckServer stuck;
  EXPECT_EQ(HealthOf(stuck.server, ""), 1);
  v1::RunFinished finished;
  const grpc::Status status = stuck.Execute(finished);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(finished.state(), v1::RUN_STATE_FAILED);
  EXPECT_EQ(finished.status_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(finished.status_message(),
              AllOf(HasSubstr("rank 1 did not come within 200ms"),
                    HasSubstr("; rank 1 did not return from the engine within 200ms of that")));
  EXPECT_FALSE(finished.has_report());

  stuck.told.WaitForNotification();
  EXPECT_EQ(stuck.why, finished.status_message());
  EXPECT_EQ(HealthOf(stuck.server, ""), 2);
  const std::string metrics = stuck.server.HttpGet("/metrics");
  EXPECT_EQ(MetricValue(metrics, R"(quantgate_stuck_ranks_total{backend="local"})"), 1);
  EXPECT_EQ(MetricValue(metrics, R"(quantgate_stuck_ranks_total{backend="nccl"})"), 0);
  EXPECT_EQ(stuck.Execute(finished).error_code(), grpc::StatusCode::UNAVAILABLE);

  // Whoever ends the process need not wait for the rank; whoever ends the server does.
  EXPECT_FALSE(stuck.server.server().Shutdown(absl::ZeroDuration()));
  stuck.release.Notify();
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
