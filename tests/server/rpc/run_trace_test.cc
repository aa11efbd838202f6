// Sessions.RunTrace over a real channel: a trace is a run that streams, is attached to again,
// looked up and cancelled as others are, and gives what the same steps by Sessions.Step give.
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "quantgate/v1/sessions_service.grpc.pb.h"
#include "tests/server/runs/run_outcome.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;

constexpr int64_t kSize = 32;

/// One linear layer under these recipes: forward, backward, update.
v1::RunTraceRequest TraceRequest(const std::vector<std::string>& recipes, int rounds = 1) {
  v1::RunTraceRequest request;
  v1::SessionTrace& trace = *request.mutable_trace();
  v1::SessionLayer& layer = *trace.mutable_spec()->add_layers();
  layer.set_name("fc");
  layer.mutable_layer()->set_kind("linear");
  trace.mutable_spec()->set_masters("f32");
  trace.mutable_spec()->mutable_sgd()->set_learning_rate(0.5f);
  (*trace.mutable_parameters())["fc.weight"] = "w";
  for (const std::string& recipe : recipes) {
    trace.add_variants()->mutable_recipe()->set_name(recipe);
  }
  trace.add_steps()->mutable_forward();
  trace.mutable_steps(0)->set_x("x");
  trace.add_steps()->mutable_backward();
  trace.mutable_steps(1)->set_grad_output("dy");
  trace.add_steps()->mutable_optimize();
  trace.set_rounds(rounds);
  auto& tensors = *request.mutable_tensors();
  tensors["w"] = Generated("normal", 1, "bf16", {kSize, kSize});
  tensors["x"] = Generated("normal", 2, "bf16", {kSize, kSize});
  tensors["dy"] = Generated("normal", 3, "bf16", {kSize, kSize});
  return request;
}

class RunTraceTest : public testing::Test {
 protected:
  void Start(TestServer::Change change = {}) {
    server_ = std::make_unique<TestServer>(std::move(change));
    stub_ = v1::Sessions::NewStub(server_->channel());
  }
  RunOutcome Play(const v1::RunTraceRequest& request) {
    grpc::ClientContext context;
    const auto reader = stub_->RunTrace(&context, request);
    return Drain(*reader);
  }
  int OpenSessions() {
    grpc::ClientContext context;
    v1::ListSessionsResponse response;
    EXPECT_TRUE(stub_->List(&context, {}, &response).ok());
    return response.sessions_size();
  }

  std::unique_ptr<TestServer> server_;
  std::unique_ptr<v1::Sessions::Stub> stub_;
};

/// The fingerprints of all outputs of a session of this recipe after each of the trace's steps, by
/// Sessions.Open and Step; after an update that of the weight, by Sessions.Get.
std::vector<std::map<std::string, std::string>> StepByStep(v1::Sessions::Stub& stub,
                                                           const v1::RunTraceRequest& trace,
                                                           const std::string& recipe, int rounds) {
  v1::OpenSessionRequest open;
  *open.mutable_spec() = trace.trace().spec();
  open.mutable_spec()->mutable_recipe()->set_name(recipe);
  (*open.mutable_parameters())["fc.weight"] = trace.tensors().at("w");
  v1::Session session;
  {
    grpc::ClientContext context;
    const grpc::Status status = stub.Open(&context, open, &session);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  std::vector<std::map<std::string, std::string>> steps;
  for (int i = 0; i < 3 * rounds; ++i) {
    v1::SessionStepRequest request;
    request.set_session_id(session.session_id());
    request.set_expected_step(i);
    if (i % 3 == 0) *request.mutable_forward()->mutable_x() = trace.tensors().at("x");
    if (i % 3 == 1) *request.mutable_backward()->mutable_grad_output() = trace.tensors().at("dy");
    if (i % 3 == 2) request.mutable_optimize();
    v1::SessionStepResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub.Step(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    auto& step = steps.emplace_back();
    for (const v1::NamedTensor& output : response.outputs()) {
      step[output.name()] = output.fingerprint().SerializeAsString();
    }
    if (i % 3 != 2) continue;
    v1::GetSessionRequest get;
    get.set_session_id(session.session_id());
    get.set_tensor("fc.weight");
    grpc::ClientContext get_context;
    EXPECT_TRUE(stub.Get(&get_context, get, &session).ok());
    step["fc.weight"] = session.tensor().fingerprint().SerializeAsString();
  }
  v1::CloseSessionRequest close;
  close.set_session_id(session.session_id());
  grpc::ClientContext context;
  EXPECT_TRUE(stub.Close(&context, close, &session).ok());
  return steps;
}

TEST_F(RunTraceTest, GivesWhatTheSameStepsGive) {
  Start();
  const std::vector<std::string> recipes = {"bf16", "fp8_delayed"};
  const v1::RunTraceRequest request = TraceRequest(recipes, 2);
  const RunOutcome outcome = Play(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_EQ(outcome.finished().state(), v1::RUN_STATE_SUCCEEDED)
      << outcome.finished().status_message();
  EXPECT_EQ(outcome.finished().report().trace().step_count(), 6);
  EXPECT_EQ(OpenSessions(), 0);
  int compared = 0;
  for (int variant = 0; variant < 2; ++variant) {
    const auto steps = StepByStep(*stub_, request, recipes[static_cast<size_t>(variant)], 2);
    for (const v1::RunEvent& event : outcome.events) {
      const v1::TraceStep& step = event.trace_step();
      if (!event.has_trace_step() || step.variant() != variant) continue;
      const auto& expected = steps[static_cast<size_t>(step.step()) - 1];
      EXPECT_EQ(static_cast<size_t>(step.outputs_size()), expected.size());
      for (const v1::NamedTensor& output : step.outputs()) {
        EXPECT_EQ(output.fingerprint().SerializeAsString(), expected.at(output.name()))
            << recipes[static_cast<size_t>(variant)] << " " << step.step() << " " << output.name();
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 2 * 2 * (1 + 2 + 1));  // y; dx and dw; the weight.
}

TEST_F(RunTraceTest, IsARunThatCanBeLookedUpAndStreamedAgain) {
  Start();
  v1::RunTraceRequest request = TraceRequest({"bf16", "mxfp8"}, 3);
  request.set_request_id("once");
  const RunOutcome first = Play(request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  ASSERT_EQ(first.events.size(), 1u + 1 + 3 * 3 * 2 + 1);
  for (size_t i = 0; i < first.events.size(); ++i) {
    EXPECT_EQ(first.events[i].sequence(), static_cast<int64_t>(i) + 1);
  }
  EXPECT_TRUE(first.events[0].has_accepted());
  EXPECT_TRUE(first.events[1].has_trace());
  const std::string run_id = first.events[0].run_id();
  // By WaitRun from any event on, and by the same request.
  const auto expect_from = [&](const RunOutcome& again, size_t from) {
    ASSERT_TRUE(again.status.ok()) << again.status.error_message();
    ASSERT_EQ(again.events.size(), first.events.size() - from);
    for (size_t i = from; i < first.events.size(); ++i) {
      EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(again.events[i - from],
                                                                     first.events[i]))
          << "event " << i;
    }
  };
  expect_from(Wait(*server_, run_id, 1), 0);
  expect_from(Wait(*server_, run_id, 7), 6);
  expect_from(Play(request), 0);
  server_->Restart();
  stub_ = v1::Sessions::NewStub(server_->channel());
  expect_from(Wait(*server_, run_id, 1), 0);

  const v1::Run run = GetRun(*server_, run_id);
  EXPECT_EQ(run.state(), v1::RUN_STATE_SUCCEEDED);
  EXPECT_EQ(run.summary(), "trace of 9 steps x 2 variants");
  EXPECT_EQ(run.report().trace().compared_count(), 3 * (1 + 2 + 1));
  EXPECT_EQ(run.report().run_id(), run_id);
  ASSERT_EQ(ListRuns(*server_).size(), 1u);
  // Another content under the same id.
  request.mutable_trace()->set_rounds(2);
  EXPECT_EQ(Play(request).status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(RunTraceTest, GoesOnWithoutItsStreamAndIsAttachedToAgain) {
  Start();
  v1::RunTraceRequest request = TraceRequest({"bf16", "mxfp8"}, 200);
  std::vector<v1::RunEvent> events;
  {
    grpc::ClientContext context;
    const auto reader = stub_->RunTrace(&context, request);
    v1::RunEvent event;
    while (events.size() < 20 && reader->Read(&event)) events.push_back(event);
    context.TryCancel();
    EXPECT_EQ(Drain(*reader).status.error_code(), grpc::StatusCode::CANCELLED);
  }
  ASSERT_EQ(events.size(), 20u);
  const RunOutcome rest = Wait(*server_, events[0].run_id(), 21);
  ASSERT_TRUE(rest.status.ok()) << rest.status.error_message();
  events.insert(events.end(), rest.events.begin(), rest.events.end());
  ASSERT_EQ(events.size(), 1u + 1 + 3 * 200 * 2 + 1);
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].sequence(), static_cast<int64_t>(i) + 1);
  }
  EXPECT_EQ(events.back().finished().state(), v1::RUN_STATE_SUCCEEDED);
}

/// 50000 steps, of which a test never waits for the last.
v1::RunTraceRequest LongRequest() { return TraceRequest({"bf16", "mxfp8"}, 16666); }

TEST_F(RunTraceTest, IsCancelledMidway) {
  Start();
  grpc::ClientContext context;
  const auto reader = stub_->RunTrace(&context, LongRequest());
  v1::RunEvent event;
  while (reader->Read(&event) && !event.has_trace_step()) continue;
  ASSERT_TRUE(event.has_trace_step());
  v1::CancelRunRequest cancel;
  cancel.set_run_id(event.run_id());
  v1::Run run;
  grpc::ClientContext cancel_context;
  ASSERT_TRUE(server_->engine().CancelRun(&cancel_context, cancel, &run).ok());
  const RunOutcome rest = Drain(*reader);
  EXPECT_EQ(rest.finished().state(), v1::RUN_STATE_CANCELLED);
  EXPECT_EQ(rest.finished().status_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(OpenSessions(), 0);
  // And where the client asked for that, by going.
  v1::RunTraceRequest request = LongRequest();
  request.set_cancel_on_disconnect(true);
  std::string run_id;
  {
    grpc::ClientContext other_context;
    const auto other = stub_->RunTrace(&other_context, request);
    v1::RunEvent of_other;
    while (other->Read(&of_other) && !of_other.has_trace_step()) continue;
    ASSERT_TRUE(of_other.has_trace_step());
    run_id = of_other.run_id();
    other_context.TryCancel();
    (void)Drain(*other);
  }
  EXPECT_EQ(Wait(*server_, run_id, 0).finished().state(), v1::RUN_STATE_CANCELLED);
}

// Whoever learns that a trace was cancelled in its queue finds its places free.
TEST_F(RunTraceTest, CancelledInItsQueueItGivesItsPlacesBack) {
  Start([](ServerOptions& options) { options.sessions.sessions_max = 2; });
  grpc::ClientContext running_context;
  v1::ExecuteRequest endless = EndlessRequest();
  endless.set_cancel_on_disconnect(true);
  const auto running = server_->engine().Execute(&running_context, endless);
  (void)ReadUntilProgress(*running);
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext context;
    const auto waiting = stub_->RunTrace(&context, TraceRequest({"bf16", "mxfp8"}));
    v1::RunEvent event;
    ASSERT_TRUE(waiting->Read(&event)) << waiting->Finish().error_message();
    v1::CancelRunRequest cancel;
    cancel.set_run_id(event.run_id());
    v1::Run run;
    grpc::ClientContext cancel_context;
    ASSERT_TRUE(server_->engine().CancelRun(&cancel_context, cancel, &run).ok());
    EXPECT_EQ(Drain(*waiting).finished().state(), v1::RUN_STATE_CANCELLED);
  }
  running_context.TryCancel();
  (void)Drain(*running);
}

TEST_F(RunTraceTest, OthersSeeItsSessionsAndLeaveThemAlone) {
  Start();
  grpc::ClientContext context;
  const auto reader = stub_->RunTrace(&context, LongRequest());
  v1::RunEvent event;
  while (reader->Read(&event) && !event.has_trace_step()) continue;
  ASSERT_TRUE(event.has_trace_step());
  v1::ListSessionsResponse listed;
  grpc::ClientContext list_context;
  ASSERT_TRUE(stub_->List(&list_context, {}, &listed).ok());
  ASSERT_EQ(listed.sessions_size(), 2);
  EXPECT_EQ(listed.sessions(0).run_id(), event.run_id());
  v1::CloseSessionRequest close;
  close.set_session_id(listed.sessions(0).session_id());
  v1::Session session;
  grpc::ClientContext close_context;
  const grpc::Status refused = stub_->Close(&close_context, close, &session);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailOf(refused).field(), "session_id");
  EXPECT_THAT(refused.error_message(), HasSubstr("is of the trace " + event.run_id()));
  v1::GetSessionRequest get;
  get.set_session_id(listed.sessions(0).session_id());
  grpc::ClientContext get_context;
  const grpc::Status got = stub_->Get(&get_context, get, &session);
  EXPECT_TRUE(got.ok()) << got.error_message();
  EXPECT_EQ(session.run_id(), event.run_id());
  EXPECT_EQ(session.session_id(), get.session_id());
  EXPECT_GT(session.spec().layers_size(), 0);
  get.set_with_tensors(true);
  grpc::ClientContext tensors_context;
  const grpc::Status tensors = stub_->Get(&tensors_context, get, &session);
  EXPECT_EQ(tensors.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailOf(tensors).field(), "with_tensors");
  v1::CancelRunRequest cancel;
  cancel.set_run_id(event.run_id());
  v1::Run run;
  grpc::ClientContext cancel_context;
  ASSERT_TRUE(server_->engine().CancelRun(&cancel_context, cancel, &run).ok());
  (void)Drain(*reader);
}

TEST_F(RunTraceTest, MistakesAreRefusedAndNoRunIsKept) {
  Start();
  v1::RunTraceRequest request = TraceRequest({"bf16", "mxfp8"});
  request.mutable_trace()->mutable_steps(1)->mutable_backward()->set_microbatch("other");
  const RunOutcome outcome = Play(request);
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailOf(outcome.status).field(), "trace.steps[1].backward.microbatch");
  EXPECT_TRUE(outcome.events.empty());
  EXPECT_TRUE(ListRuns(*server_).empty());
  // An id that names no blob: nothing is opened.
  request = TraceRequest({"bf16"});
  v1::StoredTensor& stored = *(*request.mutable_tensors())["x"].mutable_stored();
  *stored.mutable_digest() = DigestFor("not uploaded");
  stored.mutable_type()->set_dtype("u8");
  stored.mutable_type()->add_shape(12);
  const RunOutcome missing = Play(request);
  EXPECT_EQ(missing.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailOf(missing.status).missing_size(), 1);
}

// What only values can tell ends the run with the step's status: a checkpoint's ranks.
TEST_F(RunTraceTest, AStepThatFailsEndsTheRun) {
  Start();
  v1::RunTraceRequest request = TraceRequest({"bf16", "bf16"});
  v1::SessionTrace::Restart& restart = *request.mutable_trace()->add_steps()->mutable_restart();
  restart.add_variants(1);
  restart.mutable_parallel()->set_tensor_parallel(3);
  request.mutable_trace()->mutable_spec()->mutable_layers(0)->mutable_layer()->set_parallel_mode(
      "column");
  const RunOutcome outcome = Play(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.finished().state(), v1::RUN_STATE_FAILED);
  EXPECT_THAT(outcome.finished().status_message(),
              HasSubstr("bf16 / none / auto, step 4 (restart): "));
  EXPECT_THAT(outcome.finished().status_message(), HasSubstr("must be a multiple of 3"));
  EXPECT_EQ(OpenSessions(), 0);
}

TEST_F(RunTraceTest, IsCountedAsARunAndAsACall) {
  Start(EnableHttp);
  ASSERT_EQ(Play(TraceRequest({"bf16", "mxfp8"})).finished().state(), v1::RUN_STATE_SUCCEEDED);
  const std::string text = server_->HttpGet("/metrics");
  EXPECT_EQ(MetricValue(text, R"(quantgate_run_total{mode="none",op="trace",outcome="ok",)"
                              R"(recipe="mxfp8"})"),
            1);
  EXPECT_EQ(MetricValue(text, R"(grpc_server_started_total{grpc_method="RunTrace",)"
                              R"(grpc_service="quantgate.v1.Sessions",grpc_type="server_stream"})"),
            1);
}

TEST_F(RunTraceTest, TheLimitIsToldAndKept) {
  Start();
  v1::Capabilities capabilities;
  grpc::ClientContext context;
  ASSERT_TRUE(server_->info().GetCapabilities(&context, {}, &capabilities).ok());
  EXPECT_EQ(capabilities.limits().trace_steps_max(), 100000);
  const RunOutcome outcome = Play(TraceRequest({"bf16", "mxfp8"}, 16667));
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailOf(outcome.status).field(), "trace.rounds");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
