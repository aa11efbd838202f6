// The bound on a tensor holds for what a request makes of its tensors too: small operands have
// large products.
#include <gmock/gmock.h>

#include "quantgate/v1/sessions_service.grpc.pb.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;

constexpr char kRule[] = "a tensor has at most 1048576 bytes";

class ResultSizeTest : public testing::Test {
 protected:
  static void ExpectRefused(const grpc::Status& status, const std::string& field,
                            const std::string& value) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_EQ(DetailOf(status).field(), field) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(value));
    EXPECT_THAT(DetailOf(status).rule(), HasSubstr(kRule));
  }
  /// Rows of 16 for `kind`, forward alone.
  static v1::ExecuteRequest RequestOf(const std::string& kind, int64_t rows) {
    v1::ExecuteRequest request;
    v1::LayerStep& step = *request.mutable_spec()->mutable_step();
    step.mutable_layer()->set_kind(kind);
    *step.mutable_x() = Generated("normal", 1, "bf16", {rows, 16});
    *request.mutable_spec()->add_variants() = MakeVariant("bf16", "", "sm90");
    return request;
  }
  static void AddWeight(v1::ExecuteRequest& request, const std::string& name, int64_t n,
                        int64_t k) {
    (*request.mutable_spec()->mutable_step()->mutable_parameters())[name] =
        Generated("normal", 2, "bf16", {n, k});
  }
  grpc::Status Execute(const v1::ExecuteRequest& request) {
    v1::RunFinished finished;
    return ExecuteToEnd(server_, request, finished);
  }

  TestServer server_{[](ServerOptions& options) { options.tensor_bytes_max = 1 << 20; }};
};

TEST_F(ResultSizeTest, OfALayer) {
  v1::ExecuteRequest request = RequestOf("linear", 1024);
  AddWeight(request, "weight", 513, 16);
  ExpectRefused(Execute(request), "spec.step.y", "bf16[1024x513]");
  AddWeight(request, "weight", 512, 16);
  EXPECT_TRUE(Execute(request).ok());
}

TEST_F(ResultSizeTest, BetweenOperations) {
  v1::ExecuteRequest request = RequestOf("layernorm_mlp", 1024);
  v1::Layer& layer = *request.mutable_spec()->mutable_step()->mutable_layer();
  layer.mutable_norm()->set_kind("rmsnorm");
  layer.mutable_activation()->set_kind("relu");
  (*request.mutable_spec()->mutable_step()->mutable_parameters())["gamma"] =
      Generated("normal", 3, "bf16", {16});
  AddWeight(request, "fc1.weight", 1024, 16);
  AddWeight(request, "fc2.weight", 16, 1024);
  ExpectRefused(Execute(request), "spec.step.fc1.y", "bf16[1024x1024]");
}

TEST_F(ResultSizeTest, OfAllExpertsTogether) {
  v1::ExecuteRequest request = RequestOf("grouped_linear", 1024);
  for (const char* weight : {"weight.0", "weight.1"}) {
    request.mutable_spec()->mutable_step()->mutable_layer()->add_m_splits(512);
    AddWeight(request, weight, 1024, 16);
  }
  ExpectRefused(Execute(request), "spec.step.y", "bf16[1024x1024]");
}

TEST_F(ResultSizeTest, OfASessionsForward) {
  const auto sessions = v1::Sessions::NewStub(server_.channel());
  v1::OpenSessionRequest open;
  v1::SessionLayer& layer = *open.mutable_spec()->add_layers();
  layer.set_name("fc");
  layer.mutable_layer()->set_kind("linear");
  open.mutable_spec()->mutable_recipe()->set_name("bf16");
  (*open.mutable_parameters())["fc.weight"] = Generated("normal", 2, "bf16", {1024, 16});
  v1::Session session;
  grpc::ClientContext opening;
  ASSERT_TRUE(sessions->Open(&opening, open, &session).ok());
  v1::SessionStepRequest step;
  step.set_session_id(session.session_id());
  *step.mutable_forward()->mutable_x() = Generated("normal", 1, "bf16", {1024, 16});
  v1::SessionStepResponse response;
  grpc::ClientContext too_large;
  ExpectRefused(sessions->Step(&too_large, step, &response), "forward.layers[fc].y",
                "y is bf16[1024x1024]");
  // It is where it was.
  *step.mutable_forward()->mutable_x() = Generated("normal", 1, "bf16", {512, 16});
  grpc::ClientContext fits;
  EXPECT_TRUE(sessions->Step(&fits, step, &response).ok());
}

TEST_F(ResultSizeTest, OfDequantizedCodes) {
  v1::DequantizeRequest request;
  (*request.mutable_tensors())["rowwise_data"] = Generated("normal", 1, "f8_e4m3", {1024, 512});
  (*request.mutable_tensors())["rowwise_scale_inv"] = Inline("f32", {1}, std::string(4, '\x3f'));
  v1::DequantizeResponse response;
  grpc::ClientContext too_large;
  ExpectRefused(server_.engine().Dequantize(&too_large, request, &response), "data",
                "f32[1024x512]");
  request.set_out_dtype("bf16");
  grpc::ClientContext fits;
  EXPECT_TRUE(server_.engine().Dequantize(&fits, request, &response).ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
