// The self-check on a device: silent there, since it is the machine that the models were measured
// on, and not silent where a bit is wrong. Prints the report.
#include "kernels/gemm/cublaslt/hardware_check_cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <string>

#include "kernels/base/status_macros.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_cuda.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

/// A model that shares nothing with a GPU: GemmCpu on copies in host memory.
std::function<absl::StatusOr<GemmResult>(const GemmDesc&)> CpuModel(
    CudaDevice& device, const ExecutionContext& context) {
  return [&device, &context](const GemmDesc& desc) -> absl::StatusOr<GemmResult> {
    QG_ASSIGN_OR_RETURN(const GemmDesc on_host, WithTensors(desc, [&](const Tensor& tensor) {
                          return device.ToHost(tensor);
                        }));
    return GemmCpu(on_host, context);
  };
}

class HardwareCheckCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<CudaDevice>> device = CudaDevice::Open(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    absl::StatusOr<std::unique_ptr<CublasLt>> cublaslt = CublasLt::Create(*device_);
    ASSERT_TRUE(cublaslt.ok()) << cublaslt.status();
    cublaslt_ = *std::move(cublaslt);
  }

  void ExpectNoDrift(HardwareCheckSize size, HardwareCheckSides sides) {
    const auto begin = std::chrono::steady_clock::now();
    const absl::StatusOr<HardwareCheck> check = CheckHardware(sides, HardwareCases(size), nullptr);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    ASSERT_TRUE(check.ok()) << check.status();
    std::cout << device_->facts().name << ", cuBLASLt " << cublaslt_->version() << ": "
              << seconds.count() << " s\n";
    for (const std::string& line : HardwareCheckLines(*check)) std::cout << line << "\n";
    EXPECT_FALSE(check->has_drift());
    EXPECT_GT(check->runs(), check->cases);
  }

  const ExecutionContext context_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<CublasLt> cublaslt_;
};

TEST_F(HardwareCheckCudaTest, QuickFindsNoDriftAgainstTheCpu) {
  ExpectNoDrift(HardwareCheckSize::kQuick,
                CudaSides(*device_, *cublaslt_, CpuModel(*device_, context_), nullptr));
}

TEST_F(HardwareCheckCudaTest, FullFindsNoDriftAgainstTheCpu) {
  ExpectNoDrift(HardwareCheckSize::kFull,
                CudaSides(*device_, *cublaslt_, CpuModel(*device_, context_), nullptr));
}

TEST_F(HardwareCheckCudaTest, NeitherFindsAnyAgainstTheModelOnTheDevice) {
  const auto model = [&](const GemmDesc& desc) { return GemmCuda(*device_, desc, nullptr); };
  for (const HardwareCheckSize size : {HardwareCheckSize::kQuick, HardwareCheckSize::kFull}) {
    ExpectNoDrift(size, CudaSides(*device_, *cublaslt_, model, nullptr));
  }
}

TEST_F(HardwareCheckCudaTest, OneFlippedBitOfTheModelIsFound) {
  const auto cpu = CpuModel(*device_, context_);
  const HardwareCheckSides sides = CudaSides(
      *device_, *cublaslt_,
      [&](const GemmDesc& desc) {
        absl::StatusOr<GemmResult> result = cpu(desc);
        if (result.ok())
          result->d.data()[(5 * 192 + 7) * DTypeBytes(desc.out_dtype)] ^= std::byte{2};
        return result;
      },
      nullptr);
  HardwareCase one = HardwareCases(HardwareCheckSize::kQuick).front();
  one.shape.n = 192;
  const absl::StatusOr<HardwareCheck> check = CheckHardware(sides, {one}, nullptr);
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_TRUE(check->has_drift());
  for (const HardwareClass& found : check->classes) {
    if (found.standing != ClassStanding::kModelled) continue;
    EXPECT_EQ(found.equal, 0);
    ASSERT_TRUE(found.first.has_value());
    EXPECT_EQ(found.first->row, 5);
    EXPECT_EQ(found.first->column, 7);
    EXPECT_EQ(found.first->hardware_bits ^ found.first->model_bits, 2u);
    EXPECT_EQ(found.first->count, 1);
  }
  EXPECT_THAT(HardwareCheckLines(*check)[0], HasSubstr("DRIFT"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
