// Sessions of one layer on several ranks, over a real channel.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "quantgate/v1/sessions_service.grpc.pb.h"
#include "tests/server/test_server.h"

namespace quantgate {

inline constexpr int64_t kRows = 128, kWide = 128;

inline v1::OpenSessionRequest OpenRequest(int tp, int dp, const std::string& mode) {
  v1::OpenSessionRequest request;
  v1::SessionSpec& spec = *request.mutable_spec();
  v1::SessionLayer& layer = *spec.add_layers();
  layer.set_name("fc");
  layer.mutable_layer()->set_kind("linear");
  layer.mutable_layer()->set_parallel_mode(mode);
  spec.mutable_recipe()->set_name("bf16");
  spec.mutable_sgd()->set_learning_rate(0.5f);
  if (tp * dp > 1) {
    spec.mutable_parallel()->set_tensor_parallel(tp);
    spec.mutable_parallel()->set_data_parallel(dp);
    spec.mutable_parallel()->set_sequence_parallel(tp > 1);
  }
  (*request.mutable_parameters())["fc.weight"] = Generated("normal", 1, "bf16", {kWide, kWide});
  return request;
}

class ParallelSessionsTest : public ::testing::Test {
 protected:
  explicit ParallelSessionsTest()
      : server_([](ServerOptions& options) { options.metrics_listen = "127.0.0.1:0"; }),
        stub_(v1::Sessions::NewStub(server_.channel())) {}

  grpc::Status TryOpen(const v1::OpenSessionRequest& request, v1::Session& session) {
    grpc::ClientContext context;
    return stub_->Open(&context, request, &session);
  }
  std::string Open(const v1::OpenSessionRequest& request) {
    v1::Session session;
    const grpc::Status status = TryOpen(request, session);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return session.session_id();
  }
  v1::SessionStepResponse Step(const std::string& id, v1::SessionStepRequest request,
                               const std::string& request_id = "") {
    request.set_session_id(id);
    request.set_expected_step(steps_[id]++);
    request.set_request_id(request_id);
    v1::SessionStepResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->Step(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  v1::SessionStepResponse Forward(const std::string& id, const std::string& request_id = "") {
    v1::SessionStepRequest request;
    *request.mutable_forward()->mutable_x() = Generated("normal", 2, "bf16", {kRows, kWide});
    return Step(id, request, request_id);
  }
  v1::SessionStepResponse Backward(const std::string& id) {
    v1::SessionStepRequest request;
    *request.mutable_backward()->mutable_grad_output() =
        Generated("normal", 3, "bf16", {kRows, kWide});
    return Step(id, request);
  }
  v1::SessionStepResponse Optimize(const std::string& id) {
    v1::SessionStepRequest request;
    request.mutable_optimize();
    return Step(id, request);
  }
  v1::CheckpointResponse Checkpoint(const std::string& id) {
    v1::CheckpointRequest request;
    request.set_session_id(id);
    v1::CheckpointResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->Checkpoint(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  grpc::Status Restore(const v1::Digest& checkpoint, const v1::SessionSpec& spec,
                       v1::Session& session) {
    v1::RestoreSessionRequest request;
    *request.mutable_checkpoint() = checkpoint;
    *request.mutable_spec() = spec;
    grpc::ClientContext context;
    return stub_->Restore(&context, request, &session);
  }
  v1::Session Get(const std::string& id, const std::string& tensor = "", bool with_all = false) {
    v1::GetSessionRequest request;
    request.set_session_id(id);
    request.set_tensor(tensor);
    request.set_with_tensors(with_all);
    v1::Session session;
    grpc::ClientContext context;
    const grpc::Status status = stub_->Get(&context, request, &session);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return session;
  }
  static std::string OutputOf(const v1::SessionStepResponse& response, const std::string& name) {
    for (const v1::NamedTensor& output : response.outputs()) {
      if (output.name() == name) return output.fingerprint().SerializeAsString();
    }
    ADD_FAILURE() << "no output " << name;
    return "";
  }
  double Metric(const std::string& series) {
    return MetricValue(server_.HttpGet("/metrics"), series);
  }
  void ExpectRefused(const v1::OpenSessionRequest& request, grpc::StatusCode code,
                     const std::string& text) {
    v1::Session session;
    const grpc::Status status = TryOpen(request, session);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), ::testing::HasSubstr(text));
  }

  TestServer server_;
  std::unique_ptr<v1::Sessions::Stub> stub_;
  std::map<std::string, int64_t> steps_;
};

}  // namespace quantgate
