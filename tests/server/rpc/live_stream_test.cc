// Streams that follow a run under way: its earlier events, which memory no longer has, come from
// the run store while the run goes on.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/comm/troubled_engine.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

using EventReader = std::unique_ptr<grpc::ClientReader<v1::RunEvent>>;

/// The first variant's event alone is larger; the small ones that are not stored yet are less.
constexpr size_t kEventBytes = 4096;

/// A server whose run gets behind its first variant when the test says so: the second one is on
/// ranks, which wait for that.
struct WaitingServer {
  absl::Notification release;
  TestServer server{[this](ServerOptions& options) {
    options.live_event_bytes_max = kEventBytes;
    options.rank_deadline = absl::Hours(1);
    options.wrap_engine = [this](Engine& engine, int) {
      return std::make_unique<TroubledEngine>(engine, [this](bool) {
        release.WaitForNotification();
        return absl::OkStatus();
      });
    };
  }};
};

/// Up to the event with the first variant, or all there are.
std::vector<std::string> EventsToFirstVariant(EventReader& reader, std::string* run_id) {
  std::vector<std::string> events;
  v1::RunEvent event;
  while (reader->Read(&event)) {
    events.push_back(event.SerializeAsString());
    *run_id = event.run_id();
    if (event.has_variant()) break;
  }
  return events;
}

TEST(LiveStreamTest, EarlierEventsComeFromTheStoreWhileTheRunGoesOn) {
  WaitingServer waiting;
  v1::ExecuteRequest request;
  v1::RunSpec& spec = *request.mutable_spec();
  spec = LinearSpec(64, 128, 128);
  spec.mutable_step()->mutable_layer()->set_parallel_mode("column");
  for (int i = 0; i < 2; ++i) *spec.add_variants() = MakeVariant("bf16", "none", "");
  spec.mutable_variants(1)->mutable_parallel()->set_tensor_parallel(2);
  grpc::ClientContext execute_context;
  EventReader execute = waiting.server.engine().Execute(&execute_context, request);
  std::string run_id;
  const std::vector<std::string> told = EventsToFirstVariant(execute, &run_id);
  ASSERT_GE(told.size(), 2u);
  ASSERT_GT(told.back().size(), kEventBytes);

  // Gone from memory, and the run has not ended.
  v1::WaitRunRequest from_start;
  from_start.set_run_id(run_id);
  from_start.set_from_sequence(1);
  grpc::ClientContext wait_context;
  // Whoever waits for a store that is never asked waits for ever.
  wait_context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  EventReader wait = waiting.server.engine().WaitRun(&wait_context, from_start);
  std::string same_run;
  EXPECT_TRUE(EventsToFirstVariant(wait, &same_run) == told);  // Bytes that nobody can read.
  EXPECT_EQ(same_run, run_id);
  EXPECT_FALSE(waiting.release.HasBeenNotified());

  waiting.release.Notify();
  v1::RunEvent event;
  for (EventReader* reader : {&wait, &execute}) {
    while ((*reader)->Read(&event)) {
    }
    const grpc::Status status = (*reader)->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(event.finished().state(), v1::RUN_STATE_SUCCEEDED)
        << event.finished().status_message();
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
