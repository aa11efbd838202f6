// Info, Tensors, the unary Engine calls, health, metrics and shutting down, over a real channel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <regex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/limits.h"
#include "server/store/run_store.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

v1::NamedTensor FindTensor(const v1::QuantizeResponse& response, const std::string& name) {
  for (const auto& tensor : response.tensors()) {
    if (tensor.name() == name) return tensor;
  }
  return {};
}

TEST(InfoTest, SaysWhatTheServerIs) {
  TestServer server;
  v1::Capabilities capabilities;
  grpc::ClientContext context;
  ASSERT_TRUE(server.info().GetCapabilities(&context, {}, &capabilities).ok());
  EXPECT_EQ(capabilities.limits().message_bytes_max(), 4 << 20);
  EXPECT_EQ(capabilities.limits().chunk_bytes(), 1 << 20);
  EXPECT_EQ(capabilities.digest_function(), "sha256");
  EXPECT_THAT(capabilities.dtypes(), Contains("f8_e4m3"));
  EXPECT_THAT(capabilities.distributions(), Contains("specials"));
  EXPECT_THAT(capabilities.layers(), Contains("linear"));
  EXPECT_FALSE(capabilities.environment().version().empty());
  EXPECT_EQ(capabilities.environment().devices_size(), 1);

  v1::ListRecipesResponse recipes;
  grpc::ClientContext recipes_context;
  ASSERT_TRUE(server.info().ListRecipes(&recipes_context, {}, &recipes).ok());
  std::vector<std::string> names;
  for (const auto& recipe : recipes.recipes()) names.push_back(recipe.name());
  EXPECT_THAT(names, testing::IsSupersetOf({"bf16", "fp8_current"}));

  v1::ListArithmeticsResponse arithmetics;
  grpc::ClientContext arithmetics_context;
  ASSERT_TRUE(server.info().ListArithmetics(&arithmetics_context, {}, &arithmetics).ok());
  for (const auto& arithmetic : arithmetics.arithmetics()) {
    EXPECT_FALSE(arithmetic.source().empty()) << arithmetic.name();
    EXPECT_FALSE(arithmetic.evidence().empty()) << arithmetic.name();
  }
}

TEST(TensorsTest, PutDescribeAndList) {
  TestServer server;
  // 1, -2, NaN, 0 in f32.
  const std::string bytes("\x00\x00\x80\x3F\x00\x00\x00\xC0\x00\x00\xC0\x7F\x00\x00\x00\x00", 16);
  v1::PutTensorRequest put;
  *put.mutable_tensor() = Inline("f32", {2, 2}, bytes);
  put.set_name("four numbers");
  put.set_request_id("put-1");
  v1::TensorRecord record;
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    const grpc::Status status = server.tensors().Put(&context, put, &record);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(record.digest().SerializeAsString(), DigestFor(bytes).SerializeAsString());
  }
  put.set_name("other");
  grpc::ClientContext reused;
  EXPECT_EQ(server.tensors().Put(&reused, put, &record).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);

  v1::DescribeTensorRequest describe;
  *describe.mutable_tensor()->mutable_stored()->mutable_digest() = DigestFor(bytes);
  describe.set_with_statistics(true);
  v1::TensorRecord described;
  grpc::ClientContext context;
  const grpc::Status status = server.tensors().Describe(&context, describe, &described);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(described.name(), "four numbers");
  EXPECT_EQ(described.type().dtype(), "f32");
  EXPECT_EQ(described.statistics().amax(), 2);
  EXPECT_EQ(described.statistics().nan_count(), 1);
  EXPECT_EQ(described.statistics().zero_count(), 1);

  *describe.mutable_tensor()->mutable_stored()->mutable_digest() = DigestFor("elsewhere");
  grpc::ClientContext missing;
  EXPECT_EQ(server.tensors().Describe(&missing, describe, &described).error_code(),
            grpc::StatusCode::NOT_FOUND);

  v1::ListTensorsResponse list;
  grpc::ClientContext list_context;
  ASSERT_TRUE(server.tensors().List(&list_context, {}, &list).ok());
  ASSERT_EQ(list.tensors_size(), 1);
  EXPECT_EQ(list.tensors(0).name(), "four numbers");
}

TEST(TensorsTest, GenerateStoresWhatDescribeAndReadSee) {
  TestServer server;
  v1::GenerateTensorRequest generate;
  *generate.mutable_spec() = Generated("lognormal_outliers", 7, "bf16", {100, 33}).generate();
  generate.set_request_id("gen-1");
  v1::TensorRecord record, again;
  grpc::ClientContext context, again_context;
  ASSERT_TRUE(server.tensors().Generate(&context, generate, &record).ok());
  ASSERT_TRUE(server.tensors().Generate(&again_context, generate, &again).ok());
  EXPECT_EQ(record.SerializeAsString(), again.SerializeAsString());
  EXPECT_EQ(record.digest().size(), 6600);
  std::string bytes;
  ASSERT_TRUE(ReadBlob(server.blobs(), record.digest(), 0, 0, &bytes).ok());
  EXPECT_EQ(DigestFor(bytes).sha256(), record.digest().sha256());
  v1::DescribeTensorRequest describe;
  *describe.mutable_tensor() = Generated("lognormal_outliers", 7, "bf16", {100, 33});
  v1::TensorRecord described;
  grpc::ClientContext describe_context;
  ASSERT_TRUE(server.tensors().Describe(&describe_context, describe, &described).ok());
  EXPECT_EQ(described.fingerprint().SerializeAsString(), record.fingerprint().SerializeAsString());
}

TEST(EngineTest, QuantizeThenDequantize) {
  TestServer server;
  // 448, -1, 0.5, 0 in f32: amax 448, so scale 1 and every value is a code of E4M3 (OCP OFP8 1.0).
  const std::string bytes("\x00\x00\xE0\x43\x00\x00\x80\xBF\x00\x00\x00\x3F\x00\x00\x00\x00", 16);
  v1::QuantizeRequest quantize;
  *quantize.mutable_tensor() = Inline("f32", {2, 2}, bytes);
  quantize.mutable_recipe()->set_name("fp8_current");
  quantize.set_role("input");
  quantize.set_rowwise(true);
  quantize.set_columnwise(true);
  v1::QuantizeResponse quantized;
  grpc::ClientContext context;
  const grpc::Status status = server.engine().Quantize(&context, quantize, &quantized);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(FindTensor(quantized, "rowwise_data").data(), std::string("\x7E\xB8\x30\x00", 4));
  EXPECT_EQ(FindTensor(quantized, "columnwise_data").data(), std::string("\x7E\x30\xB8\x00", 4));
  EXPECT_EQ(quantized.record().amax(), 448);
  EXPECT_EQ(quantized.record().scale(), 1);
  EXPECT_EQ(quantized.source_dtype(), "f32");

  for (const char* usage : {"rowwise", "columnwise"}) {
    v1::DequantizeRequest dequantize;
    for (const auto& tensor : quantized.tensors()) {
      (*dequantize.mutable_tensors())[tensor.name()] =
          Inline(tensor.type().dtype(),
                 {tensor.type().shape().begin(), tensor.type().shape().end()}, tensor.data());
    }
    dequantize.set_usage(usage);
    v1::DequantizeResponse response;
    grpc::ClientContext dequantize_context;
    ASSERT_TRUE(server.engine().Dequantize(&dequantize_context, dequantize, &response).ok());
    EXPECT_EQ(response.data().data(), bytes) << usage;
  }
}

// Rows of FP8 under one scale; written out, so that the transpose is known.
TEST(EngineTest, UpdatesUsages) {
  TestServer server;
  const std::string codes("\x38\x40\x44\xB8\xC0\xC4", 6);
  const std::string two("\x00\x00\x00\x40", 4);
  v1::UpdateUsagesRequest request;
  v1::QuantizedSource& tensor = *request.mutable_tensor();
  (*tensor.mutable_tensors())["rowwise_data"] = Inline("f8_e4m3", {2, 3}, codes);
  (*tensor.mutable_tensors())["rowwise_scale_inv"] = Inline("f32", {1}, two);
  const auto call = [&](v1::UpdateUsagesResponse& response) {
    grpc::ClientContext context;
    return server.engine().UpdateUsages(&context, request, &response);
  };
  v1::UpdateUsagesResponse query;
  ASSERT_TRUE(call(query).ok());
  EXPECT_TRUE(query.tensors().empty());
  EXPECT_TRUE(query.rowwise().present());
  EXPECT_FALSE(query.rowwise().droppable());
  EXPECT_TRUE(query.columnwise().derivable());

  request.set_rowwise(false);
  request.set_columnwise(true);
  v1::UpdateUsagesResponse turned;
  ASSERT_TRUE(call(turned).ok());
  ASSERT_EQ(turned.tensors_size(), 2);
  EXPECT_EQ(turned.tensors(0).name(), "columnwise_data");
  EXPECT_EQ(turned.tensors(0).data(), std::string("\x38\xB8\x40\xC0\x44\xC4", 6));
  EXPECT_EQ(turned.tensors(1).data(), two);
  EXPECT_EQ(turned.description().columnwise().format(), "fp8_tensor");

  request.set_columnwise(false);
  v1::UpdateUsagesResponse none;
  const grpc::Status refused = call(none);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("must keep rowwise or columnwise codes"));
  (*tensor.mutable_tensors())["rowwise_scale_inv"] = Inline("f8_e8m0", {2, 1}, "\x7F\x7F");
  const grpc::Status wrong = call(none);
  EXPECT_EQ(wrong.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(wrong.error_message(), HasSubstr("tensor."));
}

TEST(EngineTest, GemmAndCompare) {
  TestServer server;
  // [1 2; 3 4] x [1 0; 1 1]^T = [1 3; 3 7], in f32.
  const auto floats = [](std::vector<float> values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  };
  v1::GemmRequest gemm;
  *gemm.mutable_a()->mutable_tensor() = Inline("f32", {2, 2}, floats({1, 2, 3, 4}));
  *gemm.mutable_b()->mutable_tensor() = Inline("f32", {2, 2}, floats({1, 0, 1, 1}));
  for (const char* arithmetic : {"exact", "fp32", "sm90"}) {
    gemm.set_arithmetic(arithmetic);
    v1::GemmResponse response;
    grpc::ClientContext context;
    ASSERT_TRUE(server.engine().Gemm(&context, gemm, &response).ok());
    EXPECT_EQ(response.d().data(), floats({1, 3, 3, 7})) << arithmetic;
    EXPECT_THAT(response.arithmetic(), HasSubstr(arithmetic));
  }
  v1::CompareRequest compare;
  *compare.mutable_subject() = Inline("f32", {2, 2}, floats({1, 3, 3, 7}));
  *compare.mutable_reference() = Inline("f32", {2, 2}, floats({1, 3, 4, 7}));
  v1::CompareResponse compared;
  grpc::ClientContext context;
  ASSERT_TRUE(server.engine().Compare(&context, compare, &compared).ok());
  EXPECT_EQ(compared.parity().mismatch_count(), 1);
  EXPECT_EQ(compared.parity().first().coordinate(0), 1);
  EXPECT_EQ(compared.parity().first().coordinate(1), 0);
  EXPECT_EQ(compared.error().max_abs(), 1);
}

TEST(HealthTest, ServesUntilItDrains) {
  TestServer server;
  for (const char* service : {"", "live", "quantgate.v1.Engine", "quantgate.v1.Blobs"}) {
    EXPECT_EQ(HealthOf(server, service), 1) << service;
  }
  EXPECT_EQ(HealthOf(server, "quantgate.v1.Nothing"), -1);
}

/// Names and labels, sorted.
std::vector<std::string> SeriesOf(const std::string& text) {
  std::vector<std::string> series;
  const std::regex line(R"(\n([a-z_]+(\{[^}]*\})?) )");
  for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it)
    series.push_back((*it)[1]);
  std::sort(series.begin(), series.end());
  return series;
}

// Who holds connections for later keeps others out where descriptors are few.
TEST(ConnectionTest, IsClosedWithoutCallsAndMadeAgainForTheNext) {
  TestServer server(
      [](ServerOptions& options) { options.connection_idle_max = absl::Milliseconds(200); });
  const auto call = [&] {
    grpc::ClientContext context;
    v1::Capabilities capabilities;
    return server.info().GetCapabilities(&context, {}, &capabilities).ok();
  };
  ASSERT_TRUE(call());
  while (server.channel()->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY) {
    server.channel()->WaitForStateChange(GRPC_CHANNEL_READY,
                                         std::chrono::system_clock::now() + std::chrono::hours(1));
  }
  EXPECT_TRUE(call());
}

TEST(HttpTest, MetricsStartWithTheServerOrWithTheirFirstEvent) {
  TestServer server(EnableHttp);
  const std::string before = server.HttpGet("/metrics");
  EXPECT_THAT(before, HasSubstr("HTTP/1.1 200"));
  // What nobody uses is no load for who scrapes it.
  EXPECT_LE(before.size(), 150'000u);
  EXPECT_LE(SeriesOf(before).size(), 1500u);
  const std::string quantize =
      R"(quantgate_run_total{mode="none",op="quantize",outcome="rejected",recipe="none"})";
  const std::string linear =
      R"(quantgate_run_total{mode="dequantized",op="linear",outcome="ok",recipe="fp8_current"})";
  const std::string handled = R"(grpc_server_handled_total{grpc_code="OK",grpc_method="Execute",)"
                              R"(grpc_service="quantgate.v1.Engine",grpc_type="server_stream"})";
  const std::string refused =
      R"(grpc_server_handled_total{grpc_code="InvalidArgument",grpc_method="Quantize",)"
      R"(grpc_service="quantgate.v1.Engine",grpc_type="unary"})";
  const std::string checks =
      R"(quantgate_parity_checks_total{mode="dequantized",recipe_a="fp8_current",recipe_b="exact",result="differs"})";
  for (const std::string& series : {quantize, linear, handled, refused, checks}) {
    EXPECT_EQ(MetricValue(before, series), -1) << series;
  }
  const std::string uploaded = R"(quantgate_upload_bytes_total{transport="tcp"})";
  for (const std::string& series :
       {uploaded, std::string(R"(quantgate_rejected_total{reason="disk"})"),
        std::string(R"(quantgate_blob_corruption_total{where="read"})"),
        std::string(R"(quantgate_parallel_failures_total{backend="local",kind="deadline"})"),
        std::string(R"(quantgate_scenarios_total{outcome="failed"})"),
        std::string("quantgate_unknown_methods_total"),
        std::string("quantgate_upload_resumed_total")}) {
    EXPECT_EQ(MetricValue(before, series), 0) << series;
  }
  EXPECT_EQ(MetricValue(before, "quantgate_queue_capacity{queue=\"runs\"}"), 64);
  EXPECT_EQ(MetricValue(before, "quantgate_ready{component=\"engine\"}"), 1);
  EXPECT_GT(MetricValue(before, "quantgate_data_dir_free_bytes"), 1e6);
  EXPECT_GT(MetricValue(before, "process_resident_memory_bytes"), 1e6);
  EXPECT_GT(MetricValue(before, "process_start_time_seconds"), 1.6e9);

  v1::ExecuteRequest request;
  *request.mutable_spec() = LinearSpec(32, 48, 64);
  *request.mutable_spec()->add_variants() = MakeVariant("fp8_current", "dequantized", "sm90");
  {
    v1::RunFinished finished;
    ASSERT_TRUE(ExecuteToEnd(server, request, finished).ok());
  }
  {
    v1::QuantizeResponse response;
    grpc::ClientContext context;
    EXPECT_FALSE(server.engine().Quantize(&context, {}, &response).ok());
  }
  ASSERT_TRUE(WriteBlob(server.blobs(), "u", TestBytes(1000)).status.ok());

  const std::string after = server.HttpGet("/metrics");
  for (const std::string& series : {quantize, linear, handled, refused}) {
    EXPECT_EQ(MetricValue(after, series), 1) << series;
  }
  EXPECT_GE(MetricValue(after, checks), 0);
  EXPECT_EQ(MetricValue(after, uploaded), 1000);
  EXPECT_EQ(MetricValue(after, "quantgate_blob_store_bytes{state=\"committed\"}"), 1000);
  EXPECT_EQ(MetricValue(after, "quantgate_run_stage_seconds_count{stage=\"queue\"}"), 1);
  EXPECT_GT(
      MetricValue(after,
                  "quantgate_quantizer_elements_total{class=\"normal\",recipe=\"fp8_current\"}"),
      1000);
  EXPECT_EQ(
      MetricValue(
          after,
          "grpc_server_handling_seconds_count{grpc_method=\"Execute\",grpc_service=\"quantgate.v1."
          "Engine\",grpc_type=\"server_stream\"}"),
      1);
  // A series that is there stays.
  const std::vector<std::string> first = SeriesOf(before), second = SeriesOf(after);
  EXPECT_TRUE(std::includes(second.begin(), second.end(), first.begin(), first.end()));
}

TEST(HttpTest, ProbesAndOtherPages) {
  TestServer server(EnableHttp);
  EXPECT_THAT(server.HttpGet("/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(server.HttpGet("/readyz"), HasSubstr("200 OK"));
  EXPECT_THAT(server.HttpGet("/etc/passwd"), HasSubstr("404"));
}

TEST(HttpTest, AFullDiskIsNotReadyUntilThereIsRoom) {
  std::atomic<int64_t> free_bytes{kDiskReserveBytes - 1};
  TestServer server([&](ServerOptions& options) {
    EnableHttp(options);
    options.read_disk_room = [&](const std::string&) { return DiskRoom{free_bytes, 1}; };
  });
  const std::string full = server.HttpGet("/readyz");
  EXPECT_THAT(full, HasSubstr("503"));
  EXPECT_THAT(full, HasSubstr("not ready: the disk of the data directory is full"));
  EXPECT_THAT(server.HttpGet("/healthz"), HasSubstr("200 OK"));
  const std::string metrics = server.HttpGet("/metrics");
  EXPECT_EQ(MetricValue(metrics, "quantgate_ready{component=\"engine\"}"), 0);
  EXPECT_EQ(MetricValue(metrics, "quantgate_data_dir_free_bytes"),
            static_cast<double>(kDiskReserveBytes - 1));
  // What needs no room is served, also to those who ask gRPC.
  EXPECT_EQ(HealthOf(server, ""), 1);
  free_bytes = kDiskReserveBytes;
  while (server.HttpGet("/readyz").find("200 OK") == std::string::npos) std::this_thread::yield();
}

TEST(MalformedCallTest, NamesTheMessageAndCounts) {
  TestServer server(EnableHttp);
  // A field of length 127 in a message of two bytes.
  const std::string malformed = "\x0A\x7F";
  const std::pair<const char*, const char*> methods[] = {
      {"Info/ListRecipes", "ListRecipesRequest"}, {"Blobs/FindMissing", "FindMissingRequest"},
      {"Tensors/Put", "PutTensorRequest"},        {"Engine/Quantize", "QuantizeRequest"},
      {"Sessions/Step", "SessionStepRequest"},    {"Blobs/Read", "ReadRequest"},
      {"Scenarios/Run", "RunScenariosRequest"},   {"Engine/Execute", "ExecuteRequest"},
      {"Engine/WaitRun", "WaitRunRequest"},
  };
  for (const auto& [method, message] : methods) {
    std::string response;
    const grpc::Status status =
        SendBytes(server, absl::StrCat("/quantgate.v1.", method), malformed, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_EQ(status.error_message(),
              absl::StrCat("message is malformed: must be a quantgate.v1.", message));
    EXPECT_EQ(DetailOf(status).field(), "message") << method;
  }
  const std::string metrics = server.HttpGet("/metrics");
  const std::string quantize =
      R"(grpc_method="Quantize",grpc_service="quantgate.v1.Engine",grpc_type="unary"})";
  EXPECT_EQ(MetricValue(metrics, "grpc_server_started_total{" + quantize), 1);
  EXPECT_EQ(
      MetricValue(metrics, "grpc_server_handled_total{grpc_code=\"InvalidArgument\"," + quantize),
      1);
  // Well-formed calls are counted once.
  grpc::ClientContext context;
  v1::ListRecipesResponse response;
  EXPECT_TRUE(server.info().ListRecipes(&context, {}, &response).ok());
  EXPECT_EQ(MetricValue(server.HttpGet("/metrics"),
                        "grpc_server_started_total{grpc_method=\"ListRecipes\","
                        "grpc_service=\"quantgate.v1.Info\",grpc_type=\"unary\"}"),
            2);
}

TEST(UnknownMethodTest, IsNamedAndCounted) {
  TestServer server(EnableHttp);
  const std::string unknown = "quantgate_unknown_methods_total";
  EXPECT_EQ(MetricValue(server.HttpGet("/metrics"), unknown), 0);
  for (const char* method : {"/quantgate.v1.Engine/Divine", "/quantgate.v9.Engine/Quantize"}) {
    std::string response;
    const grpc::Status status = SendBytes(server, method, "", &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_THAT(status.error_message(), HasSubstr(method));
  }
  const std::string metrics = server.HttpGet("/metrics");
  EXPECT_EQ(MetricValue(metrics, unknown), 2);
  EXPECT_THAT(metrics, Not(HasSubstr("Divine")));
}

TEST(ReachTest, AListenerForOtherMachinesIsRefused) {
  TemporaryDirectory directory;
  ServerOptions options;
  options.data_dir = directory.path() + "/data";
  options.listen = {"127.0.0.1:0"};
  options.metrics_listen = "0.0.0.0:0";
  EXPECT_EQ(Server::Start(options).status().code(), absl::StatusCode::kFailedPrecondition);
  options.listen = {"127.0.0.1:0", "[::]:0"};
  options.metrics_listen = "";
  const absl::Status refused = Server::Start(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("[::]:0"));
}

TEST(ShutdownTest, RefusesNewWorkAndFinishesOld) {
  TestServer server(EnableHttp);
  v1::ExecuteRequest request;
  *request.mutable_spec() = LinearSpec(512, 512, 512);
  *request.mutable_spec()->add_variants() = MakeVariant("bf16", "none", "exact");
  grpc::ClientContext context;
  const auto reader = server.engine().Execute(&context, request);
  v1::RunEvent event;
  ASSERT_TRUE(reader->Read(&event));
  std::thread shutdown([&] { server.server().Shutdown(absl::Minutes(5)); });
  // Whatever comes while it drains is refused or, after it, not connected: both UNAVAILABLE.
  grpc::Status refused;
  do {
    grpc::ClientContext other_context;
    const auto other = server.engine().Execute(&other_context, request);
    v1::RunEvent other_event;
    if (other->Read(&other_event)) other_context.TryCancel();
    refused = other->Finish();
  } while (refused.error_code() == grpc::StatusCode::CANCELLED || refused.ok());
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  while (reader->Read(&event)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(event.finished().state(), v1::RUN_STATE_SUCCEEDED);
  shutdown.join();
}

TEST(StartTest, FailsWithOneClearLine) {
  TestServer server;
  ServerOptions options;
  options.data_dir = server.data_dir() + "/data";
  const absl::Status locked = Server::Start(options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(locked));
  EXPECT_THAT(std::string(locked.message()), HasSubstr(options.data_dir));
  const TemporaryDirectory other;
  options.data_dir = other.path();
  options.listen = {server.address()};
  const absl::Status taken = Server::Start(options).status();
  EXPECT_TRUE(absl::IsUnavailable(taken));
  EXPECT_THAT(std::string(taken.message()), HasSubstr(server.address()));
}

TEST(StartTest, RunsOfAKilledProcessHaveFailed) {
  TestServer server;
  server.Stop();
  std::string run_id;
  {
    // What a process that was killed during a run leaves behind.
    const auto database = Database::Open(server.data_dir() + "/data/quantgate.db").value();
    RunStore runs(*database);
    run_id = RunStore::NewRunId();
    v1::RunEvent accepted;
    accepted.set_run_id(run_id);
    accepted.set_sequence(1);
    accepted.mutable_accepted();
    ASSERT_TRUE(
        runs.Create(run_id, "", {}, "linear x 1 variant", accepted.SerializeAsString()).ok());
  }
  server.Restart();
  v1::WaitRunRequest request;
  request.set_run_id(run_id);
  request.set_from_sequence(2);
  grpc::ClientContext context;
  const auto reader = server.engine().WaitRun(&context, request);
  v1::RunEvent event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.finished().state(), v1::RUN_STATE_FAILED);
  EXPECT_THAT(event.finished().status_message(), HasSubstr("restarted"));
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
