// Sessions whose weights or experts are divided over ranks: the bits of one rank, checkpoints that
// any number of ranks restores, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/sessions/parallel_sessions_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::Contains;

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
                "spec.parallel.fully_sharded is true: fully_sharded needs data_parallel > 1");
  request = OpenRequest(1, 2, "");
  request.mutable_spec()->mutable_parallel()->set_reshard_after_forward(false);
  ExpectRefused(request, invalid, "spec.parallel.reshard_after_forward is false");
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
                "spec.layers[0].layer.m_splits is 3 experts: each of the 4 ranks has an expert");
  v1::OpenSessionRequest request = ExpertsRequest(2);
  request.mutable_spec()->mutable_parallel()->set_tensor_parallel(2);
  ExpectRefused(request, invalid, "spec.parallel.tensor_parallel is 2: with expert_parallel");
  request = OpenRequest(1, 1, "");
  request.mutable_spec()->mutable_parallel()->set_expert_parallel(2);
  ExpectRefused(request, invalid,
                "spec.parallel.expert_parallel is 2: no layer is a grouped_linear");
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
  ExpectRefused(request, invalid, "spec.parallel.tensor_parallel is 2: with expert_parallel");
  request = ExpertWeightsRequest(2);
  request.mutable_spec()->mutable_parallel()->mutable_overlap();
  ExpectRefused(request, invalid, "every divided layer is a grouped_linear");
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

}  // namespace QG_TEST_FILE
}  // namespace quantgate
