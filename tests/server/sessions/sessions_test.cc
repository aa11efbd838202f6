// Sessions over a real channel: steps and what they return, order, idempotence, two clients of one
// session, limits, leases, checkpoints across servers, metrics and shutting down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quantgate/v1/sessions_service.grpc.pb.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t kSize = 32;

v1::OpenSessionRequest OpenRequest(const std::string& recipe = "fp8_delayed") {
  v1::OpenSessionRequest request;
  v1::SessionSpec& spec = *request.mutable_spec();
  for (const char* name : {"fc1", "fc2"}) {
    v1::SessionLayer& layer = *spec.add_layers();
    layer.set_name(name);
    layer.mutable_layer()->set_kind("linear");
    (*request.mutable_parameters())[std::string(name) + ".weight"] =
        Generated("normal", name[2], "bf16", {kSize, kSize});
  }
  spec.mutable_recipe()->set_name(recipe);
  spec.set_masters("f32");
  spec.mutable_sgd()->set_learning_rate(0.1f);
  spec.set_seed(5);
  return request;
}

int64_t BytesOfSpec(const v1::OpenSessionRequest& request) {
  return static_cast<int64_t>(request.spec().ByteSizeLong());
}

v1::SessionStepRequest ForwardRequest(const std::string& id, int64_t step) {
  v1::SessionStepRequest request;
  request.set_session_id(id);
  request.set_expected_step(step);
  *request.mutable_forward()->mutable_x() = Generated("normal", 1, "bf16", {kSize, kSize});
  return request;
}

v1::SessionStepRequest BackwardRequest(const std::string& id, int64_t step) {
  v1::SessionStepRequest request;
  request.set_session_id(id);
  request.set_expected_step(step);
  *request.mutable_backward()->mutable_grad_output() =
      Generated("normal", 2, "bf16", {kSize, kSize});
  return request;
}

v1::SessionStepRequest OptimizeRequest(const std::string& id, int64_t step) {
  v1::SessionStepRequest request;
  request.set_session_id(id);
  request.set_expected_step(step);
  request.mutable_optimize();
  return request;
}

void EnableHttp(ServerOptions& options) { options.metrics_listen = "127.0.0.1:0"; }

class SessionsTest : public testing::Test {
 protected:
  void Start(TestServer::Change change = {}) {
    stub_.reset();
    server_.reset();
    server_ = std::make_unique<TestServer>(std::move(change));
    stub_ = v1::Sessions::NewStub(server_->channel());
  }
  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (v1::Sessions::Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Response*),
                    const Request& request, Response& response) {
    grpc::ClientContext context;
    return (*stub_.*method)(&context, request, &response);
  }
  grpc::Status Step(const v1::SessionStepRequest& request, v1::SessionStepResponse& response) {
    return Call(&v1::Sessions::Stub::Step, request, response);
  }
  grpc::Status Step(const v1::SessionStepRequest& request) {
    v1::SessionStepResponse response;
    return Step(request, response);
  }
  v1::Session Open(const v1::OpenSessionRequest& request = OpenRequest()) {
    v1::Session session;
    const grpc::Status status = Call(&v1::Sessions::Stub::Open, request, session);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return session;
  }
  v1::Session Get(const std::string& id, bool with_tensors = false) {
    v1::GetSessionRequest request;
    request.set_session_id(id);
    request.set_with_tensors(with_tensors);
    v1::Session session;
    const grpc::Status status = Call(&v1::Sessions::Stub::Get, request, session);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return session;
  }
  std::map<std::string, std::string> DigestsOf(const std::string& id) {
    std::map<std::string, std::string> digests;
    const v1::Session session = Get(id, true);
    for (const v1::StateTensor& tensor : session.tensors()) {
      digests[tensor.name()] = tensor.fingerprint().SerializeAsString();
    }
    return digests;
  }
  /// Forward, backward and update from `step` on.
  void Train(const std::string& id, int64_t step) {
    for (const auto& request :
         {ForwardRequest(id, step), BackwardRequest(id, step + 1), OptimizeRequest(id, step + 2)}) {
      const grpc::Status status = Step(request);
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
  }

  std::unique_ptr<TestServer> server_;
  std::unique_ptr<v1::Sessions::Stub> stub_;
};

v1::SessionStepRequest ChangeRequest(const std::string& id, int64_t step,
                                     const std::string& recipe) {
  v1::SessionStepRequest request;
  request.set_session_id(id);
  request.set_expected_step(step);
  request.set_request_id("change");
  request.mutable_change_recipe()->mutable_recipe()->set_name(recipe);
  return request;
}

// The mode that a session was opened with is not lost with a recipe that does not name one.
TEST_F(SessionsTest, AChangeOfRecipeKeepsTheModeOrSaysWhatItIs) {
  Start();
  v1::OpenSessionRequest open = OpenRequest("mxfp8");
  open.mutable_spec()->set_backward_override("dequantized");
  const v1::Session session = Open(open);
  const auto mode = [&] {
    return Get(session.session_id()).spec().recipe().knobs().at("backward_override");
  };
  v1::SessionStepRequest change = ChangeRequest(session.session_id(), 0, "mxfp8");
  (*change.mutable_change_recipe()->mutable_recipe()->mutable_knobs())["fp8_format"] = "hybrid";
  v1::SessionStepResponse response;
  ASSERT_TRUE(Step(change, response).ok());
  EXPECT_EQ(response.backward_override(), "dequantized");
  EXPECT_EQ(response.notes_size(), 0);
  EXPECT_EQ(mode(), "dequantized");

  // Delayed scaling has none to keep.
  change = ChangeRequest(session.session_id(), 1, "fp8_delayed");
  change.set_request_id("another-change");
  grpc::Status status = Step(change, response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailOf(status).field(), "change_recipe.backward_override");
  EXPECT_THAT(status.error_message(), HasSubstr("the session's, dequantized, stays"));
  change.mutable_change_recipe()->set_backward_override("dequantized");
  status = Step(change, response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("no backward override"));
  EXPECT_EQ(Get(session.session_id()).step(), 1);
  EXPECT_EQ(mode(), "dequantized");

  // Neither refusal has taken the request id.
  change.mutable_change_recipe()->set_backward_override("none");
  status = Step(change, response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.backward_override(), "none");
  ASSERT_EQ(response.notes_size(), 1);
  EXPECT_EQ(response.notes(0), "backward_override: none from now on; it was dequantized");
  EXPECT_TRUE(Step(ForwardRequest(session.session_id(), 2)).ok());
}

// A mode that is given as a knob of the recipe, or as a field of the change, is what follows, and
// is said where it is another; one that is given as neither stays.
TEST_F(SessionsTest, AModeOfAChangeOfRecipeIsKeptOrSaidHoweverItIsGiven) {
  Start();
  v1::OpenSessionRequest open = OpenRequest("mxfp8");
  // By a knob of the recipe that the session is opened with.
  (*open.mutable_spec()->mutable_recipe()->mutable_knobs())["backward_override"] = "dequantized";
  const v1::Session session = Open(open);
  struct Change {
    std::string knob, field, mode, note;
  };
  const Change changes[] = {
      {"", "", "dequantized", ""},
      {"high_precision", "", "high_precision",
       "backward_override: high_precision from now on; it was dequantized"},
      {"", "", "high_precision", ""},
      {"", "none", "none", "backward_override: none from now on; it was high_precision"},
      {"", "dequantized", "dequantized", "backward_override: dequantized from now on; it was none"},
      // The default, given by name, is not the session's.
      {"none", "", "none", "backward_override: none from now on; it was dequantized"},
  };
  int64_t step = 0;
  for (const Change& change : changes) {
    SCOPED_TRACE(change.note + " at step " + std::to_string(step));
    v1::SessionStepRequest request =
        ChangeRequest(session.session_id(), step, step % 2 == 0 ? "fp8_block" : "mxfp8");
    request.set_request_id("change-" + std::to_string(step++));
    v1::SessionStepRequest::ChangeRecipe& asked = *request.mutable_change_recipe();
    if (!change.knob.empty()) {
      (*asked.mutable_recipe()->mutable_knobs())["backward_override"] = change.knob;
    }
    asked.set_backward_override(change.field);
    v1::SessionStepResponse response;
    const grpc::Status status = Step(request, response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.backward_override(), change.mode);
    const std::vector<std::string> notes(response.notes().begin(), response.notes().end());
    EXPECT_EQ(notes, change.note.empty() ? std::vector<std::string>()
                                         : std::vector<std::string>{change.note});
    EXPECT_EQ(Get(session.session_id()).spec().recipe().knobs().at("backward_override"),
              change.mode);
  }
}

v1::Recipe RulesOf(const std::string& rules) {
  v1::Recipe recipe;
  recipe.set_name("custom");
  (*recipe.mutable_knobs())["rules"] = rules;
  return recipe;
}

// Open, Get and a change of recipe say which rules no module of the session has.
TEST_F(SessionsTest, RulesThatDecideNothingAreSaid) {
  Start();
  v1::OpenSessionRequest open = OpenRequest("mxfp8");
  const std::string layer = open.spec().layers(0).name();
  *open.mutable_spec()->mutable_recipe() =
      RulesOf(R"([{"layer_name":")" + layer +
              R"(","quantizer":"mxfp8"},)"
              R"({"layer_name":"elsewhere","quantizer":"nvfp4"},{"quantizer":"mxfp8"}])");
  const v1::Session session = Open(open);
  ASSERT_EQ(session.notes_size(), 1);
  EXPECT_EQ(session.notes(0),
            R"(rules[1] of the recipe, {"layer_name":"elsewhere","quantizer":"nvfp4"}, )"
            "fits no module of the session");
  EXPECT_EQ(Get(session.session_id()).notes(0), session.notes(0));
  v1::SessionStepRequest change = ChangeRequest(session.session_id(), 0, "custom");
  *change.mutable_change_recipe()->mutable_recipe() =
      RulesOf(R"([{"quantizer":"mxfp8"},{"tensor_type":"weight","quantizer":"bf16"}])");
  v1::SessionStepResponse response;
  ASSERT_TRUE(Step(change, response).ok());
  ASSERT_EQ(response.notes_size(), 1);
  EXPECT_THAT(response.notes(0), HasSubstr("rules[1] of the recipe"));
  EXPECT_THAT(response.notes(0), HasSubstr("rules before it fit all that it fits"));
  change = ChangeRequest(session.session_id(), 1, "mxfp8");
  change.set_request_id("no-rules");
  ASSERT_TRUE(Step(change, response).ok());
  EXPECT_EQ(response.notes_size(), 0);
}

// Both are refused with their own field before a session, a step or a request id is taken.
TEST_F(SessionsTest, OpenRefusesWhatNoForwardTakes) {
  Start();
  v1::OpenSessionRequest open = OpenRequest("mxfp8");
  open.mutable_spec()->set_arithmetic("sm90");
  open.set_request_id("once");
  v1::Session session;
  const grpc::Status status = Call(&v1::Sessions::Stub::Open, open, session);
  EXPECT_EQ(DetailOf(status).field(), "spec.recipe");
  EXPECT_THAT(status.error_message(), HasSubstr("no forward and backward could follow"));
  EXPECT_THAT(status.error_message(), HasSubstr("sm90"));
  open.mutable_spec()->set_arithmetic("sm100");
  EXPECT_TRUE(Call(&v1::Sessions::Stub::Open, open, session).ok());
}

TEST_F(SessionsTest, TrainsAndSaysWhatEachStepDid) {
  Start();
  const v1::Session opened = Open();
  EXPECT_EQ(opened.state(), "open");
  EXPECT_EQ(opened.step(), 0);
  EXPECT_EQ(opened.device(), "cpu");
  EXPECT_EQ(opened.spec().layers_size(), 2);
  // bf16 weights and f32 masters, and what was asked for.
  EXPECT_EQ(opened.bytes(), 2 * kSize * kSize * (2 + 4) + BytesOfSpec(OpenRequest()));

  v1::SessionStepResponse forward;
  ASSERT_TRUE(Step(ForwardRequest(opened.session_id(), 0), forward).ok());
  EXPECT_EQ(forward.step(), 1);
  ASSERT_EQ(forward.outputs_size(), 1);
  EXPECT_EQ(forward.outputs(0).name(), "y");
  EXPECT_EQ(forward.outputs(0).data().size(), static_cast<size_t>(kSize * kSize * 2));
  ASSERT_EQ(forward.gemms_size(), 2);
  EXPECT_EQ(forward.gemms(0).role(), "fprop");
  ASSERT_EQ(forward.quantizations_size(), 4);
  EXPECT_EQ(forward.quantizations(3).tensor(), "fc2.weight");
  // Of both layers x columnwise and the weight in both directions, a byte each, and one f32 scale.
  const int64_t saved = 2 * (kSize * kSize + 4 + 2 * kSize * kSize + 4);
  EXPECT_EQ(forward.memory().saved_bytes(), saved);
  EXPECT_EQ(forward.memory().scale_bytes(), 16);
  EXPECT_EQ(forward.memory().added_bytes(), saved);
  ASSERT_EQ(forward.memory().operands_size(), 4);
  const v1::SessionOperand& weight = forward.memory().operands(3);
  EXPECT_EQ(weight.microbatch() + " " + weight.layer() + " " + weight.operand(), "0 fc2 weight");
  EXPECT_EQ(weight.format() + " " + weight.place(), "fp8_tensor device");
  EXPECT_EQ(weight.counted_bytes(), 2 * kSize * kSize + 4);
  const v1::Session now = Get(opened.session_id());
  EXPECT_EQ(now.microbatches_size(), 1);
  EXPECT_EQ(now.memory().SerializeAsString(), forward.memory().SerializeAsString());

  v1::SessionStepResponse backward;
  v1::SessionStepRequest request = BackwardRequest(opened.session_id(), 1);
  request.set_keep_outputs(true);
  ASSERT_TRUE(Step(request, backward).ok());
  ASSERT_EQ(backward.outputs_size(), 3);
  EXPECT_EQ(backward.outputs(0).name(), "dx");
  EXPECT_TRUE(backward.outputs(0).has_digest());
  EXPECT_EQ(backward.memory().saved_bytes(), 0);
  EXPECT_EQ(backward.memory().peak_bytes(), saved);
  EXPECT_EQ(backward.memory().peak_step(), 1);
  EXPECT_EQ(backward.saved_size(), 4);
  for (const v1::SavedOperand& saved : backward.saved()) {
    EXPECT_EQ(saved.at_save().SerializeAsString(), saved.at_use().SerializeAsString());
  }
  ASSERT_TRUE(Step(OptimizeRequest(opened.session_id(), 2)).ok());
  EXPECT_EQ(Get(opened.session_id()).step(), 3);
}

TEST_F(SessionsTest, GivesATensorOfTheState) {
  Start();
  const std::string id = Open().session_id();
  v1::GetSessionRequest request;
  request.set_session_id(id);
  request.set_tensor("fc1.weight.master");
  v1::Session session;
  ASSERT_TRUE(Call(&v1::Sessions::Stub::Get, request, session).ok());
  EXPECT_EQ(session.tensor().type().dtype(), "f32");
  EXPECT_EQ(session.tensor().data().size(), static_cast<size_t>(kSize * kSize * 4));
  request.set_tensor("fc9.weight");
  const grpc::Status unknown = Call(&v1::Sessions::Stub::Get, request, session);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(unknown.error_message(), HasSubstr("fc9.weight"));
}

TEST_F(SessionsTest, WrongOrderIsRefusedAndTheSessionGoesOn) {
  Start();
  const std::string id = Open().session_id();
  const auto before = DigestsOf(id);
  const grpc::Status early = Step(BackwardRequest(id, 0));
  EXPECT_EQ(early.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(early.error_message(), HasSubstr("no forward of it is in flight"));
  const grpc::Status none = Step(OptimizeRequest(id, 0));
  EXPECT_EQ(none.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DigestsOf(id), before);
  Train(id, 0);
}

/// 2048 quantizations under long names: what a step says of them is larger than a message.
v1::OpenSessionRequest TalkativeRequest() {
  v1::OpenSessionRequest request;
  v1::SessionSpec& spec = *request.mutable_spec();
  for (int i = 0; i < 32; ++i) {
    v1::SessionLayer& layer = *spec.add_layers();
    layer.set_name(std::string(60, 'l') + std::to_string(i));
    layer.mutable_layer()->set_kind("chain");
    for (int j = 0; j < 64; ++j) {
      v1::Operation& operation = *layer.mutable_layer()->add_operations();
      operation.set_name(std::string(60, 'q') + std::to_string(j));
      operation.set_kind("quantize");
    }
  }
  spec.mutable_recipe()->set_name("mxfp8");
  return request;
}

TEST_F(SessionsTest, AStepWhoseAnswerIsLargerThanAMessageIsNotDone) {
  Start();
  const std::string id = Open(TalkativeRequest()).session_id();
  v1::SessionStepRequest request = ForwardRequest(id, 0);
  std::string rows;  // A row for each exponent of bf16: so many scales has each quantization.
  for (int exponent = 0; exponent < 256; ++exponent) {
    for (int i = 0; i < 32; ++i) {
      const int code = std::min(exponent, 254) << 7;
      rows += static_cast<char>(code & 0xFF);
      rows += static_cast<char>(code >> 8);
    }
  }
  *request.mutable_forward()->mutable_x() = Inline("bf16", {256, 32}, rows);
  const grpc::Status refused = Step(request);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("the limit is 4194304"));
  EXPECT_EQ(DetailOf(refused).field(), "response bytes");
  EXPECT_EQ(Get(id).step(), 0);
  EXPECT_EQ(Get(id).microbatches_size(), 0);
}

TEST_F(SessionsTest, OfTwoClientsTheSecondIsToldThatTheFirstWasThere) {
  Start();
  const std::string id = Open().session_id();
  ASSERT_TRUE(Step(ForwardRequest(id, 0)).ok());
  const grpc::Status second = Step(ForwardRequest(id, 0));
  EXPECT_EQ(second.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(second.error_message(), HasSubstr("expected_step is 0: the session is at step 1"));
  EXPECT_EQ(DetailOf(second).field(), "expected_step");
  EXPECT_EQ(Get(id).step(), 1);
}

TEST_F(SessionsTest, ManyClientsOfOneSessionDoEachStepOnce) {
  Start();
  const std::string id = Open().session_id();
  std::atomic<int> done{0};
  std::vector<std::thread> clients;
  for (int client = 0; client < 8; ++client) {
    clients.emplace_back([&] {
      for (int64_t step = 0; step < 5; ++step) {
        v1::SessionStepRequest request = ForwardRequest(id, step);
        request.mutable_forward()->set_evaluate(true);
        if (Step(request).ok()) ++done;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(Get(id).step(), done.load());
  EXPECT_LE(done.load(), 5);
  EXPECT_GE(done.load(), 1);
}

TEST_F(SessionsTest, ARepeatedRequestIsDoneOnce) {
  Start();
  v1::OpenSessionRequest open = OpenRequest();
  open.set_request_id("open-1");
  const std::string id = Open(open).session_id();
  EXPECT_EQ(Open(open).session_id(), id);
  open.mutable_spec()->set_seed(6);
  v1::Session session;
  EXPECT_EQ(Call(&v1::Sessions::Stub::Open, open, session).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);

  v1::SessionStepRequest request = ForwardRequest(id, 0);
  request.set_request_id("step-1");
  v1::SessionStepResponse first, again;
  ASSERT_TRUE(Step(request, first).ok());
  ASSERT_TRUE(Step(request, again).ok());
  EXPECT_EQ(first.SerializeAsString(), again.SerializeAsString());
  EXPECT_EQ(Get(id).step(), 1);
  request.mutable_forward()->set_evaluate(true);
  EXPECT_EQ(Step(request).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  // After another step it is one that came too late.
  ASSERT_TRUE(Step(BackwardRequest(id, 1)).ok());
  EXPECT_EQ(Step(ForwardRequest(id, 0)).error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(SessionsTest, AClosedSessionSaysSo) {
  Start();
  const std::string id = Open().session_id();
  v1::CloseSessionRequest close;
  close.set_session_id(id);
  v1::Session closed;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(Call(&v1::Sessions::Stub::Close, close, closed).ok());
    EXPECT_EQ(closed.state(), "closed");
  }
  const grpc::Status late = Step(ForwardRequest(id, 0));
  EXPECT_EQ(late.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(late.error_message(), HasSubstr("the session is closed"));
  close.set_session_id("session-0");
  EXPECT_EQ(Call(&v1::Sessions::Stub::Close, close, closed).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(SessionsTest, CheckpointsGoOnOnAnotherServer) {
  Start();
  const std::string id = Open().session_id();
  Train(id, 0);
  v1::CheckpointRequest request;
  request.set_session_id(id);
  v1::CheckpointResponse checkpoint;
  ASSERT_TRUE(Call(&v1::Sessions::Stub::Checkpoint, request, checkpoint).ok());
  EXPECT_EQ(checkpoint.step(), 3);
  std::string bytes;
  ASSERT_TRUE(ReadBlob(server_->blobs(), checkpoint.digest(), 0, 0, &bytes).ok());
  Train(id, 3);
  const auto uninterrupted = DigestsOf(id);

  Start();
  v1::RestoreSessionRequest restore;
  *restore.mutable_checkpoint() = checkpoint.digest();
  *restore.mutable_spec() = OpenRequest().spec();
  v1::Session restored;
  const grpc::Status missing = Call(&v1::Sessions::Stub::Restore, restore, restored);
  EXPECT_EQ(missing.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailOf(missing).missing_size(), 1);
  ASSERT_TRUE(WriteBlob(server_->blobs(), "checkpoint", bytes).status.ok());
  const grpc::Status status = Call(&v1::Sessions::Stub::Restore, restore, restored);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(restored.step(), 3);
  Train(restored.session_id(), 3);
  EXPECT_EQ(DigestsOf(restored.session_id()), uninterrupted);

  restore.mutable_spec()->mutable_layers(1)->set_name("out");
  const grpc::Status another = Call(&v1::Sessions::Stub::Restore, restore, restored);
  EXPECT_EQ(another.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(another.error_message(), HasSubstr("/layers/1/name"));
}

TEST_F(SessionsTest, RequestsThatMakeNoSenseNameTheField) {
  Start();
  const auto refused = [&](const std::string& field, const std::string& text, const auto& spoil) {
    v1::OpenSessionRequest request = OpenRequest();
    spoil(request, *request.mutable_spec());
    v1::Session session;
    const grpc::Status status = Call(&v1::Sessions::Stub::Open, request, session);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_EQ(DetailOf(status).field(), field) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(text));
  };
  const auto narrow = Generated("normal", 1, "bf16", {8, kSize});
  using Request = v1::OpenSessionRequest;
  refused("spec.masters", "none, f32", [](Request&, auto& spec) { spec.set_masters("f64"); });
  refused("spec.layers[1].layer.kind", "liner",
          [](Request&, auto& spec) { spec.mutable_layers(1)->mutable_layer()->set_kind("liner"); });
  refused("spec.recipe.name", "fp9",
          [](Request&, auto& spec) { spec.mutable_recipe()->set_name("fp9"); });
  refused("lease_seconds", "-1", [](Request& open, auto&) { open.set_lease_seconds(-1); });
  refused("spec.layers[fc2].x", "layers[fc2].x is bf16[0x8]: its last dim must be K = 32",
          [&](Request& open, auto&) { (*open.mutable_parameters())["fc1.weight"] = narrow; });
  refused("parameters[fc3.weight]", "no layer has a parameter of that name",
          [&](Request& open, auto&) { (*open.mutable_parameters())["fc3.weight"] = narrow; });
  v1::SessionStepRequest step;
  step.set_session_id(Open().session_id());
  EXPECT_EQ(Step(step).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(SessionsTest, NumberAndBytesAreBounded) {
  Start([](ServerOptions& options) {
    options.sessions.sessions_max = 2;
    options.sessions.bytes_max = 3 * kSize * kSize * 6 * 2;
  });
  Open();
  Open();
  v1::Session session;
  const grpc::Status third = Call(&v1::Sessions::Stub::Open, OpenRequest(), session);
  EXPECT_EQ(third.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailOf(third).reason(), "sessions");
  Start([](ServerOptions& options) { options.sessions.bytes_max = kSize * kSize * 6 * 2 + 100; });
  const std::string id = Open().session_id();
  const grpc::Status large = Step(ForwardRequest(id, 0));
  EXPECT_EQ(large.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << large.error_message();
  EXPECT_EQ(Get(id).step(), 0);
}

TEST_F(SessionsTest, IdleSessionsGiveWayAndLeasesEnd) {
  Start([](ServerOptions& options) {
    options.sessions.sessions_max = 1;
    options.sessions.idle_min = absl::ZeroDuration();
  });
  const std::string first = Open().session_id();
  const std::string second = Open().session_id();
  const grpc::Status evicted = Step(ForwardRequest(first, 0));
  EXPECT_EQ(evicted.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(evicted.error_message(), HasSubstr("the session is evicted"));
  ASSERT_TRUE(Step(ForwardRequest(second, 0)).ok());
}

TEST_F(SessionsTest, AreListedNewestFirst) {
  Start();
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(Open().session_id());
  v1::ListSessionsRequest request;
  request.set_page_size(2);
  v1::ListSessionsResponse page;
  ASSERT_TRUE(Call(&v1::Sessions::Stub::List, request, page).ok());
  ASSERT_EQ(page.sessions_size(), 2);
  EXPECT_EQ(page.sessions(0).session_id(), ids[2]);
  request.set_page_token(page.next_page_token());
  ASSERT_TRUE(Call(&v1::Sessions::Stub::List, request, page).ok());
  ASSERT_EQ(page.sessions_size(), 1);
  EXPECT_EQ(page.sessions(0).session_id(), ids[0]);
  EXPECT_TRUE(page.next_page_token().empty());
}

TEST_F(SessionsTest, AreMeasuredFromTheStart) {
  Start(EnableHttp);
  std::string metrics = server_->HttpGet("/metrics");
  EXPECT_EQ(MetricValue(metrics, "quantgate_sessions_open"), 0);
  EXPECT_EQ(MetricValue(metrics, "quantgate_session_bytes"), 0);
  EXPECT_THAT(metrics, Not(HasSubstr("quantgate_session_steps_total")));
  EXPECT_EQ(MetricValue(metrics, "quantgate_sessions_ended_total{reason=\"evicted\"}"), 0);
  const v1::Session session = Open();
  Train(session.session_id(), 0);
  EXPECT_FALSE(Step(BackwardRequest(session.session_id(), 3)).ok());
  metrics = server_->HttpGet("/metrics");
  EXPECT_EQ(MetricValue(metrics, "quantgate_sessions_open"), 1);
  EXPECT_EQ(MetricValue(metrics, "quantgate_session_bytes"), Get(session.session_id()).bytes());
  EXPECT_EQ(MetricValue(metrics, "quantgate_session_steps_total{outcome=\"ok\",step=\"backward\"}"),
            1);
  EXPECT_EQ(
      MetricValue(metrics, "quantgate_session_steps_total{outcome=\"rejected\",step=\"backward\"}"),
      1);
}

TEST_F(SessionsTest, LimitsAreSaid) {
  Start();
  v1::Capabilities capabilities;
  grpc::ClientContext context;
  ASSERT_TRUE(server_->info().GetCapabilities(&context, {}, &capabilities).ok());
  EXPECT_EQ(capabilities.limits().sessions_max(), 1024);
  EXPECT_GT(capabilities.limits().session_bytes_max(), 0);
  EXPECT_EQ(capabilities.limits().session_lease_seconds_max(), 24 * 3600);
}

TEST_F(SessionsTest, AServerThatShutsDownTakesNoMoreSteps) {
  Start();
  const std::string id = Open().session_id();
  server_->server().Shutdown(absl::ZeroDuration());
  EXPECT_EQ(Step(ForwardRequest(id, 0)).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(SessionsTest, ACallThatNobodyWaitsForLeavesTheSession) {
  Start();
  const std::string id = Open().session_id();
  const auto before = DigestsOf(id);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() - std::chrono::seconds(1));
  v1::SessionStepResponse response;
  EXPECT_EQ(stub_->Step(&context, ForwardRequest(id, 0), &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(DigestsOf(id), before);
  Train(id, 0);
}

TEST_F(SessionsTest, AThousandAreOpenAtOnce) {
  Start(EnableHttp);
  v1::OpenSessionRequest request = OpenRequest("bf16");
  std::vector<std::string> ids;
  for (int i = 0; i < 1000; ++i) ids.push_back(Open(request).session_id());
  const std::string metrics = server_->HttpGet("/metrics");
  EXPECT_EQ(MetricValue(metrics, "quantgate_sessions_open"), 1000);
  for (const size_t i : {0, 499, 999}) {
    const v1::Session session = Get(ids[i]);
    EXPECT_EQ(session.state(), "open");
    EXPECT_EQ(session.bytes(), 2 * kSize * kSize * 6 + BytesOfSpec(request));
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
