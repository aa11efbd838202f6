// A rank of a run, or of a session's step, dies or is stuck in the middle of a collective call, or
// of an overlapped one: the client gets a typed error when the deadline of ranks is over, the
// server lives, and what comes next has the right bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "quantgate/v1/sessions_service.grpc.pb.h"
#include "tests/server/runs/failing_ranks.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

constexpr int64_t kRows = 256, kWide = 128;
/// Ranks of these small layers wait for one another for some milliseconds.
constexpr absl::Duration kDeadline = absl::Seconds(2);

struct TroubleCase {
  const char* name;
  RankTrouble trouble;
  TroublePlace place;
  grpc::StatusCode code;
  const char* message;
  const char* failure;  ///< Of quantgate_parallel_failures_total.
};
constexpr TroubleCase kTroubles[] = {
    {"Dies", RankTrouble::kDies, TroublePlace::kCollective, grpc::StatusCode::UNAVAILABLE,
     "group tp: rank 1: killed in the middle of a call", "transport"},
    {"IsStuck", RankTrouble::kIsStuck, TroublePlace::kCollective,
     grpc::StatusCode::DEADLINE_EXCEEDED, "rank 1 did not come within 2s", "deadline"},
    {"DiesInAnOverlap", RankTrouble::kDies, TroublePlace::kOverlap, grpc::StatusCode::UNAVAILABLE,
     ": rank 1, copy rows of ", "transport"},
    {"IsStuckInAnOverlap", RankTrouble::kIsStuck, TroublePlace::kOverlap,
     grpc::StatusCode::DEADLINE_EXCEEDED, "rank 1 did not come to the end of copy rows of ",
     "deadline"},
};

class FailingRanksTest : public testing::TestWithParam<TroubleCase> {
 protected:
  static void Divide(v1::Parallel& parallel) {
    parallel.set_tensor_parallel(2);
    parallel.set_sequence_parallel(true);
    if (GetParam().place == TroublePlace::kOverlap) parallel.mutable_overlap();
  }
  /// One variant on one rank and one on two, of the same bits.
  static v1::RunSpec Spec() {
    v1::RunSpec spec = LinearSpec(kRows, kWide, kWide);
    spec.mutable_step()->mutable_layer()->set_parallel_mode("column");
    spec.mutable_step()->mutable_requires_grad()->set_weight(true);
    *spec.add_variants() = MakeVariant("mxfp8", "none", "sm100");
    *spec.add_variants() = spec.variants(0);
    Divide(*spec.mutable_variants(1)->mutable_parallel());
    spec.set_reference(0);
    spec.set_requirement(v1::REQUIREMENT_BITWISE);
    return spec;
  }
  v1::RunFinished Execute() {
    v1::ExecuteRequest request;
    *request.mutable_spec() = Spec();
    v1::RunFinished finished;
    const grpc::Status status = ExecuteToEnd(server_, request, finished);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return finished;
  }

  grpc::Status Step(v1::SessionStepRequest request, int step, v1::SessionStepResponse& response) {
    request.set_session_id(session_);
    request.set_expected_step(step);
    grpc::ClientContext context;
    return sessions_->Step(&context, request, &response);
  }
  /// A session of one layer.
  void Open(bool divides) {
    v1::OpenSessionRequest request;
    v1::SessionLayer& layer = *request.mutable_spec()->add_layers();
    layer.set_name("fc");
    layer.mutable_layer()->set_kind("linear");
    request.mutable_spec()->mutable_recipe()->set_name("bf16");
    if (divides) {
      layer.mutable_layer()->set_parallel_mode("column");
      Divide(*request.mutable_spec()->mutable_parallel());
    }
    (*request.mutable_parameters())["fc.weight"] = Generated("normal", 1, "bf16", {kWide, kWide});
    v1::Session session;
    grpc::ClientContext context;
    const grpc::Status status = sessions_->Open(&context, request, &session);
    ASSERT_TRUE(status.ok()) << status.error_message();
    session_ = session.session_id();
  }
  static v1::SessionStepRequest Forward() {
    v1::SessionStepRequest request;
    *request.mutable_forward()->mutable_x() = Generated("normal", 2, "bf16", {kRows, kWide});
    return request;
  }
  static v1::SessionStepRequest Backward() {
    v1::SessionStepRequest request;
    *request.mutable_backward()->mutable_grad_output() =
        Generated("normal", 3, "bf16", {kRows, kWide});
    return request;
  }
  static std::string FingerprintOf(const v1::SessionStepResponse& response,
                                   const std::string& name) {
    for (const v1::NamedTensor& output : response.outputs()) {
      if (output.name() == name) return output.fingerprint().SerializeAsString();
    }
    ADD_FAILURE() << "no output " << name;
    return "";
  }
  double Failures(const std::string& kind) {
    return MetricValue(
        server_.HttpGet("/metrics"),
        R"(quantgate_parallel_failures_total{backend="local",kind=")" + kind + "\"}");
  }

  RankTroubles troubles_;
  TestServer server_{[this](ServerOptions& options) {
    options.metrics_listen = "127.0.0.1:0";
    options.rank_deadline = kDeadline;
    options.make_transport = [this](CollectiveBackend, std::span<Engine* const>, absl::Duration) {
      return std::make_unique<FailingTransport>(troubles_);
    };
    options.wrap_engine = [this](Engine& engine, int rank) {
      return MakeTroubled(troubles_, engine, rank);
    };
  }};
  const std::unique_ptr<v1::Sessions::Stub> sessions_ = v1::Sessions::NewStub(server_.channel());
  std::string session_;
};

TEST_P(FailingRanksTest, ARunFailsWithATypedErrorAndTheNextOneIsRight) {
  troubles_.Begin(GetParam().trouble, GetParam().place);
  const v1::RunFinished failed = Execute();
  EXPECT_EQ(failed.state(), v1::RUN_STATE_FAILED);
  EXPECT_EQ(failed.status_code(), GetParam().code) << failed.status_message();
  EXPECT_THAT(failed.status_message(), HasSubstr(GetParam().message));
  EXPECT_FALSE(failed.has_report());
  EXPECT_EQ(Failures(GetParam().failure), 1);

  EXPECT_EQ(HealthOf(server_, ""), 1);
  const v1::RunFinished next = Execute();
  EXPECT_EQ(next.state(), v1::RUN_STATE_SUCCEEDED) << next.status_message();
  EXPECT_TRUE(next.report().verdict().pass()) << next.report().verdict().finding();
}

TEST_P(FailingRanksTest, AStepFailsWithATypedErrorAndIsDoneWhenAskedForAgain) {
  v1::SessionStepResponse response, expected;
  Open(/*divides=*/false);
  ASSERT_TRUE(Step(Forward(), 0, response).ok());
  ASSERT_TRUE(Step(Backward(), 1, expected).ok());
  Open(/*divides=*/true);
  ASSERT_TRUE(Step(Forward(), 0, response).ok());
  troubles_.Begin(GetParam().trouble, GetParam().place);
  const grpc::Status failed = Step(Backward(), 1, response);
  EXPECT_EQ(failed.error_code(), GetParam().code);
  EXPECT_THAT(failed.error_message(), HasSubstr(GetParam().message));
  EXPECT_EQ(Failures(GetParam().failure), 1);
  const grpc::Status again = Step(Backward(), 1, response);
  ASSERT_TRUE(again.ok()) << again.error_message();
  EXPECT_EQ(FingerprintOf(response, "fc.dw"), FingerprintOf(expected, "fc.dw"));
}

INSTANTIATE_TEST_SUITE_P(Troubles, FailingRanksTest, testing::ValuesIn(kTroubles),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace QG_TEST_FILE
}  // namespace quantgate
