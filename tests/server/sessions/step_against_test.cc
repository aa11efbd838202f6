// Sessions.Step against another recipe: what that gives is what a session of the other recipe gives
// from the same state, and the session itself goes on as if nobody had asked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "quantgate/v1/sessions_service.grpc.pb.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;
using Prints = std::map<std::string, std::string>;

constexpr int64_t kSize = 32;

Prints PrintsOf(const google::protobuf::RepeatedPtrField<v1::NamedTensor>& tensors) {
  Prints prints;
  for (const v1::NamedTensor& tensor : tensors) {
    prints[tensor.name()] = tensor.fingerprint().SerializeAsString();
  }
  return prints;
}

class StepAgainstTest : public testing::Test {
 protected:
  StepAgainstTest() : stub_(v1::Sessions::NewStub(server_.channel())) {}

  std::string Open(const std::string& recipe, int ranks = 1, const std::string& weights = "") {
    v1::OpenSessionRequest request;
    v1::SessionSpec& spec = *request.mutable_spec();
    v1::SessionLayer& layer = *spec.add_layers();
    layer.set_name("fc");
    layer.mutable_layer()->set_kind("linear");
    spec.mutable_recipe()->set_name(recipe);
    if (ranks > 1) {
      layer.mutable_layer()->set_parallel_mode("column");
      spec.mutable_parallel()->set_tensor_parallel(ranks);
    }
    spec.set_weights(weights);
    spec.set_masters("f32");
    spec.mutable_sgd()->set_learning_rate(0.5f);
    (*request.mutable_parameters())["fc.weight"] = Generated("normal", 1, "bf16", {kSize, kSize});
    v1::Session session;
    grpc::ClientContext context;
    const grpc::Status status = stub_->Open(&context, request, &session);
    EXPECT_TRUE(status.ok()) << status.error_message();
    steps_[session.session_id()] = 0;
    return session.session_id();
  }
  grpc::Status Step(const std::string& id, v1::SessionStepRequest request,
                    v1::SessionStepResponse* response = nullptr) {
    v1::SessionStepResponse unread;
    if (response == nullptr) response = &unread;
    request.set_session_id(id);
    request.set_expected_step(steps_[id]);
    grpc::ClientContext context;
    const grpc::Status status = stub_->Step(&context, request, response);
    if (status.ok()) steps_[id] = response->step();
    return status;
  }
  static v1::SessionStepRequest Forward(uint64_t seed, const std::string& against = "",
                                        const std::string& microbatch = "") {
    v1::SessionStepRequest request;
    *request.mutable_forward()->mutable_x() = Generated("normal", seed, "bf16", {kSize, kSize});
    request.mutable_forward()->set_microbatch(microbatch);
    if (!against.empty()) request.mutable_against()->mutable_recipe()->set_name(against);
    return request;
  }
  static v1::SessionStepRequest Backward(uint64_t seed, const std::string& against = "",
                                         const std::string& microbatch = "") {
    v1::SessionStepRequest request;
    *request.mutable_backward()->mutable_grad_output() =
        Generated("normal", seed, "bf16", {kSize, kSize});
    request.mutable_backward()->set_microbatch(microbatch);
    if (!against.empty()) request.mutable_against()->mutable_recipe()->set_name(against);
    return request;
  }
  static v1::SessionStepRequest Optimize() {
    v1::SessionStepRequest request;
    request.mutable_optimize();
    return request;
  }
  Prints StateOf(const std::string& id) {
    v1::GetSessionRequest request;
    request.set_session_id(id);
    request.set_with_tensors(true);
    v1::Session session;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->Get(&context, request, &session).ok());
    Prints prints;
    for (const v1::StateTensor& tensor : session.tensors()) {
      prints[tensor.name()] = tensor.fingerprint().SerializeAsString();
    }
    return prints;
  }
  int64_t BytesOf(const std::string& id) {
    v1::GetSessionRequest request;
    request.set_session_id(id);
    v1::Session session;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->Get(&context, request, &session).ok());
    return session.bytes();
  }

  TestServer server_;
  std::unique_ptr<v1::Sessions::Stub> stub_;
  std::map<std::string, int64_t> steps_;
};

TEST_F(StepAgainstTest, GivesWhatASessionOfTheOtherRecipeGives) {
  const std::string asked = Open("fp8_delayed"), alone = Open("fp8_delayed"), other = Open("mxfp8");
  v1::SessionStepResponse response, of_other, of_alone;
  const auto expect_same = [&](const char* what) {
    EXPECT_EQ(PrintsOf(response.outputs()), PrintsOf(of_alone.outputs())) << what;
    EXPECT_EQ(PrintsOf(response.against().outputs()), PrintsOf(of_other.outputs())) << what;
    EXPECT_EQ(response.against().against_reference_size(), of_other.outputs_size());
    EXPECT_EQ(StateOf(asked), StateOf(alone)) << what;
  };
  ASSERT_TRUE(Step(asked, Forward(2, "mxfp8"), &response).ok());
  ASSERT_TRUE(Step(alone, Forward(2), &of_alone).ok());
  ASSERT_TRUE(Step(other, Forward(2), &of_other).ok());
  expect_same("forward");
  EXPECT_EQ(response.against().label(), "mxfp8");
  EXPECT_EQ(response.against().kind(), "forward");
  EXPECT_EQ(response.against().step(), 1);
  EXPECT_EQ(response.against().quantizations(0).record().quantizer(),
            of_other.quantizations(0).quantizer());
  const v1::StepComparison& y = response.against().against_reference(0);
  EXPECT_EQ(y.tensor(), "y");
  EXPECT_FALSE(y.parity().equal());
  EXPECT_GT(y.error().relative_frobenius(), 0);

  ASSERT_TRUE(Step(asked, Backward(3, "mxfp8"), &response).ok());
  ASSERT_TRUE(Step(alone, Backward(3), &of_alone).ok());
  ASSERT_TRUE(Step(other, Backward(3), &of_other).ok());
  expect_same("backward");
  EXPECT_EQ(PrintsOf(response.against().outputs()).count("fc.dw"), 1u);
  ASSERT_TRUE(Step(asked, Optimize()).ok());
  ASSERT_TRUE(Step(alone, Optimize()).ok());
  EXPECT_EQ(StateOf(asked), StateOf(alone));
  EXPECT_EQ(BytesOf(asked), BytesOf(alone));  // Nothing is kept beyond the update.
}

// Each microbatch has the forward that was compared for it, whatever the session does in between.
TEST_F(StepAgainstTest, MicrobatchesAreKeptApart) {
  const std::string asked = Open("mxfp8"), other = Open("mxfp8");
  ASSERT_TRUE(Step(asked, Forward(2, "bf16", "a")).ok());
  ASSERT_TRUE(Step(asked, Forward(4, "bf16", "b")).ok());
  ASSERT_TRUE(Step(asked, Backward(3, "", "a")).ok());
  v1::SessionStepResponse response;
  const grpc::Status status = Step(asked, Backward(5, "bf16", "b"), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  // The same by a change of recipe between the two microbatches.
  ASSERT_TRUE(Step(other, Forward(2, "", "a")).ok());
  v1::SessionStepRequest change;
  change.mutable_change_recipe()->mutable_recipe()->set_name("bf16");
  ASSERT_TRUE(Step(other, change).ok());
  ASSERT_TRUE(Step(other, Forward(4, "", "b")).ok());
  ASSERT_TRUE(Step(other, Backward(3, "", "a")).ok());
  v1::SessionStepResponse of_other;
  ASSERT_TRUE(Step(other, Backward(5, "", "b"), &of_other).ok());
  EXPECT_EQ(PrintsOf(response.against().outputs()), PrintsOf(of_other.outputs()));
  EXPECT_EQ(PrintsOf(of_other.outputs()).count("fc.dw"), 1u);
}

TEST_F(StepAgainstTest, TheSameRecipeHasTheSameBits) {
  const std::string id = Open("fp8_current");
  v1::SessionStepResponse response;
  ASSERT_TRUE(Step(id, Forward(2, "fp8_current"), &response).ok());
  EXPECT_TRUE(response.against().against_reference(0).parity().equal());
  ASSERT_TRUE(Step(id, Backward(3, "fp8_current"), &response).ok());
  ASSERT_EQ(response.against().against_reference_size(), 2);
  for (const v1::StepComparison& one : response.against().against_reference()) {
    EXPECT_TRUE(one.parity().equal()) << one.tensor();
    EXPECT_EQ(one.error().max_abs(), 0);
  }
  EXPECT_GT(response.against().quantizations_size(), 0);
  for (const v1::TraceQuantization& one : response.against().quantizations()) {
    EXPECT_TRUE(one.has_scale_against_reference_log2()) << one.record().tensor();
    EXPECT_EQ(one.scale_against_reference_log2(), 0) << one.record().tensor();
  }
}

TEST_F(StepAgainstTest, SeveralRanksCompareForwardsOnly) {
  const std::string id = Open("bf16", 2);
  ASSERT_TRUE(Step(id, Forward(2, "fp8_current")).ok());
  const grpc::Status status = Step(id, Backward(3, "fp8_current"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailOf(status).field(), "against.recipe");
  EXPECT_THAT(status.error_message(), HasSubstr("on several ranks, which compare forwards only"));
  EXPECT_TRUE(Step(id, Backward(3)).ok());
}

TEST_F(StepAgainstTest, RefusesWhatHasNoOtherSide) {
  const std::string id = Open("fp8_current");
  const Prints before = StateOf(id);
  const auto refused = [&](const v1::SessionStepRequest& request, grpc::StatusCode code,
                           const std::string& field) {
    const grpc::Status status = Step(id, request);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(DetailOf(status).field(), field) << status.error_message();
  };
  using enum grpc::StatusCode;
  refused(Forward(2, "nope"), INVALID_ARGUMENT, "against.recipe.name");
  v1::SessionStepRequest request = Forward(2, "bf16");
  request.mutable_against()->set_arithmetic("exact");
  refused(request, INVALID_ARGUMENT, "against.arithmetic");
  request = Forward(2, "bf16");
  request.mutable_against()->mutable_parallel()->set_data_parallel(2);
  refused(request, INVALID_ARGUMENT, "against.parallel");
  request = Optimize();
  request.mutable_against()->mutable_recipe()->set_name("bf16");
  refused(request, INVALID_ARGUMENT, "against");
  // What is wrong with the step is said of the step.
  request = Forward(2, "bf16");
  *request.mutable_forward()->mutable_x() = Generated("normal", 2, "bf16", {kSize, 3});
  refused(request, INVALID_ARGUMENT, "forward.layers[fc].x");
  EXPECT_EQ(StateOf(id), before);
  // A backward whose forward was not compared, and one of a forward before an update.
  ASSERT_TRUE(Step(id, Forward(2)).ok());
  refused(Backward(3, "bf16"), FAILED_PRECONDITION, "against.recipe");
  ASSERT_TRUE(Step(id, Backward(3)).ok());
  ASSERT_TRUE(Step(id, Forward(2, "bf16", "late")).ok());
  refused(Backward(3, "mxfp8", "late"), FAILED_PRECONDITION, "against.recipe");
  ASSERT_TRUE(Step(id, Optimize()).ok());
  refused(Backward(3, "bf16", "late"), FAILED_PRECONDITION, "against.recipe");
  EXPECT_TRUE(Step(id, Backward(3, "", "late")).ok());
}

// What a compared forward saved under the other recipe counts for as long as it is kept.
TEST_F(StepAgainstTest, WhatIsKeptCounts) {
  const std::string asked = Open("fp8_current"), alone = Open("fp8_current");
  ASSERT_TRUE(Step(asked, Forward(2, "bf16")).ok());
  ASSERT_TRUE(Step(alone, Forward(2)).ok());
  // bf16 saves x itself, 2 bytes an element; the weight is the session's parameter.
  EXPECT_EQ(BytesOf(asked) - BytesOf(alone), kSize * kSize * 2);
  // To offload the microbatch moves what the session itself saved.
  v1::SessionStepRequest offload, reload;
  offload.mutable_offload();
  reload.mutable_reload();
  for (const std::string& id : {asked, alone}) ASSERT_TRUE(Step(id, offload).ok());
  EXPECT_EQ(BytesOf(asked) - BytesOf(alone), kSize * kSize * 2);
  for (const std::string& id : {asked, alone}) ASSERT_TRUE(Step(id, reload).ok());
  EXPECT_EQ(BytesOf(asked) - BytesOf(alone), kSize * kSize * 2);
  for (const std::string& id : {asked, alone}) ASSERT_TRUE(Step(id, Backward(3)).ok());
  EXPECT_EQ(BytesOf(asked), BytesOf(alone));
  // An update ends it for all that are in flight.
  ASSERT_TRUE(Step(asked, Forward(2, "bf16", "late")).ok());
  ASSERT_TRUE(Step(alone, Forward(2, "", "late")).ok());
  EXPECT_EQ(BytesOf(asked) - BytesOf(alone), kSize * kSize * 2);
  for (const std::string& id : {asked, alone}) ASSERT_TRUE(Step(id, Optimize()).ok());
  EXPECT_EQ(BytesOf(asked), BytesOf(alone));
}

// The change of recipe for the other side drops cached weights. The session itself still has them,
// so that what it keeps beside them is no less.
TEST_F(StepAgainstTest, WhatIsKeptCountsBesideCachedWeights) {
  const std::string asked = Open("mxfp8"), alone = Open("mxfp8");
  v1::SessionStepRequest first = Forward(2, "", "first");
  first.mutable_forward()->set_is_first("first");
  for (const std::string& id : {asked, alone}) ASSERT_TRUE(Step(id, first).ok());
  v1::SessionStepRequest later = Forward(3, "", "later");
  later.mutable_forward()->set_is_first("later");
  ASSERT_TRUE(Step(alone, later).ok());
  later.mutable_against()->mutable_recipe()->set_name("bf16");
  ASSERT_TRUE(Step(asked, later).ok());
  EXPECT_EQ(BytesOf(asked) - BytesOf(alone), kSize * kSize * 2);
}

// The other side's weights are quantized by another rule, for it alone: beside codes of x, a byte
// an element, it keeps codes of the weight, of which the session has none.
TEST_F(StepAgainstTest, WhatIsKeptCountsBesideQuantizedWeights) {
  const std::string asked = Open("mxfp8", 1, "quantized"), alone = Open("mxfp8", 1, "quantized");
  ASSERT_TRUE(Step(asked, Forward(2, "fp8_current")).ok());
  ASSERT_TRUE(Step(alone, Forward(2)).ok());
  EXPECT_GE(BytesOf(asked) - BytesOf(alone), 2 * kSize * kSize);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
