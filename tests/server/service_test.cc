// Info, Tensors, the unary Engine calls, health, metrics and shutting down, over a real channel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <regex>
#include <thread>

#include "server/store/run_store.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

void EnableHttp(ServerOptions& options) { options.metrics_listen = "127.0.0.1:0"; }

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

TEST(HttpTest, MetricsExistFromTheStartAndCount) {
  TestServer server(EnableHttp);
  const std::string before = server.HttpGet("/metrics");
  EXPECT_THAT(before, HasSubstr("HTTP/1.1 200"));
  const std::string quantize =
      R"(quantgate_run_total{mode="none",op="quantize",outcome="ok",recipe="none"})";
  const std::string linear =
      R"(quantgate_run_total{mode="dequantized",op="linear",outcome="ok",recipe="fp8_current"})";
  const std::string handled = R"(grpc_server_handled_total{grpc_code="OK",grpc_method="Execute",)"
                              R"(grpc_service="quantgate.v1.Engine",grpc_type="server_stream"})";
  const std::string refused =
      R"(grpc_server_handled_total{grpc_code="InvalidArgument",grpc_method="Quantize",)"
      R"(grpc_service="quantgate.v1.Engine",grpc_type="unary"})";
  const std::string uploaded = R"(quantgate_upload_bytes_total{transport="tcp"})";
  const std::string checks =
      R"(quantgate_parity_checks_total{mode="dequantized",recipe_a="fp8_current",recipe_b="exact",result="differs"})";
  for (const std::string& series : {quantize, linear, handled, refused, uploaded, checks}) {
    EXPECT_EQ(MetricValue(before, series), 0) << series;
  }
  EXPECT_EQ(MetricValue(before, "quantgate_queue_capacity{queue=\"runs\"}"), 64);
  EXPECT_EQ(MetricValue(before, "quantgate_ready{component=\"engine\"}"), 1);
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
  EXPECT_EQ(MetricValue(after, linear), 1);
  EXPECT_EQ(MetricValue(after, handled), 1);
  EXPECT_EQ(MetricValue(after, refused), 1);
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
  // No series appears while running.
  const auto names = [](const std::string& text) {
    std::vector<std::string> series;
    const std::regex line(R"(\n([a-z_]+(\{[^}]*\})?) )");
    for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it)
      series.push_back((*it)[1]);
    std::sort(series.begin(), series.end());
    return series;
  };
  EXPECT_EQ(names(before), names(after));
}

TEST(HttpTest, ProbesAndOtherPages) {
  TestServer server(EnableHttp);
  EXPECT_THAT(server.HttpGet("/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(server.HttpGet("/readyz"), HasSubstr("200 OK"));
  EXPECT_THAT(server.HttpGet("/etc/passwd"), HasSubstr("404"));
}

TEST(HttpTest, ConnectionsThatAskNothingHoldUpNoProbe) {
  TestServer server(EnableHttp);
  std::vector<int> silent(8);
  for (int& socket : silent) socket = server.ConnectHttp();
  EXPECT_THAT(server.HttpGet("/healthz"), HasSubstr("200 OK"));
  for (const int socket : silent) ::close(socket);
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

}  // namespace
}  // namespace quantgate
