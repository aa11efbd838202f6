// A layer on hardware: its records say what ran where the request left that open, so that the
// bounds are of what ran.
#include <gtest/gtest.h>

#include <string>

#include "kernels/layer/layer.h"
#include "tests/engine/pretend_hardware.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// Every k is three whole slices.
LayerRequest Request() {
  LayerRequest request;
  request.x = Generated(Distribution::kNormal, 1, DType::kBF16, {384, 384});
  request.parameters["weight"] = Generated(Distribution::kNormal, 2, DType::kBF16, {384, 384});
  request.grad_output = Generated(Distribution::kNormal, 4, DType::kBF16, {384, 384});
  return request;
}

LayerResult RunStep(Engine& engine, const std::string& recipe, const std::string& arithmetic) {
  const LayerRequest request = Request();
  auto result =
      RunLayer(engine, request, *Recipe::Parse(recipe), *Arithmetic::Parse(arithmetic), nullptr);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : LayerResult();
}

/// The bound of a record, on its exact result.
absl::StatusOr<BoundCheck> BoundOf(Engine& engine, const GemmRecord& record) {
  GemmDesc exact = record.desc;
  exact.arithmetic = Arithmetic{ArithmeticFamily::kExact};
  exact.out_dtype = DType::kF32;
  QG_ASSIGN_OR_RETURN(const GemmResult truth, engine.Gemm(exact, nullptr));
  return engine.CheckBound(record.desc, record.result.d, truth.d, nullptr);
}

TEST(LinearHardwareTest, SlicesThatWereChosenAreRecorded) {
  PretendHardware engine;
  const LayerResult result = RunStep(engine, "fp8_current", "cublaslt:splitk=any");
  ASSERT_EQ(result.gemms.size(), 3u);
  for (const GemmRecord& record : result.gemms) {
    EXPECT_EQ(record.desc.arithmetic.family, ArithmeticFamily::kCublasLt);
    EXPECT_EQ(record.desc.arithmetic.split_k, 3);
    EXPECT_FALSE(record.desc.arithmetic.any_split_k);
    EXPECT_EQ(record.desc.arithmetic, record.result.arithmetic);
    const auto check = BoundOf(engine, record);
    ASSERT_TRUE(check.ok()) << check.status();
    EXPECT_TRUE(check->pass);
    EXPECT_NE(check->bound.derivation.find("2 slices"), std::string::npos)
        << check->bound.derivation;
  }
}

TEST(LinearHardwareTest, WhatAutoChoseIsRecorded) {
  PretendHardware engine;
  // cuBLASLt on Hopper has no MXFP8: fprop is modelled, and the high-precision GEMMs are not.
  const LayerResult result = RunStep(engine, "mxfp8:backward_override=high_precision", "auto");
  ASSERT_EQ(result.gemms.size(), 3u);
  EXPECT_EQ(result.gemms[0].desc.arithmetic.ToString(), "auto");
  EXPECT_EQ(result.gemms[0].result.arithmetic.ToString(), "sm100");
  for (const size_t i : {1, 2}) {
    EXPECT_EQ(result.gemms[i].desc.arithmetic.ToString(), "cublaslt");
    EXPECT_EQ(result.gemms[i].result.arithmetic.ToString(), "cublaslt");
  }
  for (const GemmRecord& record : result.gemms) {
    const auto check = BoundOf(engine, record);
    ASSERT_TRUE(check.ok()) << check.status();
    EXPECT_TRUE(check->pass);
  }
}

TEST(LinearHardwareTest, WhatWasNamedStaysAsItIs) {
  PretendHardware engine;
  for (const char* arithmetic : {"cublaslt:algorithm=1", "cublaslt:split", "sm90", "exact"}) {
    const LayerResult result = RunStep(engine, "fp8_current", arithmetic);
    for (const GemmRecord& record : result.gemms) {
      EXPECT_EQ(record.desc.arithmetic.ToString(), arithmetic);
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
