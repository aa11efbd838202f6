// What a machine is told that asks for a GPU and has none. Machines that have one run the tests
// with the label cuda.
#include "kernels/engine/cuda_module.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace quantgate {
namespace QG_TEST_FILE {

bool HasDriver() {
  std::error_code error;
  return std::filesystem::exists("/proc/driver/nvidia/version", error) ||
         std::filesystem::exists("/dev/nvidiactl", error);
}

absl::StatusCode ExpectedCode() {
  if (!IsBuiltWithCuda()) return absl::StatusCode::kUnimplemented;
  return HasDriver() ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition;
}

TEST(CudaModuleTest, SaysWhyThereIsNoDevice) {
  const absl::StatusOr<int> count = CountCudaDevices();
  EXPECT_EQ(count.status().code(), ExpectedCode()) << count.status();
  if (count.ok()) {
    EXPECT_GE(*count, 1);
  } else {
    EXPECT_FALSE(count.status().message().empty());
  }
}

TEST(CudaModuleTest, RefusesADeviceThatIsNotThere) {
  const absl::StatusOr<std::unique_ptr<Engine>> engine = MakeCudaEngine(1 << 20);
  const absl::StatusCode expected =
      IsBuiltWithCuda() ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kUnimplemented;
  EXPECT_EQ(engine.status().code(), expected) << engine.status();
}

TEST(CudaModuleTest, TheCpuEngineRefusesCublasLtByName) {
  const auto engine = MakeCpuEngine({});
  const absl::Status status =
      engine->CheckArithmetic(Arithmetic::Parse("cublaslt:split,splitk=any").value());
  const absl::StatusCode expected =
      IsBuiltWithCuda() ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kUnimplemented;
  EXPECT_EQ(status.code(), expected);
  EXPECT_NE(status.message().find("cublaslt:split,splitk=any"), std::string::npos) << status;
  EXPECT_TRUE(engine->CheckArithmetic(Arithmetic::Parse("sm90").value()).ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
