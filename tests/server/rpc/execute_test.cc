// Engine.Execute and what belongs to a run: events, attaching again, idempotence, restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/database.h"
#include "tests/server/runs/run_outcome.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;

/// A report without what differs between two runs of the same.
std::string Comparable(v1::VariantReport report) {
  report.clear_stages();
  return report.SerializeAsString();
}

/// A run's variants from a stream of outputs, by hand; `order`: how the events came.
std::vector<v1::VariantReport> Joined(const RunOutcome& streamed, std::vector<std::string>& order) {
  std::vector<v1::VariantReport> joined(2);
  for (const v1::RunEvent& event : streamed.events) {
    if (event.has_output()) {
      const v1::OutputReport& told = event.output().report();
      order.push_back(absl::StrCat(event.output().index(), " ", told.tensor().name()));
      EXPECT_FALSE(told.has_bound());
      *joined[event.output().index()].add_outputs() = told;
    }
    const bool is_with_end = event.has_finished() && event.finished().has_variant();
    if (!event.has_variant() && !is_with_end) continue;
    const v1::VariantFinished& variant = is_with_end ? event.finished().variant() : event.variant();
    const int index = variant.index();
    order.push_back(absl::StrCat(index, is_with_end ? " with the end" : ""));
    v1::VariantReport rest = variant.report();
    EXPECT_EQ(rest.outputs_size(), joined[index].outputs_size());
    for (int i = 0; i < rest.outputs_size(); ++i) {
      EXPECT_EQ(rest.outputs(i).tensor().name(), joined[index].outputs(i).tensor().name());
      EXPECT_FALSE(rest.outputs(i).has_against_exact());
      EXPECT_TRUE(rest.outputs(i).has_bound());
      *joined[index].mutable_outputs(i)->mutable_bound() = rest.outputs(i).bound();
    }
    rest.clear_outputs();
    joined[index].MergeFrom(rest);
  }
  return joined;
}

/// What the client puts together is what it gets at once without, and what GetRun says of both.
void ExpectTheSameStreamed(TestServer& server, v1::ExecuteRequest request,
                           const std::vector<std::string>& expected_order) {
  const RunOutcome whole = Execute(server, request);
  request.set_stream_outputs(true);
  const RunOutcome streamed = Execute(server, request);
  ASSERT_TRUE(whole.status.ok() && streamed.status.ok()) << streamed.status.error_message();
  std::vector<std::string> order;
  const std::vector<v1::VariantReport> joined = Joined(streamed, order);
  EXPECT_EQ(order, expected_order);
  const v1::Run kept = GetRun(server, streamed.events[0].run_id());
  const int variants = request.spec().variants_size();
  ASSERT_EQ(kept.report().variants_size(), variants);
  ASSERT_EQ(whole.variants().size(), static_cast<size_t>(variants));
  for (const v1::RunEvent& event : whole.events) {
    if (!event.has_variant()) continue;
    const std::string expected = Comparable(event.variant().report());
    EXPECT_EQ(Comparable(joined[event.variant().index()]), expected);
    EXPECT_EQ(Comparable(kept.report().variants(event.variant().index())), expected);
  }
  const RunOutcome again = Wait(server, streamed.events[0].run_id(), 1);
  EXPECT_EQ(again.events.size(), streamed.events.size());
}

TEST(RunTest, StreamsOutputsWhereAskedFor) {
  TestServer server;
  v1::ExecuteRequest request = SmallRequest();
  ExpectTheSameStreamed(server, request, {"0 y", "0 dx", "0 dw", "0 with the end"});
  // The reference goes first.
  *request.mutable_spec()->add_variants() = MakeVariant("bf16", "none", "sm90");
  request.mutable_spec()->set_reference(1);
  ExpectTheSameStreamed(server, request,
                        {"1 y", "1 dx", "1 dw", "1", "0 y", "0 dx", "0 dw", "0 with the end"});
}

TEST(RunTest, StreamsEventsInOrder) {
  TestServer server;
  const RunOutcome run = Execute(server, SmallRequest());
  ASSERT_TRUE(run.status.ok()) << run.status.error_message();
  ASSERT_GE(run.events.size(), 4u);
  for (size_t i = 0; i < run.events.size(); ++i) {
    EXPECT_EQ(run.events[i].sequence(), static_cast<int64_t>(i) + 1);
    EXPECT_EQ(run.events[i].run_id(), run.events[0].run_id());
  }
  EXPECT_TRUE(run.events.front().has_accepted());
  EXPECT_TRUE(run.events[1].has_progress());
  EXPECT_EQ(run.finished().state(), v1::RUN_STATE_SUCCEEDED);
  ASSERT_EQ(run.variants().size(), 1u);
  const v1::VariantReport variant = run.variants()[0];
  EXPECT_EQ(variant.recipe_name(), "fp8_current");
  EXPECT_EQ(variant.arithmetic(), "sm90");
  std::vector<std::string> names;
  for (const auto& output : variant.outputs()) {
    names.push_back(output.tensor().name());
    EXPECT_TRUE(output.tensor().has_data());
    // Bits of elements are told with their dtypes.
    EXPECT_EQ(output.against_unquantized().max_abs_at().subject_dtype(), "bf16");
    EXPECT_EQ(output.against_unquantized().max_abs_at().reference_dtype(), "f32");
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("y", "dx", "dw"));
  const v1::RunReport& report = run.finished().report();
  EXPECT_EQ(report.inputs_size(), 3);
  EXPECT_EQ(report.environment().devices(0).id(), "cpu");
  EXPECT_EQ(report.reproduce(), "quantgate run --spec run:" + report.run_id());
  EXPECT_EQ(report.request().step().x().generate().seed(), 1u);
  EXPECT_EQ(report.request().variants(0).arithmetic(), "sm90");
}

TEST(RunTest, WaitRunAttachesFromAnySequence) {
  TestServer server;
  const RunOutcome run = Execute(server, SmallRequest());
  const std::string run_id = run.events[0].run_id();
  const int64_t last = run.events.back().sequence();
  for (const int64_t from : {int64_t{0}, int64_t{1}, int64_t{3}, last}) {
    const RunOutcome again = Wait(server, run_id, from);
    EXPECT_TRUE(again.status.ok());
    const size_t skipped = from == 0 ? 0 : static_cast<size_t>(from) - 1;
    ASSERT_EQ(again.events.size(), run.events.size() - skipped);
    for (size_t i = 0; i < again.events.size(); ++i) {
      EXPECT_EQ(again.events[i].SerializeAsString(), run.events[i + skipped].SerializeAsString());
    }
  }
  const RunOutcome beyond = Wait(server, run_id, last + 1);
  EXPECT_EQ(beyond.status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(DetailOf(beyond.status).field(), "from_sequence");
  EXPECT_EQ(Wait(server, "run-unknown", 0).status.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(RunTest, GetRunPutsTheReportTogether) {
  TestServer server;
  const RunOutcome run = Execute(server, SmallRequest());
  const v1::Run got = GetRun(server, run.events[0].run_id());
  EXPECT_EQ(got.state(), v1::RUN_STATE_SUCCEEDED);
  EXPECT_EQ(got.summary(), "linear x 1 variant");
  ASSERT_EQ(got.report().variants_size(), 1);
  EXPECT_EQ(got.report().variants(0).SerializeAsString(), run.variants()[0].SerializeAsString());
  EXPECT_EQ(got.last_sequence(), run.events.back().sequence());
}

TEST(RunTest, GetRunLeavesOutVariantsThatDoNotFitIntoAMessage) {
  TestServer server;
  v1::ExecuteRequest request;
  *request.mutable_spec() = LinearSpec(256, 256, 256);
  for (const char* recipe : {"fp8_current", "fp8_block", "mxfp8", "nvfp4"}) {
    for (const char* mode : {"none", "high_precision", "dequantized"}) {
      *request.mutable_spec()->add_variants() = MakeVariant(recipe, mode, "auto");
    }
  }
  const RunOutcome run = Execute(server, request);
  ASSERT_EQ(run.finished().state(), v1::RUN_STATE_SUCCEEDED) << run.finished().status_message();
  ASSERT_EQ(run.variants().size(), 12u);
  size_t bytes = 0;
  for (const v1::VariantReport& variant : run.variants()) bytes += variant.ByteSizeLong();
  ASSERT_GT(bytes, size_t{4} << 20);
  const v1::Run got = GetRun(server, run.events[0].run_id());
  EXPECT_EQ(got.state(), v1::RUN_STATE_SUCCEEDED);
  EXPECT_EQ(got.report().variants_size(), 0);
  EXPECT_EQ(got.report().SerializeAsString(), run.finished().report().SerializeAsString());
}

TEST(RunTest, SameRequestIdIsTheSameRun) {
  TestServer server;
  v1::ExecuteRequest request = SmallRequest();
  request.set_request_id("request-1");
  const RunOutcome first = Execute(server, request);
  const RunOutcome second = Execute(server, request);
  ASSERT_TRUE(second.status.ok());
  ASSERT_EQ(first.events.size(), second.events.size());
  EXPECT_EQ(first.events[0].run_id(), second.events[0].run_id());

  *request.mutable_spec()->add_variants() = MakeVariant("bf16", "none", "sm90");
  const RunOutcome other = Execute(server, request);
  EXPECT_EQ(other.status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(DetailOf(other.status).field(), "request_id");
}

TEST(RunTest, ConcurrentRequestsWithOneIdStartOneRun) {
  TestServer server;
  v1::ExecuteRequest request = SmallRequest();
  request.set_request_id("request-1");
  std::vector<std::string> ids(6);
  std::vector<std::thread> threads;
  for (std::string& id : ids) {
    threads.emplace_back([&] { id = Execute(server, request).events.at(0).run_id(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& id : ids) EXPECT_EQ(id, ids[0]);
}

TEST(RunTest, ARunThatCannotBeStoredIsRefusedAndForgotten) {
  TestServer server(EnableHttp);
  // The device has begun with it by the time that it cannot be stored.
  v1::ExecuteRequest endless = EndlessRequest();
  endless.set_request_id("again");
  {
    // Another connection has the database to itself.
    const auto database = Database::Open(server.data_dir() + "/data/quantgate.db").value();
    const std::lock_guard lock(database->mutex());
    Transaction transaction(*database);
    ASSERT_TRUE(transaction.Begin().ok());
    const RunOutcome refused = Execute(server, endless);
    EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INTERNAL);
    EXPECT_THAT(refused.status.error_message(), HasSubstr("locked"));
    EXPECT_TRUE(refused.events.empty());
  }
  EXPECT_TRUE(ListRuns(server).empty());
  v1::ExecuteRequest request = SmallRequest();
  request.set_request_id("again");
  const RunOutcome run = Execute(server, request);
  ASSERT_TRUE(run.status.ok()) << run.status.error_message();
  EXPECT_EQ(run.finished().state(), v1::RUN_STATE_SUCCEEDED);
  EXPECT_EQ(ListRuns(server).size(), 1u);
  const std::string cancelled =
      R"(quantgate_run_total{mode="none",op="linear",outcome="cancelled",recipe="fp8_current"})";
  EXPECT_EQ(MetricValue(server.HttpGet("/metrics"), cancelled), 3);  // Variants.
}

// The last one too, which goes with the status.
TEST(RunTest, EveryEventIsCounted) {
  TestServer server(EnableHttp);
  const RunOutcome run = Execute(server, SmallRequest());
  ASSERT_TRUE(run.status.ok()) << run.status.error_message();
  ASSERT_FALSE(run.events.empty());
  EXPECT_TRUE(run.events.back().has_finished());
  const RunOutcome waited = Wait(server, run.events[0].run_id(), 2);
  ASSERT_TRUE(waited.status.ok()) << waited.status.error_message();
  EXPECT_EQ(waited.events.size(), run.events.size() - 1);
  const std::string metrics = server.HttpGet("/metrics");
  const auto sent = [&](const std::string& method) {
    return MetricValue(metrics, R"(grpc_server_msg_sent_total{grpc_method=")" + method +
                                    R"(",grpc_service="quantgate.v1.Engine",)"
                                    R"(grpc_type="server_stream"})");
  };
  EXPECT_EQ(sent("Execute"), static_cast<double>(run.events.size()));
  EXPECT_EQ(sent("WaitRun"), static_cast<double>(waited.events.size()));
}

TEST(RunTest, KeptOutputsAreBlobsAndLargeOthersAreFingerprints) {
  TestServer server;
  v1::ExecuteRequest request = SmallRequest();
  request.mutable_spec()->set_keep_outputs(true);
  for (const v1::VariantReport& report : Execute(server, request).variants()) {
    for (const auto& output : report.outputs()) {
      EXPECT_FALSE(output.tensor().has_data());
      std::string bytes;
      ASSERT_TRUE(ReadBlob(server.blobs(), output.tensor().digest(), 0, 0, &bytes).ok());
      EXPECT_EQ(DigestFor(bytes).sha256(), output.tensor().digest().sha256());
    }
  }
  // y is bf16 1024 x 1024, twice what a message carries inline.
  *request.mutable_spec() = LinearSpec(1024, 1024, 32);
  request.mutable_spec()->mutable_step()->clear_grad_output();
  *request.mutable_spec()->add_variants() = MakeVariant("bf16", "", "");
  const RunOutcome large = Execute(server, request);
  ASSERT_TRUE(large.status.ok()) << large.status.error_message();
  const v1::NamedTensor y = large.variants()[0].outputs(0).tensor();
  EXPECT_FALSE(y.has_data());
  EXPECT_FALSE(y.has_digest());
  request.mutable_spec()->set_keep_outputs(true);
  const RunOutcome kept = Execute(server, request);
  ASSERT_TRUE(kept.status.ok()) << kept.status.error_message();
  const v1::NamedTensor kept_y = kept.variants()[0].outputs(0).tensor();
  EXPECT_EQ(kept_y.digest().size(), 2 << 20);
  EXPECT_EQ(kept_y.fingerprint().low(), y.fingerprint().low());
  EXPECT_EQ(kept_y.fingerprint().high(), y.fingerprint().high());
}

TEST(RunTest, RunsSurviveARestart) {
  TestServer server;
  const RunOutcome finished = Execute(server, SmallRequest());
  std::string interrupted;
  {
    grpc::ClientContext context;
    const auto reader = server.engine().Execute(&context, EndlessRequest());
    interrupted = ReadUntilProgress(*reader).run_id();
    server.Stop();
    (void)Drain(*reader);
  }
  // What a run leaves whose end no transaction kept.
  const auto stray = std::filesystem::path(server.data_dir()) / "data/quantgate.db-files/run-gone";
  std::ofstream(stray) << "events";
  ASSERT_TRUE(std::filesystem::exists(stray));
  server.Restart();
  EXPECT_FALSE(std::filesystem::exists(stray));
  EXPECT_EQ(GetRun(server, finished.events[0].run_id()).state(), v1::RUN_STATE_SUCCEEDED);
  const RunOutcome again = Wait(server, finished.events[0].run_id(), 0);
  EXPECT_EQ(again.events.size(), finished.events.size());
  // Stopped in order, the run was cancelled and says so.
  EXPECT_EQ(GetRun(server, interrupted).state(), v1::RUN_STATE_CANCELLED);
}

TEST(RunTest, ListsNewestFirstInPages) {
  TestServer server;
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(Execute(server, SmallRequest()).events[0].run_id());
  std::vector<std::string> listed;
  v1::ListRunsRequest request;
  request.set_page_size(2);
  int pages = 0;
  do {
    v1::ListRunsResponse response;
    grpc::ClientContext context;
    ASSERT_TRUE(server.engine().ListRuns(&context, request, &response).ok());
    for (const auto& run : response.runs()) listed.push_back(run.run_id());
    request.set_page_token(response.next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  std::reverse(listed.begin(), listed.end());
  EXPECT_EQ(listed, ids);
  EXPECT_EQ(pages, 3);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
