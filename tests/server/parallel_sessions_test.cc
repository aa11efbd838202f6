// Sessions on several ranks over a real channel: the bits of one rank, what is said of each rank,
// what is refused, metrics; and what a session keeps beside its tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "quantgate/v1/sessions_service.grpc.pb.h"
#include "server/limits.h"
#include "server/rpc/convert_session.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kRows = 128, kWide = 128;

v1::OpenSessionRequest OpenRequest(int tp, int dp, const std::string& mode) {
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

/// On copies that divide the rows of a quantized weight; on one rank where there is 1.
v1::OpenSessionRequest ShardedRequest(int copies) {
  v1::OpenSessionRequest request = OpenRequest(1, copies, "");
  v1::SessionSpec& spec = *request.mutable_spec();
  spec.mutable_recipe()->set_name("mxfp8");
  spec.set_weights("quantized");
  spec.set_masters("f32");
  if (copies > 1) spec.mutable_parallel()->set_fully_sharded(true);
  return request;
}

/// Three experts, one of which sees no rows, of each copy divided over ranks; on one where there is
/// 1 of either.
v1::OpenSessionRequest ExpertsRequest(int ranks, int copies = 1) {
  v1::OpenSessionRequest request = OpenRequest(1, 1, "");
  v1::SessionSpec& spec = *request.mutable_spec();
  v1::Layer& layer = *spec.mutable_layers(0)->mutable_layer();
  layer.set_kind("grouped_linear");
  request.clear_parameters();
  for (const int64_t rows : {kRows / 2, int64_t{0}, kRows / 2}) {
    const int expert = layer.m_splits_size();
    layer.add_m_splits(rows);
    (*request.mutable_parameters())["fc.weight." + std::to_string(expert)] =
        Generated("normal", 1 + expert, "bf16", {kWide, kWide});
  }
  spec.mutable_recipe()->set_name("mxfp8");
  spec.set_weights("quantized");
  spec.set_masters("f32");
  if (ranks > 1) spec.mutable_parallel()->set_expert_parallel(ranks);
  if (copies > 1) spec.mutable_parallel()->set_data_parallel(copies);
  return request;
}

/// The same experts, whose weights tensor-parallel ranks divide; of each copy all on one rank where
/// there is 1.
v1::OpenSessionRequest ExpertWeightsRequest(int ranks, int copies = 1,
                                            const std::string& mode = "column") {
  v1::OpenSessionRequest request = ExpertsRequest(1, copies);
  v1::SessionSpec& spec = *request.mutable_spec();
  if (ranks == 1) return request;
  spec.mutable_parallel()->set_tensor_parallel(ranks);
  spec.mutable_parallel()->set_sequence_parallel(true);
  spec.mutable_layers(0)->mutable_layer()->set_parallel_mode(mode);
  return request;
}

class ParallelSessionsTest : public testing::Test {
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
    EXPECT_THAT(status.error_message(), HasSubstr(text));
  }

  TestServer server_;
  std::unique_ptr<v1::Sessions::Stub> stub_;
  std::map<std::string, int64_t> steps_;
};

TEST_F(ParallelSessionsTest, TrainsWithTheBitsOfOneRankAndSaysWhatEachRankDid) {
  const std::string one = Open(OpenRequest(1, 1, ""));
  const std::string ranks = Open(OpenRequest(2, 1, "column"));
  const v1::SessionStepResponse forward = Forward(ranks);
  EXPECT_EQ(OutputOf(forward, "y"), OutputOf(Forward(one), "y"));
  ASSERT_EQ(forward.ranks_size(), 2);
  EXPECT_EQ(forward.gemms_size(), 0);
  const v1::RankReport& rank = forward.ranks(1);
  EXPECT_EQ(rank.rank(), 1);
  EXPECT_EQ(rank.device(), "cpu");
  ASSERT_EQ(rank.outputs_size(), 1);
  EXPECT_EQ(rank.outputs(0).type().shape(1), kWide / 2);
  EXPECT_EQ(rank.gemms_size(), 1);
  std::vector<std::string> stages;
  for (const v1::StageTime& stage : rank.stages()) stages.push_back(stage.stage());
  EXPECT_THAT(stages, Contains(StartsWith("fc.all-gather x")));
  EXPECT_EQ(OutputOf(Backward(ranks), "fc.dw"), OutputOf(Backward(one), "fc.dw"));
  Optimize(ranks);
  Optimize(one);
  const auto weight = [&](const std::string& id) {
    return Get(id, "fc.weight").tensor().fingerprint().SerializeAsString();
  };
  EXPECT_EQ(weight(ranks), weight(one));
  const v1::Session session = Get(ranks, "", true);
  EXPECT_EQ(session.spec().parallel().tensor_parallel(), 2);
  ASSERT_EQ(session.tensors_size(), 2);
  EXPECT_EQ(session.tensors(1).name(), "rank1.fc.weight");
  EXPECT_EQ(session.tensors(1).type().shape(0), kWide / 2);
}

// Under fp8_current the rows of two copies have one rank's bits where the copies have one amax,
// which a forward may name for itself.
TEST_F(ParallelSessionsTest, AForwardNamesTheGroupOfItsAmaxes) {
  v1::OpenSessionRequest alone = OpenRequest(1, 1, ""), copies = OpenRequest(1, 2, "");
  for (v1::OpenSessionRequest* request : {&alone, &copies}) {
    request->mutable_spec()->mutable_recipe()->set_name("fp8_current");
  }
  const std::string expected = OutputOf(Forward(Open(alone)), "y");
  const auto forward_with = [&](const std::string& id, const std::string& group) {
    v1::SessionStepRequest request;
    v1::SessionStepRequest::Forward& forward = *request.mutable_forward();
    *forward.mutable_x() = Generated("normal", 2, "bf16", {kRows, kWide});
    forward.set_microbatch(group);
    (*forward.mutable_amax_groups())["input"] = group;
    return Step(id, request);
  };
  const std::string id = Open(copies);
  EXPECT_NE(OutputOf(forward_with(id, "none"), "y"), expected);
  const v1::SessionStepResponse data = forward_with(id, "data");
  EXPECT_EQ(OutputOf(data, "y"), expected);
  EXPECT_EQ(data.ranks(1).quantizations(0).amax_group(), "data (ranks 0, 1)");
  // Likewise as the session's own.
  (*copies.mutable_spec()->mutable_parallel()->mutable_amax_groups())["input"] = "data";
  const std::string named = Open(copies);
  EXPECT_EQ(OutputOf(Forward(named), "y"), expected);
  EXPECT_EQ(Get(named).spec().parallel().amax_groups().at("input"), "data");
  (*copies.mutable_spec()->mutable_parallel()->mutable_amax_groups())["input"] = "tensor";
  ExpectRefused(copies, grpc::StatusCode::INVALID_ARGUMENT,
                "parallel.amax_groups[input]: tensor; it is of tensor_parallel ranks");
}

TEST_F(ParallelSessionsTest, CopiesAndRefusals) {
  const std::string copies = Open(OpenRequest(1, 2, ""));
  const v1::SessionStepResponse forward = Forward(copies);
  EXPECT_EQ(forward.ranks_size(), 2);
  EXPECT_EQ(forward.ranks(0).outputs(0).type().shape(0), kRows / 2);
  EXPECT_EQ(OutputOf(forward, "y"), OutputOf(Forward(Open(OpenRequest(1, 1, ""))), "y"));

  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  ExpectRefused(OpenRequest(3, 4, "column"), invalid, "spec.parallel: tp3 dp4 sp");
  ExpectRefused(OpenRequest(2, 1, ""), invalid, "no layer has a parallel_mode");
  ExpectRefused(OpenRequest(1, 1, "column"), invalid, "spec.layers[0].layer.parallel_mode");
  ExpectRefused(OpenRequest(5, 1, "column"), invalid, "multiple of 5");
  v1::OpenSessionRequest request = OpenRequest(2, 1, "column");
  request.mutable_spec()->mutable_parallel()->set_backend("mpi");
  ExpectRefused(request, invalid, "spec.parallel.backend is \"mpi\": known: local, nccl");
  request.mutable_spec()->mutable_parallel()->set_backend("nccl");
  ExpectRefused(request, grpc::StatusCode::FAILED_PRECONDITION, "needs a GPU for each");
  request = OpenRequest(2, 1, "column");
  request.mutable_spec()->mutable_parallel()->mutable_overlap()->set_row_dgrad("fast");
  ExpectRefused(request, invalid, "spec.parallel.overlap.row_dgrad is \"fast\"");
}

TEST_F(ParallelSessionsTest, ACheckpointIsTheSameBlobWhateverTheRanks) {
  const std::string ranks = Open(OpenRequest(2, 1, "column"));
  Forward(ranks);
  Backward(ranks);
  Optimize(ranks);
  const v1::Digest digest = Checkpoint(ranks).digest();
  std::string last;
  for (const auto& [tp, mode] : {std::pair(4, "column"), std::pair(1, ""), std::pair(2, "row")}) {
    v1::Session session;
    const grpc::Status status = Restore(digest, OpenRequest(tp, 1, mode).spec(), session);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(session.step(), 3);
    last = session.session_id();
    EXPECT_EQ(Checkpoint(last).digest().SerializeAsString(), digest.SerializeAsString()) << tp;
  }
  steps_[last] = 3;
  // Each rank's own is refused elsewhere.
  Forward(last);
  Backward(last);
  v1::SessionSpec copies = OpenRequest(1, 2, "").spec();
  v1::Session session;
  const grpc::Status refused = Restore(Checkpoint(last).digest(), copies, session);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("fc.dw: gradients since the last optimizer"));
}

// Of whole copies and of copies with rows each, everything that a client can see of a step.
TEST_F(ParallelSessionsTest, ShardedWeightsHaveTheBitsOfWholeCopies) {
  v1::OpenSessionRequest request = ShardedRequest(4);
  const std::string sharded = Open(request);
  request.mutable_spec()->mutable_parallel()->set_reshard_after_forward(false);
  const std::string keeping = Open(request);
  request.mutable_spec()->mutable_parallel()->Clear();
  request.mutable_spec()->mutable_parallel()->set_data_parallel(4);
  const std::string whole = Open(request);

  const auto gathers = [](const v1::SessionStepResponse& response) {
    int count = 0;
    for (const v1::StageTime& stage : response.ranks(3).stages()) {
      count += stage.stage() == "fc.all-gather weight";
    }
    return count;
  };
  const v1::SessionStepResponse y = Forward(whole), dw = Backward(whole);
  EXPECT_EQ(gathers(y) + gathers(dw), 0);
  for (const std::string& id : {sharded, keeping}) {
    const v1::SessionStepResponse forward = Forward(id), backward = Backward(id);
    EXPECT_EQ(OutputOf(forward, "y"), OutputOf(y, "y"));
    EXPECT_EQ(OutputOf(backward, "dx"), OutputOf(dw, "dx"));
    EXPECT_EQ(OutputOf(backward, "fc.dw"), OutputOf(dw, "fc.dw"));
    EXPECT_EQ(gathers(forward), 1);
    EXPECT_EQ(gathers(backward), id == sharded ? 1 : 0);
  }
  for (const std::string& id : {whole, sharded, keeping}) Optimize(id);
  const std::string weight = Get(whole, "fc.weight").tensor().fingerprint().SerializeAsString();
  EXPECT_EQ(Get(sharded, "fc.weight").tensor().fingerprint().SerializeAsString(), weight);
  EXPECT_EQ(Get(keeping, "fc.weight").tensor().fingerprint().SerializeAsString(), weight);

  const v1::Session session = Get(sharded, "", true);
  EXPECT_TRUE(session.spec().parallel().fully_sharded());
  std::map<std::string, int64_t> rows;
  for (const v1::StateTensor& tensor : session.tensors()) {
    rows[tensor.name()] = tensor.type().shape(0);
  }
  EXPECT_EQ(rows["rank3.fc.weight.quantized.rowwise_data"], kWide / 4);
  EXPECT_EQ(rows["rank3.fc.weight.quantized.columnwise_scale_inv"], kWide / 32 / 4);
  EXPECT_EQ(rows["rank3.fc.weight.master"], kWide / 4);
  EXPECT_LT(session.bytes(), Get(whole).bytes() / 3);
}

TEST_F(ParallelSessionsTest, ShardedCheckpointsAreTheSameBlobOnFourCopiesTwoOneAndFourAgain) {
  std::string id = Open(ShardedRequest(4));
  const auto train = [&](const std::string& of) {
    Forward(of);
    Backward(of);
    Optimize(of);
  };
  train(id);
  const std::string first = id;
  const v1::Digest digest = Checkpoint(id).digest();
  for (const int copies : {2, 1, 4}) {
    v1::Session session;
    const grpc::Status status =
        Restore(Checkpoint(id).digest(), ShardedRequest(copies).spec(), session);
    ASSERT_TRUE(status.ok()) << status.error_message();
    id = session.session_id();
    steps_[id] = 3;
    EXPECT_EQ(Checkpoint(id).digest().SerializeAsString(), digest.SerializeAsString()) << copies;
  }
  train(first);
  train(id);
  EXPECT_EQ(Checkpoint(id).digest().SerializeAsString(),
            Checkpoint(first).digest().SerializeAsString());
  EXPECT_NE(Checkpoint(id).digest().SerializeAsString(), digest.SerializeAsString());
}

TEST_F(ParallelSessionsTest, ShardedWeightsAreRefusedWhereNothingDividesThem) {
  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  v1::OpenSessionRequest request = OpenRequest(2, 1, "column");
  request.mutable_spec()->mutable_parallel()->set_fully_sharded(true);
  ExpectRefused(request, invalid,
                "spec.parallel.fully_sharded: true; it divides weights over data_parallel copies");
  request = OpenRequest(1, 2, "");
  request.mutable_spec()->mutable_parallel()->set_reshard_after_forward(false);
  ExpectRefused(request, invalid, "spec.parallel.reshard_after_forward: false");
  request = ShardedRequest(2);
  request.mutable_spec()->mutable_recipe()->set_name("fp8_block");
  (*request.mutable_spec()->mutable_recipe()->mutable_knobs())["w_block_dim"] = "1";
  ExpectRefused(request, invalid, "sharded weights of fp8_block have tiles (block_dim 2)");
}

TEST_F(ParallelSessionsTest, DividedExpertsHaveTheBitsOfOneRank) {
  const std::string one = Open(ExpertsRequest(1)), ranks = Open(ExpertsRequest(2));
  const v1::SessionStepResponse forward = Forward(ranks), backward = Backward(ranks);
  EXPECT_EQ(OutputOf(forward, "y"), OutputOf(Forward(one), "y"));
  const v1::SessionStepResponse whole = Backward(one);
  for (const char* name : {"dx", "fc.dw.0", "fc.dw.1", "fc.dw.2"}) {
    EXPECT_EQ(OutputOf(backward, name), OutputOf(whole, name)) << name;
  }
  ASSERT_EQ(backward.ranks_size(), 2);
  std::vector<std::string> gradients, stages;
  for (const auto& output : backward.ranks(1).outputs()) gradients.push_back(output.name());
  EXPECT_EQ(gradients, std::vector<std::string>({"dx", "fc.dw.2"}));
  for (const v1::StageTime& stage : forward.ranks(1).stages()) stages.push_back(stage.stage());
  EXPECT_THAT(stages, Contains("fc.dispatch x"));
  EXPECT_THAT(stages, Contains("fc.combine y"));
  Optimize(ranks);
  Optimize(one);
  const std::string digest = Checkpoint(one).digest().SerializeAsString();
  EXPECT_EQ(Checkpoint(ranks).digest().SerializeAsString(), digest);
  EXPECT_EQ(Get(ranks, "fc.weight.2").tensor().fingerprint().SerializeAsString(),
            Get(one, "fc.weight.2").tensor().fingerprint().SerializeAsString());
  for (const int on : {3, 1, 2}) {
    v1::Session session;
    const grpc::Status status =
        Restore(Checkpoint(ranks).digest(), ExpertsRequest(on).spec(), session);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(Checkpoint(session.session_id()).digest().SerializeAsString(), digest) << on;
  }

  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  ExpectRefused(ExpertsRequest(4), invalid,
                "spec.layers[0].layer.m_splits: 3 experts; each of the 4 ranks has an expert");
  v1::OpenSessionRequest request = ExpertsRequest(2);
  request.mutable_spec()->mutable_parallel()->set_tensor_parallel(2);
  ExpectRefused(request, invalid, "spec.parallel.tensor_parallel: 2; with expert_parallel");
  request = OpenRequest(1, 1, "");
  request.mutable_spec()->mutable_parallel()->set_expert_parallel(2);
  ExpectRefused(request, invalid, "spec.parallel.expert_parallel: 2; no layer is a grouped_linear");
}

// What is no sum over the ranks has the bits of all weights on one rank; of copies, those of whole
// copies. From a checkpoint on, also where ranks divide the experts themselves.
TEST_F(ParallelSessionsTest, DividedExpertWeightsHaveTheBitsOfWholeOnes) {
  for (const int copies : {1, 2}) {
    const std::string whole = Open(ExpertWeightsRequest(1, copies));
    const std::string divided = Open(ExpertWeightsRequest(2, copies));
    const v1::SessionStepResponse forward = Forward(divided);
    EXPECT_EQ(OutputOf(forward, "y"), OutputOf(Forward(whole), "y"));
    const v1::SessionStepResponse expected = Backward(whole), backward = Backward(divided);
    for (const char* name : {"fc.dw.0", "fc.dw.1", "fc.dw.2"}) {
      EXPECT_EQ(OutputOf(backward, name), OutputOf(expected, name)) << name;
    }
    EXPECT_EQ(backward.rank_differences_size(), 0);
    ASSERT_EQ(backward.ranks_size(), 2 * copies);
    const v1::RankReport& last = backward.ranks(2 * copies - 1);
    ASSERT_EQ(last.outputs_size(), 4);
    EXPECT_EQ(last.outputs(0).name(), "dx");
    EXPECT_EQ(last.outputs(0).type().shape(0), kRows / (2 * copies));
    EXPECT_EQ(last.outputs(3).name(), "fc.dw.2");
    EXPECT_EQ(last.outputs(3).type().shape(0), kWide / 2);
    std::vector<std::string> stages;
    for (const v1::StageTime& stage : last.stages()) stages.push_back(stage.stage());
    EXPECT_THAT(stages, Contains("fc.reduce-scatter dx"));
    Optimize(divided);
    Optimize(whole);
    const std::string digest = Checkpoint(whole).digest().SerializeAsString();
    EXPECT_EQ(Checkpoint(divided).digest().SerializeAsString(), digest);
    for (const v1::OpenSessionRequest& elsewhere :
         {ExpertWeightsRequest(4), ExpertWeightsRequest(2, 2, "row"), ExpertsRequest(3),
          ExpertsRequest(1), ExpertWeightsRequest(2, copies)}) {
      v1::Session session;
      const grpc::Status status = Restore(Checkpoint(divided).digest(), elsewhere.spec(), session);
      ASSERT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(Checkpoint(session.session_id()).digest().SerializeAsString(), digest);
    }
  }

  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  v1::OpenSessionRequest request = ExpertWeightsRequest(2);
  request.mutable_spec()->mutable_parallel()->set_expert_parallel(2);
  ExpectRefused(request, invalid, "spec.parallel.tensor_parallel: 2; with expert_parallel");
  request = ExpertWeightsRequest(2);
  request.mutable_spec()->mutable_parallel()->mutable_overlap();
  ExpectRefused(request, invalid, "every divided layer is a grouped_linear, which communicates");
  request = ExpertsRequest(1);
  request.mutable_spec()->mutable_parallel()->set_tensor_parallel(2);
  ExpectRefused(request, invalid, "no layer has a parallel_mode");
}

// 2 ranks in each of 2 copies, of which the other places of the experts change no bit; from a
// checkpoint on, on one rank as well.
TEST_F(ParallelSessionsTest, CopiesOfExpertsSumTheirGradients) {
  const std::string whole = Open(ExpertsRequest(1, 2)), divided = Open(ExpertsRequest(2, 2));
  EXPECT_EQ(OutputOf(Forward(divided), "y"), OutputOf(Forward(whole), "y"));
  const v1::SessionStepResponse expected = Backward(whole), backward = Backward(divided);
  for (const char* name : {"dx", "fc.dw.0", "fc.dw.1", "fc.dw.2"}) {
    EXPECT_EQ(OutputOf(backward, name), OutputOf(expected, name)) << name;
  }
  EXPECT_EQ(backward.rank_differences_size(), 0);
  ASSERT_EQ(backward.ranks_size(), 4);
  for (const int rank : {1, 3}) {
    std::vector<std::string> gradients;
    for (const auto& output : backward.ranks(rank).outputs()) gradients.push_back(output.name());
    EXPECT_EQ(gradients, std::vector<std::string>({"dx", "fc.dw.2"}));
  }
  Optimize(divided);
  Optimize(whole);
  const std::string digest = Checkpoint(whole).digest().SerializeAsString();
  EXPECT_EQ(Checkpoint(divided).digest().SerializeAsString(), digest);
  for (const auto& [ranks, copies] : {std::pair(1, 1), std::pair(3, 1), std::pair(2, 2)}) {
    v1::Session session;
    const grpc::Status status =
        Restore(Checkpoint(divided).digest(), ExpertsRequest(ranks, copies).spec(), session);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(Checkpoint(session.session_id()).digest().SerializeAsString(), digest) << ranks;
  }
}

// Copies with rows of every expert's weight, or with elements of its master, are whole ones bit for
// bit.
TEST_F(ParallelSessionsTest, CopiesDivideWhatTheyHaveOfExperts) {
  const v1::OpenSessionRequest request = ExpertsRequest(2, 2);
  for (const bool has_rows : {true, false}) {
    v1::OpenSessionRequest divided_request = request;
    v1::Parallel& parallel = *divided_request.mutable_spec()->mutable_parallel();
    parallel.set_fully_sharded(has_rows);
    parallel.set_distributed_optimizer(!has_rows);
    const std::string whole = Open(request), divided = Open(divided_request);
    EXPECT_EQ(OutputOf(Forward(divided), "y"), OutputOf(Forward(whole), "y"));
    const v1::SessionStepResponse expected = Backward(whole), backward = Backward(divided);
    for (const char* name : {"dx", "fc.dw.0", "fc.dw.1", "fc.dw.2"}) {
      EXPECT_EQ(OutputOf(backward, name), OutputOf(expected, name)) << name;
    }
    std::vector<std::string> stages;
    for (const v1::StageTime& stage : backward.ranks(3).stages()) stages.push_back(stage.stage());
    EXPECT_EQ(std::count(stages.begin(), stages.end(), "fc.all-gather weight.2"), has_rows ? 1 : 0);
    Optimize(divided);
    Optimize(whole);
    const std::string digest = Checkpoint(whole).digest().SerializeAsString();
    EXPECT_EQ(Checkpoint(divided).digest().SerializeAsString(), digest);
    v1::Session session;
    const grpc::Status status =
        Restore(Checkpoint(whole).digest(), divided_request.spec(), session);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(Checkpoint(session.session_id()).digest().SerializeAsString(), digest);
  }
}

TEST_F(ParallelSessionsTest, RanksAreMeasuredFromTheStart) {
  const std::string gathers =
      R"(quantgate_collective_calls_total{backend="local",call="all_gather"})";
  const std::string bytes =
      R"(quantgate_collective_bytes_total{backend="local",call="all_gather"})";
  const std::string runs = R"(quantgate_parallel_runs_total{backend="local"})";
  const std::string failed = R"(quantgate_parallel_failures_total{backend="local",kind="rank"})";
  for (const std::string& series :
       {gathers, bytes, runs, failed,
        std::string(R"(quantgate_collective_wait_seconds_total{backend="nccl",call="all_reduce"})"),
        std::string(R"(quantgate_parallel_failures_total{backend="nccl",kind="mismatch"})"),
        std::string(R"(quantgate_communicators_total{event="made"})"),
        std::string(R"(quantgate_communicators_total{event="leased"})"),
        std::string(R"(quantgate_overlap_seconds_total{part="exposed"})"),
        std::string("quantgate_overlap_efficiency_count")}) {
    EXPECT_EQ(Metric(series), 0) << series;
  }
  const std::string id = Open(OpenRequest(2, 1, "column"));
  const double opened = Metric(runs);
  Forward(id);
  EXPECT_EQ(Metric(runs), opened + 1);
  EXPECT_EQ(Metric(gathers), 1);
  EXPECT_EQ(Metric(bytes), kRows * kWide * 2);
  v1::SessionStepRequest wrong;
  wrong.set_session_id(id);
  wrong.set_expected_step(1);
  *wrong.mutable_forward()->mutable_x() = Generated("normal", 2, "bf16", {kRows, kWide / 2});
  v1::SessionStepResponse response;
  grpc::ClientContext context;
  EXPECT_FALSE(stub_->Step(&context, wrong, &response).ok());
  EXPECT_EQ(Metric(failed), 1);
}

TEST_F(ParallelSessionsTest, TheResponseThatIsKeptIsCounted) {
  const std::string kept = Open(OpenRequest(1, 1, ""));
  const std::string forgotten = Open(OpenRequest(1, 1, ""));
  const v1::SessionStepResponse response = Forward(kept, "again");
  Forward(forgotten);
  EXPECT_EQ(Get(kept).bytes() - Get(forgotten).bytes(),
            static_cast<int64_t>(response.ByteSizeLong()));
  // The next step without an id keeps none.
  Backward(kept);
  Backward(forgotten);
  EXPECT_EQ(Get(kept).bytes(), Get(forgotten).bytes());
}

TEST(SessionPages, EndWhereAMessageDoes) {
  std::vector<SessionRecord> records(1000);
  for (size_t i = 0; i < records.size(); ++i) {
    records[i].number = 1000 - static_cast<int64_t>(i);
    records[i].microbatches.assign(64, std::string(64, 'm'));
  }
  const v1::ListSessionsResponse page = SessionPageToProto(records, 1000, absl::UnixEpoch());
  EXPECT_LE(page.ByteSizeLong(), static_cast<size_t>(kMessageBytesMax));
  ASSERT_GT(page.sessions_size(), 900);
  ASSERT_LT(page.sessions_size(), 1000);
  EXPECT_EQ(page.next_page_token(), std::to_string(1001 - page.sessions_size()));
  const std::vector<SessionRecord> few(records.begin(), records.begin() + 10);
  EXPECT_EQ(SessionPageToProto(few, 1000, absl::UnixEpoch()).next_page_token(), "");
  EXPECT_EQ(SessionPageToProto(few, 10, absl::UnixEpoch()).next_page_token(), "991");
}

}  // namespace
}  // namespace quantgate
