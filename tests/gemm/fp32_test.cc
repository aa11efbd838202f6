// The fp32 arithmetic: sequential FMA over k, the same on every code path.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/numerics/cast.h"
#include "tests/gemm/operand_codes.h"

namespace quantgate {
namespace QG_TEST_FILE {

float Element(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype()) {
    case DType::kBF16:
      return DecodeFloat<BFloat16>(tensor.as<uint16_t>()[i]);
    case DType::kF16:
      return DecodeFloat<Float16>(tensor.as<uint16_t>()[i]);
    case DType::kF8E4M3:
      return DecodeFloat<E4M3>(tensor.as<uint8_t>()[i]);
    case DType::kF8E5M2:
      return DecodeFloat<E5M2>(tensor.as<uint8_t>()[i]);
    default:
      return tensor.as<float>()[i];
  }
}

void ExpectSequentialFma(DType a, DType b, GemmShape shape, GemmLayout layout,
                         CodePattern pattern) {
  const bool a_by_k = layout == GemmLayout::kNT, b_by_k = layout != GemmLayout::kTN;
  GemmDesc desc;
  desc.layout = layout;
  desc.arithmetic = Arithmetic::Parse("fp32").value();
  desc.a.data = a_by_k ? MakeCodes(a, shape.k, shape.m, pattern, 1)
                       : MakeCodes(a, shape.m, shape.k, pattern, 1);
  desc.b.data = b_by_k ? MakeCodes(b, shape.k, shape.n, pattern, 2)
                       : MakeCodes(b, shape.n, shape.k, pattern, 2);
  std::vector<uint32_t> expected;
  for (int64_t m = 0; m < shape.m; ++m) {
    for (int64_t n = 0; n < shape.n; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < shape.k; ++k) {
        sum = std::fma(Element(desc.a.data, a_by_k ? k * shape.m + m : m * shape.k + k),
                       Element(desc.b.data, b_by_k ? k * shape.n + n : n * shape.k + k), sum);
      }
      // The epilogue adds +0, so that a sum which underflowed to -0 leaves as +0.
      expected.push_back(std::bit_cast<uint32_t>(CanonicalFloat(sum + 0.0f)));
    }
  }
  for (const Isa isa : RunnableIsas()) {
    for (const int threads : {1, 2, 5}) {
      ExecutionContext context;
      context.isa = isa;
      context.threads = threads;
      const auto result = GemmCpu(desc, context);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->arithmetic.ToString(), "fp32");
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(result->d.as<uint32_t>()[i], expected[i])
            << GemmText(desc) << " " << IsaName(isa) << " threads=" << threads << " at "
            << i / shape.n << "," << i % shape.n;
      }
    }
  }
}

TEST(Fp32GemmTest, IsSequentialFmaOverK) {
  for (const CodePattern pattern : {CodePattern::kNear, CodePattern::kFinite, CodePattern::kAll,
                                    CodePattern::kSmall, CodePattern::kLaced}) {
    for (const auto& [a, b] :
         std::vector<std::pair<DType, DType>>{{DType::kF32, DType::kF32},
                                              {DType::kBF16, DType::kBF16},
                                              {DType::kF16, DType::kF16},
                                              {DType::kF8E4M3, DType::kF8E5M2}}) {
      ExpectSequentialFma(a, b, {67, 71, 259}, GemmLayout::kTN, pattern);
    }
  }
}

TEST(Fp32GemmTest, LayoutsAndOddShapes) {
  for (const GemmLayout layout : {GemmLayout::kTN, GemmLayout::kNN, GemmLayout::kNT}) {
    ExpectSequentialFma(DType::kF32, DType::kF32, {5, 66, 130}, layout, CodePattern::kNear);
    ExpectSequentialFma(DType::kBF16, DType::kBF16, {1, 1, 1}, layout, CodePattern::kNear);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
