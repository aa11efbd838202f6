// Compares one GEMM on both engines, byte for byte.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/gemm/models/accumulate_cuda.h"
#include "tests/tensor/cuda_test_device.h"

namespace quantgate {

inline GemmDesc OnDevice(const GemmDesc& desc) {
  return ValueOrAbort(WithTensors(
      desc, [](const Tensor& tensor) -> absl::StatusOr<Tensor> { return OnDevice(tensor); }));
}

inline void ExpectSame(const GemmResult& expected, const absl::StatusOr<GemmResult>& actual,
                       const std::string& what) {
  ASSERT_TRUE(actual.ok()) << what << ": " << actual.status();
  EXPECT_EQ(actual->arithmetic, expected.arithmetic) << what;
  EXPECT_TRUE(SameTensor(expected.d, actual->d)) << what;
  ASSERT_EQ(actual->f32.has_value(), expected.f32.has_value()) << what;
  if (expected.f32.has_value()) {
    EXPECT_TRUE(SameTensor(expected.f32, actual->f32)) << what;
  }
  ASSERT_EQ(actual->amax.has_value(), expected.amax.has_value()) << what;
  if (!expected.amax.has_value()) return;
  EXPECT_TRUE(SameTensor(expected.amax, actual->amax)) << what;
}

/// Expects the bytes of GemmCpu from the tuned kernels and, where there is one, from the scalar
/// path.
inline void ExpectTheCpusBytes(const GemmDesc& desc, const std::string& what) {
  const std::string text = GemmText(desc) + " " + what;
  const absl::StatusOr<GemmResult> expected = GemmCpu(desc, {});
  ASSERT_TRUE(expected.ok()) << text << ": " << expected.status();
  const GemmDesc on_device = OnDevice(desc);
  ExpectSame(*expected, GemmCuda(TestDevice(), on_device, nullptr), text + " tuned");
  if (ResolvedFor(desc).family == ArithmeticFamily::kFp32) return;
  ExpectSame(*expected, GemmCudaBy(CudaPath::kScalar, TestDevice(), on_device, nullptr),
             text + " scalar");
}

}  // namespace quantgate
