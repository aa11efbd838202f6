// What a server does when its device fails: lost for good, or out of memory for one job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/pretend_hardware.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

constexpr char kAllocation[] = "cannot allocate 123456789 bytes on cuda:0: 5 of 6 are in use";

/// Fails as a test says; the CPU computes until then.
class FailingDevice : public PretendHardware {
 public:
  absl::Status Health() const override {
    return is_lost ? absl::DataLossError("an illegal memory access") : absl::OkStatus();
  }
  absl::StatusOr<StartedGemm> StartGemm(const GemmDesc& desc,
                                        const Cancellation* cancellation) override {
    if (loses_at_gemm) is_lost = true;
    if (is_full) return absl::ResourceExhaustedError(kAllocation);
    return PretendHardware::StartGemm(desc, cancellation);
  }

  std::atomic<bool> loses_at_gemm{false}, is_lost{false}, is_full{false};
};

struct FailingServer {
  FailingDevice* device = nullptr;
  std::atomic<int> losses{0};
  std::string why;
  TestServer server{[this](ServerOptions& options) {
    options.metrics_listen = "127.0.0.1:0";
    options.on_device_lost = [this](const absl::Status& status) {
      why = std::string(status.message());
      ++losses;
    };
    options.make_engines = [this]() -> absl::StatusOr<std::vector<std::unique_ptr<Engine>>> {
      auto made = std::make_unique<FailingDevice>();
      device = made.get();
      std::vector<std::unique_ptr<Engine>> engines;
      engines.push_back(std::move(made));
      return engines;
    };
  }};

  grpc::Status Execute(v1::RunFinished& finished) {
    v1::ExecuteRequest request;
    *request.mutable_spec() = LinearSpec(32, 48, 64);
    *request.mutable_spec()->add_variants() = MakeVariant("fp8_current", "none", "cublaslt");
    return ExecuteToEnd(server, request, finished);
  }

  grpc::Status Gemm() {
    v1::GemmRequest request;
    *request.mutable_a()->mutable_tensor() = Generated("normal", 1, "bf16", {16, 32});
    *request.mutable_b()->mutable_tensor() = Generated("normal", 2, "bf16", {24, 32});
    request.set_arithmetic("cublaslt");
    request.set_out_dtype("bf16");
    v1::GemmResponse response;
    grpc::ClientContext context;
    return server.engine().Gemm(&context, request, &response);
  }

  double CudaErrors(const std::string& kind) {
    return MetricValue(server.HttpGet("/metrics"),
                       R"(quantgate_cuda_errors_total{device="cuda:0",kind=")" + kind + "\"}");
  }
};

TEST(FailingDeviceTest, ALostDeviceEndsTheRunAndTheService) {
  FailingServer failing;
  EXPECT_EQ(HealthOf(failing.server, ""), 1);
  EXPECT_THAT(failing.server.HttpGet("/readyz"), HasSubstr("200 OK"));
  EXPECT_EQ(failing.CudaErrors("sticky"), 0);
  failing.device->loses_at_gemm = true;

  v1::RunFinished finished;
  ASSERT_TRUE(failing.Execute(finished).ok());
  EXPECT_EQ(finished.state(), v1::RUN_STATE_FAILED);
  EXPECT_EQ(finished.status_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(finished.status_message(), HasSubstr("cuda:0 was lost: an illegal memory access"));
  EXPECT_FALSE(finished.has_report());

  for (const char* service : {"", "quantgate.v1.Engine", "quantgate.v1.Info"}) {
    EXPECT_EQ(HealthOf(failing.server, service), 2) << service;
  }
  EXPECT_THAT(failing.server.HttpGet("/readyz"), HasSubstr("503"));
  EXPECT_EQ(failing.Gemm().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(failing.Execute(finished).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(failing.losses, 1);
  EXPECT_THAT(failing.why, HasSubstr("an illegal memory access"));
  EXPECT_EQ(failing.CudaErrors("sticky"), 1);
  EXPECT_EQ(failing.CudaErrors("oom"), 0);
}

TEST(FailingDeviceTest, ALostDeviceAnswersNoCallEither) {
  FailingServer failing;
  failing.device->loses_at_gemm = true;
  // The GEMM itself succeeds; nobody can vouch for it.
  const grpc::Status status = failing.Gemm();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(status.error_message(), HasSubstr("cuda:0 was lost"));
  EXPECT_EQ(failing.Gemm().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(failing.losses, 1);
}

TEST(FailingDeviceTest, TooLittleMemoryEndsTheJobAlone) {
  FailingServer failing;
  failing.device->is_full = true;
  v1::RunFinished finished;
  ASSERT_TRUE(failing.Execute(finished).ok());
  EXPECT_EQ(finished.state(), v1::RUN_STATE_FAILED);
  EXPECT_EQ(finished.status_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(finished.status_message(), kAllocation);
  EXPECT_EQ(failing.CudaErrors("oom"), 1);
  const grpc::Status call = failing.Gemm();
  EXPECT_EQ(call.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(call.error_message(), kAllocation);
  EXPECT_EQ(failing.CudaErrors("oom"), 2);
  EXPECT_EQ(failing.CudaErrors("sticky"), 0);

  failing.device->is_full = false;
  EXPECT_EQ(HealthOf(failing.server, ""), 1);
  EXPECT_THAT(failing.server.HttpGet("/readyz"), HasSubstr("200 OK"));
  EXPECT_TRUE(failing.Gemm().ok());
  ASSERT_TRUE(failing.Execute(finished).ok());
  EXPECT_EQ(finished.state(), v1::RUN_STATE_SUCCEEDED);
  EXPECT_EQ(failing.losses, 0);
  EXPECT_EQ(failing.CudaErrors("oom"), 2);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
