// Every input of the packed steps, on the device, against the scalar functions of kernels/numerics;
// and which jobs the tuned kernels, which use them, take.
#include "tests/quantize/cuda/packed_casts_cuda.h"

#include <gtest/gtest.h>

#include "kernels/base/cuda_status.h"
#include "kernels/quantize/cuda/quantize_tiles_cuda.h"
#include "tests/tensor/cuda_test_device.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Launch = cudaError_t (*)(unsigned long long* differences, cudaStream_t stream);

int64_t DifferencesOf(Launch launch) {
  CudaDevice& device = TestDevice();
  Tensor differences = ValueOrAbort(device.AllocateZeroed(DType::kI64, {1}));
  const absl::Status status =
      QG_CUDA_STATUS(launch(differences.as<unsigned long long>(), device.stream()));
  EXPECT_TRUE(status.ok()) << status;
  return *OnHost(differences).as<int64_t>();
}

TEST(PackedCasts, EveryBinary32ToFp8AndEveryScale) {
  EXPECT_EQ(DifferencesOf(&LaunchCompareE4M3), 0);
  EXPECT_EQ(DifferencesOf(&LaunchCompareE5M2), 0);
}

TEST(PackedCasts, EveryBinary32ToSixteenBits) {
  EXPECT_EQ(DifferencesOf(&LaunchCompareSixteenBits), 0);
}

TEST(PackedMaxima, EveryPair) { EXPECT_EQ(DifferencesOf(&LaunchCompareMaxima), 0); }

/// mxfp8's.
void MakeMicro(TileQuantization& job, ScaleRule rule) {
  job.scales = ScaleKind::kE8m0;
  job.block_length = 32;
  job.turns_columnwise = false;
  job.scale_options.rule = rule;
}

TEST(TunedTiles, TakeTheUsualRulesOfBf16) {
  alignas(16) uint8_t memory[16];
  TileQuantization usual;
  usual.source = usual.row_codes = usual.column_codes = memory;
  usual.rows = usual.columns = 256;
  usual.turns_columnwise = true;
  EXPECT_TRUE(TunedTilesTake(usual));
  const auto takes = [&](void (*change)(TileQuantization & job)) {
    TileQuantization job = usual;
    change(job);
    return TunedTilesTake(job);
  };
  EXPECT_TRUE(takes([](TileQuantization& job) { job.scales = ScaleKind::kF32; }));
  EXPECT_TRUE(takes([](TileQuantization& job) { MakeMicro(job, ScaleRule::kRoundUp); }));
  EXPECT_TRUE(takes([](TileQuantization& job) { job.rows = 16; }));
  EXPECT_FALSE(takes([](TileQuantization& job) { job.rows = 17; }));
  EXPECT_FALSE(takes([](TileQuantization& job) { job.columns = 129; }));
  EXPECT_FALSE(takes([](TileQuantization& job) { job.source_format = kFormatId<Float32>; }));
  EXPECT_FALSE(takes([](TileQuantization& job) { job.element = kFormatId<E2M3>; }));
  EXPECT_FALSE(takes([](TileQuantization& job) { job.overflow = Overflow::kNan; }));
  EXPECT_FALSE(takes([](TileQuantization& job) { job.rounding = ElementRounding::kNearestAway; }));
  EXPECT_FALSE(takes([](TileQuantization& job) { MakeMicro(job, ScaleRule::kFloor); }));
  EXPECT_FALSE(takes([](TileQuantization& job) {
    MakeMicro(job, ScaleRule::kRoundUp);
    job.turns_columnwise = true;
  }));
  EXPECT_FALSE(takes(
      [](TileQuantization& job) { job.source = static_cast<const uint8_t*>(job.source) + 2; }));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
