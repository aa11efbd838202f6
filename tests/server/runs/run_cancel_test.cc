// Runs that end before they are done, or do not begin: cancelled, waiting, left by their clients,
// out of time, too many.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/server/runs/run_outcome.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;

TEST(RunTest, CancelTakesEffectAndIsNoErrorLater) {
  TestServer server;
  grpc::ClientContext context;
  const auto reader = server.engine().Execute(&context, EndlessRequest());
  v1::RunEvent event = ReadUntilProgress(*reader);
  v1::CancelRunRequest cancel;
  cancel.set_run_id(event.run_id());
  v1::Run run;
  grpc::ClientContext cancel_context;
  ASSERT_TRUE(server.engine().CancelRun(&cancel_context, cancel, &run).ok());
  const RunOutcome rest = Drain(*reader);
  EXPECT_TRUE(rest.status.ok());
  EXPECT_EQ(rest.finished().state(), v1::RUN_STATE_CANCELLED);
  EXPECT_EQ(rest.finished().status_code(), grpc::StatusCode::CANCELLED);
  grpc::ClientContext again_context;
  EXPECT_TRUE(server.engine().CancelRun(&again_context, cancel, &run).ok());
  EXPECT_EQ(run.state(), v1::RUN_STATE_CANCELLED);
  cancel.set_run_id("run-unknown");
  grpc::ClientContext unknown_context;
  EXPECT_EQ(server.engine().CancelRun(&unknown_context, cancel, &run).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST(RunTest, AServerThatEndsItSaysSo) {
  TestServer server;
  grpc::ClientContext running_context, waiting_context;
  const auto running = server.engine().Execute(&running_context, EndlessRequest());
  const std::string running_id = ReadUntilProgress(*running).run_id();
  const auto waiting = server.engine().Execute(&waiting_context, SmallRequest());
  v1::RunEvent event;
  ASSERT_TRUE(waiting->Read(&event));
  const std::string waiting_id = event.run_id();
  server.server().Shutdown(absl::ZeroDuration());
  // Whether the streams still bring the end depends on their connection.
  (void)Drain(*running);
  (void)Drain(*waiting);
  server.Restart();
  for (const std::string& id : {running_id, waiting_id}) {
    const v1::Run run = GetRun(server, id);
    EXPECT_EQ(run.state(), v1::RUN_STATE_CANCELLED) << id;
    EXPECT_EQ(run.status_code(), grpc::StatusCode::UNAVAILABLE) << id;
    EXPECT_THAT(run.status_message(), HasSubstr("the server is shutting down")) << id;
  }
}

TEST(RunTest, CancelReachesARunThatWaits) {
  TestServer server;
  grpc::ClientContext first_context, second_context;
  const auto first = server.engine().Execute(&first_context, EndlessRequest());
  v1::RunEvent event = ReadUntilProgress(*first);
  const std::string first_id = event.run_id();
  const auto second = server.engine().Execute(&second_context, SmallRequest());
  ASSERT_TRUE(second->Read(&event));
  EXPECT_EQ(event.accepted().queue_position(), 1);
  v1::CancelRunRequest cancel;
  v1::Run run;
  cancel.set_run_id(event.run_id());
  grpc::ClientContext context;
  ASSERT_TRUE(server.engine().CancelRun(&context, cancel, &run).ok());
  // It ends although the first one still runs.
  EXPECT_EQ(Drain(*second).finished().state(), v1::RUN_STATE_CANCELLED);
  EXPECT_EQ(GetRun(server, first_id).state(), v1::RUN_STATE_RUNNING);
  const std::vector<v1::Run> listed = ListRuns(server);
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].state(), v1::RUN_STATE_CANCELLED);
  EXPECT_EQ(listed[1].state(), v1::RUN_STATE_RUNNING);
  first_context.TryCancel();
  (void)Drain(*first);
}

TEST(RunTest, RunOutlivesItsStreamUnlessAsked) {
  TestServer server;
  std::string run_id;
  {
    grpc::ClientContext context;
    const auto reader = server.engine().Execute(&context, SmallRequest());
    v1::RunEvent event;
    ASSERT_TRUE(reader->Read(&event));
    run_id = event.run_id();
    context.TryCancel();
    EXPECT_EQ(Drain(*reader).status.error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_EQ(Wait(server, run_id, 0).finished().state(), v1::RUN_STATE_SUCCEEDED);

  v1::ExecuteRequest request = EndlessRequest();
  request.set_cancel_on_disconnect(true);
  {
    grpc::ClientContext context;
    const auto reader = server.engine().Execute(&context, request);
    v1::RunEvent event;
    ASSERT_TRUE(reader->Read(&event));
    run_id = event.run_id();
    context.TryCancel();
    (void)Drain(*reader);
  }
  EXPECT_EQ(Wait(server, run_id, 0).finished().state(), v1::RUN_STATE_CANCELLED);
}

TEST(RunTest, DeadlineEndsTheStreamAndWithItTheRun) {
  TestServer server;
  v1::ExecuteRequest request = EndlessRequest();
  request.set_cancel_on_disconnect(true);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  const auto reader = server.engine().Execute(&context, request);
  v1::RunEvent event;
  ASSERT_TRUE(reader->Read(&event));
  const std::string run_id = event.run_id();
  EXPECT_EQ(Drain(*reader).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  const RunOutcome run = Wait(server, run_id, 0);
  EXPECT_EQ(run.finished().state(), v1::RUN_STATE_CANCELLED);
}

TEST(RunTest, FullQueueIsResourceExhaustedAndSaysWhenToRetry) {
  TestServer server([](ServerOptions& options) { options.queue_capacity = 1; });
  grpc::ClientContext running_context, waiting_context;
  v1::ExecuteRequest endless = EndlessRequest();
  endless.set_cancel_on_disconnect(true);
  const auto running = server.engine().Execute(&running_context, endless);
  v1::RunEvent event = ReadUntilProgress(*running);
  const auto waiting = server.engine().Execute(&waiting_context, endless);
  ASSERT_TRUE(waiting->Read(&event));
  const RunOutcome refused = Execute(server, SmallRequest());
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailOf(refused.status).reason(), "queue_full");
  EXPECT_GT(DetailOf(refused.status).retry_after().seconds(), 0);
  EXPECT_TRUE(refused.events.empty());
  running_context.TryCancel();
  waiting_context.TryCancel();
  (void)Drain(*running);
  (void)Drain(*waiting);
}

TEST(RunTest, ARunWhoseOutputsCannotBeStoredFails) {
  TestServer server;
  // Where large events go.
  std::filesystem::remove_all(server.data_dir() + "/data/quantgate.db-files");
  v1::ExecuteRequest request;
  *request.mutable_spec() = LinearSpec(256, 256, 256);
  *request.mutable_spec()->add_variants() = MakeVariant("fp8_current", "none", "auto");
  request.set_stream_outputs(true);
  const RunOutcome run = Execute(server, request);
  ASSERT_TRUE(run.status.ok()) << run.status.error_message();
  EXPECT_EQ(run.finished().state(), v1::RUN_STATE_FAILED);
  EXPECT_THAT(run.finished().status_message(), HasSubstr("creating a file"));
  EXPECT_EQ(GetRun(server, run.events[0].run_id()).state(), v1::RUN_STATE_FAILED);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
