// Sessions on several ranks over a real channel: the bits of one rank, what is said of each rank,
// what is refused, metrics; and what a session keeps beside its tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "quantgate/v1/sessions_service.grpc.pb.h"
#include "server/limits.h"
#include "server/sessions/convert_session.h"
#include "tests/server/sessions/parallel_sessions_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

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
  // Each rank saves its half of x and of the weight, which is the parameter, in bf16.
  EXPECT_EQ(forward.memory().saved_bytes(), 2 * kRows * kWide + 2 * kWide * kWide);
  EXPECT_EQ(forward.memory().held_bytes(), 2 * kWide * kWide);
  EXPECT_EQ(forward.memory().gathered_peak_bytes(), 0);
  const v1::SessionStepResponse backward = Backward(ranks);
  EXPECT_EQ(OutputOf(backward, "fc.dw"), OutputOf(Backward(one), "fc.dw"));
  EXPECT_EQ(backward.memory().saved_bytes(), 0);
  // Both gather all of x for wgrad.
  EXPECT_EQ(backward.memory().gathered_peak_bytes(), 2 * 2 * kRows * kWide);
  EXPECT_EQ(backward.memory().gathered_held_bytes(), 0);
  EXPECT_EQ(backward.ranks(1).gathered_peak_bytes(), 2 * kRows * kWide);
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
                "parallel.amax_groups[input] is tensor: this group needs tensor_parallel > 1");
}

TEST_F(ParallelSessionsTest, CopiesAndRefusals) {
  const std::string copies = Open(OpenRequest(1, 2, ""));
  const v1::SessionStepResponse forward = Forward(copies);
  EXPECT_EQ(forward.ranks_size(), 2);
  EXPECT_EQ(forward.ranks(0).outputs(0).type().shape(0), kRows / 2);
  EXPECT_EQ(OutputOf(forward, "y"), OutputOf(Forward(Open(OpenRequest(1, 1, ""))), "y"));

  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  ExpectRefused(OpenRequest(3, 4, "column"), invalid, "spec.parallel is tp3 dp4 sp");
  ExpectRefused(OpenRequest(2, 1, ""), invalid, "no layer has a parallel_mode");
  ExpectRefused(OpenRequest(1, 1, "column"), invalid, "spec.layers[0].layer.parallel_mode");
  ExpectRefused(OpenRequest(5, 1, "column"), invalid, "multiple of 5");
  v1::OpenSessionRequest named = OpenRequest(1, 1, "");
  named.mutable_spec()->mutable_layers(0)->mutable_layer()->set_name("another");
  ExpectRefused(named, invalid, "spec.layers[0].layer.name is \"another\"");
  v1::OpenSessionRequest request = OpenRequest(2, 1, "column");
  request.mutable_spec()->mutable_parallel()->set_backend("mpi");
  ExpectRefused(request, invalid,
                "spec.parallel.backend is \"mpi\": unknown name; known: local, nccl");
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
  EXPECT_THAT(refused.error_message(), HasSubstr("[fc.dw]: gradients since the last optimizer"));
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

}  // namespace QG_TEST_FILE
}  // namespace quantgate
