// Scenarios.List and Scenarios.Run over a real channel, on the CPU engine and on one with a bug.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/validate/scenarios/scenario.h"
#include "quantgate/v1/scenarios_service.grpc.pb.h"
#include "tests/server/faulty_device.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

constexpr char kRoundUp[] = "e8m0-scales-round-up";
constexpr char kSwizzled[] = "swizzled-scales-round-trip";

struct Outcome {
  grpc::Status status;
  std::vector<v1::ScenarioEvent> events;
};

Outcome RunOn(TestServer& server, const v1::RunScenariosRequest& request) {
  Outcome outcome;
  const auto stub = v1::Scenarios::NewStub(server.channel());
  grpc::ClientContext context;
  const auto reader = stub->Run(&context, request);
  v1::ScenarioEvent event;
  while (reader->Read(&event)) outcome.events.push_back(event);
  outcome.status = reader->Finish();
  return outcome;
}

v1::RunScenariosRequest Named(const std::vector<std::string>& names, bool with_faults) {
  v1::RunScenariosRequest request;
  for (const std::string& name : names) request.add_names(name);
  request.set_with_faults(with_faults);
  return request;
}

TEST(ScenariosServiceTest, ListsTheLibrary) {
  TestServer server;
  const auto stub = v1::Scenarios::NewStub(server.channel());
  grpc::ClientContext context;
  v1::ListScenariosResponse response;
  ASSERT_TRUE(stub->List(&context, {}, &response).ok());
  ASSERT_EQ(response.scenarios_size(), static_cast<int>(AllScenarios().size()));
  EXPECT_EQ(response.faults_size(), static_cast<int>(AllFaults().size()));
  EXPECT_EQ(response.bug_classes_size(), static_cast<int>(AllBugClasses().size()));
  for (int i = 0; i < response.scenarios_size(); ++i) {
    EXPECT_EQ(response.scenarios(i).name(), AllScenarios()[i].name);
    EXPECT_EQ(response.scenarios(i).criterion(), AllScenarios()[i].criterion);
    EXPECT_EQ(response.scenarios(i).faults_size(),
              static_cast<int>(AllScenarios()[i].faults.size()));
  }
}

TEST(ScenariosServiceTest, RunsNamedScenariosAndTheirFaults) {
  TestServer server([](ServerOptions& options) { options.metrics_listen = "127.0.0.1:0"; });
  const Outcome outcome = RunOn(server, Named({kSwizzled, kRoundUp}, true));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_EQ(outcome.events.size(), 5u);  // In the library's order, each before its fault.
  EXPECT_EQ(outcome.events[0].scenario().scenario(), kRoundUp);
  EXPECT_EQ(outcome.events[0].scenario().outcome(), "passed");
  EXPECT_GT(outcome.events[0].scenario().checks(), 0);
  EXPECT_EQ(outcome.events[0].scenario().digest().size(), 64u);
  EXPECT_NE(outcome.events[0].scenario().digest(), outcome.events[2].scenario().digest());
  EXPECT_EQ(outcome.events[0].scenario().rank_placements_size(), 0);  // It has no ranks.
  EXPECT_EQ(outcome.events[1].fault().fault(), "e8m0-rounded-down");
  EXPECT_EQ(outcome.events[1].fault().outcome(), "caught");
  EXPECT_EQ(outcome.events[1].fault().scenario(), kRoundUp);
  EXPECT_FALSE(outcome.events[1].fault().first().tensor().empty());
  EXPECT_EQ(outcome.events[2].scenario().scenario(), kSwizzled);
  EXPECT_EQ(outcome.events[3].fault().outcome(), "caught");
  EXPECT_TRUE(outcome.events[4].finished().good());
  EXPECT_EQ(outcome.events[4].finished().environment().devices(0).id(), "cpu");
  const std::string metrics = server.HttpGet("/metrics");
  EXPECT_EQ(MetricValue(metrics, "quantgate_scenarios_total{outcome=\"passed\"}"), 2);
  EXPECT_EQ(MetricValue(metrics, "quantgate_scenarios_total{outcome=\"failed\"}"), 0);
  EXPECT_EQ(MetricValue(metrics, "quantgate_scenario_faults_total{outcome=\"caught\"}"), 2);
}

TEST(ScenariosServiceTest, CountsWhatIsLeftOutApart) {
  TestServer server([](ServerOptions& options) { options.metrics_listen = "127.0.0.1:0"; });
  constexpr char kNeedsDevice[] = "cpu-equals-cuda";
  const v1::ScenarioRunFinished alone =
      RunOn(server, Named({kNeedsDevice}, true)).events.back().finished();
  EXPECT_FALSE(alone.good());
  EXPECT_EQ(alone.scenarios_left_out(), 1);
  EXPECT_EQ(alone.faults_left_out(), 1);
  const v1::ScenarioRunFinished beside =
      RunOn(server, Named({kNeedsDevice, kRoundUp}, false)).events.back().finished();
  EXPECT_TRUE(beside.good());
  EXPECT_EQ(beside.scenarios_left_out(), 1);
  EXPECT_EQ(beside.faults_left_out(), 0);
  EXPECT_EQ(
      MetricValue(server.HttpGet("/metrics"), "quantgate_scenarios_total{outcome=\"left_out\"}"),
      2);
}

TEST(ScenariosServiceTest, SaysWhatWasMeasured) {
  TestServer server;
  const Outcome outcome = RunOn(server, Named({"hybrid-gathers-quantize-twice"}, false));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_EQ(outcome.events[0].scenario().notes_size(), 2);
  EXPECT_THAT(outcome.events[0].scenario().notes(0),
              testing::MatchesRegex("hybrid:.*: .* elements are not those of one quantization.*"));
}

TEST(ScenariosServiceTest, SaysHowRanksWerePlaced) {
  TestServer server;
  v1::RunScenariosRequest request = Named({"gathered-shards-stand-in-rank-order"}, false);
  request.set_parallel_backend("local");
  const Outcome outcome = RunOn(server, request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  const v1::ScenarioResult& result = outcome.events[0].scenario();
  ASSERT_EQ(result.rank_placements_size(), 1);
  EXPECT_EQ(result.rank_placements(0).backend(), "local");
  EXPECT_EQ(result.rank_placements(0).transport(), "local");
  EXPECT_THAT(result.rank_placements(0).sizes(), testing::ElementsAre(1, 2, 3, 4, 8));
  // The same without the field, and the same bytes.
  request.clear_parallel_backend();
  EXPECT_EQ(RunOn(server, request).events[0].scenario().digest(), result.digest());
}

TEST(ScenariosServiceTest, RefusesParallelBackends) {
  TestServer server;
  v1::RunScenariosRequest request = Named({kRoundUp}, false);
  request.set_parallel_backend("mpi");
  const Outcome unknown = RunOn(server, request);
  EXPECT_EQ(unknown.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailOf(unknown.status).field(), "parallel_backend");
  EXPECT_EQ(DetailOf(unknown.status).value(), "\"mpi\"");
  EXPECT_THAT(DetailOf(unknown.status).rule(), HasSubstr("local, nccl"));
  request.set_parallel_backend("nccl");
  const Outcome on_cpu = RunOn(server, request);
  EXPECT_EQ(on_cpu.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailOf(on_cpu.status).field(), "parallel_backend");
  EXPECT_EQ(DetailOf(on_cpu.status).value(), "nccl");
  EXPECT_EQ(DetailOf(on_cpu.status).rule(),
            "it needs a GPU for each of the 2 ranks, and the run is on the CPU");
  EXPECT_TRUE(on_cpu.events.empty());
}

TEST(ScenariosServiceTest, SaysWhatDoesNotHold) {
  TestServer server([](ServerOptions& options) {
    options.metrics_listen = "127.0.0.1:0";
    options.make_engines = &MakeFaultyEngines;
  });
  const Outcome outcome = RunOn(server, Named({kRoundUp}, false));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_EQ(outcome.events.size(), 2u);
  const v1::ScenarioResult& result = outcome.events[0].scenario();
  EXPECT_EQ(result.outcome(), "failed");
  EXPECT_GT(result.difference_count(), result.differences_size());
  EXPECT_EQ(result.differences(0).recipe(), "mxfp8");
  EXPECT_NE(result.differences(0).subject(), result.differences(0).expected());
  EXPECT_FALSE(outcome.events[1].finished().good());
  EXPECT_EQ(
      MetricValue(server.HttpGet("/metrics"), "quantgate_scenarios_total{outcome=\"failed\"}"), 1);
}

TEST(ScenariosServiceTest, RefusesUnknownNamesAndDevices) {
  TestServer server;
  const Outcome unknown = RunOn(server, Named({kRoundUp, "no-such"}, false));
  EXPECT_EQ(unknown.status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(unknown.status.error_message(),
              HasSubstr("names is \"no-such\": unknown name; known: "));
  EXPECT_TRUE(unknown.events.empty());
  const v1::ErrorDetail detail = DetailOf(unknown.status);
  EXPECT_EQ(detail.field(), "names");
  EXPECT_EQ(detail.value(), "\"no-such\"");
  EXPECT_THAT(detail.rule(), HasSubstr(kRoundUp));
  v1::RunScenariosRequest elsewhere = Named({kRoundUp}, false);
  elsewhere.set_device("cuda:7");
  const Outcome refused = RunOn(server, elsewhere);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailOf(refused.status).field(), "device");
}

TEST(ScenariosServiceTest, StopsWhenTheClientGoes) {
  TestServer server;
  const auto stub = v1::Scenarios::NewStub(server.channel());
  grpc::ClientContext context;
  const auto reader = stub->Run(&context, Named({}, true));
  v1::ScenarioEvent event;
  ASSERT_TRUE(reader->Read(&event));
  context.TryCancel();
  while (reader->Read(&event)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  // The device is free again: another run gets its turn.
  EXPECT_TRUE(RunOn(server, Named({kRoundUp}, false)).status.ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
