#include "kernels/gemm/exact.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/gemm/exact_vectors.h"

namespace quantgate {
namespace {

class ExactIsaTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > BestIsa()) GTEST_SKIP() << "this processor lacks " << IsaName(GetParam());
    context_.isa = GetParam();
  }
  ExecutionContext context_;
};

INSTANTIATE_TEST_SUITE_P(Isas, ExactIsaTest,
                         testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& info) { return std::string(IsaName(info.param)); });

TEST_P(ExactIsaTest, EqualsRationalArithmetic) {
  const std::vector<ExactVector> vectors = ReadExactVectors();
  ASSERT_GT(vectors.size(), 1500u);
  for (const ExactVector& vector : vectors) {
    const absl::StatusOr<GemmResult> result = ExactGemm(vector.desc, context_);
    ASSERT_TRUE(result.ok()) << result.status() << "\n" << vector.text;
    EXPECT_EQ(CodeAt(result->d, 0), vector.d) << vector.text << "\n" << result->note;
    ASSERT_EQ(result->amax.has_value(), IsFp8(vector.desc.out_dtype));
    if (result->amax.has_value()) {
      EXPECT_EQ(CodeAt(result->amax, 0), vector.amax) << vector.text;
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace quantgate
